// Times each kernel that a training step launches on the cpu plugin, at its real shapes, through the plugin's C
// interface alone: of a ViT, or the typical ones of a ResNet-50 (224²), a 3D U-Net (64³) or Swin's windows.
//   cpu_kernel_bench [--plugin=PATH] [--model=vit|resnet|unet|swin] [--width=768] [--depth=12] [--batch=8]
//   [--dtype=f32|bf16] [--threads=N]
//   [--cpu_time=0|1] [--only=NAME]
// Per kernel: time of one launch (the fastest of many), launches per step, GFLOP/s with the share of the best matrix
// product measured here, GB/s of what it must move. --cpu_time counts processor time instead of wall time: for a
// machine that is busy, with one thread.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/ops.h"
#include "core/abi/plugin.h"

namespace switchyard {
namespace {

struct Options {
  std::map<std::string, std::string> values = {{"model", "vit"}, {"width", "768"}, {"depth", "12"},  {"batch", "8"},
                                               {"dtype", "f32"}, {"threads", "0"}, {"cpu_time", "0"}};
  std::string Text(const std::string& name) const { return values.count(name) ? values.at(name) : ""; }
  int Number(const std::string& name) const { return std::atoi(Text(name).c_str()); }
};

sy_tensor Tensor(sy_dtype dtype, std::vector<int64_t> dims) {
  sy_tensor t = {dtype, static_cast<int32_t>(dims.size()), {}, {}};
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    t.dims[d] = dims[d];
    t.strides[d] = stride;
    stride *= dims[d];
  }
  return t;
}

uint64_t Bytes(const sy_tensor& t) {
  uint64_t n = t.dtype == SY_F32 || t.dtype == SY_I32 ? 4 : 2;
  for (int d = 0; d < t.rank; ++d) n *= static_cast<uint64_t>(t.dims[d]);
  return n;
}

double Now(bool cpu_time) {
  timespec t;
  clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

const char* Setting(void*, const char* name) { return std::getenv((std::string("SWITCHYARD_") + name).c_str()); }

[[noreturn]] void Quit(const std::string& message) {
  fmt::print(stderr, "cpu_kernel_bench: {}\n", message);
  std::exit(1);
}

class Bench {
 public:
  // Rows whose names do not contain `only` are left out.
  Bench(const std::string& path, int threads, bool cpu_time, std::string only)
      : cpu_time_(cpu_time), only_(std::move(only)) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) Quit(dlerror());
    static const sy_host host = {SY_HEADER(sy_host), nullptr, nullptr, Setting};
    const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
    sy_plugin plugin = {SY_HEADER(sy_plugin)};
    if (create == nullptr || create(&host, &plugin, &error_) != SY_OK) Quit(path + " is no plugin");
    device_api_ = static_cast<const sy_device_v2*>(plugin.get_interface(plugin.instance, "device/2"));
    kernels_ = static_cast<const sy_kernel_v2*>(plugin.get_interface(plugin.instance, "kernel/2"));
    sy_open_options options = {SY_HEADER(sy_open_options)};
    options.threads = threads;
    if (device_api_->open(plugin.instance, 0, &options, &device_, &error_) != SY_OK) Quit(error_.message);
  }

