// matmul on oneDNN's primitive of that name, or on its inner product, which is the same of one pair of matrices by
// other kernels: created at prepare, its memory objects and argument array at bind. Bias, activation, residual and
// accumulation are post-ops. What no post-op can do (an activation whose argument is kept, or an activation's gradient)
// is a vectorised pass over a block of rows right after the product of that block, while it lies in the cache.
#include "backends/cpu/matmul.h"

#include <map>
#include <utility>

#include "backends/cpu/onednn.h"
#include "backends/cpu/parallel.h"
#include "backends/cpu/ways.h"

namespace switchyard {
namespace {

using dnnl::memory;

// (batch, rows, columns), stored as (batch, columns, rows) if transposed; the batch axis is dropped where there is
// none. A block of some columns of a matrix that is not transposed keeps that matrix's distance between rows.
memory::desc Matrix(int64_t batch, int64_t rows, int64_t columns, bool transposed, sy_dtype dtype,
                    int64_t row_stride = 0) {
  const int64_t row = transposed ? 1 : row_stride > 0 ? row_stride : columns, column = transposed ? rows : 1;
  if (batch == 1) return memory::desc({rows, columns}, OneDnnType(dtype), memory::dims{row, column});
  return memory::desc({batch, rows, columns}, OneDnnType(dtype), memory::dims{rows * columns, row, column});
}

// The width of the blocks of columns that a product is made of. oneDNN's f32 kernels copy b as they go, and where its
// rows are long and not transposed they take up to twice the time of narrower ones (measured with 3.2 on Sapphire
// Rapids at 3072 columns; blocks of 384 to 1536 are equally good).
int64_t BlockColumns(const MatmulShape& shape, const sy_matmul_attributes& t, sy_dtype dtype) {
  constexpr int64_t kMost = 1536, kUnit = 64;
  if (dtype != SY_F32 || t.transpose_b || shape.batch > 1 || shape.n <= kMost) return shape.n;
  const int64_t blocks = (shape.n + kMost - 1) / kMost;
  return ((shape.n + blocks - 1) / blocks + kUnit - 1) / kUnit * kUnit;
}

dnnl::algorithm Eltwise(int32_t activation) {
  switch (activation) {
    case SY_ACTIVATION_GELU:
      return dnnl::algorithm::eltwise_gelu_erf;
    case SY_ACTIVATION_GELU_TANH:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case SY_ACTIVATION_SILU:
      return dnnl::algorithm::eltwise_swish;
    default:
      return dnnl::algorithm::eltwise_relu;
  }
}

// Our own pass over the product's rows: where two outputs are written, for gradients, and for ReLU, since oneDNN's
// makes 0 of what is not a number.
bool HasOwnPass(const sy_matmul_attributes& t) {
  return t.save_preactivation || (t.activation_gradient && t.activation != SY_ACTIVATION_NONE) ||
         t.activation == SY_ACTIVATION_RELU;
}

enum class Primitive { kMatmul, kInnerProduct };

class Matmul : public Kernel {
 public:
  Matmul(const Request& request, const sy_matmul_attributes& attributes, const MatmulShape& shape, Primitive primitive)
      : Kernel(request),
        t_(attributes),
        shape_(shape),
        primitive_(primitive),
        optional_(attributes),
        bias_gradient_(shape, t_.transpose_a, device->threads),
        engine_(device->engine, true) {
    own_pass_ = HasOwnPass(t_);
    product_ = t_.save_preactivation ? 1 : 0;
    // Whole blocks, and the rest.
    block_rows_ = own_pass_ && shape_.batch == 1 && !t_.transpose_a ? std::min(kBlockRows, shape_.m) : shape_.m;
    block_columns_ =
        primitive_ == Primitive::kMatmul ? BlockColumns(shape_, t_, inputs[0].dtype) : std::max<int64_t>(shape_.n, 1);
    ForEachBlock([&](int64_t, int64_t rows, int64_t, int64_t columns) {
      Product& product = products_[{rows, columns}];
      if (product.primitive) return;
      product = Create(rows, columns);
      scratchpad_bytes_ = std::max<uint64_t>(scratchpad_bytes_, product.scratchpad.get_size());
    });
    scratchpad_bytes_ = (scratchpad_bytes_ + 63) / 64 * 64;
    workspace_bytes = scratchpad_bytes_;
    if (t_.bias_gradient) workspace_bytes += bias_gradient_.workspace_bytes();
  }

  void Run(const Arguments&) const override {}  // bound by Bind below

  std::unique_ptr<sy_bound> Bind(Arguments arguments, sy_launch* launch) const override {
    auto bound = std::make_unique<Bound>();
    bound->kernel = this;
    ForEachBlock([&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
      AddBlock(*bound, arguments, row, rows, column, columns);
    });
    bound->arguments = std::move(arguments);
    *launch = Launch;
    return bound;
  }

