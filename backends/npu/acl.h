/* The C symbols of the NPU vendor's runtime (AscendCL) that the plugin calls, with the types that they take: facts of a
 * public API, declared here so that the plugin builds where the vendor's toolkit is absent. Nothing links against these
 * declarations; runtime.h finds the symbols at run time.
 *
 * Sources. Runtime functions and enumerations: github.com/hicann/runtime, docs/zh/api_ref, the page named beside each
 * block. Tensors, scalars and executors: www.hiascend.com/document/detail/en/canncommercial/850/API/aolapi,
 * operatorlist_00019 (aclCreateTensor), _00041 (aclSetAclOpExecutorRepeatable, which shows that addresses may be null
 * while sizes are asked), _00021 (aclDestroyAclOpExecutor), and github.com/hicann/runtime, include/external/acl.
 * Operators: github.com/hicann/ops-math ("math") and github.com/hicann/ops-nn ("nn"), the page docs/aclnn<Name>.md of
 * the folder named beside each.
 *
 * NPU_RUNTIME_FUNCTIONS, NPU_OPTIONAL_FUNCTIONS and NPU_OPERATORS are lists for a macro, so that the table of pointers
 * (runtime.h) and a library that exports the symbols are made from the same text. */
#ifndef BACKENDS_NPU_ACL_H_
#define BACKENDS_NPU_ACL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int aclError; /* 0 is success */
typedef int32_t aclnnStatus;
typedef void* aclrtStream;
typedef void* aclrtEvent;
typedef void* aclrtContext;
typedef void (*aclrtCallback)(void* userData);
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclBoolArray aclBoolArray;
typedef struct aclOpExecutor aclOpExecutor;

/* include/external/acl/acl_base.h, acl_rt.h, error_codes/rt_error_codes.h of github.com/hicann/runtime */
enum {
  ACL_SUCCESS = 0,
  ACL_ERROR_REPEAT_INITIALIZE = 100002,
  ACL_ERROR_RT_PARAM_INVALID = 107000,
  ACL_ERROR_RT_INVALID_DEVICEID = 107001,
  ACL_ERROR_RT_CONTEXT_NULL = 107002,
  ACL_ERROR_RT_STREAM_CONTEXT = 107003,
  ACL_ERROR_RT_WAIT_TIMEOUT = 107019,
  ACL_ERROR_RT_DEVICE_TASK_ABORT = 107022,
  ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000,
  ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
  ACL_ERROR_RT_NO_DEVICE = 207004,
  ACL_ERROR_RT_RESOURCE_ALLOC_FAIL = 207005,
  ACL_ERROR_RT_DEVICE_OOM = 207018,
  ACL_ERROR_RT_LOST_HEARTBEAT = 507010,
  ACL_ERROR_RT_AICORE_EXCEPTION = 507015
};
typedef enum aclDataType {
  ACL_FLOAT = 0,
  ACL_FLOAT16 = 1,
  ACL_INT32 = 3,
  ACL_UINT8 = 4,
  ACL_INT64 = 9,
  ACL_DOUBLE = 11,
  ACL_BOOL = 12,
  ACL_BF16 = 27
} aclDataType;
typedef enum aclFormat { ACL_FORMAT_NCHW = 0, ACL_FORMAT_ND = 2, ACL_FORMAT_NCDHW = 30 } aclFormat;
typedef enum aclrtMemMallocPolicy { ACL_MEM_MALLOC_HUGE_FIRST = 0 } aclrtMemMallocPolicy;
typedef enum aclrtMemcpyKind {
  ACL_MEMCPY_HOST_TO_HOST = 0,
  ACL_MEMCPY_HOST_TO_DEVICE = 1,
  ACL_MEMCPY_DEVICE_TO_HOST = 2,
  ACL_MEMCPY_DEVICE_TO_DEVICE = 3
} aclrtMemcpyKind;
typedef enum aclSysParamOpt { ACL_OPT_DETERMINISTIC = 0 } aclSysParamOpt;
typedef enum aclrtMemAttr { ACL_DDR_MEM = 0, ACL_HBM_MEM = 1 } aclrtMemAttr;
typedef enum aclrtEventRecordedStatus {
  ACL_EVENT_RECORDED_STATUS_NOT_READY = 0,
  ACL_EVENT_RECORDED_STATUS_COMPLETE = 1
} aclrtEventRecordedStatus;
typedef enum aclrtCallbackBlockType { ACL_CALLBACK_NO_BLOCK = 0, ACL_CALLBACK_BLOCK = 1 } aclrtCallbackBlockType;
#define ACL_EVENT_SYNC 0x00000001U                    /* streams may wait for it */
#define ACL_EVENT_CAPTURE_STREAM_PROGRESS 0x00000002U /* the host may query it and wait for it */
#define ACL_STREAM_FAST_LAUNCH 0x00000001U
#define ACL_STREAM_FAST_SYNC 0x00000002U
#define ACL_IPC_MEM_KEY_BYTES 65
typedef enum aclCANNPackageName { ACL_PKG_NAME_CANN = 0 } aclCANNPackageName;
typedef struct aclCANNPackageVersion {
  char version[128]; /* "8.0.0"; what follows are its parts */
  char majorVersion[64], minorVersion[64], releaseVersion[64], patchVersion[64];
  char reserved[128];
} aclCANNPackageVersion;
#define ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION 0x1UL
#define ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS 0x1UL
#define ACL_STREAM_WAIT_VALUE_GEQ 0x00000000U /* until (int64_t)(*devAddr - value) >= 0 */