  // Seconds of one launch: the fastest within about `budget` seconds. An output that may lie in place of an input does.
  template <typename Attributes>
  double Time(const char* op, Attributes attributes, const std::vector<sy_tensor>& inputs,
              const std::vector<sy_tensor>& outputs, double budget = 0.25) {
    sy_prepare_request request = {SY_HEADER(sy_prepare_request)};
    request.op = op;
    request.op_version = 1;
    request.attributes = &attributes;
    request.attributes_size = sizeof attributes;
    request.input_count = static_cast<uint32_t>(inputs.size());
    request.output_count = static_cast<uint32_t>(outputs.size());
    request.inputs = inputs.data();
    request.outputs = outputs.data();
    request.workspace_limit = uint64_t{1} << 40;
    std::vector<int32_t> inplace(outputs.size(), -1);
    sy_kernel_info info = {SY_HEADER(sy_kernel_info)};
    info.inplace = inplace.data();
    sy_kernel* kernel = nullptr;
    if (kernels_->prepare(device_, &request, &kernel, &info, &error_) != SY_OK) Quit(error_.message);
    std::vector<sy_place> in, out;
    std::vector<sy_buffer*> owned;
    const auto allocate = [&](uint64_t bytes) {
      sy_buffer* buffer = nullptr;
      if (device_api_->alloc(device_, bytes, nullptr, &buffer, &error_) != SY_OK) Quit(error_.message);
      device_api_->fill(device_, nullptr, {buffer, nullptr, 0}, 0, bytes, nullptr, &error_);
      owned.push_back(buffer);
      return sy_place{buffer, nullptr, 0};
    };
    for (const sy_tensor& t : inputs) {
      in.push_back(allocate(Bytes(t)));
      Randomise(t, in.back());
    }
    for (size_t o = 0; o < outputs.size(); ++o)
      out.push_back(inplace[o] >= 0 ? in[static_cast<size_t>(inplace[o])] : allocate(Bytes(outputs[o])));
    sy_binding binding = {SY_HEADER(sy_binding)};
    binding.inputs = in.data();
    binding.outputs = out.data();
    if (info.workspace_bytes) binding.workspace = allocate(info.workspace_bytes);
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    if (kernels_->bind(device_, kernel, &binding, &bound, &launch, &error_) != SY_OK) Quit(error_.message);
    launch(bound, nullptr, &error_);
    double best = 1e9;
    const double end = Now(false) + budget;
    for (int i = 0; i < 3 || Now(false) < end; ++i) {
      const double start = Now(cpu_time_);
      if (launch(bound, nullptr, &error_) != SY_OK) Quit(error_.message);
      best = std::min(best, Now(cpu_time_) - start);
    }
    kernels_->unbind(device_, bound);
    kernels_->release(device_, kernel);
    for (sy_buffer* buffer : owned) device_api_->free(device_, buffer);
    return best;
  }

  template <typename Attributes>
  void Row(const std::string& name, int count, double flops, const char* op, const Attributes& attributes,
           const std::vector<sy_tensor>& inputs, const std::vector<sy_tensor>& outputs) {
    if (!only_.empty() && name.find(only_) == std::string::npos) return;
    const double seconds = Time(op, attributes, inputs, outputs);
    double bytes = 0;
    for (const auto* tensors : {&inputs, &outputs})
      for (const sy_tensor& t : *tensors) bytes += static_cast<double>(Bytes(t));
    fmt::print("{:<28}{:>9.3f} ms x{:>3}{:>9.1f} GF/s {:>4.0f} %{:>8.1f} GB/s\n", name, seconds * 1e3, count,
               flops / seconds * 1e-9, 100 * flops / seconds / peak_, bytes / seconds * 1e-9);
    total_ += seconds * count;
    flops_ += flops * count;
  }

  void MeasurePeak(sy_dtype dtype) {
    for (const int64_t n : {768, 1024, 2048}) {
      const sy_tensor t = Tensor(dtype, {n, n});
      sy_matmul_attributes plain = {};
      plain.alpha = 1;
      const double cube = static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
      peak_ = std::max(peak_, 2 * cube / Time("matmul", plain, {t, t}, {t}, 1.0));
    }
    fmt::print("best matrix product: {:.1f} GF/s\n", peak_ * 1e-9);
  }
  void Summary() const {
    if (total_ == 0) return;  // --only rows that are no part of a step
    fmt::print("{:<28}{:>9.3f} ms     {:>9.1f} GF/s {:>4.0f} %\n", "all", total_ * 1e3, flops_ / total_ * 1e-9,
               100 * flops_ / total_ / peak_);
  }

