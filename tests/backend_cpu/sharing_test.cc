// What kernel/2 promises of bindings: bind, launch and unbind change nothing that the bindings of one kernel share. Two
// threads bind, launch and unbind one kernel at once, each on its own buffers, and both get, bit for bit, what each
// gets alone. The thread sanitizer sees more than the results do. The shapes of Cases take the ways of a kernel that
// only larger ones take; every op is tried at those of the table of cases (tools/conform).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "tests/backends/backend.h"
#include "tools/conform/op_data.h"

namespace switchyard::test {
namespace {

constexpr size_t kThreads = 2;

struct Case {
  Op op;
  std::vector<Tensor> inputs, outputs;  // their dtypes and dims
};

std::ostream& operator<<(std::ostream& out, const Case& given) { return out << given.op.name; }

Tensor Of(sy_dtype dtype, std::vector<int64_t> dims) { return {dtype, std::move(dims), {}}; }

std::vector<Case> Cases() {
  const Tensor x = F32({600, 96}), row = F32({96}), half = Of(SY_BF16, {600, 96}), small = Of(SY_F16, {64, 96});
  const Tensor qkv = F32({2, 33, 3, 2, 16}), mean = F32({600});
  const Tensor image = F32({2, 8, 8, 16}), half_image = Of(SY_F16, {2, 8, 8, 16});
  const sy_convolution_attributes convolution = {.spatial_rank = 2,
                                                 .stride = {1, 1, 1},
                                                 .dilation = {1, 1, 1},
                                                 .before = {1, 1, 1},
                                                 .after = {1, 1, 1},
                                                 .groups = 1};
  const sy_pool_attributes pool = {.spatial_rank = 2, .kernel = {2, 2, 2}, .stride = {2, 2, 2}};
  return {
      // oneDNN's primitive in one block, in several, and with a pass of our own behind it; then by way of f32.
      {Op("matmul", sy_matmul_attributes{.alpha = 1}), {F32({64, 96}), F32({96, 80})}, {F32({64, 80})}},
      {Op("matmul", sy_matmul_attributes{.alpha = 2, .bias = 1}),
       {F32({64, 32}), F32({32, 3200}), F32({3200})},
       {F32({64, 3200})}},
      {Op("matmul", sy_matmul_attributes{.alpha = 1, .activation = SY_ACTIVATION_GELU, .save_preactivation = 1}),
       {x, F32({96, 64})},
       {F32({600, 64}), F32({600, 64})}},
      {Op("matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1, .bias_gradient = 1}),
       {x, x},
       {F32({96, 96}), row}},
      {Op("matmul", sy_matmul_attributes{.transpose_b = 1, .alpha = 1}), {small, small}, {Of(SY_F16, {64, 64})}},
      {Op("matmul", sy_matmul_attributes{.alpha = 1}),
       {Of(SY_BF16, {600, 96}), Of(SY_BF16, {96, 64})},
       {Of(SY_BF16, {600, 64})}},
      {Op("attention", sy_attention_attributes{.scale = 0.25f}), {qkv}, {F32({2, 33, 2, 16}), F32({2, 2, 33})}},
      {Op("layer_norm", sy_layer_norm_attributes{.eps = 1e-5f}), {half, row, row}, {half, mean, mean}},
      // As it is, by way of f32, with reordered weights, and a gradient that is brought back.
      {Op("convolution", convolution), {image, F32({32, 3, 3, 16})}, {F32({2, 8, 8, 32})}},
      {Op("convolution", convolution), {half_image, Of(SY_F16, {32, 3, 3, 16})}, {Of(SY_F16, {2, 8, 8, 32})}},
      {Op("convolution_backward_data", convolution), {F32({2, 8, 8, 32}), F32({32, 3, 3, 16})}, {image}},
      {Op("convolution_backward_weights", convolution), {image, F32({2, 8, 8, 32})}, {F32({32, 3, 3, 16})}},
      {Op("batch_norm", sy_batch_norm_attributes{.eps = 1e-5f, .momentum = 0.1f, .activation = SY_ACTIVATION_RELU}),
       {half, row, row, row, row},
       {half, row, row, row, row}},
      {Op("batch_norm_backward", sy_batch_norm_attributes{.eps = 1e-5f}), {x, row, row, row, x}, {x, row, row}},
      {Op("pool_backward", pool), {image, F32({2, 4, 4, 16})}, {image}},
      {Op("resize", sy_resize_attributes{.spatial_rank = 2, .mode = SY_RESIZE_LINEAR}),
       {image},
       {F32({2, 12, 12, 16})}},
      {Op("optimizer_update", sy_optimizer_attributes{.kind = SY_OPTIMIZER_LARS,
                                                      .momentum = 0.9f,
                                                      .weight_decay = 0.1f,
                                                      .trust_coefficient = 0.01f,
                                                      .half_copies = 1}),
       {F32({1}), F32({1}), F32({1}), F32({1}), x, x, x},
       {x, x, half}},
      {Op("softmax"), {x}, {x}},
      {Op("squared_norm"), {x, half}, {F32({1})}},
      {Op("orthonormalize", sy_orthonormalize_attributes{.drawn = 1}),
       {F32({4, 96}), F32({2, 600}), F32({4, 96}), F32({2, 600})},
       {F32({4, 96}), F32({2, 600})}},
      {Op("reduce", sy_reduce_attributes{.reduction = SY_REDUCE_SUM, .axes = 1, .scale = 1}), {x}, {row}},
      {Op("transpose", sy_axes_attributes{.values = {1, 0}}), {x}, {F32({96, 600})}},
      {Op("flip", sy_axes_attributes{.values = {1}}), {x, Of(SY_U8, {600})}, {x}},
      {Op("pointwise",
          sy_pointwise_attributes{
              .instruction_count = 1, .output_count = 1, .outputs = {2}, .instructions = {{SY_PW_MUL, 0, 1}}}),
       {x, row},
       {half}},
  };
}

std::vector<Tensor> Filled(std::vector<Tensor> tensors, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::uniform_int_distribution<int> bits(0x3000, 0x3BFF);  // small numbers of either half type
  for (Tensor& tensor : tensors)
    for (int64_t i = 0; i < Count(tensor.dims); ++i)
      tensor.values.push_back(tensor.dtype == SY_F32  ? uniform(generator)
                              : tensor.dtype == SY_U8 ? bits(generator) % 2
                                                      : bits(generator));
  return tensors;
}

// values: of the inputs, for each thread.
void ExpectToBeShared(Backend& backend, const Op& op, const std::array<std::vector<Tensor>, kThreads>& values,
                      const std::vector<Tensor>& outputs, int rounds) {
  const sy_device_v2& api = backend.api();
  const sy_kernel_v2& kernels = backend.kernels();
  std::vector<sy_tensor> in, out;
  for (const Tensor& tensor : values[0]) in.push_back(Describe(tensor));
  for (const Tensor& tensor : outputs) out.push_back(Describe(tensor));

  struct Own {
    std::vector<Tensor> values;
    std::vector<std::vector<char>> expected;
    std::vector<sy_place> from, to;
    sy_place workspace{};
  };
  std::array<Own, kThreads> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads[t].values = values[t];
    const Result alone = backend.Run(op, values[t], outputs);
    ASSERT_EQ(alone.status, SY_OK) << alone.message;
    for (const Tensor& tensor : alone.outputs) threads[t].expected.push_back(Encode(tensor));
  }

  const sy_prepare_request request = backend.Request(op, in, out);
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(kernels.prepare(backend.device(), &request, &kernel, &info, backend.error()), SY_OK) << backend.message();
  std::vector<sy_buffer*> buffers;
  const auto place = [&](const std::vector<char>& bytes) {
    buffers.push_back(backend.Upload(bytes));
    return sy_place{buffers.back(), nullptr, 0};
  };
  for (Own& own : threads) {
    for (const Tensor& tensor : own.values) own.from.push_back(place(Encode(tensor)));
    for (const auto& bytes : own.expected) own.to.push_back(place(std::vector<char>(bytes.size())));
    if (info.workspace_bytes) own.workspace = place(std::vector<char>(info.workspace_bytes));
  }

  std::atomic<size_t> ready{0};
  const auto work = [&](const Own& own) {
    ++ready;
    while (ready < kThreads) std::this_thread::yield();
    for (int round = 0; round < rounds; ++round) {
      for (size_t o = 0; o < own.to.size(); ++o)
        api.fill(backend.device(), nullptr, own.to[o], 0xFF, own.expected[o].size(), nullptr, nullptr);
      const sy_binding binding{SY_HEADER(sy_binding), own.from.data(), own.to.data(), own.workspace, {}, {}, {}};
      sy_bound* bound = nullptr;
      sy_launch launch = nullptr;
      ASSERT_EQ(kernels.bind(backend.device(), kernel, &binding, &bound, &launch, nullptr), SY_OK);
      for (int twice = 0; twice < 2; ++twice) ASSERT_EQ(launch(bound, nullptr, nullptr), SY_OK);
      kernels.unbind(backend.device(), bound);
      for (size_t o = 0; o < own.to.size(); ++o) {
        std::vector<char> found(own.expected[o].size());
        api.copy(backend.device(), nullptr, {nullptr, found.data(), 0}, own.to[o], found.size(), nullptr, nullptr);
        ASSERT_EQ(found, own.expected[o]) << "output " << o << " in round " << round;
      }
    }
  };
  std::vector<std::thread> running;
  for (const Own& own : threads) running.emplace_back(work, std::cref(own));
  for (std::thread& thread : running) thread.join();
  kernels.release(backend.device(), kernel);
  for (sy_buffer* buffer : buffers) api.free(backend.device(), buffer);
}

class CpuSharing : public testing::TestWithParam<Case> {};

TEST_P(CpuSharing, TwoThreadsBindAndLaunchOneKernelAtOnce) {
  Backend backend("cpu");
  const auto& [op, inputs, outputs] = GetParam();
  ExpectToBeShared(backend, op, {Filled(inputs, 1), Filled(inputs, 2)}, outputs, 20);
}

TEST(CpuSharingOfEveryOp, TwoThreadsBindAndLaunchItAtOnce) {
  Backend backend("cpu");
  const auto plugin = Plugin::Load((std::filesystem::read_symlink("/proc/self/exe").parent_path() /
                                    "../lib/switchyard/plugins/switchyard_backend_reference.so")
                                       .string());
  ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
  const auto reference = Device::Open(**plugin, 0, {});
  ASSERT_TRUE(reference.ok()) << Message(reference.status());
  std::set<std::string> shared;
  for (const conform::OpCase& one : conform::OpCases()) {
    SCOPED_TRACE(one.id());
    std::array<std::vector<Tensor>, kThreads> values;
    Op op(one.op);
    op.attributes.assign(one.attributes.begin(), one.attributes.end());
    std::vector<Tensor> outputs;
    for (size_t t = 0; t < kThreads; ++t) {
      const auto problem = conform::MakeWholeProblem(one, SY_F32, t + 1, **reference);
      ASSERT_TRUE(problem.ok()) << Message(problem.status());
      for (size_t i = 0; i < problem->inputs.size(); ++i) {
        const sy_tensor& input = problem->inputs[i];
        values[t].push_back({input.dtype, {input.dims, input.dims + input.rank}, problem->values[i]});
      }
      outputs.clear();
      for (const sy_tensor& output : problem->outputs)
        outputs.push_back({output.dtype, {output.dims, output.dims + output.rank}, {}});
    }
    if (backend.Run(op, values[0], outputs).status == SY_UNSUPPORTED) continue;  // an epilogue that it lacks
    shared.insert(one.op);
    ExpectToBeShared(backend, op, values, outputs, 3);
    if (HasFatalFailure()) return;
  }
  for (const std::string& name : conform::OpNames())
    EXPECT_TRUE(shared.contains(name) || conform::MadeByFusion(name)) << name;
}

INSTANTIATE_TEST_SUITE_P(Ops, CpuSharing, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.op.name + "_" + std::to_string(info.index); });

}  // namespace
}  // namespace switchyard::test
