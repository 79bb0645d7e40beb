// convolution and its gradients by oneDNN's primitives. Activations lie as the ABI has them, channels last; weights are
// brought into the layout that the primitive asks for, and their gradient back, inside the kernel. Where a dtype has no
// arithmetic of its own (f16, bf16 on CPUs without it, a mix of dtypes), operands become f32 in the workspace, some
// images at a time, and results are rounded once.
#include "backends/cpu/convolution.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "backends/cpu/kernel.h"
#include "backends/cpu/onednn.h"
#include "backends/cpu/parallel.h"
#include "backends/cpu/ways.h"

namespace switchyard {
namespace {

using dnnl::memory;

enum class Direction { kForward, kData, kWeights };

// f32 copies of activations are made of so many images that they take about this much; more would leave the cache
// anyway.
constexpr int64_t kStagedBytes = int64_t{32} << 20;

// One of the three tensors: where it is among the operands, and what the primitive sees of it.
struct Tensor {
  sy_tensor given = {};
  size_t index = 0;     // of the input or output
  bool staged = false;  // the primitive works on a copy in the workspace, of dtype `type`
  sy_dtype type = SY_F32;
  uint64_t offset = 0;  // of the copy
  int64_t per_image = 0;
};

class Convolution : public Kernel {
 public:
  Convolution(const Request& request, Direction direction, sy_dtype arithmetic)
      : Kernel(request),
        t_(request.Attributes<sy_convolution_attributes>()),
        direction_(direction),
        images_(inputs[0].dims[0]),
        engine_(device->engine, true) {
    const bool forward = direction == Direction::kForward, data = direction == Direction::kData;
    x_ = {data ? outputs[0] : inputs[0], 0};
    w_ = {direction == Direction::kWeights ? outputs[0] : inputs[1], direction == Direction::kWeights ? size_t{0} : 1};
    y_ = {forward ? outputs[0] : inputs[data ? 0 : 1], forward || data ? size_t{0} : 1};
    Tensor& result = forward ? y_ : data ? x_ : w_;
    for (Tensor* tensor : {&x_, &w_, &y_}) {
      tensor->type = arithmetic;
      tensor->staged = tensor->given.dtype != arithmetic;
      tensor->per_image = Elements(tensor->given) / tensor->given.dims[0];
    }
    // bf16 arithmetic rounds to f32 too.
    if (arithmetic == SY_BF16 && result.given.dtype == SY_F32) {
      result.type = SY_F32;
      result.staged = false;
    }
    // What is added to an output is added from the workspace; for weights, see `sums_in_place_`.
    if (accumulate[0] && direction != Direction::kWeights) {
      result.staged = true;
      result.type = SY_F32;
    }
    ChooseChunk();
    Create(chunk_);
    if (images_ % chunk_ != 0) Create(images_ % chunk_);
    LayOutWorkspace();
  }

  void Run(const Arguments&) const override {}  // bound by Bind below

