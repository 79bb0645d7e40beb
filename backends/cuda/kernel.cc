// kernel/1: the table of ops, and prepare, bind and launch. No exception crosses the boundary.
#include "backends/cuda/kernel.h"

#include <algorithm>

#include "backends/cuda/profiler.h"

namespace switchyard {
namespace {

// The library's kernel first, then our own for what the library does not take.
constexpr struct {
  const char* op;
  PrepareFunction first, second;
  bool without_attributes = false;
} kOps[] = {
    {"matmul", PrepareMatmul, nullptr},
    {"attention", PrepareCudnnAttention, PrepareAttention},
    {"attention_backward", PrepareCudnnAttentionBackward, PrepareAttentionBackward},
    {"convolution", PrepareConvolution, PrepareDirectConvolution},
    {"convolution_backward_data", PrepareConvolutionBackwardData, PrepareDirectConvolutionBackwardData},
    {"convolution_backward_weights", PrepareConvolutionBackwardWeights, PrepareDirectConvolutionBackwardWeights},
    {"layer_norm", PrepareLayerNorm, nullptr},
    {"layer_norm_backward", PrepareLayerNormBackward, nullptr},
    {"softmax", PrepareSoftmax, nullptr, true},
    {"softmax_backward", PrepareSoftmaxBackward, nullptr, true},
    {"cross_entropy", PrepareCrossEntropy, nullptr},
    {"cross_entropy_backward", PrepareCrossEntropyBackward, nullptr},
    {"label_rank", PrepareLabelRank, nullptr, true},
    {"pointwise", PreparePointwise, nullptr},
    {"reduce", PrepareReduce, nullptr},
    {"squared_norm", PrepareSquaredNorm, nullptr, true},
    {"transpose", PrepareTranspose, nullptr},
    {"slice", PrepareSlice, nullptr},
    {"pad", PreparePad, nullptr},
    {"roll", PrepareRoll, nullptr},
    {"concat", PrepareConcat, nullptr},
    {"gather", PrepareGather, nullptr, true},
    {"scatter_add", PrepareScatterAdd, nullptr, true},
    {"dropout", PrepareDropout, nullptr},
    {"optimizer_update", PrepareOptimizerUpdate, nullptr},
    {"pool", PreparePool, nullptr},
    {"pool_backward", PreparePoolBackward, nullptr},
    {"batch_norm", PrepareBatchNorm, nullptr},
    {"batch_norm_inference", PrepareBatchNormInference, nullptr},
    {"batch_norm_backward", PrepareBatchNormBackward, nullptr},
    {"resize", PrepareResize, nullptr},
    {"resize_backward", PrepareResizeBackward, nullptr},
};

// SY_INVALID with a message for a tensor that breaks the ABI, SY_UNSUPPORTED for one that is strided.
sy_status CheckTensor(const sy_tensor& t, const char* op, sy_error* error) {
  if (t.rank < 0 || t.rank > SY_MAX_RANK || t.dtype < 0 || t.dtype >= SY_DTYPE_COUNT)
    return SY_FAIL(error, SY_INVALID, "%s: a tensor of rank %d and dtype %d", op, t.rank, t.dtype);
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    if (t.dims[i] < 1)
      return SY_FAIL(error, SY_INVALID, "%s: an extent of %lld", op, static_cast<long long>(t.dims[i]));
    if (t.dims[i] > 1 && t.strides[i] != stride) return SY_FAIL(error, SY_UNSUPPORTED, "%s: strided tensors", op);
    if (__builtin_mul_overflow(stride, t.dims[i], &stride) || stride > INT64_MAX / 8)
      return SY_FAIL(error, SY_INVALID, "%s: a tensor of more than 2⁶³ bytes", op);
  }
  return SY_OK;
}

sy_status Prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  *kernel = nullptr;
  const sy_prepare_request request = ReadStruct(given);
  const auto* op =
      std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return !std::strcmp(o.op, request.op); });
  if (op == std::end(kOps)) return SY_FAIL(error, SY_UNSUPPORTED, "%s: not an op of the cuda plugin", request.op);
  if (request.op_version != 1)
    return SY_FAIL(error, SY_UNSUPPORTED, "%s: version %u, known is 1", op->op, request.op_version);
  if (!op->without_attributes && (request.attributes == nullptr || request.attributes_size == 0))
    return SY_FAIL(error, SY_INVALID, "%s: no attributes; core/abi/ops.h names the struct", op->op);
  for (uint32_t i = 0; i < request.input_count + request.output_count; ++i)
    SY_TRY(CheckTensor(i < request.input_count ? request.inputs[i] : request.outputs[i - request.input_count], op->op,
                       error));
  if (request.determinism > SY_DETERMINISM_RUN)
    return SY_FAIL(error, SY_UNSUPPORTED, "%s: results may depend on the batch split", op->op);
  SY_TRY(Enter(device->index, error));
  return Guarded(error, [&]() -> sy_status {
    Request r;
    r.device = device;
    r.op = op->op;
    r.inputs.assign(request.inputs, request.inputs + request.input_count);
    r.outputs.assign(request.outputs, request.outputs + request.output_count);
    r.accumulate.assign(request.output_count, 0);
    if (request.accumulate) r.accumulate.assign(request.accumulate, request.accumulate + request.output_count);
    r.attributes = request.attributes;
    r.attributes_size = request.attributes_size;
    r.workspace_limit = request.workspace_limit;
    r.tuning = request.tuning;
    r.deterministic = device->deterministic || request.determinism == SY_DETERMINISM_RUN;
    r.error = error;
    KernelPointer made;
    for (const PrepareFunction prepare : {op->first, op->second}) {
      if (prepare == nullptr || made != nullptr) continue;
      made = prepare(r);
      if (made && made->workspace_bytes > request.workspace_limit) {
        SY_FAIL(error, SY_UNSUPPORTED, "%s: needs %llu bytes of workspace, the limit is %llu", op->op,
                static_cast<unsigned long long>(made->workspace_bytes),
                static_cast<unsigned long long>(request.workspace_limit));
        made.reset();
      } else if (made && r.deterministic && !made->repeatable) {
        SY_FAIL(error, SY_UNSUPPORTED, "%s: no kernel whose results are repeatable", op->op);
        made.reset();
      }
    }
    if (made == nullptr) return FirstLoss(device->index, nullptr) == SY_OK ? SY_UNSUPPORTED : SY_DEVICE_LOST;
    made->tag = device->profiler->Keep(request.tag ? request.tag : op->op);
    sy_kernel_info filled{};
    filled.workspace_bytes = made->workspace_bytes;
    filled.determinism = made->repeatable ? SY_DETERMINISM_RUN : SY_DETERMINISM_ANY;
    filled.capturable = made->capturable;
    if (SY_HAS(sy_kernel_info, info, inplace)) {
      filled.inplace = info->inplace;
      if (info->inplace) std::copy(made->inplace.begin(), made->inplace.end(), info->inplace);
    }
    FillStruct(info, filled);
    *kernel = made.release();
    return SY_OK;
  });
}

