// libnccl (SWITCHYARD_NCCL_LIBRARY, or by its name) and libcudart, bound at run time: the plugin loads where they are
// missing and says so. Signatures are those of nccl.h and cuda_runtime_api.h, which it is compiled against
// (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html). Thread-safe: found once, constant afterwards.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <source_location>
#include <string>

#include "core/abi/boundary.h"

// What NCCL 2.27 added, where the headers are older: a library that is newer than they are has it all the same.
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
#define NCCL_WIN_COLL_SYMMETRIC 1
typedef struct SymmetricWindow* ncclWindow_t;
extern "C" {
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes, ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
}
#endif

namespace nccl {

#define NCCL_PLUGIN_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion)                   \
  X(ncclGetUniqueId)                  \
  X(ncclCommInitRankConfig)           \
  X(ncclCommFinalize)                 \
  X(ncclCommDestroy)                  \
  X(ncclCommAbort)                    \
  X(ncclCommSplit)                    \
  X(ncclCommGetAsyncError)            \
  X(ncclCommCount)                    \
  X(ncclCommUserRank)                 \
  X(ncclGetErrorString)               \
  X(ncclGetLastError)                 \
  X(ncclGroupStart)                   \
  X(ncclGroupEnd)                     \
  X(ncclAllReduce)                    \
  X(ncclReduceScatter)                \
  X(ncclAllGather)                    \
  X(ncclBroadcast)                    \
  X(ncclSend)                         \
  X(ncclRecv)                         \
  X(ncclMemAlloc)                     \
  X(ncclMemFree)                      \
  X(ncclCommRegister)                 \
  X(ncclCommDeregister)
// Since NCCL 2.27; null where the library is older.
#define NCCL_PLUGIN_OPTIONAL_FUNCTIONS(X) \
  X(ncclCommWindowRegister)               \
  X(ncclCommWindowDeregister)
#define NCCL_PLUGIN_CUDA_FUNCTIONS(X) \
  X(cudaSetDevice)                    \
  X(cudaFree)                         \
  X(cudaMemcpyAsync)                  \
  X(cudaStreamIsCapturing)            \
  X(cudaStreamWaitEvent)              \
  X(cudaEventCreateWithFlags)         \
  X(cudaEventRecord)                  \
  X(cudaEventDestroy)                 \
  X(cudaGetErrorString)

struct Library {
#define NCCL_PLUGIN_POINTER(name) decltype(&::name) name = nullptr;
  NCCL_PLUGIN_NCCL_FUNCTIONS(NCCL_PLUGIN_POINTER)
  NCCL_PLUGIN_OPTIONAL_FUNCTIONS(NCCL_PLUGIN_POINTER)
  NCCL_PLUGIN_CUDA_FUNCTIONS(NCCL_PLUGIN_POINTER)
#undef NCCL_PLUGIN_POINTER
  cudaError_t (*cudaMalloc)(void**, size_t) = nullptr;  // by hand: in C++ its header overloads it
  std::string version;                                  // "NCCL 2.25.1", as it says itself
};

// nullptr where a library is missing, incomplete or too old; `error` then says which, and where it was looked for. The
// process has one: the settings of the instance that asks first name it.
const Library* FindLibrary(const sy_instance& instance, sy_error* error);
// After FindLibrary succeeded.
const Library& TheLibrary();

// SY_OK for ncclSuccess and ncclInProgress; else the status class of the code, with the code, NCCL's own words and, for
// a communicator, its last error. `what` is the call.
sy_status CheckNccl(sy_error* error, ncclResult_t code, const char* what, ncclComm_t comm,
                    std::source_location where = std::source_location::current());
sy_status CheckCuda(sy_error* error, cudaError_t code, const char* what,
                    std::source_location where = std::source_location::current());

}  // namespace nccl
