/* The C symbols of HCCL and of the vendor's runtime that the plugin calls, with the types that they take: facts of a
 * public API, declared here so that the plugin builds where the vendor's toolkit is absent. Nothing links against these
 * declarations; library.h finds the symbols at run time.
 *
 * Sources. Types and signatures: github.com/Ascend/pytorch, third_party/hccl/inc/hccl/hccl_types.h and hccl.h. Setting
 * up and data types: gitcode.com/cann/hcomm, docs/en/api_ref/comm_mgr_c, the page named like the function. Collectives:
 * gitcode.com/cann/hccl, docs, the page named like the function. Runtime (acl…): github.com/hicann/runtime,
 * docs/zh/api_ref: 04 device, 11-01 and 11-03 memory, 22 errors; aclrtStreamAbort: 06_stream_management.
 *
 * HCCL_FUNCTIONS and HCCL_RUNTIME_FUNCTIONS are lists for a macro, FUNCTION(result, name, parameters …), so that the
 * table of pointers and a library that exports the symbols are made from the same text. */
#ifndef COLLECTIVES_HCCL_HCCL_API_H_
#define COLLECTIVES_HCCL_HCCL_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void* aclrtStream;
typedef void* HcclComm;

typedef enum {
  HCCL_SUCCESS = 0,
  HCCL_E_PARA = 1,
  HCCL_E_PTR = 2,
  HCCL_E_MEMORY = 3,
  HCCL_E_INTERNAL = 4,
  HCCL_E_NOT_SUPPORT = 5,
  HCCL_E_TIMEOUT = 9,
  HCCL_E_RUNTIME = 15,
  HCCL_E_REMOTE = 21
} HcclResult;
typedef enum { HCCL_REDUCE_SUM = 0, HCCL_REDUCE_PROD = 1, HCCL_REDUCE_MAX = 2, HCCL_REDUCE_MIN = 3 } HcclReduceOp;
typedef enum {
  HCCL_DATA_TYPE_INT32 = 2,
  HCCL_DATA_TYPE_FP16 = 3,
  HCCL_DATA_TYPE_FP32 = 4,
  HCCL_DATA_TYPE_INT64 = 5,
  HCCL_DATA_TYPE_UINT8 = 7,
  HCCL_DATA_TYPE_FP64 = 10,
  HCCL_DATA_TYPE_BFP16 = 11
} HcclDataType;
#define HCCL_ROOT_INFO_BYTES 4108
typedef struct {
  char internal[HCCL_ROOT_INFO_BYTES];
} HcclRootInfo;
typedef enum { HCCL_SEND = 0, HCCL_RECV = 1 } HcclSendRecvType;
typedef struct {
  HcclSendRecvType sendRecvType;
  void* buf;
  uint64_t count;
  HcclDataType dataType;
  uint32_t remoteRank;
} HcclSendRecvItem;

/* HcclCommInitRootInfo waits for all ranks, at most HCCL_CONNECT_TIMEOUT seconds (120). Collectives are put on the
 * stream; those that wait for a peer on the device end after HCCL_EXEC_TIMEOUT seconds (1836). Calls on one device must
 * not be made at the same time. */
#define HCCL_FUNCTIONS(FUNCTION)                                                                                      \
  FUNCTION(HcclResult, HcclGetRootInfo, HcclRootInfo* rootInfo)                                                       \
  FUNCTION(HcclResult, HcclCommInitRootInfo, uint32_t nRanks, const HcclRootInfo* rootInfo, uint32_t rank,            \
           HcclComm* comm)                                                                                            \
  FUNCTION(HcclResult, HcclCommDestroy, HcclComm comm)                                                                \
  FUNCTION(HcclResult, HcclGetCommAsyncError, HcclComm comm, HcclResult* asyncError)                                  \
  FUNCTION(const char*, HcclGetErrorString, HcclResult code)                                                          \
  FUNCTION(HcclResult, HcclAllReduce, void* sendBuf, void* recvBuf, uint64_t count, HcclDataType dataType,            \
           HcclReduceOp op, HcclComm comm, aclrtStream stream)                                                        \
  FUNCTION(HcclResult, HcclReduceScatter, void* sendBuf, void* recvBuf, uint64_t recvCount, HcclDataType dataType,    \
           HcclReduceOp op, HcclComm comm, aclrtStream stream)                                                        \
  FUNCTION(HcclResult, HcclAllGather, void* sendBuf, void* recvBuf, uint64_t sendCount, HcclDataType dataType,        \
           HcclComm comm, aclrtStream stream)                                                                         \
  FUNCTION(HcclResult, HcclBroadcast, void* buf, uint64_t count, HcclDataType dataType, uint32_t root, HcclComm comm, \
           aclrtStream stream)                                                                                        \
  FUNCTION(HcclResult, HcclAlltoAll, const void* sendBuf, uint64_t sendCount, HcclDataType sendType,                  \
           const void* recvBuf, uint64_t recvCount, HcclDataType recvType, HcclComm comm, aclrtStream stream)         \
  FUNCTION(HcclResult, HcclBatchSendRecv, HcclSendRecvItem* sendRecvInfo, uint32_t itemNum, HcclComm comm,            \
           aclrtStream stream)                                                                                        \
  FUNCTION(HcclResult, HcclBarrier, HcclComm comm, aclrtStream stream)

/* aclError is int, 0 is success; policy 0 is ACL_MEM_MALLOC_HUGE_FIRST, kind 3 ACL_MEMCPY_DEVICE_TO_DEVICE. */
#define HCCL_RUNTIME_FUNCTIONS(FUNCTION)                                                              \
  FUNCTION(int, aclrtSetDevice, int32_t deviceId)                                                     \
  FUNCTION(int, aclrtMalloc, void** devPtr, size_t size, int policy)                                  \
  FUNCTION(int, aclrtFree, void* devPtr)                                                              \
  FUNCTION(int, aclrtMemcpyAsync, void* dst, size_t destMax, const void* src, size_t count, int kind, \
           aclrtStream stream)                                                                        \
  FUNCTION(const char*, aclGetRecentErrMsg, void)
/* Not on every product: stops what runs on a stream and drops what waits there. */
#define HCCL_OPTIONAL_FUNCTIONS(FUNCTION) FUNCTION(int, aclrtStreamAbort, aclrtStream stream)

#ifdef __cplusplus
}
#endif
#endif /* COLLECTIVES_HCCL_HCCL_API_H_ */