  std::unique_ptr<sy_bound> Bind(Arguments arguments, sy_launch* launch) const override {
    auto bound = std::make_unique<Bound>();
    bound->kernel = this;
    bound->arguments = std::move(arguments);
    const Arguments& a = bound->arguments;
    // Memory objects are held by value, and a step names them by their handles, which moving does not change.
    const auto object = [&](const memory::desc& desc, char* address) {
      bound->memories.emplace_back(desc, engine_, address);
      return bound->memories.back().get();
    };
    char* const weights = direction_ == Direction::kWeights ? a.outputs[0] : a.inputs[1];
    char* const plain = PlainIsStaged() ? a.workspace + w_.offset : weights;
    char* const packed = Repacked() ? a.workspace + packed_offset_ : plain;
    if (Repacked() && direction_ != Direction::kWeights) {
      bound->pack = {pack_.get(),
                     {{DNNL_ARG_FROM, object(plain_desc_, plain)}, {DNNL_ARG_TO, object(packed_desc_, packed)}}};
      AddScratchpad(pack_desc_.scratchpad_desc(), a, object, &bound->pack);
    }
    for (int64_t image = 0; image < images_; image += chunk_) {
      const int64_t count = std::min(chunk_, images_ - image);
      const Primitive& primitive = primitives_.at(count);
      Chunk chunk;
      chunk.image = image;
      chunk.count = count;
      chunk.convolve.primitive = primitive.primitive.get();
      const bool forward = direction_ == Direction::kForward, data = direction_ == Direction::kData;
      const auto add = [&](int index, const memory::desc& desc, char* address) {
        chunk.convolve.arguments.push_back({index, object(desc, address)});
      };
      add(data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, ActivationDesc(x_, count), Place(a, x_, image));
      add(direction_ == Direction::kWeights ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, packed_desc_, packed);
      add(forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, ActivationDesc(y_, count), Place(a, y_, image));
      if (HasBias()) add(DNNL_ARG_BIAS, BiasDesc(), BiasIsStaged() ? a.workspace + bias_offset_ : a.inputs[2]);
      AddScratchpad(primitive.scratchpad, a, object, &chunk.convolve);
      if (Repacked() && direction_ == Direction::kWeights) {
        const bool adds = image > 0 || (accumulate[0] && !PlainIsStaged());
        chunk.unpack = {(adds ? pack_adding_ : pack_).get(),
                        {{DNNL_ARG_FROM, object(packed_desc_, packed)}, {DNNL_ARG_TO, object(plain_desc_, plain)}}};
        AddScratchpad((adds ? pack_adding_desc_ : pack_desc_).scratchpad_desc(), a, object, &chunk.unpack);
      }
      bound->chunks.push_back(std::move(chunk));
    }
    *launch = Launch;
    return bound;
  }

 private:
  struct Primitive {
    dnnl::primitive primitive;
    memory::desc scratchpad;
  };
  struct Step {
    dnnl_primitive_t primitive = nullptr;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  struct Chunk {
    int64_t image, count;
    Step convolve, unpack;
  };
  struct Bound : sy_bound {
    const Convolution* kernel = nullptr;
    Arguments arguments;
    std::vector<memory> memories;
    Step pack;
    std::vector<Chunk> chunks;
  };

  static sy_status Launch(sy_bound* bound, sy_stream*, sy_error* error) {
    const auto& b = *static_cast<const Bound*>(bound);
    const Convolution& k = *b.kernel;
    if (const sy_status entered = k.device->EnterToLaunch(error); entered != SY_OK) return entered;
    const dnnl_status_t status = k.Compute(b);
    if (status == dnnl_success) return SY_OK;
    return SY_FAIL(error, SY_INTERNAL, "convolution: oneDNN failed with status %d", status);
  }

  dnnl_status_t Compute(const Bound& b) const {
    const Arguments& a = b.arguments;
    const auto execute = [&](const Step& step) {
      if (step.primitive == nullptr) return dnnl_success;
      return dnnl_primitive_execute(step.primitive, device->stream, static_cast<int>(step.arguments.size()),
                                    step.arguments.data());
    };
    const bool weights = direction_ == Direction::kWeights;
    if (!weights && w_.staged) Widen(In(a, 1), 0, Elements(w_.given), a.Workspace<float>(w_.offset));
    if (BiasIsStaged())
      Vector().to_float(inputs[2].dtype, a.inputs[2], a.Workspace<float>(bias_offset_), w_.given.dims[0]);
    if (const dnnl_status_t status = execute(b.pack); status != dnnl_success) return status;
    for (const Chunk& chunk : b.chunks) {
      for (const Tensor* tensor : {&x_, &y_}) {
        if (!tensor->staged || IsResult(*tensor)) continue;
        Widen(In(a, tensor->index), chunk.image * tensor->per_image, chunk.count * tensor->per_image,
              a.Workspace<float>(tensor->offset));
      }
      if (const dnnl_status_t status = execute(chunk.convolve); status != dnnl_success) return status;
      if (const dnnl_status_t status = execute(chunk.unpack); status != dnnl_success) return status;
      for (const Tensor* tensor : {&x_, &y_}) {
        if (!tensor->staged || !IsResult(*tensor)) continue;
        Narrow(a.Workspace<float>(tensor->offset), chunk.image * tensor->per_image, chunk.count * tensor->per_image,
               Out(a, 0));
      }
    }
    if (weights && PlainIsStaged()) Narrow(a.Workspace<float>(w_.offset), 0, Elements(w_.given), Out(a, 0));
    return dnnl_success;
  }

