// The matmul that makes a linear layer's gradient of weights, dW (M, N) = dyᵀ·x of dy (K, M) and x (K, N), on the
// primitive that oneDNN's inner product has for it. Its matmul, which can do the same, takes up to 1.28 times as long
// with AVX-512 (oneDNN 3.2 on Zen 4; the longer K is beside M and N, the more), and in f32 no longer where M or N is
// large. The primitive cannot add to dW: then it writes into the workspace, and what it wrote is added.
#include "backends/cpu/matmul.h"
#include "backends/cpu/onednn.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

using dnnl::memory;

class WeightGradient : public Kernel {
 public:
  WeightGradient(const Request& request, const sy_matmul_attributes& attributes, const MatmulShape& shape)
      : Kernel(request),
        has_bias_gradient_(attributes.bias_gradient),
        bias_gradient_(shape, true, device->threads),
        engine_(device->engine, true) {
    const auto rows = [&](int64_t columns, sy_dtype dtype) {
      return memory::desc({shape.k, columns}, OneDnnType(dtype), memory::format_tag::ab);
    };
    const auto weights = [&](sy_dtype dtype) {
      return memory::desc({shape.m, shape.n}, OneDnnType(dtype), memory::format_tag::ab);
    };
    const sy_dtype dtype = inputs[0].dtype;
    dy_ = rows(shape.m, dtype);
    x_ = rows(shape.n, dtype);
    dw_ = weights(outputs[0].dtype);
    dnnl::primitive_attr own_scratchpad;
    own_scratchpad.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::inner_product_forward::primitive_desc forward(engine_, dnnl::prop_kind::forward_training, x_,
                                                              weights(dtype), dy_);
    const dnnl::inner_product_backward_weights::primitive_desc desc(engine_, x_, dw_, dy_, forward, own_scratchpad);
    RefuseReference(desc);
    primitive_ = dnnl::inner_product_backward_weights(desc);
    scratchpad_ = desc.scratchpad_desc();
    const auto take = [&](uint64_t bytes) {
      const uint64_t at = workspace_bytes;
      workspace_bytes += (bytes + 63) / 64 * 64;
      return at;
    };
    take(scratchpad_.get_size());
    if (accumulate[0]) sums_ = take(static_cast<uint64_t>(Bytes(outputs[0])));
    if (has_bias_gradient_) bias_partial_ = take(bias_gradient_.workspace_bytes());
  }

  void Run(const Arguments&) const override {}  // bound by Bind below

  std::unique_ptr<sy_bound> Bind(Arguments arguments, sy_launch* launch) const override {
    auto bound = std::make_unique<Bound>();
    bound->kernel = this;
    const auto add = [&](int index, const memory::desc& desc, char* address) {
      bound->memories.emplace_back(desc, engine_, address);
      bound->indices.push_back({index, bound->memories.back().get()});
    };
    add(DNNL_ARG_SRC, x_, arguments.inputs[1]);
    add(DNNL_ARG_DIFF_DST, dy_, arguments.inputs[0]);
    add(DNNL_ARG_DIFF_WEIGHTS, dw_, accumulate[0] ? arguments.workspace + sums_ : arguments.outputs[0]);
    if (scratchpad_.get_size() > 0) add(DNNL_ARG_SCRATCHPAD, scratchpad_, arguments.workspace);
    bound->arguments = std::move(arguments);
    *launch = Launch;
    return bound;
  }

 private:
  struct Bound : sy_bound {
    const WeightGradient* kernel = nullptr;
    Arguments arguments;
    std::vector<memory> memories;
    std::vector<dnnl_exec_arg_t> indices;
  };

  static sy_status Launch(sy_bound* bound, sy_stream*, sy_error* error) {
    const auto& b = *static_cast<const Bound*>(bound);
    const WeightGradient& k = *b.kernel;
    if (const sy_status entered = k.device->EnterToLaunch(error); entered != SY_OK) return entered;
    const dnnl_status_t status = dnnl_primitive_execute(k.primitive_.get(), k.device->stream,
                                                        static_cast<int>(b.indices.size()), b.indices.data());
    if (status != dnnl_success)
      return SY_FAIL(error, SY_INTERNAL, "matmul: oneDNN's inner product failed with status %d", status);
    if (k.accumulate[0]) {
      ParallelRanges(k.device->threads, Elements(k.outputs[0]), kParallelElements,
                     [&](int64_t begin, int64_t end, int) {
                       Vector().reduce_into(SY_REDUCE_SUM, b.arguments.Output<float>(0) + begin,
                                            b.arguments.Workspace<float>(k.sums_) + begin, end - begin);
                     });
    }
    if (k.has_bias_gradient_)
      k.bias_gradient_.Run(k.In(b.arguments, 0), k.accumulate[1], b.arguments.Output<float>(1),
                           b.arguments.Workspace<float>(k.bias_partial_));
    return SY_OK;
  }

  bool has_bias_gradient_;
  MatmulBiasGradient bias_gradient_;
  dnnl::engine engine_;
  memory::desc x_, dy_, dw_, scratchpad_;
  dnnl::inner_product_backward_weights primitive_;
  uint64_t sums_ = 0, bias_partial_ = 0;  // bytes into the workspace, which begins with oneDNN's scratchpad
};

}  // namespace

KernelPointer MakeWeightGradient(const Request& request, const sy_matmul_attributes& t, const MatmulShape& shape) {
  const bool alone =
      t.alpha == 1.0f && !t.bias && t.activation == SY_ACTIVATION_NONE && !t.residual && !t.save_preactivation;
  if (!alone || !t.transpose_a || t.transpose_b || shape.batch != 1 || shape.m * shape.k * shape.n == 0 ||
      (request.accumulate[0] && request.outputs[0].dtype != SY_F32))
    return nullptr;
  try {
    return std::make_unique<WeightGradient>(request, t, shape);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

}  // namespace switchyard
