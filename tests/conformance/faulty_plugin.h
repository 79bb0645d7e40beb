// What the files of the faulty backend share: which fault is planted, and its layers around the optional interfaces of
// the backend inside.
#pragma once

#include "core/abi/device.h"

bool Fault(const char* name);

// The interface inside with the fault around it; NULL where there is none. One backend in a process.
const sy_semaphore_v1* FaultySemaphores(const sy_semaphore_v1* base);