/* FUNCTION(result, name, parameters …) */
#define NPU_RUNTIME_FUNCTIONS(FUNCTION)                                                                                \
  /* 02_initialization_and_deinitialization.md, 04_device_management.md, 05_context_management.md */                   \
  FUNCTION(aclError, aclInit, const char* configPath)                                                                  \
  FUNCTION(aclError, aclrtGetDeviceCount, uint32_t* count)                                                             \
  FUNCTION(aclError, aclrtSetDevice, int32_t deviceId)                                                                 \
  FUNCTION(aclError, aclrtResetDevice, int32_t deviceId)                                                               \
  FUNCTION(aclError, aclrtSynchronizeDevice, void)                                                                     \
  FUNCTION(aclError, aclrtGetCurrentContext, aclrtContext* context)                                                    \
  FUNCTION(aclError, aclrtSetCurrentContext, aclrtContext context)                                                     \
  FUNCTION(aclError, aclrtCtxSetSysParamOpt, aclSysParamOpt opt, int64_t value) /* 03_runtime_configuration.md */      \
  FUNCTION(const char*, aclrtGetSocName, void)                                                                         \
  FUNCTION(const char*, aclGetRecentErrMsg, void) /* 22_error_reporting_APIs.md */                                     \
  /* 11-01_device_memory_malloc_and_free.md (addresses are aligned to 64 bytes), 11-02, 11-03_memory_copy_and_set.md   \
   */                                                                                                                  \
  FUNCTION(aclError, aclrtGetMemInfo, aclrtMemAttr attr, size_t* free, size_t* total)                                  \
  FUNCTION(aclError, aclrtMalloc, void** devPtr, size_t size, aclrtMemMallocPolicy policy)                             \
  FUNCTION(aclError, aclrtFree, void* devPtr)                                                                          \
  FUNCTION(aclError, aclrtMallocHost, void** hostPtr, size_t size)                                                     \
  FUNCTION(aclError, aclrtFreeHost, void* hostPtr)                                                                     \
  FUNCTION(aclError, aclrtMemcpy, void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind)      \
  FUNCTION(aclError, aclrtMemcpyAsync, void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind, \
           aclrtStream stream)                                                                                         \
  FUNCTION(aclError, aclrtMemset, void* devPtr, size_t maxCount, int32_t value, size_t count)                          \
  FUNCTION(aclError, aclrtMemsetAsync, void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) \
  /* 06_stream_management.md, 07_event_management.md */                                                                \
  FUNCTION(aclError, aclrtCreateStreamWithConfig, aclrtStream* stream, uint32_t priority, uint32_t flag)               \
  FUNCTION(aclError, aclrtDestroyStream, aclrtStream stream)                                                           \
  FUNCTION(aclError, aclrtSynchronizeStream, aclrtStream stream)                                                       \
  FUNCTION(aclError, aclrtStreamWaitEvent, aclrtStream stream, aclrtEvent event)                                       \
  FUNCTION(aclError, aclrtCreateEventExWithFlag, aclrtEvent* event, uint32_t flag)                                     \
  FUNCTION(aclError, aclrtDestroyEvent, aclrtEvent event)                                                              \
  FUNCTION(aclError, aclrtRecordEvent, aclrtEvent event, aclrtStream stream)                                           \
  FUNCTION(aclError, aclrtQueryEventStatus, aclrtEvent event, aclrtEventRecordedStatus* status)                        \
  FUNCTION(aclError, aclrtSynchronizeEvent, aclrtEvent event)                                                          \
  /* aolapi: what operators take. Strides and offset are in elements. */                                               \
  FUNCTION(aclTensor*, aclCreateTensor, const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,           \
           const int64_t* stride, int64_t offset, aclFormat format, const int64_t* storageDims,                        \
           uint64_t storageDimsNum, void* tensorData)                                                                  \
  FUNCTION(aclnnStatus, aclDestroyTensor, const aclTensor* tensor)                                                     \
  FUNCTION(aclScalar*, aclCreateScalar, void* value, aclDataType dataType)                                             \
  FUNCTION(aclnnStatus, aclDestroyScalar, const aclScalar* scalar)                                                     \
  FUNCTION(aclIntArray*, aclCreateIntArray, const int64_t* value, uint64_t size)                                       \
  FUNCTION(aclnnStatus, aclDestroyIntArray, const aclIntArray* array)                                                  \
  FUNCTION(aclBoolArray*, aclCreateBoolArray, const bool* value, uint64_t size)                                        \
  FUNCTION(aclnnStatus, aclDestroyBoolArray, const aclBoolArray* array)                                                \
  FUNCTION(aclnnStatus, aclSetAclOpExecutorRepeatable, aclOpExecutor* executor)                                        \
  FUNCTION(aclnnStatus, aclDestroyAclOpExecutor, aclOpExecutor* executor)

