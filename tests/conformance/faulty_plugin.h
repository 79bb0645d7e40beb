// What the files of the faulty backend share: which fault is planted, and its layers around the optional interfaces of
// the backend inside.
#pragma once

#include "core/abi/device.h"

bool Fault(const char* name);

// The interface inside with the fault around it; NULL where there is none. One backend in a process.
const sy_semaphore_v1* FaultySemaphores(const sy_semaphore_v1* base);
const sy_peer_v1* FaultyPeers(const sy_peer_v1* base, const sy_device_v2* device);
// Before a copy from or to memory that may be imported, and before a buffer is freed.
void BeforeUse(const sy_place& place);
void BeforeFree(sy_device* device, sy_buffer* buffer);
