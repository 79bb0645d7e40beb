// A plugin inside the test program: handles without anything behind them, work that is done when it is queued. A test
// replaces a function of it by one that breaks a promise, and wraps it.
#pragma once

#include <cstdio>
#include <cstring>
#include <map>

#include "core/abi/boundary.h"
#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/interpose.h"
#include "core/abi/kernel.h"

namespace switchyard {

template <typename Handle>
sy_status NewHandle(Handle** handle) {
  static uintptr_t last = 0x1000;
  *handle = reinterpret_cast<Handle*>(last += 0x10);
  return SY_OK;
}

struct FakePlugin {
  static constexpr uint32_t kAlignment = 64, kGranularity = 4, kConstantBytes = 64;

  FakePlugin() {
    device.header = SY_HEADER(sy_device_v2);
    device.count = [](sy_instance*, int32_t* count, sy_error*) { return *count = 1, sy_status{SY_OK}; };
    device.open = [](sy_instance*, int32_t, const sy_open_options*, sy_device** made, sy_error*) {
      return NewHandle(made);
    };
    device.close = [](sy_device*) {};
    device.query = [](sy_instance*, int32_t, sy_device_info* info, sy_error*) {
      sy_device_info own{};
      std::strcpy(own.name, "fake");
      own.alignment = kAlignment;
      own.copy_granularity = kGranularity;
      own.address_kind = SY_ADDRESS_OPAQUE;
      own.flags = SY_DEVICE_ASYNC;
      FillStruct(info, own);
      return sy_status{SY_OK};
    };
    device.alloc = [](sy_device*, uint64_t, const sy_alloc_options*, sy_buffer** made, sy_error*) {
      return NewHandle(made);
    };
    device.free = [](sy_device*, sy_buffer*) {};
    device.copy = [](sy_device*, sy_stream*, sy_place, sy_place, uint64_t, const sy_copy_options*, sy_error*) {
      return sy_status{SY_OK};
    };
    device.synchronize = [](sy_device*, sy_stream*, const sy_synchronize_options*, sy_error*) {
      return sy_status{SY_OK};
    };
    device.stream_create = [](sy_device*, const sy_stream_options*, sy_stream** made, sy_error*) {
      return NewHandle(made);
    };
    device.stream_destroy = [](sy_device*, sy_stream*) {};
    device.event_create = [](sy_device*, const sy_event_options*, sy_event** made, sy_error*) {
      return NewHandle(made);
    };
    device.event_destroy = [](sy_device*, sy_event*) {};
    device.event_record = [](sy_device*, sy_event*, sy_stream*, sy_error*) { return sy_status{SY_OK}; };
    device.event_query = [](sy_device*, sy_event*, sy_error*) { return sy_status{SY_OK}; };
    device.event_synchronize = [](sy_device*, sy_event*, sy_error*) { return sy_status{SY_OK}; };
    device.stream_wait = [](sy_device*, sy_stream*, sy_event*, sy_error*) { return sy_status{SY_OK}; };
    device.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, const sy_fill_options*, sy_error*) {
      return sy_status{SY_OK};
    };

    // The op "tabled" has constants.
    kernel.header = SY_HEADER(sy_kernel_v2);
    kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                        sy_error*) {
      if (std::strcmp(request->op, "tabled") == 0) info->constant_bytes = kConstantBytes;
      info->determinism = SY_DETERMINISM_EXACT;
      return NewHandle(made);
    };
    kernel.bind = [](sy_device*, sy_kernel*, const sy_binding*, sy_bound** made, sy_launch* launch, sy_error*) {
      *launch = [](sy_bound*, sy_stream*, sy_error*) { return sy_status{SY_OK}; };
      return NewHandle(made);
    };
    kernel.unbind = [](sy_device*, sy_bound*) {};
    kernel.release = [](sy_device*, sy_kernel*) {};
    kernel.write_constants = [](sy_device*, sy_kernel*, sy_stream*, sy_place, sy_error*) { return sy_status{SY_OK}; };

    memory.header = SY_HEADER(sy_memory_ext_v2);
    memory.host_alloc = [](sy_device*, uint64_t bytes, void** address, sy_error*) {
      return *address = new char[bytes], sy_status{SY_OK};
    };
    memory.host_free = [](sy_device*, void* address) { delete[] static_cast<char*>(address); };
    memory.native_stream = [](sy_device*, sy_stream* stream, void** handle, sy_error*) {
      return *handle = stream, sy_status{SY_OK};
    };

    capture.header = SY_HEADER(sy_capture_v2);
    capture.begin = [](sy_device*, sy_stream*, const sy_capture_options*, sy_error*) { return sy_status{SY_OK}; };
    capture.end = [](sy_device*, sy_stream*, sy_graph** made, sy_error*) { return NewHandle(made); };
    capture.launch = [](sy_device*, sy_graph*, sy_stream*, sy_error*) { return sy_status{SY_OK}; };
    capture.release = [](sy_device*, sy_graph*) {};

    profiler.header = SY_HEADER(sy_profiler_v2);
    profiler.start = [](sy_device*, sy_error*) { return sy_status{SY_OK}; };
    profiler.drain = [](sy_device*, sy_span*, uint32_t, uint32_t* count, uint64_t*, sy_error*) {
      return *count = 0, sy_status{SY_OK};
    };
    profiler.stop = profiler.start;

