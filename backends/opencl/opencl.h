// OpenCL 1.2 and its status codes: handles that release themselves, and cl_int as a status of the ABI. Nothing here is
// particular to one implementation. Pure functions; a Handle belongs to one thread.
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <source_location>
#include <string>
#include <utility>

#include "core/abi/boundary.h"

namespace switchyard {

// "CL_OUT_OF_RESOURCES", or "OpenCL status -9999".
std::string CodeName(cl_int code);

// SY_OUT_OF_MEMORY, SY_DEVICE_LOST or SY_INTERNAL.
sy_status StatusOf(cl_int code);

// Fills `error` with the call, the code's name and the code; returns StatusOf(code).
sy_status Failed(sy_error* error, cl_int code, const char* call,
                 std::source_location where = std::source_location::current());

#define SY_CL(error, function, ...)                                                    \
  do {                                                                                 \
    const cl_int sy_code = function(__VA_ARGS__);                                      \
    if (sy_code != CL_SUCCESS) return ::switchyard::Failed(error, sy_code, #function); \
  } while (false)

template <typename T, cl_int(CL_API_CALL* kRelease)(T)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T handle) : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Handle() {
    if (handle_) kRelease(handle_);
  }
  T get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  T handle_ = nullptr;
};

using ContextHandle = Handle<cl_context, clReleaseContext>;
using QueueHandle = Handle<cl_command_queue, clReleaseCommandQueue>;
using EventHandle = Handle<cl_event, clReleaseEvent>;
using MemoryHandle = Handle<cl_mem, clReleaseMemObject>;
using ProgramHandle = Handle<cl_program, clReleaseProgram>;
using KernelHandle = Handle<cl_kernel, clReleaseKernel>;
using DeviceHandle = Handle<cl_device_id, clReleaseDevice>;

}  // namespace switchyard
