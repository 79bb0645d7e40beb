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

sy_status Fate::Tell(sy_error* error) {
  const std::lock_guard lock(mutex_);
  if (status_ != SY_OK && error) FillStruct(error, error_);
  return status_;
}

void Fate::DependOn(const std::shared_ptr<Fate>& other) {
  if (other.get() == this) return;
  const std::lock_guard lock(mutex_);
  if (std::find(dependencies_.begin(), dependencies_.end(), other) == dependencies_.end()) dependencies_.push_back(other);
}

sy_status Fate::Ended(cl_int execution_status, sy_error* error) {
  if (const sy_status before = Tell(error); before != SY_OK) return before;
  std::vector<std::shared_ptr<Fate>> dependencies;
  {
    const std::lock_guard lock(mutex_);
    dependencies = dependencies_;
  }
  sy_error cause{SY_HEADER(sy_error)};
  sy_status status = SY_OK;
  for (size_t i = 0; i < dependencies.size() && status == SY_OK; ++i) status = dependencies[i]->Tell(&cause);
  if (status == SY_OK) {
    Refuse(&cause, SY_INTERNAL, "work queued on the stream failed on the device with " + CodeName(execution_status));
    cause.native_code = execution_status;
    status = execution_status == CL_DEVICE_NOT_AVAILABLE ? SY_DEVICE_LOST : SY_INTERNAL;
  }
  Fail(status, cause);
  return Tell(error);
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
  return fate_->Tell(error);
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
  if (status < 0) return fate_->Ended(status, error);
  if (finished != CL_SUCCESS) return Queued(finished, "clFinish", error);
  if (asked != CL_SUCCESS) return Queued(asked, "clGetEventInfo", error);
  return fate_->Tell(error);
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
  if (status < 0) return fate->Ended(status, error);
  if (const sy_status before = fate->Tell(error); before != SY_OK) return before;
  return status == CL_COMPLETE ? SY_OK : SY_IN_PROGRESS;
}

sy_status Event::Wait(sy_error* error) {
  const auto [marker, fate] = Latest();
  if (!marker) return SY_OK;
  const cl_event event = marker.get();
  const cl_int waited = clWaitForEvents(1, &event);
  cl_int status = CL_COMPLETE;
  SY_CL(error, ExecutionStatus, event, &status);
  if (status < 0) return fate->Ended(status, error);
  if (waited != CL_SUCCESS) return Failed(error, waited, "clWaitForEvents");
  return fate->Tell(error);
}

sy_status Event::Before(Stream& stream, sy_error* error) {
  const auto [marker, fate] = Latest();
  if (!marker) return SY_OK;
  stream.fate()->DependOn(fate);
  const cl_event event = marker.get();
  return stream.Queued(clEnqueueBarrierWithWaitList(stream.queue(), 1, &event, nullptr), "clEnqueueBarrierWithWaitList",
                       error);
}

}  // namespace switchyard