    semaphore.header = SY_HEADER(sy_semaphore_v1);
    semaphore.create = [](sy_device*, const sy_semaphore_options*, sy_semaphore** made, sy_error*) {
      return NewHandle(made);
    };
    semaphore.destroy = [](sy_device*, sy_semaphore* which) { Counts().erase(which); };
    semaphore.signal = [](sy_device*, sy_semaphore* which, uint64_t value, sy_error*) {
      Counts()[which] = value;
      return sy_status{SY_OK};
    };
    semaphore.query = [](sy_device*, sy_semaphore* which, uint64_t* value, sy_error*) {
      *value = Counts()[which];
      return sy_status{SY_OK};
    };
    semaphore.wait = [](sy_device*, sy_semaphore* which, uint64_t value, uint64_t, sy_error* error) {
      if (Counts()[which] >= value) return sy_status{SY_OK};
      return SY_FAIL(error, SY_TIMEOUT, "fake: nobody signals it");
    };
    semaphore.stream_signal = [](sy_device*, sy_stream*, sy_semaphore* which, uint64_t value, sy_error*) {
      Counts()[which] = value;
      return sy_status{SY_OK};
    };
    semaphore.stream_wait = [](sy_device*, sy_stream*, sy_semaphore*, uint64_t, sy_error*) { return sy_status{SY_OK}; };

    peer.header = SY_HEADER(sy_peer_v1);
    peer.export_memory = [](sy_device*, sy_buffer*, void* description, uint32_t, uint32_t* bytes, sy_error*) {
      std::memset(description, 7, *bytes = 8);
      return sy_status{SY_OK};
    };
    peer.import_memory = [](sy_device*, const void*, uint32_t, sy_buffer** made, sy_error*) { return NewHandle(made); };

    // Communicators of one rank that are ready at once; calls end with the first poll.
    collective.header = SY_HEADER(sy_collective_v2);
    collective.query = [](sy_instance*, sy_collective_info* info, sy_error*) {
      static const char* const kKinds[] = {"host", nullptr};
      sy_collective_info own{};
      std::strcpy(own.name, "fake");
      own.completion = SY_COMPLETES_BY_POLL;
      own.memory_kinds = kKinds;
      FillStruct(info, own);
      return sy_status{SY_OK};
    };
    collective.init = [](sy_instance*, const sy_init_request*, sy_communicator** made, sy_error*) {
      return NewHandle(made);
    };
    collective.poll = [](sy_communicator*, sy_error*) { return sy_status{SY_OK}; };
    collective.send_recv_batch = [](sy_communicator*, const sy_call*, const sy_transfer*, uint32_t, sy_request** made,
                                    sy_error*) { return NewHandle(made); };
    collective.abort = [](sy_communicator*) {};
    collective.destroy = [](sy_communicator*) {};
    collective.request_poll = [](sy_communicator*, sy_request*, sy_error*) { return sy_status{SY_OK}; };
    collective.request_release = [](sy_communicator*, sy_request*) {};
    collective.all_reduce = [](sy_communicator*, const sy_call*, const void*, void*, uint64_t, sy_dtype dtype, int32_t,
                               sy_request** made, sy_error* error) {
      if (dtype >= SY_DTYPE_COUNT) return SY_FAIL(error, SY_UNSUPPORTED, "fake: the dtype %d is unknown", dtype);
      return NewHandle(made);
    };
    collective.all_gather = [](sy_communicator*, const sy_call*, const void*, void*, uint64_t, sy_dtype,
                               sy_request** made, sy_error*) { return NewHandle(made); };
    collective.reduce_scatter = [](sy_communicator*, const sy_call*, const void*, void*, uint64_t, sy_dtype, int32_t,
                                   sy_request** made, sy_error*) { return NewHandle(made); };
    collective.group_begin = [](sy_instance*, sy_error*) { return sy_status{SY_OK}; };
    collective.group_end = collective.group_begin;
    collective.buffer_alloc = [](sy_communicator*, uint64_t bytes, void** address, sy_error*) {
      return *address = new char[bytes], sy_status{SY_OK};
    };
    collective.buffer_free = [](sy_communicator*, void* address) { delete[] static_cast<char*>(address); };
    collective.reduces = [](sy_instance*, int32_t, sy_dtype, sy_error*) { return sy_status{SY_OK}; };

    table.header = SY_HEADER(sy_plugin);
    table.magic = SY_PLUGIN_MAGIC;
    table.name = "fake";
    table.version = "1";
    table.vendor = "Acme";
    table.instance = reinterpret_cast<sy_instance*>(this);
    table.get_interface = [](sy_instance* instance, const char* name) -> const void* {
      const auto* self = reinterpret_cast<const FakePlugin*>(instance);
      const std::map<std::string, const void*> interfaces = {
          {"device/2", &self->device},       {"kernel/2", &self->kernel},    {"capture/2", &self->capture},
          {"semaphore/1", &self->semaphore}, {"peer/1", &self->peer},        {"collective/2", &self->collective},
          {"profiler/2", &self->profiler},   {"memory_ext/2", &self->memory}};
      const auto found = interfaces.find(name);
      return found == interfaces.end() ? nullptr : found->second;
    };
  }
  FakePlugin(const FakePlugin&) = delete;

  static std::map<sy_semaphore*, uint64_t>& Counts() {
    static std::map<sy_semaphore*, uint64_t> counts;
    return counts;
  }

  sy_device_v2 device{};
  sy_kernel_v2 kernel{};
  sy_memory_ext_v2 memory{};
  sy_capture_v2 capture{};
  sy_profiler_v2 profiler{};
  sy_semaphore_v1 semaphore{};
  sy_peer_v1 peer{};
  sy_collective_v2 collective{};
  sy_plugin table{};
};

}  // namespace switchyard