  // f32 copies of elements of a float tensor, and back, rounded or added.
  void Widen(Rows from, int64_t first, int64_t count, float* to) const {
    const int64_t bytes = DtypeBytes(from.dtype);
    ParallelRanges(device->threads, count, kParallelElements, [&](int64_t begin, int64_t end, int) {
      Vector().to_float(from.dtype, from.data + (first + begin) * bytes, to + begin, end - begin);
    });
  }
  void Narrow(const float* from, int64_t first, int64_t count, Rows to) const {
    const int64_t bytes = DtypeBytes(to.dtype);
    ParallelRanges(device->threads, count, kParallelElements, [&](int64_t begin, int64_t end, int) {
      constexpr int64_t kBlock = 1024;
      float block[kBlock];
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t n = std::min(kBlock, end - i);
        char* out = to.data + (first + i) * bytes;
        if (accumulate[0]) {
          Vector().to_float(to.dtype, out, block, n);
          Vector().reduce_into(SY_REDUCE_SUM, block, from + i, n);
        }
        Vector().from_float(to.dtype, accumulate[0] ? block : from + i, out, n);
      }
    });
  }

  bool HasBias() const { return direction_ == Direction::kForward && t_.bias; }
  bool BiasIsStaged() const {
    return HasBias() && inputs[2].dtype != SY_F32 && !(inputs[2].dtype == SY_BF16 && w_.type == SY_BF16);
  }
  bool IsResult(const Tensor& tensor) const {
    return &tensor == (direction_ == Direction::kForward ? &y_ : direction_ == Direction::kData ? &x_ : &w_);
  }
  // The weights in the ABI's layout are a copy: converted ones, or a gradient that is not summed where it is to lie.
  bool PlainIsStaged() const { return direction_ == Direction::kWeights ? !sums_in_place_ : w_.staged; }
  bool Repacked() const { return repacked_; }

  char* Place(const Arguments& a, const Tensor& tensor, int64_t image) const {
    if (tensor.staged) return a.workspace + tensor.offset;
    char* base = IsResult(tensor) ? a.outputs[0] : a.inputs[tensor.index];
    return base + image * tensor.per_image * DtypeBytes(tensor.given.dtype);
  }

  template <typename Object>
  static void AddScratchpad(const memory::desc& desc, const Arguments& a, const Object& object, Step* step) {
    if (desc.get_size() > 0) step->arguments.push_back({DNNL_ARG_SCRATCHPAD, object(desc, a.workspace)});
  }

  // (N, C, spatial), stored channels last.
  memory::desc ActivationDesc(const Tensor& tensor, int64_t images) const {
    const sy_tensor& given = tensor.given;
    memory::dims dims = {images, given.dims[given.rank - 1]};
    dims.insert(dims.end(), given.dims + 1, given.dims + given.rank - 1);
    return {dims, OneDnnType(tensor.type), t_.spatial_rank == 2 ? memory::format_tag::nhwc : memory::format_tag::ndhwc};
  }
  // (groups, K/groups, C/groups, kernel); stored as the ABI has it, or as the primitive likes it.
  memory::desc WeightsDesc(bool plain) const {
    const sy_tensor& given = w_.given;
    memory::dims dims = {given.dims[0], given.dims[given.rank - 1]};
    dims.insert(dims.end(), given.dims + 1, given.dims + given.rank - 1);
    using tag = memory::format_tag;
    tag layout = t_.spatial_rank == 2 ? tag::ohwi : tag::odhwi;
    if (t_.groups > 1) {
      dims[0] /= t_.groups;
      dims.insert(dims.begin(), t_.groups);
      layout = t_.spatial_rank == 2 ? tag::gohwi : tag::godhwi;
    }
    return {dims, OneDnnType(w_.type), plain ? layout : tag::any};
  }
  memory::desc BiasDesc() const {
    const sy_dtype dtype = BiasIsStaged() ? SY_F32 : inputs[2].dtype;
    return {{w_.given.dims[0]}, OneDnnType(dtype), memory::format_tag::a};
  }