 private:
  static constexpr int64_t kBlockRows = 512;

  // A product of some rows and columns; there are a few sizes of them.
  struct Product {
    dnnl::primitive primitive;
    memory::desc right, bias, scratchpad;
  };
  struct Block {
    int64_t row, rows;
    bool completes_rows;  // it has the last columns
    dnnl_primitive_t primitive;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  struct Bound : sy_bound {
    const Matmul* kernel = nullptr;
    Arguments arguments;
    std::vector<memory> memories;
    std::vector<Block> blocks;
  };

  static sy_status Launch(sy_bound* bound, sy_stream*, sy_error* error) {
    const auto& b = *static_cast<const Bound*>(bound);
    const Matmul& k = *b.kernel;
    if (const sy_status entered = k.device->EnterToLaunch(error); entered != SY_OK) return entered;
    for (const Block& block : b.blocks) {
      const dnnl_status_t status = dnnl_primitive_execute(
          block.primitive, k.device->stream, static_cast<int>(block.arguments.size()), block.arguments.data());
      if (status != dnnl_success) return SY_FAIL(error, SY_INTERNAL, "matmul: oneDNN failed with status %d", status);
      if (k.own_pass_ && block.completes_rows) k.Activate(b.arguments, block.row, block.rows);
    }
    if (k.t_.bias_gradient)
      k.bias_gradient_.Run(k.In(b.arguments, 0), k.accumulate[1], b.arguments.Output<float>(1),
                           b.arguments.Workspace<float>(k.scratchpad_bytes_));
    return SY_OK;
  }

  memory::desc LeftDesc(int64_t rows) const {
    return Matrix(shape_.batch, rows, shape_.k, t_.transpose_a, inputs[0].dtype);
  }
  // An inner product has (N, K) of weights, and (N) of bias.
  memory::desc RightDesc(int64_t columns) const {
    return primitive_ == Primitive::kMatmul
               ? Matrix(shape_.batch, shape_.k, columns, t_.transpose_b, inputs[1].dtype, shape_.n)
               : Matrix(1, columns, shape_.k, !t_.transpose_b, inputs[1].dtype);
  }
  memory::desc ResultDesc(int64_t rows, int64_t columns, sy_dtype dtype) const {
    return Matrix(shape_.batch, rows, columns, false, dtype, shape_.n);
  }
  memory::desc BiasDesc(int64_t columns) const {
    memory::dims dims = {1, columns};
    if (shape_.batch > 1) dims = {1, 1, columns};
    if (primitive_ == Primitive::kInnerProduct && !BiasIsPostOp()) dims = {columns};
    return memory::desc(dims, OneDnnType(inputs[optional_.bias].dtype), memory::dims(dims.size(), 1));
  }
  // f(row, rows, column, columns) for every block, all columns of some rows before the next rows.
  template <typename F>
  void ForEachBlock(F f) const {
    for (int64_t row = 0; row < shape_.m; row += block_rows_) {
      for (int64_t column = 0; column < shape_.n; column += block_columns_)
        f(row, std::min(block_rows_, shape_.m - row), column, std::min(block_columns_, shape_.n - column));
    }
  }
  bool BiasIsPostOp() const { return t_.bias && t_.alpha != 1.0f; }

  Product Create(int64_t rows, int64_t columns) const {
    dnnl::post_ops ops;
    if (t_.alpha != 1.0f) ops.append_eltwise(dnnl::algorithm::eltwise_linear, t_.alpha, 0.0f);
    if (BiasIsPostOp()) ops.append_binary(dnnl::algorithm::binary_add, BiasDesc(columns));
    if (!own_pass_ && t_.activation != SY_ACTIVATION_NONE && !t_.activation_gradient)
      ops.append_eltwise(Eltwise(t_.activation), t_.activation == SY_ACTIVATION_SILU ? 1.0f : 0.0f, 0.0f);
    if (t_.residual)
      ops.append_binary(dnnl::algorithm::binary_add, ResultDesc(rows, columns, inputs[optional_.residual].dtype));
    if (accumulate[0]) ops.append_sum(1.0f);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(ops);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    Product product;
    product.right = RightDesc(columns);
    const memory::desc left = LeftDesc(rows), c = ResultDesc(rows, columns, outputs[product_].dtype);
    if (t_.bias) product.bias = BiasDesc(columns);
    const memory::desc bias = BiasIsPostOp() ? memory::desc() : product.bias;
    const auto take = [&]<typename Description>(const Description& desc) {
      RefuseReference(desc);
      product.primitive = dnnl::primitive(desc.get());
      product.scratchpad = desc.scratchpad_desc();
    };
    if (primitive_ == Primitive::kMatmul) {
      take(dnnl::matmul::primitive_desc(engine_, left, product.right, bias, c, attributes));
    } else {
      take(dnnl::inner_product_forward::primitive_desc(engine_, dnnl::prop_kind::forward_inference, left, product.right,
                                                       bias, c, attributes));
    }
    return product;
  }