/* Of later toolkits; null where the runtime lacks them. 24_other_APIs.md; 04_device_management.md; 11-09_stream_memory_operation.md: of
 * Atlas A2 and A3, at device addresses that are multiples of 8; 10_peer_access.md: between two devices of a process,
 * each way by itself; 11-07_IPC_memory_sharing.md: pages as a whole are shared, by a key of 65 bytes */
#define NPU_OPTIONAL_FUNCTIONS(FUNCTION)                                                                        \
  FUNCTION(aclError, aclrtGetVersion, int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion)      \
  FUNCTION(aclError, aclsysGetCANNVersion, aclCANNPackageName name, aclCANNPackageVersion* version)             \
  FUNCTION(aclError, aclrtGetPhyDevIdByUserDevId, const int32_t userDevId, int32_t* const phyDevId)             \
  FUNCTION(aclError, aclrtValueWait, void* devAddr, uint64_t value, uint32_t flag, aclrtStream stream)          \
  FUNCTION(aclError, aclrtDeviceCanAccessPeer, int32_t* canAccessPeer, int32_t deviceId, int32_t peerDeviceId)  \
  FUNCTION(aclError, aclrtDeviceEnablePeerAccess, int32_t peerDeviceId, uint32_t flags)                         \
  FUNCTION(aclError, aclrtIpcMemGetExportKey, void* devPtr, size_t size, char* key, size_t len, uint64_t flags) \
  FUNCTION(aclError, aclrtIpcMemImportByKey, void** devPtr, const char* key, uint64_t flags)                    \
  FUNCTION(aclError, aclrtIpcMemClose, const char* key)

/* OPERATOR(Name, parameters …) is aclnnNameGetWorkspaceSize(parameters …, workspaceSize, executor) and
 * aclnnName(workspace, size, executor, stream). Operands broadcast as in numpy where the page says so; 0 as
 * cubeMathType keeps the dtype. */