sy_status RunBound(sy_bound* bound, sy_stream* stream, sy_error* error) {
  const auto* b = static_cast<const Bound*>(bound);
  sy_device* device = b->kernel->device;
  SY_TRY(Enter(device->index, error));
  return Guarded(error, [&]() -> sy_status {
    const LaunchContext context{stream ? stream->stream : device->own.stream};
    const Span span(*device->profiler, b->kernel->tag, stream, context.stream);
    SY_TRY(b->kernel->Run(*b, context, error));
    if (stream == nullptr) SY_CUDA(error, cudaStreamSynchronize(context.stream));
    return SY_OK;
  });
}

sy_status Bind(sy_kernel* kernel, const sy_binding* given, sy_bound** bound, sy_launch* launch, sy_error* error) {
  *bound = nullptr;
  const auto* k = static_cast<const Kernel*>(kernel);
  SY_TRY(Enter(k->device->index, error));
  return Guarded(error, [&]() -> sy_status {
    const sy_binding binding = ReadStruct(given);
    auto made = std::make_unique<Bound>();
    made->kernel = k;
    const auto resolve = [&](const sy_place& place, uint64_t bytes, const char* what, size_t i, char** address) {
      if (place.buffer == nullptr) return SY_FAIL(error, SY_INVALID, "bind: %s %zu is not a device buffer", what, i);
      if (place.offset > place.buffer->bytes || bytes > place.buffer->bytes - place.offset)
        return SY_FAIL(error, SY_INVALID, "bind: %s %zu: %llu bytes at offset %llu leave a buffer of %llu", what, i,
                       static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(place.offset),
                       static_cast<unsigned long long>(place.buffer->bytes));
      *address = Address(place);
      return static_cast<sy_status>(SY_OK);
    };
    made->inputs.resize(k->inputs.size());
    made->outputs.resize(k->outputs.size());
    for (size_t i = 0; i < k->inputs.size(); ++i)
      SY_TRY(resolve(binding.inputs[i], static_cast<uint64_t>(Bytes(k->inputs[i])), "input", i, &made->inputs[i]));
    for (size_t o = 0; o < k->outputs.size(); ++o)
      SY_TRY(resolve(binding.outputs[o], static_cast<uint64_t>(Bytes(k->outputs[o])), "output", o, &made->outputs[o]));
    if (k->workspace_bytes > 0)
      SY_TRY(resolve(binding.workspace, k->workspace_bytes, "workspace", 0, &made->workspace));
    SY_TRY(k->Bind(&made, error));
    *bound = made.release();
    *launch = RunBound;
    return SY_OK;
  });
}