  void AddBlock(Bound& bound, const Arguments& a, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    const Product& product = products_.at({rows, columns});
    Block block = {row, rows, column + columns == shape_.n, product.primitive.get(), {}};
    const auto add = [&](int index, const memory::desc& desc, char* address) {
      bound.memories.emplace_back(desc, engine_, address);
      block.arguments.push_back({index, bound.memories.back().get()});
    };
    const auto at = [](char* base, int64_t element, sy_dtype dtype) { return base + element * DtypeBytes(dtype); };
    add(DNNL_ARG_SRC, LeftDesc(rows), at(a.inputs[0], row * shape_.k, inputs[0].dtype));
    add(DNNL_ARG_WEIGHTS, product.right, at(a.inputs[1], column, inputs[1].dtype));
    add(DNNL_ARG_DST, ResultDesc(rows, columns, outputs[product_].dtype),
        at(a.outputs[product_], row * shape_.n + column, outputs[product_].dtype));
    int post_op = t_.alpha != 1.0f ? 1 : 0;
    if (BiasIsPostOp()) {
      add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(post_op++) | DNNL_ARG_SRC_1, product.bias,
          at(a.inputs[optional_.bias], column, inputs[optional_.bias].dtype));
    } else if (t_.bias) {
      add(DNNL_ARG_BIAS, product.bias, at(a.inputs[optional_.bias], column, inputs[optional_.bias].dtype));
    }
    if (!own_pass_ && t_.activation != SY_ACTIVATION_NONE && !t_.activation_gradient) ++post_op;
    if (t_.residual) {
      const sy_dtype dtype = inputs[optional_.residual].dtype;
      add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(post_op) | DNNL_ARG_SRC_1, ResultDesc(rows, columns, dtype),
          at(a.inputs[optional_.residual], row * shape_.n + column, dtype));
    }
    if (product.scratchpad.get_size() > 0) add(DNNL_ARG_SCRATCHPAD, product.scratchpad, a.workspace);
    bound.blocks.push_back(std::move(block));
  }

  void Activate(const Arguments& a, int64_t row, int64_t rows) const {
    // Batched matrices are one long matrix of rows: there is one block.
    const int64_t elements = shape_.batch * rows * shape_.n, first = row * shape_.n;
    ParallelRanges(device->threads, elements, 4096, [&](int64_t begin, int64_t end, int) {
      if (t_.activation_gradient) {
        Vector().scale_by_activation_gradient(t_.activation, In(a, optional_.preactivation), Out(a, 0), first + begin,
                                              first + end);
      } else {
        Vector().activate(t_.activation, Out(a, product_), Out(a, 0), first + begin, first + end);
      }
    });
  }

