#include "backends/opencl/profiler.h"

#include <chrono>

#include "backends/opencl/device.h"

namespace switchyard {

const char* Profiler::Keep(const char* tag) {
  const std::lock_guard lock(mutex_);
  return tags_.insert(tag ? tag : "").first->c_str();
}

void Profiler::Add(EventHandle command, const char* tag, const sy_stream* stream) {
  const std::lock_guard lock(mutex_);
  launches_.push_back({std::move(command), tag, stream});
}

sy_status Profiler::Drain(sy_span* spans, uint32_t capacity, uint32_t* count, sy_error* error) {
  const std::lock_guard lock(mutex_);
  *count = 0;
  while (*count < capacity && !launches_.empty()) {
    const Launch& launch = launches_.front();
    const cl_event command = launch.command.get();
    cl_int status = CL_COMPLETE;
    SY_CL(error, clGetEventInfo, command, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
    if (status > CL_COMPLETE) break;
    if (status == CL_COMPLETE) {
      cl_ulong start = 0, end = 0;
      SY_CL(error, clGetEventProfilingInfo, command, CL_PROFILING_COMMAND_START, sizeof start, &start, nullptr);
      SY_CL(error, clGetEventProfilingInfo, command, CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr);
      spans[(*count)++] = {launch.tag, launch.stream, start, end};
    }
    launches_.pop_front();
  }
  return SY_OK;
}

namespace {

// The host's steady clock when a command has just ended, less what the device's clock says of that moment.
sy_status ClockOffset(sy_device* device, uint64_t* host_minus_device_ns, sy_error* error) {
  const std::lock_guard lock(device->own_mutex);
  cl_event marker = nullptr;
  SY_CL(error, clEnqueueMarkerWithWaitList, device->own->queue(), 0, nullptr, &marker);
  const EventHandle owner(marker);
  SY_CL(error, clWaitForEvents, 1, &marker);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  cl_ulong end = 0;
  SY_CL(error, clGetEventProfilingInfo, marker, CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr);
  *host_minus_device_ns =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()) - end;
  return SY_OK;
}

sy_status Start(sy_device* device, sy_error*) {
  device->profiler.Run(true);
  return SY_OK;
}

sy_status Drain(sy_device* device, sy_span* spans, uint32_t capacity, uint32_t* count, uint64_t* host_minus_device_ns,
                sy_error* error) {
  return Guarded(error, [&] {
    const sy_status status = ClockOffset(device, host_minus_device_ns, error);
    return status == SY_OK ? device->profiler.Drain(spans, capacity, count, error) : status;
  });
}

sy_status Stop(sy_device* device, sy_error*) {
  device->profiler.Run(false);
  return SY_OK;
}

}  // namespace

const sy_profiler_v2 kOpenClProfiler = {
    .header = SY_HEADER(sy_profiler_v2), .start = Start, .drain = Drain, .stop = Stop};

}  // namespace switchyard