  void ChooseChunk() {
    int64_t staged = 0;
    for (const Tensor* tensor : {&x_, &y_})
      if (tensor->staged) staged += tensor->per_image * DtypeBytes(tensor->type);
    chunk_ = staged == 0 ? images_ : std::clamp<int64_t>(kStagedBytes / staged, 1, images_);
    // Weights' gradients of several chunks are added up, in f32.
    if (direction_ == Direction::kWeights && (chunk_ < images_ || accumulate[0] || w_.staged)) w_.type = SY_F32;
    sums_in_place_ = direction_ == Direction::kWeights && w_.given.dtype == w_.type;
  }

  // oneDNN's kernels for filters of one place (seen in 3.2, with AVX2 and AVX-512) copy the places that strides leave,
  // and where the weights' gradient has fewer channels than a vector, they read and write beyond that copy.
  bool WritesBeyond(const char* implementation) const {
    const bool strided = std::any_of(t_.stride, t_.stride + t_.spatial_rank, [](int stride) { return stride > 1; });
    return direction_ == Direction::kWeights && strided && w_.given.dims[w_.given.rank - 1] < 16 &&
           std::strstr(implementation, "1x1") != nullptr;
  }

  // The primitive for so many images. All have the weights' layout of the first.
  void Create(int64_t images) {
    memory::dims stride, dilation, before, after;
    for (int i = 0; i < t_.spatial_rank; ++i) {
      stride.push_back(t_.stride[i]);
      dilation.push_back(t_.dilation[i] - 1);
      before.push_back(t_.before[i]);
      after.push_back(t_.after[i]);
    }
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc x = ActivationDesc(x_, images), y = ActivationDesc(y_, images);
    const memory::desc w = primitives_.empty() ? WeightsDesc(false) : packed_desc_;
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const auto keep = [&](auto description, const auto& weights_of, auto make) {
      while ((IsReference(description) || WritesBeyond(description.impl_info_str())) && description.next_impl()) {
      }
      RefuseReference(description);
      if (WritesBeyond(description.impl_info_str())) throw dnnl::error(dnnl_unimplemented, "writes beyond a buffer");
      packed_desc_ = weights_of(description);
      primitives_[images] = {make(description), description.scratchpad_desc()};
      scratchpad_bytes_ = std::max<uint64_t>(scratchpad_bytes_, description.scratchpad_desc().get_size());
    };
    using Forward = dnnl::convolution_forward;
    using Data = dnnl::convolution_backward_data;
    using Weights = dnnl::convolution_backward_weights;
    if (direction_ == Direction::kForward) {
      const auto kind = dnnl::prop_kind::forward_training;
      keep(
          HasBias()
              ? Forward::primitive_desc(engine_, kind, algorithm, x, w, BiasDesc(), y, stride, dilation, before, after,
                                        attributes)
              : Forward::primitive_desc(engine_, kind, algorithm, x, w, y, stride, dilation, before, after, attributes),
          [](const auto& d) { return d.weights_desc(); }, [](const auto& d) { return Forward(d); });
      return;
    }
    // The API wants a forward convolution to go with a gradient; it only looks at the shapes.
    const auto hint_type = memory::data_type::f32;
    const auto any = [&](const memory::desc& desc) {
      return memory::desc(desc.get_dims(), hint_type, memory::format_tag::any);
    };
    const Forward::primitive_desc hint(engine_, dnnl::prop_kind::forward_training, algorithm, any(x), any(w), any(y),
                                       stride, dilation, before, after);
    if (direction_ == Direction::kData) {
      keep(
          Data::primitive_desc(engine_, algorithm, x, w, y, stride, dilation, before, after, hint, attributes),
          [](const auto& d) { return d.weights_desc(); }, [](const auto& d) { return Data(d); });
    } else {
      keep(
          Weights::primitive_desc(engine_, algorithm, x, w, y, stride, dilation, before, after, hint, attributes),
          [](const auto& d) { return d.diff_weights_desc(); }, [](const auto& d) { return Weights(d); });
    }
  }

