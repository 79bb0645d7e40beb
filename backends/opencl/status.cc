#include "backends/opencl/opencl.h"

namespace switchyard {

std::string CodeName(cl_int code) {
  switch (code) {
#define SY_CODE(name) \
  case name:          \
    return #name
    SY_CODE(CL_SUCCESS);
    SY_CODE(CL_DEVICE_NOT_FOUND);
    SY_CODE(CL_DEVICE_NOT_AVAILABLE);
    SY_CODE(CL_COMPILER_NOT_AVAILABLE);
    SY_CODE(CL_MEM_OBJECT_ALLOCATION_FAILURE);
    SY_CODE(CL_OUT_OF_RESOURCES);
    SY_CODE(CL_OUT_OF_HOST_MEMORY);
    SY_CODE(CL_MEM_COPY_OVERLAP);
    SY_CODE(CL_BUILD_PROGRAM_FAILURE);
    SY_CODE(CL_MISALIGNED_SUB_BUFFER_OFFSET);
    SY_CODE(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    SY_CODE(CL_INVALID_VALUE);
    SY_CODE(CL_INVALID_DEVICE);
    SY_CODE(CL_INVALID_CONTEXT);
    SY_CODE(CL_INVALID_COMMAND_QUEUE);
    SY_CODE(CL_INVALID_MEM_OBJECT);
    SY_CODE(CL_INVALID_BINARY);
    SY_CODE(CL_INVALID_BUILD_OPTIONS);
    SY_CODE(CL_INVALID_PROGRAM);
    SY_CODE(CL_INVALID_PROGRAM_EXECUTABLE);
    SY_CODE(CL_INVALID_KERNEL_NAME);
    SY_CODE(CL_INVALID_KERNEL);
    SY_CODE(CL_INVALID_ARG_INDEX);
    SY_CODE(CL_INVALID_ARG_VALUE);
    SY_CODE(CL_INVALID_ARG_SIZE);
    SY_CODE(CL_INVALID_KERNEL_ARGS);
    SY_CODE(CL_INVALID_WORK_DIMENSION);
    SY_CODE(CL_INVALID_WORK_GROUP_SIZE);
    SY_CODE(CL_INVALID_WORK_ITEM_SIZE);
    SY_CODE(CL_INVALID_GLOBAL_OFFSET);
    SY_CODE(CL_INVALID_EVENT_WAIT_LIST);
    SY_CODE(CL_INVALID_EVENT);
    SY_CODE(CL_INVALID_OPERATION);
    SY_CODE(CL_INVALID_BUFFER_SIZE);
    SY_CODE(CL_INVALID_GLOBAL_WORK_SIZE);
#undef SY_CODE
    case -1001:
      return "CL_PLATFORM_NOT_FOUND_KHR";
    default:
      return Text("OpenCL status ", code);
  }
}

sy_status StatusOf(cl_int code) {
  switch (code) {
    case CL_SUCCESS:
      return SY_OK;
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:
      return SY_OUT_OF_MEMORY;
    case CL_DEVICE_NOT_AVAILABLE:
      return SY_DEVICE_LOST;
    default:
      return SY_INTERNAL;
  }
}

sy_status Failed(sy_error* error, cl_int code, const char* call, std::source_location where) {
  Refuse(error, SY_INTERNAL, Text(call, " failed with ", CodeName(code)), where);
  if (error && SY_HAS(sy_error, error, native_code)) error->native_code = code;
  return StatusOf(code);
}

}  // namespace switchyard
