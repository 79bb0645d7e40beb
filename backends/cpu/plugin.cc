// The boundary: the exported symbol, the table of ops, and prepare, bind and launch. No exception crosses it.
#include "core/abi/plugin.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "backends/cpu/kernel.h"
#include "core/abi/ops.h"

namespace switchyard {
namespace {

constexpr struct {
  const char* op;
  PrepareFunction prepare;
  size_t attributes;  // bytes of its struct; 0: it has none
} kOps[] = {
    {"matmul", PrepareMatmul, sizeof(sy_matmul_attributes)},
    {"attention", PrepareAttention, sizeof(sy_attention_attributes)},
    {"attention_backward", PrepareAttentionBackward, sizeof(sy_attention_attributes)},
    {"layer_norm", PrepareLayerNorm, sizeof(sy_layer_norm_attributes)},
    {"layer_norm_backward", PrepareLayerNormBackward, sizeof(sy_layer_norm_attributes)},
    {"softmax", PrepareSoftmax, 0},
    {"softmax_backward", PrepareSoftmaxBackward, 0},
    {"cross_entropy", PrepareCrossEntropy, sizeof(sy_cross_entropy_attributes)},
    {"cross_entropy_backward", PrepareCrossEntropyBackward, sizeof(sy_cross_entropy_attributes)},
    {"label_rank", PrepareLabelRank, 0},
    {"pointwise", PreparePointwise, sizeof(sy_pointwise_attributes)},
    {"reduce", PrepareReduce, sizeof(sy_reduce_attributes)},
    {"squared_norm", PrepareSquaredNorm, 0},
    {"transpose", PrepareTranspose, sizeof(sy_axes_attributes)},
    {"slice", PrepareSlice, sizeof(sy_slice_attributes)},
    {"pad", PreparePad, sizeof(sy_pad_attributes)},
    {"roll", PrepareRoll, sizeof(sy_axes_attributes)},
    {"concat", PrepareConcat, sizeof(sy_axes_attributes)},
    {"gather", PrepareGather, 0},
    {"scatter_add", PrepareScatterAdd, 0},
    {"dropout", PrepareDropout, sizeof(sy_dropout_attributes)},
    {"optimizer_update", PrepareOptimizerUpdate, sizeof(sy_optimizer_attributes)},
};

struct SimpleBound : sy_bound {
  const Kernel* kernel;
  Arguments arguments;
};

sy_status RunBound(sy_bound* bound, sy_stream*, sy_error*) {
  const auto* simple = static_cast<const SimpleBound*>(bound);
  simple->kernel->device->Enter();
  simple->kernel->Run(simple->arguments);
  return SY_OK;
}

// SY_INVALID with a message for a tensor that breaks the ABI, SY_UNSUPPORTED for one that is strided.
sy_status CheckTensor(const sy_tensor& t, const char* op, sy_error* error) {
  if (t.rank < 0 || t.rank > SY_MAX_RANK || t.dtype < 0 || t.dtype >= SY_DTYPE_COUNT)
    return SY_FAIL(error, SY_INVALID, "%s: a tensor of rank %d and dtype %d", op, t.rank, t.dtype);
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    if (t.dims[i] < 1)
      return SY_FAIL(error, SY_INVALID, "%s: an extent of %lld", op, static_cast<long long>(t.dims[i]));
    if (t.dims[i] > 1 && t.strides[i] != stride) return SY_FAIL(error, SY_UNSUPPORTED, "%s: strided tensors", op);
    if (__builtin_mul_overflow(stride, t.dims[i], &stride) || stride > INT64_MAX / 16)
      return SY_FAIL(error, SY_INVALID, "%s: a tensor of more elements than memory can hold", op);
  }
  return SY_OK;
}

sy_status Prepare(sy_device* device, const sy_prepare_request* request, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  *kernel = nullptr;
  const auto* op =
      std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return !std::strcmp(o.op, request->op); });
  if (op == std::end(kOps)) return SY_FAIL(error, SY_UNSUPPORTED, "%s: not an op of the cpu plugin", request->op);
  if (request->op_version != 1)
    return SY_FAIL(error, SY_UNSUPPORTED, "%s: version %u, known is 1", op->op, request->op_version);
  if (request->attributes_size < op->attributes || (op->attributes > 0 && request->attributes == nullptr))
    return SY_FAIL(error, SY_INVALID, "%s: %u bytes of attributes, expected %zu", op->op, request->attributes_size,
                   op->attributes);
  for (uint32_t i = 0; i < request->input_count + request->output_count; ++i) {
    const sy_tensor& t = i < request->input_count ? request->inputs[i] : request->outputs[i - request->input_count];
    if (const sy_status status = CheckTensor(t, op->op, error); status != SY_OK) return status;
  }
  if (SY_HAS(sy_prepare_request, request, determinism) && request->determinism > SY_DETERMINISM_RUN)
    return SY_FAIL(error, SY_UNSUPPORTED, "%s: results depend on the thread count", op->op);
  try {
    Request r;
    r.device = device;
    r.op = op->op;
    r.inputs.assign(request->inputs, request->inputs + request->input_count);
    r.outputs.assign(request->outputs, request->outputs + request->output_count);
    r.accumulate.assign(request->output_count, 0);
    if (SY_HAS(sy_prepare_request, request, accumulate) && request->accumulate)
      r.accumulate.assign(request->accumulate, request->accumulate + request->output_count);
    r.attributes = request->attributes;
    r.attributes_size = request->attributes_size;
    r.error = error;
    device->Enter();
    KernelPointer made = op->prepare(r);
    if (made == nullptr) return SY_UNSUPPORTED;
    if (made->workspace_bytes > request->workspace_limit)
      return SY_FAIL(error, SY_UNSUPPORTED, "%s: needs %llu bytes of workspace, the limit is %llu", op->op,
                     static_cast<unsigned long long>(made->workspace_bytes),
                     static_cast<unsigned long long>(request->workspace_limit));
    if (SY_HAS(sy_kernel_info, info, workspace_bytes)) info->workspace_bytes = made->workspace_bytes;
    if (SY_HAS(sy_kernel_info, info, persistent_bytes)) info->persistent_bytes = 0;
    if (SY_HAS(sy_kernel_info, info, residual_bytes)) info->residual_bytes = 0;
    if (SY_HAS(sy_kernel_info, info, inplace) && info->inplace)
      std::copy(made->inplace.begin(), made->inplace.end(), info->inplace);
    if (SY_HAS(sy_kernel_info, info, determinism)) info->determinism = SY_DETERMINISM_RUN;
    if (SY_HAS(sy_kernel_info, info, capturable)) info->capturable = 0;
    if (SY_HAS(sy_kernel_info, info, accepts_strided)) info->accepts_strided = 0;
    *kernel = made.release();
    return SY_OK;
  } catch (const std::bad_alloc&) {
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "%s: no host memory in prepare", op->op);
  } catch (const std::exception& e) {
    return SY_FAIL(error, SY_INTERNAL, "%s: %s", op->op, e.what());
  }
}