 private:
  // Small numbers; labels and steps stay 0.
  void Randomise(const sy_tensor& t, const sy_place& place) {
    if (t.dtype != SY_F32 && t.dtype != SY_BF16) return;
    std::vector<char> host(Bytes(t));
    uint32_t word = 1;
    for (size_t i = 0; i < host.size(); i += t.dtype == SY_F32 ? 4 : 2) {
      word = word * 1664525u + 1013904223u;
      const float value = static_cast<float>(word >> 8) * 0x1p-24f;
      std::memcpy(&host[i], reinterpret_cast<const char*>(&value) + (t.dtype == SY_F32 ? 0 : 2),
                  t.dtype == SY_F32 ? 4 : 2);
    }
    device_api_->copy(device_, nullptr, place, {nullptr, host.data(), 0}, host.size(), nullptr, &error_);
  }

  bool cpu_time_;
  std::string only_;
  double peak_ = 0, total_ = 0, flops_ = 0;
  const sy_device_v2* device_api_ = nullptr;
  const sy_kernel_v2* kernels_ = nullptr;
  sy_device* device_ = nullptr;
  sy_error error_ = {SY_HEADER(sy_error)};
};

void BenchmarkTransformer(Bench& bench, int64_t batch, int64_t width, int depth, sy_dtype dtype) {
  const int64_t tokens = 197, head_dim = 64, heads = width / head_dim, rows = batch * tokens, hidden = 4 * width;
  const auto half = [&](std::vector<int64_t> dims) { return Tensor(dtype, std::move(dims)); };
  const auto full = [&](std::vector<int64_t> dims) { return Tensor(SY_F32, std::move(dims)); };
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, sy_matmul_attributes t) {
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
    t.alpha = 1;
    t.transpose_b = 1;
    t.bias = 1;
    std::vector<sy_tensor> inputs = {half({rows, in}), half({out, in}), full({out})}, outputs = {half({rows, out})};
    if (t.residual) inputs.push_back(half({rows, out}));
    if (t.save_preactivation) outputs.push_back(half({rows, out}));
    bench.Row(name, depth, flops, "matmul", t, inputs, outputs);
    sy_matmul_attributes data = {};
    data.alpha = 1;
    inputs = {half({rows, out}), half({out, in})};
    if (name == "fc2") {
      data.activation = SY_ACTIVATION_GELU;
      data.activation_gradient = 1;
      inputs.push_back(half({rows, in}));
    }
    bench.Row(name + " dx", depth, flops, "matmul", data, inputs, {half({rows, in})});
    sy_matmul_attributes weights = {};
    weights.alpha = 1;
    weights.transpose_a = 1;
    weights.bias_gradient = 1;
    bench.Row(name + " dw", depth, flops, "matmul", weights, {half({rows, out}), half({rows, in})},
              {full({out, in}), full({out})});
  };
  sy_matmul_attributes plain = {}, gelu = {}, residual = {};
  gelu.activation = SY_ACTIVATION_GELU;
  gelu.save_preactivation = 1;
  residual.residual = 1;
  linear("qkv", width, 3 * width, plain);
  linear("projection", width, width, residual);
  linear("fc1", width, hidden, gelu);
  linear("fc2", hidden, width, residual);

  const double scores = 2.0 * static_cast<double>(batch * heads * tokens * tokens * head_dim);
  sy_attention_attributes attention = {};
  attention.scale = 0.125f;
  const sy_tensor qkv = half({batch, tokens, 3, heads, head_dim}), out = half({batch, tokens, heads, head_dim});
  const sy_tensor logsumexp = full({batch, heads, tokens});
  bench.Row("attention", depth, 2 * scores, "attention", attention, {qkv}, {out, logsumexp});
  bench.Row("attention_backward", depth, 5 * scores, "attention_backward", attention, {qkv, out, logsumexp, out},
            {qkv});

  sy_layer_norm_attributes norm = {};
  norm.eps = 1e-6f;
  const sy_tensor x = half({rows, width}), parameter = full({width}), statistic = full({rows});
  bench.Row("layer_norm", 2 * depth + 1, 0, "layer_norm", norm, {x, parameter, parameter}, {x, statistic, statistic});
  norm.residual = 1;
  bench.Row("layer_norm_backward", 2 * depth + 1, 0, "layer_norm_backward", norm,
            {x, parameter, statistic, statistic, x, x}, {x, parameter, parameter});

  // All parameters of the blocks: update, norm of the gradients, and the copies in half precision.
  const int64_t parameters = depth * 12 * width * width;
  const sy_tensor state = full({parameters}), one = full({1});
  sy_optimizer_attributes adamw = {};
  adamw.kind = SY_OPTIMIZER_ADAMW;
  adamw.beta1 = 0.9f;
  adamw.beta2 = 0.999f;
  adamw.eps = 1e-8f;
  bench.Row("optimizer_update", 1, 0, "optimizer_update", adamw, {one, one, one, one, state, state, state, state},
            {state, state, state});
  bench.Row("squared_norm", 1, 0, "squared_norm", sy_axes_attributes{}, {state}, {one});
  if (dtype != SY_F32) {
    sy_pointwise_attributes convert = {};
    convert.output_count = 1;
    bench.Row("weights to half", 1, 0, "pointwise", convert, {state}, {half({parameters})});
  }
  sy_axes_attributes patches = {};
  const int32_t axes[] = {0, 1, 3, 2, 4, 5};
  std::copy(std::begin(axes), std::end(axes), patches.values);
  bench.Row("patches", 1, 0, "transpose", patches, {full({batch, 14, 16, 14, 16, 3})},
            {full({batch, 14, 14, 16, 16, 3})});
  sy_pointwise_attributes position = {};
  position.instruction_count = position.output_count = 1;
  position.instructions[0] = {SY_PW_ADD, 0, 1, 0, 0};
  position.outputs[0] = 2;
  bench.Row("add positions", 1, 0, "pointwise", position, {half({batch, tokens, width}), full({tokens, width})},
            {half({batch, tokens, width})});
  bench.Summary();
}