  void LayOutWorkspace() {
    plain_desc_ = WeightsDesc(true);
    const bool weights = direction_ == Direction::kWeights;
    const bool adds = weights && (chunk_ < images_ || accumulate[0]);
    // A gradient that is added to is written apart even where the layouts agree.
    repacked_ = packed_desc_ != plain_desc_ || (adds && sums_in_place_) || (adds && chunk_ < images_);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (repacked_) {
      const memory::desc &from = weights ? packed_desc_ : plain_desc_, &to = weights ? plain_desc_ : packed_desc_;
      pack_desc_ = {engine_, from, engine_, to, attributes};
      RefuseReference(pack_desc_);
      pack_ = dnnl::reorder(pack_desc_);
      scratchpad_bytes_ = std::max<uint64_t>(scratchpad_bytes_, pack_desc_.scratchpad_desc().get_size());
      if (adds) {
        dnnl::post_ops ops;
        ops.append_sum(1.0f);
        attributes.set_post_ops(ops);
        pack_adding_desc_ = {engine_, from, engine_, to, attributes};
        RefuseReference(pack_adding_desc_);
        pack_adding_ = dnnl::reorder(pack_adding_desc_);
        scratchpad_bytes_ = std::max<uint64_t>(scratchpad_bytes_, pack_adding_desc_.scratchpad_desc().get_size());
      }
    }
    workspace_bytes = (scratchpad_bytes_ + 63) / 64 * 64;
    const auto take = [&](uint64_t bytes) {
      const uint64_t at = workspace_bytes;
      workspace_bytes += (bytes + 63) / 64 * 64;
      return at;
    };
    for (Tensor* tensor : {&x_, &y_})
      if (tensor->staged) tensor->offset = take(static_cast<uint64_t>(chunk_ * tensor->per_image) * sizeof(float));
    if (PlainIsStaged()) w_.offset = take(static_cast<uint64_t>(Elements(w_.given)) * sizeof(float));
    if (repacked_) packed_offset_ = take(packed_desc_.get_size());
    if (BiasIsStaged()) bias_offset_ = take(static_cast<uint64_t>(w_.given.dims[0]) * sizeof(float));
  }