#define NPU_OPERATORS(OPERATOR)                                                                                        \
  OPERATOR(Add, const aclTensor* self, const aclTensor* other, const aclScalar* alpha,                                 \
           aclTensor* out) /* math math/add */                                                                         \
  OPERATOR(Sub, const aclTensor* self, const aclTensor* other, const aclScalar* alpha,                                 \
           aclTensor* out)                                                     /* math math/sub */                     \
  OPERATOR(Mul, const aclTensor* self, const aclTensor* other, aclTensor* out) /* math math/mul */                     \
  OPERATOR(Div, const aclTensor* self, const aclTensor* other, aclTensor* out) /* math math/div */                     \
  OPERATOR(Adds, const aclTensor* self, const aclScalar* other, const aclScalar* alpha,                                \
           aclTensor* out)                                                                    /* math math/add */      \
  OPERATOR(Muls, const aclTensor* self, const aclScalar* other, aclTensor* out)               /* math math/muls */     \
  OPERATOR(Maximum, const aclTensor* self, const aclTensor* other, aclTensor* out)            /* math math/maximum */  \
  OPERATOR(Minimum, const aclTensor* self, const aclTensor* other, aclTensor* out)            /* math math/minimum */  \
  OPERATOR(PowTensorTensor, const aclTensor* self, const aclTensor* exponent, aclTensor* out) /* math math/pow */      \
  OPERATOR(LtTensor, const aclTensor* self, const aclTensor* other, aclTensor* out)           /* math math/less */     \
  OPERATOR(LeTensor, const aclTensor* self, const aclTensor* other, aclTensor* out) /* math math/less_equal */         \
  OPERATOR(EqTensor, const aclTensor* self, const aclTensor* other, aclTensor* out) /* math math/equal */              \
  OPERATOR(SWhere, const aclTensor* condition, const aclTensor* self, const aclTensor* other,                          \
           aclTensor* out)                                    /* math math/select */                                   \
  OPERATOR(Neg, const aclTensor* self, aclTensor* out)        /* math math/neg */                                      \
  OPERATOR(Abs, const aclTensor* self, aclTensor* out)        /* math math/abs */                                      \
  OPERATOR(Exp, const aclTensor* self, aclTensor* out)        /* math math/exp */                                      \
  OPERATOR(Log, const aclTensor* self, aclTensor* out)        /* math math/log */                                      \
  OPERATOR(Sqrt, const aclTensor* self, aclTensor* out)       /* math math/sqrt */                                     \
  OPERATOR(Rsqrt, const aclTensor* self, aclTensor* out)      /* math math/rsqrt */                                    \
  OPERATOR(Reciprocal, const aclTensor* self, aclTensor* out) /* math math/reciprocal */                               \
  OPERATOR(Tanh, const aclTensor* self, aclTensor* out)       /* math math/tanh */                                     \
  OPERATOR(Erf, const aclTensor* self, aclTensor* out)        /* math math/erf */                                      \
  OPERATOR(Floor, const aclTensor* self, aclTensor* out)      /* math math/floor */                                    \
  OPERATOR(IsFinite, const aclTensor* self, aclTensor* out)   /* math math/is_finite */                                \
  OPERATOR(Sigmoid, const aclTensor* self, aclTensor* out)    /* nn activation/sigmoid */                              \
  OPERATOR(Relu, const aclTensor* self, aclTensor* out)       /* nn activation/relu */                                 \
  OPERATOR(Silu, const aclTensor* self, aclTensor* out)       /* nn activation/swish */                                \
  OPERATOR(GeluV2, const aclTensor* x, int64_t approximate, aclTensor* y)                                              \
  /* 0 erf, 1 tanh */ /* nn activation/gelu_v2 */                                                                      \
  OPERATOR(GeluBackwardV2, const aclTensor* gradOutput, const aclTensor* self, char* approximate,                      \
           aclTensor* gradInput)                                                                                       \
  /* "none" or "tanh"; nn activation/gelu_grad_v2 */                                                                   \
  OPERATOR(SiluBackward, const aclTensor* gradOutput, const aclTensor* self,                                           \
           aclTensor* gradInput) /* nn activation/silu_grad */                                                         \
  OPERATOR(ThresholdBackward, const aclTensor* gradOutput, const aclTensor* self, const aclScalar* threshold,          \
           aclTensor* out)                                                                                             \
  /* nn activation/threshold_grad_v2_d */                                                                              \
  OPERATOR(Cast, const aclTensor* self, aclDataType dtype, aclTensor* out)                 /* math math/cast */        \
  OPERATOR(RightShift, const aclTensor* input, const aclTensor* shiftBits, aclTensor* out) /* math math/right_shift */ \
  OPERATOR(BitwiseAndTensor, const aclTensor* self, const aclTensor* other,                                            \
           aclTensor* out) /* math math/bitwise_and */                                                                 \
  OPERATOR(BitwiseXorTensor, const aclTensor* self, const aclTensor* other,                                            \
           aclTensor* out)                                                /* math math/bitwise_xor */                  \
  OPERATOR(InplaceCopy, aclTensor* selfRef, const aclTensor* src)         /* math conversion/view_copy */              \
  OPERATOR(InplaceFillScalar, aclTensor* selfRef, const aclScalar* value) /* math conversion/fill */                   \
  OPERATOR(Clamp, const aclTensor* self, const aclScalar* clipValueMin, const aclScalar* clipValueMax, aclTensor* out) \
  /* math conversion/clip_by_value_v2 */                                                                               \
  OPERATOR(ReduceSum, const aclTensor* self, const aclIntArray* dims, bool keepDims, aclDataType dtype,                \
           aclTensor* out)                                                                                             \
  /* math math/reduce_sum */                                                                                           \
  OPERATOR(Amax, const aclTensor* self, const aclIntArray* dim, bool keepDim,                                          \
           aclTensor* out) /* math math/reduce_max */                                                                  \
  OPERATOR(Amin, const aclTensor* self, const aclIntArray* dim, bool keepDim,                                          \
           aclTensor* out) /* math math/reduce_min */                                                                  \
  OPERATOR(LogSumExp, const aclTensor* self, const aclIntArray* dim, bool keepDim,                                     \
           aclTensor* out)                                              /* math math/reduce_log_sum_exp */             \
  OPERATOR(Softmax, const aclTensor* self, int64_t dim, aclTensor* out) /* nn activation/softmax_v2 */                 \
  OPERATOR(SoftmaxBackward, const aclTensor* gradOutput, const aclTensor* output, int64_t dim, aclTensor* out)         \
  /* nn activation/softmax_grad */                                                                                     \
  OPERATOR(LayerNorm, const aclTensor* input, const aclIntArray* normalizedShape, const aclTensor* weightOptional,     \
           const aclTensor* biasOptional, double eps, aclTensor* out, aclTensor* meanOutOptional,                      \
           aclTensor* rstdOutOptional)                                                                                 \
  /* nn norm/layer_norm_v4 */                                                                                          \
  OPERATOR(LayerNormBackward, const aclTensor* gradOut, const aclTensor* input, const aclIntArray* normalizedShape,    \
           const aclTensor* mean, const aclTensor* rstd, const aclTensor* weightOptional,                              \
           const aclTensor* biasOptional, const aclBoolArray* outputMask, aclTensor* gradInputOut,                     \
           aclTensor* gradWeightOut, aclTensor* gradBiasOut)                                                           \
  /* nn norm/layer_norm_grad_v3 */                                                                                     \
  OPERATOR(Matmul, const aclTensor* self, const aclTensor* mat2, aclTensor* out,                                       \
           int8_t cubeMathType) /* nn matmul/mat_mul_v3 */                                                             \
  OPERATOR(Convolution, const aclTensor* input, const aclTensor* weight, const aclTensor* bias,                        \
           const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool transposed,        \
           const aclIntArray* outputPadding, int64_t groups, aclTensor* output, int8_t cubeMathType)                   \
  /* nn conv/convolution_forward */                                                                                    \
  OPERATOR(ConvolutionBackward, const aclTensor* gradOutput, const aclTensor* input, const aclTensor* weight,          \
           const aclIntArray* biasSizes, const aclIntArray* stride, const aclIntArray* padding,                        \
           const aclIntArray* dilation, bool transposed, const aclIntArray* outputPadding, int groups,                 \
           const aclBoolArray* outputMask, int8_t cubeMathType, aclTensor* gradInput, aclTensor* gradWeight,           \
           aclTensor* gradBias)                                                                                        \
  /* nn conv/convolution_backward */                                                                                   \
  OPERATOR(BatchNorm, const aclTensor* input, const aclTensor* weight, const aclTensor* bias, aclTensor* runningMean,  \
           aclTensor* runningVar, bool training, double momentum, double eps, aclTensor* output, aclTensor* saveMean,  \
           aclTensor* saveInvstd)                                                                                      \
  /* nn norm/batch_norm_v3 */                                                                                          \
  OPERATOR(BatchNormBackward, const aclTensor* gradOut, const aclTensor* input, const aclTensor* weight,               \
           const aclTensor* runningMean, const aclTensor* runningVar, const aclTensor* saveMean,                       \
           const aclTensor* saveInvstd, bool training, double eps, const aclBoolArray* outputMask,                     \
           aclTensor* gradInput, aclTensor* gradWeight, aclTensor* gradBias)                                           \
  /* nn norm/batch_norm_grad_v3 */                                                                                     \
  OPERATOR(MaxPool3dWithArgmax, const aclTensor* self, const aclIntArray* kernelSize, const aclIntArray* stride,       \
           const aclIntArray* padding, const aclIntArray* dilation, bool ceilMode, aclTensor* out, aclTensor* indices) \
  /* nn pooling/max_pool3d_with_argmax_v2 */                                                                           \
  OPERATOR(MaxPool3dWithArgmaxBackward, const aclTensor* gradOutput, const aclTensor* self, const aclTensor* indices,  \
           const aclIntArray* kernelSize, const aclIntArray* stride, const aclIntArray* padding,                       \
           const aclIntArray* dilation, bool ceilMode, aclTensor* gradInput)                                           \
  /* nn pooling/max_pool3d_grad_with_argmax */                                                                         \
  OPERATOR(AvgPool3d, const aclTensor* self, const aclIntArray* kernelSize, const aclIntArray* stride,                 \
           const aclIntArray* padding, bool ceilMode, bool countIncludePad, int64_t divisorOverride, aclTensor* out)   \
  /* nn pooling/avg_pool3_d */                                                                                         \
  OPERATOR(AvgPool3dBackward, const aclTensor* gradOutput, const aclTensor* self, const aclIntArray* kernelSize,       \
           const aclIntArray* stride, const aclIntArray* padding, bool ceilMode, bool countIncludePad,                 \
           int64_t divisorOverride, aclTensor* output)                                                                 \
  /* nn pooling/avg_pool3_d_grad */                                                                                    \
  OPERATOR(IndexSelect, const aclTensor* self, int64_t dim, const aclTensor* index,                                    \
           aclTensor* out) /* nn index/gather_v2 */                                                                    \
  OPERATOR(IndexAdd, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source,              \
           const aclScalar* alpha, aclTensor* out) /* nn index/inplace_scatter_add */

#define NPU_DECLARE_FUNCTION(result, name, ...) result name(__VA_ARGS__);
#define NPU_DECLARE_OPERATOR(name, ...)                                                                      \
  aclnnStatus aclnn##name##GetWorkspaceSize(__VA_ARGS__, uint64_t* workspaceSize, aclOpExecutor** executor); \
  aclnnStatus aclnn##name(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream);
NPU_RUNTIME_FUNCTIONS(NPU_DECLARE_FUNCTION)
NPU_OPTIONAL_FUNCTIONS(NPU_DECLARE_FUNCTION)
NPU_OPERATORS(NPU_DECLARE_OPERATOR)
#undef NPU_DECLARE_FUNCTION
#undef NPU_DECLARE_OPERATOR

#ifdef __cplusplus
}
#endif
#endif /* BACKENDS_NPU_ACL_H_ */