sy_status Bind(sy_kernel* kernel, const sy_binding* binding, sy_bound** bound, sy_launch* launch, sy_error* error) {
  *bound = nullptr;
  auto* k = static_cast<Kernel*>(kernel);
  try {
    k->device->Enter();
    Arguments arguments;
    for (size_t i = 0; i < k->input_count(); ++i) arguments.inputs.push_back(Address(binding->inputs[i]));
    for (size_t o = 0; o < k->inplace.size(); ++o) arguments.outputs.push_back(Address(binding->outputs[o]));
    if (k->workspace_bytes > 0) arguments.workspace = Address(binding->workspace);
    std::unique_ptr<sy_bound> made = k->Bind(std::move(arguments), launch, error);
    if (made == nullptr) return SY_INTERNAL;
    *bound = made.release();
    return SY_OK;
  } catch (const std::bad_alloc&) {
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "no host memory in bind");
  } catch (const std::exception& e) {
    return SY_FAIL(error, SY_INTERNAL, "bind: %s", e.what());
  }
}

void Unbind(sy_bound* bound) { delete bound; }
void Release(sy_kernel* kernel) { delete static_cast<Kernel*>(kernel); }

constexpr sy_kernel_v1 kKernels = {SY_HEADER(sy_kernel_v1), Prepare, Bind, Unbind, Release};

const void* Interface(const char* name) {
  if (!std::strcmp(name, "device/1")) return &DeviceInterface();
  if (!std::strcmp(name, "memory_ext/1")) return &MemoryInterface();
  if (!std::strcmp(name, "kernel/1")) return &kKernels;
  return nullptr;
}

}  // namespace

std::unique_ptr<sy_bound> Kernel::Bind(Arguments arguments, sy_launch* launch, sy_error*) {
  auto bound = std::make_unique<SimpleBound>();
  bound->kernel = this;
  bound->arguments = std::move(arguments);
  *launch = RunBound;
  return bound;
}

}  // namespace switchyard

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerQuery(host, plugin, error, "cpu", "0.1.0", switchyard::Interface);
}