  const sy_convolution_attributes t_;
  const Direction direction_;
  const int64_t images_;
  dnnl::engine engine_;
  Tensor x_, w_, y_;
  int64_t chunk_ = 0;           // images
  bool sums_in_place_ = false;  // of weights: the gradient's output is what chunks are added up in
  bool repacked_ = false;
  memory::desc plain_desc_, packed_desc_;
  std::map<int64_t, Primitive> primitives_;  // by images
  dnnl::reorder::primitive_desc pack_desc_, pack_adding_desc_;
  dnnl::reorder pack_, pack_adding_;
  uint64_t scratchpad_bytes_ = 0, packed_offset_ = 0, bias_offset_ = 0;
};

bool CheckConvolution(const Request& r, const sy_tensor& x, const sy_tensor& w, const sy_tensor& y) {
  const auto t = r.Attributes<sy_convolution_attributes>();
  for (const auto* tensors : {&r.inputs, &r.outputs})
    for (const sy_tensor& tensor : *tensors)
      if (!r.RequireFloat(tensor, "an operand")) return false;
  const auto refuse = [&](const std::string& why) {
    const auto text = [](const sy_tensor& tensor) { return DimsText(tensor.dims, static_cast<size_t>(tensor.rank)); };
    SY_REFUSE(r, "%s: %s; x %s, w %s, y %s", r.op, why.c_str(), text(x).c_str(), text(w).c_str(), text(y).c_str());
    return false;
  };
  const int rank = t.spatial_rank + 2;
  if ((t.spatial_rank != 2 && t.spatial_rank != 3) || x.rank != rank || w.rank != rank || y.rank != rank)
    return refuse("spatial_rank " + std::to_string(t.spatial_rank) + " takes tensors of 2 axes more, and is 2 or 3");
  if (x.dims[0] != y.dims[0]) return refuse("x and y differ in images");
  if (w.dims[0] != y.dims[rank - 1]) return refuse("w and y differ in output channels");
  if (t.groups < 1 || w.dims[0] % t.groups != 0 || w.dims[rank - 1] * t.groups != x.dims[rank - 1])
    return refuse(std::to_string(t.groups) + " groups do not fit the channels");
  for (int i = 0; i < t.spatial_rank; ++i) {
    if (t.stride[i] < 1 || t.dilation[i] < 1 || t.before[i] < 0 || t.after[i] < 0)
      return refuse("stride and dilation must be positive, padding not negative");
    const int64_t room = x.dims[i + 1] + t.before[i] + t.after[i] - t.dilation[i] * (w.dims[i + 1] - 1) - 1;
    if (room < 0 || y.dims[i + 1] != room / t.stride[i] + 1)
      return refuse("another number of places along spatial axis " + std::to_string(i));
  }
  return true;
}

// A filter of one place that passes all places is a matmul over them, which takes the weights as they lie.
class PointConvolution : public Kernel {
 public:
  static bool Takes(const Request& r, Direction direction) {
    const auto t = r.Attributes<sy_convolution_attributes>();
    const sy_tensor& w = Weights(r, direction);
    if (t.groups != 1) return false;
    for (int i = 0; i < t.spatial_rank; ++i)
      if (w.dims[i + 1] != 1 || t.stride[i] != 1 || t.before[i] != 0 || t.after[i] != 0) return false;
    return true;
  }
  // Whether what Takes says is sooner done so than by oneDNN's convolution. It is where the other layout of the weights
  // takes long beside all else (ResNet-50's last stage, batch 8, on one core of a Xeon with AMX: 1.0 to 1.3 times as
  // fast in f32, 1.4 to 2.4 in bf16; with more places and fewer channels 0.9 to 1.0 and 0.5 to 1.0), and for gradients
  // of weights on tiles (0.9 to 2.4).
  static bool Pays(const Request& r, Direction direction) {
    const sy_tensor &w = Weights(r, direction), &x = direction == Direction::kData ? r.outputs[0] : r.inputs[0];
    const int64_t filters = w.dims[0], channels = w.dims[w.rank - 1];
    const bool is_bf16 = r.inputs[0].dtype == SY_BF16 && r.inputs[1].dtype == SY_BF16;
    return (direction == Direction::kWeights && is_bf16 && Vector().has_tiles()) ||
           4 * filters * channels >= Elements(x) / channels * (filters + channels);
  }
  // nullptr where no matmul takes these dtypes.
  static KernelPointer Make(const Request& r, Direction direction) {
    const auto t = r.Attributes<sy_convolution_attributes>();
    sy_matmul_attributes attributes = {};
    attributes.alpha = 1;
    attributes.transpose_a = direction == Direction::kWeights;  // dw (K, C) = dyᵀ·x
    attributes.transpose_b = direction == Direction::kForward;  // y = x·wᵀ, dx = dy·w
    attributes.bias = direction == Direction::kForward && t.bias;
    Request matmul = r;
    matmul.op = "matmul";
    matmul.attributes = &attributes;
    matmul.attributes_size = sizeof attributes;
    if (direction == Direction::kWeights) std::swap(matmul.inputs[0], matmul.inputs[1]);
    for (auto* tensors : {&matmul.inputs, &matmul.outputs})
      for (sy_tensor& tensor : *tensors)
        if (tensor.rank > 1) tensor = AsRows(tensor);
    KernelPointer product = Registration::Find("matmul")->prepare(matmul);
    if (product == nullptr) return nullptr;
    return std::make_unique<PointConvolution>(r, direction, std::move(product));
  }