void Unbind(sy_bound* bound) { delete bound; }
void Release(sy_kernel* kernel) { delete static_cast<Kernel*>(kernel); }

}  // namespace

const sy_kernel_v1 kCudaKernels = {SY_HEADER(sy_kernel_v1), Prepare, Bind, Unbind, Release};

Kernel::Kernel(const Request& request)
    : device(request.device),
      inputs(request.inputs),
      outputs(request.outputs),
      accumulate(request.accumulate),
      inplace(request.outputs.size(), -1) {}

sy_status Kernel::Bind(std::unique_ptr<Bound>*, sy_error*) const { return SY_OK; }

int64_t Elements(const sy_tensor& tensor) {
  int64_t n = 1;
  for (int i = 0; i < tensor.rank; ++i) n *= tensor.dims[i];
  return n;
}

int64_t DtypeBytes(sy_dtype dtype) {
  constexpr int64_t kBytes[SY_DTYPE_COUNT] = {4, 2, 2, 8, 4, 8, 1};
  return kBytes[dtype];
}

bool SameDims(const sy_tensor& a, const sy_tensor& b) {
  return a.rank == b.rank && std::equal(a.dims, a.dims + a.rank, b.dims);
}

bool Request::HasCounts(size_t least, size_t most, size_t outputs_wanted) const {
  if (inputs.size() >= least && inputs.size() <= most && outputs.size() == outputs_wanted) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %zu inputs and %zu outputs, expected %zu to %zu and %zu", op, inputs.size(),
          outputs.size(), least, most, outputs_wanted);
  return false;
}

bool Request::RequireFloat(const sy_tensor& tensor, const char* name) const {
  if (IsFloat(tensor.dtype)) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %s has dtype %d, expected f32, bf16 or f16", op, name, tensor.dtype);
  return false;
}

bool Request::RequireDtype(const sy_tensor& tensor, sy_dtype dtype, const char* name) const {
  if (tensor.dtype == dtype) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %s has dtype %d, expected %d", op, name, tensor.dtype, dtype);
  return false;
}

bool Request::RequireElements(const sy_tensor& tensor, int64_t elements, const char* name) const {
  if (Elements(tensor) == elements) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %s has %lld elements, expected %lld", op, name,
          static_cast<long long>(Elements(tensor)), static_cast<long long>(elements));
  return false;
}

bool Request::RequireDims(const sy_tensor& tensor, const sy_tensor& expected, const char* name) const {
  if (SameDims(tensor, expected)) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %s does not have the extents that the op demands", op, name);
  return false;
}

bool Request::Accumulates() const {
  return std::any_of(accumulate.begin(), accumulate.end(), [](uint8_t a) { return a != 0; });
}

}  // namespace switchyard
