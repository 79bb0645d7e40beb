#include "backends/opencl/stream.h"

#include <algorithm>

namespace switchyard {
namespace {

cl_int ExecutionStatus(cl_event event, cl_int* status) {
  return clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof *status, status, nullptr);
}

}  // namespace

void Fate::Fail(sy_status status, const sy_error& error) {
  const std::lock_guard lock(mutex_);
  if (status_ != SY_OK) return;
  status_ = status;
  error_ = error;
}

sy_status Fate::Known(sy_error* error) {
  const std::lock_guard lock(mutex_);
  if (status_ != SY_OK && error) FillStruct(error, error_);
  return status_;
}

void Fate::Watch(EventHandle barrier, const std::shared_ptr<Fate>& other) {
  const std::lock_guard lock(mutex_);
  // Those that are complete are done with, and there are never many others.
  std::erase_if(barriers_, [](const EventHandle& event) {
    cl_int status = CL_QUEUED;
    return ExecutionStatus(event.get(), &status) == CL_SUCCESS && status == CL_COMPLETE;
  });
  barriers_.push_back(std::move(barrier));
  if (other == nullptr || other.get() == this) return;
  if (std::find(dependencies_.begin(), dependencies_.end(), other) == dependencies_.end())
    dependencies_.push_back(other);
}

void Fate::Forget() {
  const std::lock_guard lock(mutex_);
  barriers_.clear();
  dependencies_.clear();
}

sy_status Fate::Tell(sy_error* error, int depth) {
  if (const sy_status known = Known(error); known != SY_OK || depth == 0) return known;
  std::vector<std::shared_ptr<Fate>> dependencies;
  cl_int failed = CL_COMPLETE;
  {
    const std::lock_guard lock(mutex_);
    dependencies = dependencies_;
    for (const EventHandle& barrier : barriers_) {
      cl_int status = CL_COMPLETE;
      if (ExecutionStatus(barrier.get(), &status) == CL_SUCCESS && status < 0) failed = status;
    }
  }
  sy_error cause{SY_HEADER(sy_error)};
  for (const auto& dependency : dependencies) {
    if (const sy_status status = dependency->Tell(&cause, depth - 1); status != SY_OK) {
      Fail(status, cause);
      return Known(error);
    }
  }
  return failed < 0 ? Ended(failed, error) : SY_OK;
}

sy_status Fate::Ended(cl_int execution_status, sy_error* error) {
  sy_error cause{SY_HEADER(sy_error)};
  Refuse(&cause, SY_INTERNAL, "work queued on the stream failed on the device with " + CodeName(execution_status));
  cause.native_code = execution_status;
  Fail(execution_status == CL_DEVICE_NOT_AVAILABLE ? SY_DEVICE_LOST : SY_INTERNAL, cause);
  return Known(error);
}

sy_status Stream::Make(cl_context context, cl_device_id device, std::shared_ptr<Stream>* stream, sy_error* error) {
  auto made = std::make_shared<Stream>();
  cl_int code;
  made->queue_ = QueueHandle(clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &code));
  if (code != CL_SUCCESS) return Failed(error, code, "clCreateCommandQueue");
  *stream = std::move(made);
  return SY_OK;
}

sy_status Stream::Queued(cl_int code, const char* call, sy_error* error, std::source_location where) {
  if (code == CL_SUCCESS) return SY_OK;
  sy_error cause{SY_HEADER(sy_error)};
  fate_->Fail(Failed(&cause, code, call, where), cause);
  return fate_->Known(error);
}

sy_status Stream::WaitFor(cl_event event, const std::shared_ptr<Fate>& fate, sy_error* error) {
  cl_event barrier = nullptr;
  const cl_int code = clEnqueueBarrierWithWaitList(queue(), 1, &event, &barrier);
  if (code != CL_SUCCESS) return Queued(code, "clEnqueueBarrierWithWaitList", error);
  fate_->Watch(EventHandle(barrier), fate);
  return SY_OK;
}

sy_status Stream::Drain(sy_error* error) {
  cl_event marker = nullptr;
  if (const cl_int code = clEnqueueMarkerWithWaitList(queue(), 0, nullptr, &marker); code != CL_SUCCESS) {
    return Queued(code, "clEnqueueMarkerWithWaitList", error);
  }
  const EventHandle owner(marker);
  const cl_int finished = clFinish(queue());
  cl_int status = CL_COMPLETE;
  const cl_int asked = ExecutionStatus(marker, &status);
  if (const sy_status told = fate_->Tell(error); told != SY_OK) return told;
  if (status < 0) return fate_->Ended(status, error);
  if (finished != CL_SUCCESS) return Queued(finished, "clFinish", error);
  return Queued(asked, "clGetEventInfo", error);
}

std::pair<EventHandle, std::shared_ptr<Fate>> Event::Latest() {
  const std::lock_guard lock(mutex_);
  if (!marker_ || clRetainEvent(marker_.get()) != CL_SUCCESS) return {};
  return {EventHandle(marker_.get()), fate_};
}

sy_status Event::Record(Stream& stream, sy_error* error) {
  cl_event marker = nullptr;
  const cl_int code = clEnqueueMarkerWithWaitList(stream.queue(), 0, nullptr, &marker);
  if (code != CL_SUCCESS) return stream.Queued(code, "clEnqueueMarkerWithWaitList", error);
  EventHandle owner(marker);
  // Another queue that waits for the marker only makes progress once this one was flushed (OpenCL 1.2, 5.13).
  if (const cl_int flushed = clFlush(stream.queue()); flushed != CL_SUCCESS) {
    return stream.Queued(flushed, "clFlush", error);
  }
  const std::lock_guard lock(mutex_);
  marker_ = std::move(owner);
  fate_ = stream.fate();
  return SY_OK;
}

sy_status Event::Query(sy_error* error) {
  const auto [marker, fate] = Latest();
  if (!marker) return SY_OK;
  cl_int status = CL_COMPLETE;
  SY_CL(error, ExecutionStatus, marker.get(), &status);
  if (const sy_status told = fate->Tell(error); told != SY_OK) return told;
  if (status < 0) return fate->Ended(status, error);
  return status == CL_COMPLETE ? SY_OK : SY_IN_PROGRESS;
}

sy_status Event::Wait(sy_error* error) {
  const auto [marker, fate] = Latest();
  if (!marker) return SY_OK;
  const cl_event event = marker.get();
  const cl_int waited = clWaitForEvents(1, &event);
  cl_int status = CL_COMPLETE;
  SY_CL(error, ExecutionStatus, event, &status);
  if (const sy_status told = fate->Tell(error); told != SY_OK) return told;
  if (status < 0) return fate->Ended(status, error);
  return waited == CL_SUCCESS ? SY_OK : Failed(error, waited, "clWaitForEvents");
}

sy_status Event::Before(Stream& stream, sy_error* error) {
  const auto [marker, fate] = Latest();
  if (!marker) return SY_OK;
  return stream.WaitFor(marker.get(), fate, error);
}

}  // namespace switchyard