// A convolution with its gradients, of a cube or square of `size` places.
struct Layer {
  int spatial_rank;
  int64_t size, channels, filters;
  int kernel, stride, groups, count;
};

void BenchmarkConvolution(Bench& bench, int64_t batch, const Layer& l, sy_dtype dtype) {
  sy_convolution_attributes t = {};
  t.spatial_rank = l.spatial_rank;
  t.groups = l.groups;
  const int before = (l.kernel - 1) / 2;
  const int64_t places = (l.size + 2 * before - l.kernel) / l.stride + 1;
  std::vector<int64_t> x = {batch}, w = {l.filters}, y = {batch};
  double flops = 2.0 * static_cast<double>(batch * l.filters * (l.channels / l.groups));
  for (int i = 0; i < l.spatial_rank; ++i) {
    t.stride[i] = l.stride;
    t.dilation[i] = 1;
    t.before[i] = t.after[i] = before;
    x.push_back(l.size);
    w.push_back(l.kernel);
    y.push_back(places);
    flops *= static_cast<double>(places * l.kernel);
  }
  x.push_back(l.channels);
  w.push_back(l.channels / l.groups);
  y.push_back(l.filters);
  const std::string name = fmt::format("{}^{} {}>{} k{} s{}{}", l.size, l.spatial_rank, l.channels, l.filters, l.kernel,
                                       l.stride, l.groups > 1 ? fmt::format(" g{}", l.groups) : "");
  const sy_tensor image = Tensor(dtype, x), weights = Tensor(dtype, w), result = Tensor(dtype, y);
  bench.Row(name, l.count, flops, "convolution", t, {image, weights}, {result});
  bench.Row(name + " dx", l.count, flops, "convolution_backward_data", t, {result, weights}, {image});
  bench.Row(name + " dw", l.count, flops, "convolution_backward_weights", t, {image, result}, {Tensor(SY_F32, w)});
}

