/* Stands in for the driver's library (libcuda.so.1) while cuDNN plans for a GPU that is not here: kernels that it has
 * compiled are "loaded" and their attributes "set", so that a plan is finalised; there is no device, and whatever would
 * need one is refused, as by the toolkit's own stub (CUDA_ERROR_STUB_LIBRARY), which refuses loading too. cuDNN looks all
 * of these up by name. Meanings: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__LIBRARY.html */
#include <cuda.h>

static char anything; /* what a handle points to; nobody looks into it */

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values, unsigned count,
                           CUlibraryOption* library_options, void** library_values, unsigned library_count) {
  (void)code, (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
  *library = (CUlibrary)&anything;
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  (void)library, (void)name;
  *kernel = (CUkernel)&anything;
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary library) {
  (void)library;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  (void)kernel;
  *function = (CUfunction)&anything;
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  (void)attribute, (void)value, (void)kernel, (void)device;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult code, const char** text) {
  (void)code;
  *text = "refused: no driver is installed";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult code, const char** text) { return cuGetErrorString(code, text); }
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuInit(unsigned flags) {
  (void)flags;
  return CUDA_ERROR_NO_DEVICE;
}

/* By name alone: whatever they are given, they refuse. */
#define REFUSES(name)                                   \
  __attribute__((visibility("default"))) int Refuse_##name(void) __asm__(#name); \
  int Refuse_##name(void) { return CUDA_ERROR_STUB_LIBRARY; }
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPopCurrent)
REFUSES(cuCtxPushCurrent)
REFUSES(cuDeviceGet)
REFUSES(cuDeviceGetCount)
REFUSES(cuFuncGetAttribute)
REFUSES(cuGetProcAddress)
REFUSES(cuGetProcAddress_v2)
REFUSES(cuKernelGetAttribute)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLibraryLoadFromFile)
REFUSES(cuLinkAddData)
REFUSES(cuLinkComplete)
REFUSES(cuLinkCreate)
REFUSES(cuLinkDestroy)
REFUSES(cuOccupancyMaxPotentialClusterSize)
REFUSES(cuStreamGetCtx)