  sy_matmul_attributes t_;
  MatmulShape shape_;
  Primitive primitive_;
  MatmulInputs optional_;
  MatmulBiasGradient bias_gradient_;
  dnnl::engine engine_;
  size_t product_ = 0;  // the output that oneDNN writes
  bool own_pass_ = false;
  int64_t block_rows_ = 0, block_columns_ = 0;
  uint64_t scratchpad_bytes_ = 0;
  std::map<std::pair<int64_t, int64_t>, Product> products_;  // by rows and columns
};

// Whether the primitive is asked at all: for f32, and for bf16 that the CPU multiplies, without f16 anywhere. It writes
// f32 from f32, accumulates in f32, and its rows' own pass comes last.
bool PrimitiveTakes(const Request& r, const sy_matmul_attributes& t) {
  const sy_dtype dtype = r.inputs[0].dtype;
  if (dtype != r.inputs[1].dtype || (dtype != SY_F32 && !(dtype == SY_BF16 && MultipliesBf16()))) return false;
  const auto is_f16 = [](const sy_tensor& x) { return x.dtype == SY_F16; };
  if (std::any_of(r.inputs.begin(), r.inputs.end(), is_f16) || std::any_of(r.outputs.begin(), r.outputs.end(), is_f16))
    return false;
  const auto is_f32 = [](const sy_tensor& x) { return x.dtype == SY_F32; };
  if (dtype == SY_F32 && !std::all_of(r.outputs.begin(), r.outputs.end(), is_f32)) return false;
  if (HasOwnPass(t) && (t.residual || r.accumulate[0])) return false;
  return !r.accumulate[0] || is_f32(r.outputs[0]);
}

KernelPointer PrepareMatmul(const Request& r) {
  const auto t = r.Attributes<sy_matmul_attributes>();
  const MatmulInputs optional(t);
  const size_t inputs = optional.count;
  if (t.column_sums) return SY_REFUSE(r, "matmul: column_sums");
  if (!r.HasCounts(inputs, inputs, t.save_preactivation || t.bias_gradient ? 2 : 1)) return nullptr;
  const sy_tensor &a = r.inputs[0], &b = r.inputs[1], &c = r.outputs[0];
  if (a.rank < 2 || b.rank != a.rank || c.rank != a.rank)
    return SY_REFUSE(r, "matmul: a, b and c must have one rank of at least 2");
  if (t.activation < SY_ACTIVATION_NONE || t.activation > SY_ACTIVATION_SILU)
    return SY_REFUSE(r, "matmul: activation %d", t.activation);
  if (t.save_preactivation && (t.bias_gradient || t.activation_gradient))
    return SY_REFUSE(r, "matmul: save_preactivation together with a gradient");
  MatmulShape shape = {1, c.dims[c.rank - 2], a.dims[a.rank - (t.transpose_a ? 2 : 1)], c.dims[c.rank - 1]};
  for (int d = 0; d + 2 < a.rank; ++d) {
    if (a.dims[d] != b.dims[d] || a.dims[d] != c.dims[d]) return SY_REFUSE(r, "matmul: leading dims differ");
    shape.batch *= a.dims[d];
  }
  if (!r.RequireElements(a, shape.batch * shape.m * shape.k, "a") ||
      !r.RequireElements(b, shape.batch * shape.k * shape.n, "b"))
    return nullptr;
  if (a.dims[a.rank - (t.transpose_a ? 1 : 2)] != shape.m || b.dims[b.rank - (t.transpose_b ? 2 : 1)] != shape.n)
    return SY_REFUSE(r, "matmul: the inner dims do not match");
  for (size_t i = 0; i < inputs; ++i)
    if (!r.RequireFloat(r.inputs[i], "an input")) return nullptr;
  for (size_t o = 0; o < (t.bias_gradient ? 1 : r.outputs.size()); ++o)
    if (!r.RequireFloat(r.outputs[o], "an output")) return nullptr;
  const int64_t elements = shape.batch * shape.m * shape.n;
  if ((t.bias && !r.RequireElements(r.inputs[optional.bias], shape.n, "bias")) ||
      (t.activation_gradient && !r.RequireElements(r.inputs[optional.preactivation], elements, "preactivation")) ||
      (t.residual && !r.RequireElements(r.inputs[optional.residual], elements, "residual")))
    return nullptr;
  if (t.save_preactivation) {
    if (r.accumulate[1]) return SY_REFUSE(r, "matmul: the preactivation is saved, not added to something");
    if (!r.RequireElements(r.outputs[1], elements, "preactivation")) return nullptr;
  }
  if (t.bias_gradient) {
    if (shape.batch != 1) return SY_REFUSE(r, "matmul: bias_gradient of a batch");
    if (!r.RequireDtype(r.outputs[1], SY_F32, "bias_gradient") ||
        !r.RequireElements(r.outputs[1], shape.m, "bias_gradient"))
      return nullptr;
  }
  const auto by = [&](Primitive primitive) -> KernelPointer {
    if (!PrimitiveTakes(r, t)) return nullptr;
    if (primitive == Primitive::kInnerProduct &&
        (shape.batch != 1 || t.transpose_a || shape.m * shape.k * shape.n == 0))
      return nullptr;
    try {
      return std::make_unique<Matmul>(r, t, shape, primitive);
    } catch (const dnnl::error&) {  // oneDNN has no own kernel for it on this CPU
      return nullptr;
    }
  };
  std::vector<Way> ways = {
      {"tiles", [&] { return MakeTileMatmul(r, t, shape); }},
      {"weight_gradient", [&] { return PrimitiveTakes(r, t) ? MakeWeightGradient(r, t, shape) : nullptr; }},
      {"matmul", [&] { return by(Primitive::kMatmul); }},
      {"inner_product", [&] { return by(Primitive::kInnerProduct); }},
  };
  if (a.dtype == SY_F32 && std::max(shape.m, shape.n) > kMostOfWeightGradientInF32) std::swap(ways[1], ways[2]);
  if (KernelPointer made = FirstOrFastest(r, ways)) return made;
  return MakeConvertedMatmul(r, t, shape);
}

const Registration kMatmul{"matmul", PrepareMatmul, sizeof(sy_matmul_attributes)};

}  // namespace
}  // namespace switchyard