void BenchmarkBatchNorm(Bench& bench, const std::string& name, std::vector<int64_t> dims, int count, sy_dtype dtype) {
  sy_batch_norm_attributes t = {};
  t.eps = 1e-5f;
  t.momentum = 0.1f;
  t.activation = SY_ACTIVATION_RELU;
  const sy_tensor x = Tensor(dtype, dims), c = Tensor(SY_F32, {dims.back()});
  bench.Row(name + " norm", count, 0, "batch_norm", t, {x, c, c, c, c}, {x, c, c, c, c});
  bench.Row(name + " norm dx", count, 0, "batch_norm_backward", t, {x, c, c, c, x, x}, {x, c, c});
}

void BenchmarkResNet(Bench& bench, int64_t batch, sy_dtype dtype) {
  for (const Layer& layer : {Layer{2, 224, 3, 64, 7, 2, 1, 1},
                             {2, 56, 64, 64, 1, 1, 1, 1},
                             {2, 56, 64, 64, 3, 1, 1, 3},
                             {2, 56, 64, 256, 1, 1, 1, 4},
                             {2, 56, 256, 64, 1, 1, 1, 2},
                             {2, 56, 128, 128, 3, 2, 1, 1},
                             {2, 28, 128, 128, 3, 1, 1, 3},
                             {2, 28, 128, 512, 1, 1, 1, 4},
                             {2, 56, 256, 512, 1, 2, 1, 1},
                             {2, 14, 256, 256, 3, 1, 1, 5},
                             {2, 14, 1024, 256, 1, 1, 1, 5},
                             {2, 7, 512, 512, 3, 1, 1, 2},
                             {2, 7, 512, 2048, 1, 1, 1, 3},
                             {2, 56, 96, 96, 7, 1, 96, 0},
                             {2, 56, 128, 128, 3, 1, 32, 0}})
    BenchmarkConvolution(bench, batch, layer, dtype);
  BenchmarkBatchNorm(bench, "112^2 64", {batch, 112, 112, 64}, 1, dtype);
  BenchmarkBatchNorm(bench, "56^2 256", {batch, 56, 56, 256}, 3, dtype);
  BenchmarkBatchNorm(bench, "7^2 2048", {batch, 7, 7, 2048}, 3, dtype);
  sy_pool_attributes largest = {}, average = {};
  largest.spatial_rank = average.spatial_rank = 2;
  average.average = 1;
  for (int i = 0; i < 2; ++i) {
    largest.kernel[i] = 3;
    largest.stride[i] = 2;
    largest.before[i] = largest.after[i] = 1;
    average.kernel[i] = 7;
    average.stride[i] = 1;
  }
  const sy_tensor stem = Tensor(dtype, {batch, 112, 112, 64}), pooled = Tensor(dtype, {batch, 56, 56, 64});
  const sy_tensor last = Tensor(dtype, {batch, 7, 7, 2048}), features = Tensor(dtype, {batch, 1, 1, 2048});
  bench.Row("max pool", 1, 0, "pool", largest, {stem}, {pooled});
  bench.Row("max pool dx", 1, 0, "pool_backward", largest, {stem, pooled}, {stem});
  bench.Row("average pool", 1, 0, "pool", average, {last}, {features});
  bench.Row("average pool dx", 1, 0, "pool_backward", average, {last, features}, {last});
  bench.Summary();
}

void BenchmarkUNet(Bench& bench, sy_dtype dtype) {
  for (const Layer& layer : {Layer{3, 64, 4, 32, 3, 1, 1, 1},
                             {3, 64, 32, 32, 3, 1, 1, 2},
                             {3, 64, 96, 32, 3, 1, 1, 1},
                             {3, 32, 64, 64, 3, 1, 1, 2},
                             {3, 16, 128, 128, 3, 1, 1, 2},
                             {3, 8, 256, 256, 3, 1, 1, 2},
                             {3, 64, 32, 3, 1, 1, 1, 1}})
    BenchmarkConvolution(bench, 1, layer, dtype);
  BenchmarkBatchNorm(bench, "64^3 32", {1, 64, 64, 64, 32}, 4, dtype);
  sy_pool_attributes pool = {};
  pool.spatial_rank = 3;
  for (int i = 0; i < 3; ++i) pool.kernel[i] = pool.stride[i] = 2;
  sy_resize_attributes resize = {};
  resize.spatial_rank = 3;
  resize.mode = SY_RESIZE_LINEAR;
  const sy_tensor fine = Tensor(dtype, {1, 64, 64, 64, 32}), coarse = Tensor(dtype, {1, 32, 32, 32, 32});
  bench.Row("max pool", 1, 0, "pool", pool, {fine}, {coarse});
  bench.Row("max pool dx", 1, 0, "pool_backward", pool, {fine, coarse}, {fine});
  bench.Row("resize", 1, 0, "resize", resize, {coarse}, {fine});
  bench.Row("resize dx", 1, 0, "resize_backward", resize, {fine}, {coarse});
  bench.Summary();
}