  PointConvolution(const Request& request, Direction direction, KernelPointer product)
      : Kernel(request), swaps_(direction == Direction::kWeights), product_(std::move(product)) {
    workspace_bytes = product_->workspace_bytes;
  }
  void Run(const Arguments&) const override {}  // bound by Bind below
  std::unique_ptr<sy_bound> Bind(Arguments arguments, sy_launch* launch) const override {
    if (swaps_) std::swap(arguments.inputs[0], arguments.inputs[1]);
    return product_->Bind(std::move(arguments), launch);
  }

 private:
  static const sy_tensor& Weights(const Request& r, Direction direction) {
    return direction == Direction::kWeights ? r.outputs[0] : r.inputs[1];
  }
  static sy_tensor AsRows(const sy_tensor& given) {
    sy_tensor rows = given;
    const int64_t channels = given.dims[given.rank - 1];
    rows.rank = 2;
    rows.dims[0] = Elements(given) / channels;
    rows.dims[1] = rows.strides[0] = channels;
    rows.strides[1] = 1;
    return rows;
  }

  const bool swaps_;
  const KernelPointer product_;
};

KernelPointer MakeByPrimitive(const Request& r, Direction direction) {
  const auto is_bf16 = [](const sy_tensor& x) { return x.dtype == SY_BF16; };
  // bf16 where the CPU multiplies it and both factors are; the result may be f32.
  if (is_bf16(r.inputs[0]) && is_bf16(r.inputs[1]) && r.outputs[0].dtype != SY_F16 && MultipliesBf16()) {
    try {
      return std::make_unique<Convolution>(r, direction, SY_BF16);
    } catch (const dnnl::error&) {  // oneDNN has no own kernel for it on this CPU
    }
  }
  try {
    return std::make_unique<Convolution>(r, direction, SY_F32);
  } catch (const dnnl::error& error) {
    return SY_REFUSE(r, "%s: oneDNN has no kernel for this shape on this CPU: %s", r.op, error.what());
  }
}

KernelPointer MakeConvolution(const Request& r, Direction direction) {
  const Way primitive = {"convolution", [&] { return MakeByPrimitive(r, direction); }};
  if (!PointConvolution::Takes(r, direction)) return primitive.make();
  std::vector<Way> ways = {primitive, {"matmul", [&] { return PointConvolution::Make(r, direction); }}};
  if (PointConvolution::Pays(r, direction)) std::swap(ways[0], ways[1]);  // the other serves where one cannot be
  return FirstOrFastest(r, ways);
}

KernelPointer PrepareConvolution(const Request& r) {
  const auto t = r.Attributes<sy_convolution_attributes>();
  const size_t count = t.bias ? 3 : 2;
  if (!r.HasCounts(count, count, 1) || !CheckConvolution(r, r.inputs[0], r.inputs[1], r.outputs[0])) return nullptr;
  if (t.bias && !r.RequireElements(r.inputs[2], r.inputs[1].dims[0], "bias")) return nullptr;
  return MakeConvolution(r, Direction::kForward);
}

KernelPointer PrepareConvolutionBackwardData(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !CheckConvolution(r, r.outputs[0], r.inputs[1], r.inputs[0])) return nullptr;
  return MakeConvolution(r, Direction::kData);
}

KernelPointer PrepareConvolutionBackwardWeights(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !CheckConvolution(r, r.inputs[0], r.outputs[0], r.inputs[1])) return nullptr;
  const int64_t groups = r.Attributes<sy_convolution_attributes>().groups, filters = r.outputs[0].dims[0];
  const sy_tensor& x = r.inputs[0];
  if (groups == filters && groups == x.dims[x.rank - 1] && groups > 1) return MakeDepthwiseWeights(r);
  return MakeConvolution(r, Direction::kWeights);
}

const Registration kConvolution{"convolution", PrepareConvolution, sizeof(sy_convolution_attributes)};
const Registration kConvolutionBackwardData{"convolution_backward_data", PrepareConvolutionBackwardData,
                                            sizeof(sy_convolution_attributes)};
const Registration kConvolutionBackwardWeights{"convolution_backward_weights", PrepareConvolutionBackwardWeights,
                                               sizeof(sy_convolution_attributes)};

}  // namespace
}  // namespace switchyard