// Window attention of Swin-T's first and third stage: windows of 7 × 7, bias and mask.
void BenchmarkSwin(Bench& bench, int64_t batch, sy_dtype dtype) {
  for (const auto& [side, heads, count] : {std::array<int, 3>{8, 3, 2}, {2, 12, 6}}) {
    const int64_t tokens = 49, head_dim = 32, groups = side * side, windows = batch * groups;
    const double scores = 2.0 * static_cast<double>(windows * heads * tokens * tokens * head_dim);
    const auto half = [&](std::vector<int64_t> dims) { return Tensor(dtype, std::move(dims)); };
    sy_attention_attributes t = {};
    t.scale = 0.1767767f;
    t.bias = t.mask = 1;
    const sy_tensor qkv = half({windows, tokens, 3, heads, head_dim}), out = half({windows, tokens, heads, head_dim});
    const sy_tensor logsumexp = Tensor(SY_F32, {windows, heads, tokens}), bias = half({heads, tokens, tokens});
    const sy_tensor mask = half({groups, tokens, tokens}), dbias = Tensor(SY_F32, {heads, tokens, tokens});
    const std::string name = fmt::format("window attention h{}", heads);
    bench.Row(name, count, 2 * scores, "attention", t, {qkv, bias, mask}, {out, logsumexp});
    bench.Row(name + " dqkv", count, 5 * scores, "attention_backward", t, {qkv, out, logsumexp, out, bias, mask},
              {qkv, dbias});
    t.mask = 0;
    bench.Row(name + " unshifted dqkv", count, 5 * scores, "attention_backward", t, {qkv, out, logsumexp, out, bias},
              {qkv, dbias});
  }
  bench.Summary();
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  switchyard::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    if (text.rfind("--", 0) != 0 || equals == std::string::npos) {
      fmt::print(stderr,
                 "usage: cpu_kernel_bench [--plugin=PATH] [--model=vit|resnet|unet|swin] [--width=768] [--depth=12] "
                 "[--batch=8] [--dtype=f32|bf16] "
                 "[--threads=N] [--cpu_time=0|1] [--only=NAME]\n");
      return 1;
    }
    options.values[text.substr(2, equals - 2)] = text.substr(equals + 1);
  }
  std::string path = options.Text("plugin");
  if (path.empty())
    path = std::filesystem::read_symlink("/proc/self/exe").parent_path() /
           "../lib/switchyard/plugins/switchyard_backend_cpu.so";
  switchyard::Bench bench(path, options.Number("threads"), options.Number("cpu_time") != 0, options.Text("only"));
  const sy_dtype dtype = options.Text("dtype") == "bf16" ? SY_BF16 : SY_F32;
  bench.MeasurePeak(dtype);
  const std::string model = options.Text("model");
  const int batch = options.Number("batch");
  if (model == "resnet")
    switchyard::BenchmarkResNet(bench, batch, dtype);
  else if (model == "unet")
    switchyard::BenchmarkUNet(bench, dtype);
  else if (model == "swin")
    switchyard::BenchmarkSwin(bench, batch, dtype);
  else
    switchyard::BenchmarkTransformer(bench, batch, options.Number("width"), options.Number("depth"), dtype);
  return 0;
}
