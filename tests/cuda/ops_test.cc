// What the conformance kit's small odd shapes do not reach in the cuda plugin's kernels: rows that are moved eight
// elements at a time, rows with a block of their own, sums that are cut into parts, tiles, several chunks. Every case
// runs on the emulated plugin in each float dtype and is compared with the reference plugin in f64. With
// CUDA_OPS_SEED=n in the environment the plugin is the one that is watched for races, and each case runs once more in
// the order of blocks and threads that n draws, with the same bits. With CUDA_OPS_MEASURE=1 kernels are measured, and
// cuDNN's double has to be there and faster than the other way: each product that it has is then its own.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "core/base/random.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

struct Value {
  std::vector<int64_t> dims;
  bool tested = true;  // takes the dtype under test; else f32, or i32 for indices
  Fill fill = Fill::kNormal;
  double limit = 0;
  bool bytes = false;  // u8
};
Value Fixed(std::vector<int64_t> dims, Fill fill = Fill::kNormal) { return {std::move(dims), false, fill, 0}; }
Value Indices(std::vector<int64_t> dims, double limit) { return {std::move(dims), false, Fill::kIndex, limit}; }
Value Bytes(std::vector<int64_t> dims, double limit) { return {std::move(dims), false, Fill::kIndex, limit, true}; }

class CudaOps : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const char* const seed = std::getenv("CUDA_OPS_SEED");
    const auto plugin = folder / "doubles/cuda_emulation" / (seed ? "races" : "plugins") / "switchyard_backend_cuda.so";
    measured_ = std::getenv("CUDA_OPS_MEASURE") != nullptr;
    if (measured_) setenv("XDG_CACHE_HOME", Cache().c_str(), 1);
    device_ = Open(plugin);
    if (seed != nullptr) {
      seed_ = std::strtoull(seed, nullptr, 10);
      void* const library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_NOLOAD);
      shuffle_ = library ? reinterpret_cast<void (*)(uint64_t)>(dlsym(library, "cudaEmulationShuffle")) : nullptr;
      if (shuffle_ == nullptr || seed_ == 0) throw std::runtime_error("CUDA_OPS_SEED, but nothing to shuffle");
    }
    reference_ = Open(folder / "../lib/switchyard/plugins/switchyard_backend_reference.so");
  }
  static void TearDownTestSuite() {
    device_.reset();
    reference_.reset();
    std::filesystem::remove_all(Cache());
  }
  static std::shared_ptr<Device> Open(const std::filesystem::path& path) {
    auto plugin = Plugin::Load(path.string());
    if (!plugin.ok()) throw std::runtime_error(std::string(plugin.status().message()));
    auto device = Device::Open(**plugin, 0, {.deterministic = !measured_});
    if (!device.ok()) throw std::runtime_error(std::string(device.status().message()));
    plugins_.push_back(*plugin);
    return std::move(*device);
  }

  static bool Watched() { return shuffle_ != nullptr; }
  // Where this process keeps choices that were measured; of those, products with GELU: the plan, as words of
  // gelu_matmul.cc.
  static std::filesystem::path Cache() {
    return std::filesystem::path(testing::TempDir()) / fmt::format("cuda_ops_cache.{}", getpid());
  }
  static std::vector<std::string> MeasuredGelu() {
    std::vector<std::string> chosen;
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(Cache() / "switchyard", none)) {
      std::ifstream stream(file.path());
      for (std::string line; std::getline(stream, line);)
        if (line.rfind("gelu,", 0) == 0) chosen.push_back(line.substr(line.find(' ') + 1));
    }
    return chosen;
  }

  // Both plugins compute the op from the same numbers; what backward ops get from a forward may be any numbers as well.
  // looser_: factor on what a half dtype may be off, for kernels that round in between.
  template <typename A>
  void Agree(const char* op, A attributes, const std::vector<Value>& inputs, const std::vector<Value>& outputs) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&attributes);
    AgreeOn(op, {bytes, bytes + sizeof attributes}, inputs, outputs);
  }
  void AgreeOn(const char* op, const std::vector<uint8_t>& attributes, const std::vector<Value>& inputs,
               const std::vector<Value>& outputs) {
    for (const sy_dtype dtype : dtypes_) {
      SCOPED_TRACE(testing::Message() << op << " in dtype " << dtype);
      Problem problem{op, attributes, {}, {}, {}};
      const auto dtype_of = [&](const Value& value) {
        if (value.tested) return dtype;
        const bool index = value.fill == Fill::kIndex || value.fill == Fill::kPermutation;
        return static_cast<sy_dtype>(value.bytes ? SY_U8 : index ? SY_I32 : SY_F32);
      };
      for (const Value& input : inputs) {
        problem.inputs.push_back(Contiguous(dtype_of(input), input.dims));
        problem.values.push_back(
            Rounded(Random(input.fill, input.limit, problem.inputs.back(), ++key_), problem.inputs.back().dtype));
      }
      for (const Value& output : outputs) problem.outputs.push_back(Contiguous(dtype_of(output), output.dims));
      Compare(problem);
    }
  }

  using Numbers = std::vector<std::vector<double>>;

  // What each output holds before, where it is added to that; else nothing.
  Numbers Initial(const Problem& problem) const {
    Numbers initial(accumulate_.empty() ? 0 : problem.outputs.size());
    for (size_t o = 0; o < initial.size(); ++o) {
      const sy_tensor& output = problem.outputs[o];
      if (accumulate_[o]) initial[o] = Rounded(Random(Fill::kNormal, 0, output, 1000 + o), output.dtype);
    }
    return initial;
  }
  StatusOr<Numbers> RunOnDevice(const Problem& problem) const {
    PrepareMode mode;
    if (measured_) mode.tuning = SY_TUNING_MEASURE;
    mode.accumulate = accumulate_;
    SY_ASSIGN_OR_RETURN(const Kernel kernel, PrepareOp(*device_, problem, mode));
    BoundOp::Mode bind;
    bind.initial_outputs = Initial(problem);
    SY_ASSIGN_OR_RETURN(const auto bound, BoundOp::Make(*device_, problem, kernel, std::move(bind)));
    return bound->Run();
  }

  StatusOr<Numbers> RunOnReference(const Problem& problem) const {
    SY_ASSIGN_OR_RETURN(Numbers results, RunOp(*reference_, InDoubles(problem)));
    const Numbers initial = Initial(problem);
    for (size_t o = 0; o < initial.size(); ++o)
      for (size_t i = 0; i < initial[o].size(); ++i) results[o][i] += initial[o][i];
    return results;
  }
  void CompareOrders(const Problem& problem, const Numbers& found) const {
    shuffle_(seed_);
    const auto again = RunOnDevice(problem);
    shuffle_(0);
    ASSERT_TRUE(again.ok()) << again.status();
    for (size_t o = 0; o < found.size(); ++o) {
      ASSERT_EQ(std::memcmp((*again)[o].data(), found[o].data(), found[o].size() * sizeof(double)), 0)
          << "output " << o << " depends on the order of blocks or threads";
    }
  }
  void Compare(const Problem& problem) const {
    const auto found = RunOnDevice(problem), expected = RunOnReference(problem);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(expected.ok()) << expected.status();
    if (shuffle_ != nullptr) CompareOrders(problem, *found);
    for (size_t o = 0; o < expected->size(); ++o) {
      const std::vector<double>&f = (*found)[o], &e = (*expected)[o];
      double squares = 0;
      for (const double x : e) squares += x * x;
      const double size = std::sqrt(squares / static_cast<double>(e.size())) + 1e-3;
      const sy_dtype dtype = problem.outputs[o].dtype;
      const double relative = dtype == SY_BF16 ? 8e-3 * looser_ : dtype == SY_F16 ? 1e-3 * looser_ : 3e-5;
      for (size_t i = 0; i < e.size(); ++i)
        ASSERT_NEAR(f[i], e[i], relative * (size + std::fabs(e[i]))) << "output " << o << ", element " << i;
    }
  }

  static inline std::vector<std::shared_ptr<Plugin>> plugins_;
  static inline std::shared_ptr<Device> device_, reference_;
  static inline void (*shuffle_)(uint64_t seed) = nullptr;  // of the watched plugin
  static inline uint64_t seed_ = 0;
  uint64_t key_ = 0;

  static inline bool measured_ = false;
  double looser_ = 1;
  std::vector<uint8_t> accumulate_;  // of each output; empty: none is added to what is there
  std::vector<sy_dtype> dtypes_ = {SY_F32, SY_BF16, SY_F16};
};

TEST_F(CudaOps, RowsOfEights) {
  for (const int64_t c : {8, 64, 1000, 4096}) {  // the last with a block for each row
    const int64_t rows = c > 1000 ? 3 : 70;
    AgreeOn("softmax", {}, {{{rows, c}}}, {{{rows, c}}});
    AgreeOn("softmax_backward", {}, {{{rows, c}, true, Fill::kProbability}, {{rows, c}}}, {{{rows, c}}});
    Agree("cross_entropy", sy_cross_entropy_attributes{.label_smoothing = 0.1f, .ignore_index = 3},
          {{{rows, c}}, Indices({rows}, static_cast<double>(c))}, {Fixed({rows}), Fixed({rows})});
    Agree("cross_entropy_backward", sy_cross_entropy_attributes{.label_smoothing = 0.1f, .ignore_index = 3},
          {{{rows, c}}, Indices({rows}, static_cast<double>(c)), Fixed({rows}, Fill::kPositive), Fixed({rows})},
          {{{rows, c}}});
  }
}

TEST_F(CudaOps, LayerNormOfManyRows) {
  for (const int64_t c : {24, 768, 2056}) {
    const int64_t rows = c == 24 ? 300 : 5;  // 300: the sums over rows are cut into parts
    const Value x = {{rows, c}}, vector = Fixed({c}), row = Fixed({rows});
    const sy_layer_norm_attributes plain{.eps = 1e-5f}, residual{.eps = 1e-5f, .residual = 1};
    Agree("layer_norm", plain, {x, vector, vector}, {x, row, row});
    const Value whole = {{rows, c}, true, Fill::kIntegers};  // whose sum no dtype rounds
    Agree("layer_norm", residual, {whole, whole, vector, vector}, {x, row, row, x});
    const Value rstd = Fixed({rows}, Fill::kPositive);
    Agree("layer_norm_backward", plain, {x, vector, row, rstd, x}, {x, vector, vector});
    Agree("layer_norm_backward", residual, {x, vector, row, rstd, x, x}, {x, vector, vector});
  }
}

// Rows that lie in the registers of their team: of one lane to 32, of one pack to four a lane, the last row of a team
// that has two alone, rows that end within a warp; and the first width that is read three times.
TEST_F(CudaOps, LayerNormOfRowsInRegisters) {
  const sy_layer_norm_attributes plain{.eps = 1e-5f}, residual{.eps = 1e-5f, .residual = 1};
  const std::vector<std::array<int64_t, 2>> shapes = {{1037, 8}, {131, 72}, {33, 128}, {17, 256}, {9, 264},
                                                      {9, 512},  {11, 768}, {9, 1000}, {1, 1024}, {9, 1032}};
  for (const auto& [rows, c] : shapes) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << c);
    const Value x = {{rows, c}}, whole = {{rows, c}, true, Fill::kIntegers}, vector = Fixed({c}), row = Fixed({rows});
    Agree("layer_norm", plain, {x, vector, vector}, {x, row, row});
    Agree("layer_norm", residual, {whole, whole, vector, vector}, {x, row, row, x});
  }
  dtypes_ = {SY_BF16};
  Agree("layer_norm", plain, {{{9, 768}}, Fixed({768}), Fixed({768})}, {Fixed({9, 768}), Fixed({9}), Fixed({9})});
}

// The one pass over rows of eights: teams of one lane to 32, blocks of two warps to sixteen, a row that ends within a
// warp, parts of which the last is not full; in the first case a second turn, whose sums go elsewhere while those of
// the first are read. Then the first widths that take two passes.
TEST_F(CudaOps, LayerNormGradientInOnePass) {
  const sy_layer_norm_attributes plain{.eps = 1e-5f}, residual{.eps = 1e-5f, .residual = 1};
  const sy_layer_norm_attributes sums{.eps = 1e-5f, .residual = 1, .column_sums = 1};
  const std::vector<std::array<int64_t, 2>> shapes = {{2120, 264}, {1037, 8}, {531, 72}, {70, 128}, {17, 256},
                                                      {1, 768},    {5, 520},  {3, 1024}, {3, 4096}, {3, 4104}};
  for (const auto& [rows, c] : shapes) {
    const Value x = {{rows, c}}, vector = Fixed({c}), row = Fixed({rows}), rstd = Fixed({rows}, Fill::kPositive);
    SCOPED_TRACE(testing::Message() << rows << " rows of " << c);
    const bool many = rows > 2000 || c > 4000;  // they take the emulation a while
    dtypes_ = {SY_BF16};
    if (!many) dtypes_ = {SY_F32, SY_BF16, SY_F16};
    if (!many) Agree("layer_norm_backward", plain, {x, vector, row, rstd, x}, {x, vector, vector});
    Agree("layer_norm_backward", residual, {x, vector, row, rstd, x, x}, {x, vector, vector});
    if (c > 4096) dtypes_ = {SY_F32};  // two passes sum what was rounded
    Agree("layer_norm_backward", sums, {x, vector, row, rstd, x, x}, {x, vector, vector, vector});
  }
}

// A gradient of another dtype than what it was taken of, and statistics in halves.
TEST_F(CudaOps, LayerNormGradientInMixedDtypes) {
  const sy_layer_norm_attributes residual{.eps = 1e-5f, .residual = 1};
  const Value half = {{40, 64}}, single = Fixed({40, 64}), vector = Fixed({64}), row = Fixed({40});
  const Value mean = {{40}}, rstd = {{40}, true, Fill::kPositive}, positive = Fixed({40}, Fill::kPositive);
  dtypes_ = {SY_BF16, SY_F16};
  Agree("layer_norm_backward", residual, {half, vector, row, positive, single, half}, {single, vector, vector});
  Agree("layer_norm_backward", residual, {single, vector, mean, rstd, half, single}, {half, vector, vector});
}

TEST_F(CudaOps, BatchNormOfManyRows) {
  for (const int64_t c : {16, 20}) {
    const Value x = {{5, 9, 7, c}}, vector = Fixed({c}), positive = Fixed({c}, Fill::kPositive);
    const sy_batch_norm_attributes a{.eps = 1e-5f, .momentum = 0.1f};
    Agree("batch_norm", a, {x, vector, vector, vector, positive}, {x, vector, vector, vector, vector});
    Agree("batch_norm_inference", a, {x, vector, vector, vector, positive}, {x});
    Agree("batch_norm_backward", a, {x, vector, vector, positive, x}, {x, vector, vector});
  }
}

// Numbers around a mean whose square f32 does not hold.
TEST_F(CudaOps, BatchNormOfLargeNumbers) {
  const sy_batch_norm_attributes a{.eps = 1e-5f, .momentum = 0.1f};
  const auto* bytes = reinterpret_cast<const uint8_t*>(&a);
  const sy_tensor x = Contiguous(SY_F32, {400, 8}), vector = Contiguous(SY_F32, {8});
  Problem problem{"batch_norm", {bytes, bytes + sizeof a}, {x, vector, vector, vector, vector}, {}, {}};
  problem.outputs = problem.inputs;
  for (const sy_tensor& input : problem.inputs)
    problem.values.push_back(Rounded(Random(Fill::kPositive, 0, input, ++key_), SY_F32));
  for (double& value : problem.values[0]) value = 2e19 + 1e17 * value;
  problem.values[0] = Rounded(problem.values[0], SY_F32);
  Compare(problem);
}

// Rows of eights with everything that the graph fuses in: blocks of 8, 16 and 32 threads a row and two beside each
// other, rows that leave some of a thread's loads without a row, several parts, and maps of two dtypes.
TEST_F(CudaOps, BatchNormWithReluAndResidualInEights) {
  for (const auto& [rows, c] :
       std::vector<std::array<int64_t, 2>>{{1, 8}, {515, 24}, {129, 64}, {33, 128}, {63, 256}, {65, 264}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << c);
    const Value x = {{rows, c}}, single = Fixed({rows, c}), vector = Fixed({c}), positive = Fixed({c}, Fill::kPositive);
    const sy_batch_norm_attributes a{.eps = 1e-2f, .momentum = 0.1f, .activation = SY_ACTIVATION_RELU, .residual = 1};
    Agree("batch_norm", a, {x, vector, vector, vector, positive, x}, {x, vector, vector, vector, vector});
    Agree("batch_norm_inference", a, {x, vector, vector, vector, positive, x}, {x});
    Agree("batch_norm_backward", a, {x, vector, vector, positive, x, x}, {x, vector, vector, x});
    dtypes_ = {SY_BF16};
    Agree("batch_norm_backward", a, {x, vector, vector, positive, single, x}, {x, vector, vector, single});
    dtypes_ = {SY_F32, SY_BF16, SY_F16};
  }
}

// Groups of eights, of five channels and of one, in one part and in several.
TEST_F(CudaOps, GroupNormInParts) {
  struct Shape {
    int64_t samples, rows, channels;
    int32_t groups;
  };
  for (const Shape& s : {Shape{2, 600, 16, 2}, {3, 40, 48, 6}, {1, 830, 15, 3}, {2, 50, 40, 40}}) {
    const Value x = {{s.samples, s.rows, s.channels}}, vector = Fixed({s.channels});
    const Value statistic = Fixed({s.samples, s.groups}), rstd = Fixed({s.samples, s.groups}, Fill::kPositive);
    const sy_group_norm_attributes a{.eps = 1e-5f, .groups = s.groups};
    Agree("group_norm", a, {x, vector, vector}, {x, statistic, statistic});
    Agree("group_norm_backward", a, {x, vector, statistic, rstd, x}, {x, vector, vector});
  }
}

// As where a bucket holds what earlier micro-batches gave: both vectors, and either alone.
TEST_F(CudaOps, GradientsOfNormsAreAddedToWhatIsThere) {
  for (const std::vector<uint8_t>& added : {std::vector<uint8_t>{0, 1, 1}, {0, 1, 0}, {0, 0, 1}}) {
    accumulate_ = added;
    for (const auto& [rows, c] : std::vector<std::array<int64_t, 2>>{{300, 24}, {70, 128}, {40, 9}}) {
      const Value x = {{rows, c}}, vector = Fixed({c}), row = Fixed({rows}), rstd = Fixed({rows}, Fill::kPositive);
      Agree("layer_norm_backward", sy_layer_norm_attributes{.eps = 1e-5f}, {x, vector, row, rstd, x},
            {x, vector, vector});
      Agree("batch_norm_backward", sy_batch_norm_attributes{.eps = 1e-5f, .momentum = 0.1f},
            {x, vector, vector, Fixed({c}, Fill::kPositive), x}, {x, vector, vector});
    }
    const Value x = {{2, 600, 16}}, vector = Fixed({16}), mean = Fixed({2, 2});
    Agree("group_norm_backward", sy_group_norm_attributes{.eps = 1e-5f, .groups = 2},
          {x, vector, mean, Fixed({2, 2}, Fill::kPositive), x}, {x, vector, vector});
  }
}

TEST_F(CudaOps, MatricesOfSeveralRowsMadeOrthonormal) {
  dtypes_ = {SY_F32};
  const std::vector<Value> matrices = {Fixed({5, 300}), Fixed({1, 7}), Fixed({3, 2051}), Fixed({4, 256})};
  Agree("orthonormalize", sy_orthonormalize_attributes{0}, matrices, matrices);
  const Value zeros = {{3, 700}, false, Fill::kConstant, 0};
  Agree("orthonormalize", sy_orthonormalize_attributes{1}, {Fixed({2, 33}), zeros, Fixed({2, 33}), Fixed({3, 700})},
        {Fixed({2, 33}), Fixed({3, 700})});
}

TEST_F(CudaOps, RanksOfLabels) {
  for (const auto& [rows, c] : std::vector<std::array<int64_t, 2>>{{70, 8}, {33, 1000}, {3, 4099}})
    AgreeOn("label_rank", {}, {{{rows, c}}, Indices({rows}, static_cast<double>(c))}, {Indices({rows}, 0)});
}

TEST_F(CudaOps, ReductionsInParts) {
  const auto reduce = [&](std::vector<int64_t> dims, uint32_t axes, std::vector<int64_t> out, int reduction) {
    Agree("reduce", sy_reduce_attributes{.reduction = reduction, .axes = axes, .scale = 0.5f}, {{dims}}, {Fixed(out)});
  };
  for (const int reduction : {SY_REDUCE_SUM, SY_REDUCE_MAX, SY_REDUCE_SUM_OF_SQUARES}) {
    reduce({3, 9000}, 2, {3}, reduction);
    reduce({900, 40}, 1, {40}, reduction);
    reduce({900, 5}, 1, {5}, reduction);
    reduce({7, 16, 24}, 5, {16}, reduction);
    reduce({7, 16, 24}, 2, {7, 24}, reduction);
    reduce({2, 3, 4, 5, 6, 8}, 42, {2, 4, 6}, reduction);
    reduce({2, 3, 4, 5, 6, 8}, 21, {3, 5, 8}, reduction);
  }
  AgreeOn("squared_norm", {}, {{{70000}}, {{17}}, {{3, 65536}}}, {Fixed({1})});
}

TEST_F(CudaOps, LayoutsInUnitsOfUpTo16Bytes) {
  const auto axes = [&](const char* op, std::vector<int> values, std::vector<Value> inputs, std::vector<int64_t> out) {
    sy_axes_attributes a{};
    std::copy(values.begin(), values.end(), a.values);
    Agree(op, a, inputs, {{out}});
  };
  axes("transpose", {2, 0, 3, 1, 4}, {{{2, 5, 3, 4, 16}}}, {3, 2, 4, 5, 16});
  axes("transpose", {1, 0}, {{{40, 72}}}, {72, 40});
  axes("transpose", {0, 2, 1}, {{{3, 33, 65}}}, {3, 65, 33});
  axes("transpose", {2, 1, 0}, {{{6, 7, 8}}}, {8, 7, 6});
  axes("roll", {0, -3, 5, 0}, {{{2, 8, 8, 24}}}, {2, 8, 8, 24});
  axes("concat", {1}, {{{4, 1, 16}}, {{4, 9, 16}}}, {4, 10, 16});
  axes("concat", {2}, {{{4, 3, 8}}, {{4, 3, 20}}}, {4, 3, 28});
  sy_slice_attributes slice{.start = {1, 2, 8}, .step = {1, 2, 1}};
  Agree("slice", slice, {{{3, 9, 32}}}, {{{2, 3, 16}}});
  sy_pad_attributes pad{.before = {0, 1, 2, 0}, .after = {0, 3, 0, 0}, .value = 0.75f};
  Agree("pad", pad, {{{2, 4, 4, 16}}}, {{{2, 8, 6, 16}}});
  axes("flip", {2}, {{{3, 5, 7, 24}}, Bytes({3}, 2)}, {3, 5, 7, 24});
  axes("flip", {1}, {{{4, 7}}, Bytes({4}, 2)}, {4, 7});
  for (const int64_t channels : {1, 3})
    Agree("flip", sy_axes_attributes{.values = {2}}, {Bytes({3, 5, 8, channels}, 256), Bytes({3}, 2)},
          {Bytes({3, 5, 8, channels}, 0)});
  AgreeOn("gather", {}, {{{9, 24}}, Indices({70}, 9)}, {{{70, 24}}});
  AgreeOn("scatter_add", {}, {Indices({700}, 9), {{700, 300}}}, {{{9, 300}}});
}

sy_pointwise_attributes Program(std::vector<sy_instruction> instructions, std::vector<int32_t> outputs) {
  sy_pointwise_attributes a{};
  a.instruction_count = static_cast<uint32_t>(instructions.size());
  a.output_count = static_cast<uint32_t>(outputs.size());
  std::copy(instructions.begin(), instructions.end(), a.instructions);
  std::copy(outputs.begin(), outputs.end(), a.outputs);
  return a;
}

TEST_F(CudaOps, PointwiseInEightsWithATail) {
  const auto add = Program({{SY_PW_ADD, 0, 1, 0, 0}}, {2});
  Agree("pointwise", add, {{{4099}}, {{4099}}}, {{{4099}}});
  Agree("pointwise", add, {{{9, 40}}, {{40}}}, {{{9, 40}}});
  Agree("pointwise", add, {{{9, 40}}, {{9, 1}}}, {{{9, 40}}});
  Agree("pointwise", add, {{{1, 8, 1, 16}}, {{3, 1, 5, 16}}}, {{{3, 8, 5, 16}}});
  // Rows that are no eights: one operand lies as the result does, the other is read element by element.
  Agree("pointwise", add, {{{6, 12}}, {{12}}}, {{{6, 12}}});
  Agree("pointwise", add, {{{5, 7, 3}}, {{3}}}, {{{5, 7, 3}}});
  Agree("pointwise", add, {{{5, 7, 3}}, {{5, 1, 3}}}, {{{5, 7, 3}}});
  Agree("pointwise", add, {{{5, 1, 3}}, {{1, 7, 1}}}, {{{5, 7, 3}}});
  // Both operands twice, results that wait in slots, two outputs of which one is an input.
  Agree("pointwise",
        Program({{SY_PW_MUL, 0, 1, 0, 0},
                 {SY_PW_SUB, 0, 1, 0, 0},
                 {SY_PW_CONSTANT, 0, 0, 0, 0.5f},
                 {SY_PW_GELU, 3, 0, 0, 0},
                 {SY_PW_MUL, 4, 5, 0, 0},
                 {SY_PW_ADD, 6, 7, 0, 0},
                 {SY_PW_MAX, 3, 8, 0, 0}},
                {9, 2, 3}),
        {{{130, 8}}, {{8}}, {{130, 8}}}, {{{130, 8}}, {{130, 8}}, Fixed({130, 8})});
  // Twelve inputs and as many values alive at once, so that blocks become smaller.
  std::vector<sy_instruction> wide;
  for (int i = 0; i < 12; ++i) wide.push_back({SY_PW_MUL, i, (i + 1) % 12, 0, 0});
  for (int i = 0; i < 11; ++i) wide.push_back({SY_PW_ADD, i == 0 ? 12 : 23 + i, 13 + i, 0, 0});
  Agree("pointwise", Program(wide, {34}), std::vector<Value>(12, Value{{300}}), {{{300}}});
}

// GELU and its derivative where the grid of 1/1024 from −12 to 12 lies, against erfc and exp in f64: within what f32
// arithmetic with erf and exp has. Then the ends of the numbers.
TEST_F(CudaOps, GeluIsAsExactAsItsNumbers) {
  std::vector<double> x;
  for (int i = -12 * 1024; i <= 12 * 1024; ++i) x.push_back(i / 1024.0);
  const auto grid = static_cast<int64_t>(x.size());
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double end : {-0.0, 1e-40, -1e-40, 1e30, -1e30, infinite, -infinite, std::nan("")}) x.push_back(end);
  const auto size = static_cast<int64_t>(x.size());
  const auto program = Program({{SY_PW_GELU, 0, 0, 0, 0}, {SY_PW_GELU_GRAD, 0, 0, 0, 0}}, {1, 2});
  const auto* bytes = reinterpret_cast<const uint8_t*>(&program);
  const sy_tensor tensor = Contiguous(SY_F32, {size});
  const auto found = RunOnDevice({"pointwise", {bytes, bytes + sizeof program}, {tensor}, {tensor, tensor}, {x}});
  ASSERT_TRUE(found.ok()) << found.status();
  const std::vector<double>&gelu = (*found)[0], &gradient = (*found)[1];
  for (size_t i = 0; i < x.size() && static_cast<int64_t>(i) < grid; ++i) {
    const double phi = 0.5 * std::erfc(-x[i] * std::sqrt(0.5));
    const double density = std::exp(-0.5 * x[i] * x[i]) / std::sqrt(2 * std::acos(-1.0));
    ASSERT_NEAR(gelu[i], x[i] * phi, 1e-7 * std::fabs(x[i])) << "at " << x[i];
    if (x[i] > -5 && x[i] < 0) {  // the tail does not cancel
      ASSERT_NEAR(gelu[i] / (x[i] * phi), 1, 1e-3) << "at " << x[i];
    }
    ASSERT_NEAR(gradient[i], phi + x[i] * density, 1.3e-7) << "at " << x[i];
  }
  const double values[] = {0, 0.5e-40, -0.5e-40, static_cast<float>(1e30), 0, infinite, 0};
  const double gradients[] = {0.5, 0.5, 0.5, 1, 0, 1, 0};
  for (size_t i = 0; i < std::size(values); ++i) {
    const auto at = static_cast<size_t>(grid) + i;
    if (std::isinf(values[i])) {
      EXPECT_EQ(gelu[at], values[i]) << "at " << x[at];
    } else {
      EXPECT_NEAR(gelu[at], values[i], std::fabs(values[i]) * 1e-3) << "at " << x[at];
    }
    EXPECT_NEAR(gradient[at], gradients[i], 1e-7) << "at " << x[at];
  }
  EXPECT_TRUE(std::isnan(gelu.back()) && std::isnan(gradient.back()));
}

TEST_F(CudaOps, DropoutInEights) {
  for (const bool per_sample : {false, true}) {
    const sy_dropout_attributes a{.key = 0x1234567890ABCDEF, .p = 0.3f, .per_sample = per_sample};
    Agree("dropout", a, {{{6, 5, 16}}, Indices({3}, 1e6), Indices({2}, 1e6)}, {{{6, 5, 16}}});
    // Samples with several blocks, the last of which has less than the others.
    Agree("dropout", a, {{{5, 10'000}}, Indices({5}, 1e6), Indices({2}, 1e6)}, {{{5, 10'000}}});
  }
}

TEST_F(CudaOps, AttentionInSeveralTiles) {
  looser_ = 4;                                 // probabilities are rounded before they weigh values
  if (Watched()) dtypes_ = {SY_F32, SY_BF16};  // f16 takes the path of bf16
  for (const auto& [d, terms] :
       std::vector<std::pair<int64_t, bool>>{{32, true}, {40, false}, {64, true}, {128, false}}) {
    const int64_t b = Watched() ? 1 : 2, t = 70, h = b;
    const sy_attention_attributes a{.scale = 0.125f, .bias = terms, .mask = terms};
    const Value qkv = {{b, t, 3, h, d}}, out = {{b, t, h, d}}, rows = Fixed({b, h, t});
    std::vector<Value> inputs = {qkv}, backward = {qkv, out, Fixed({b, h, t}, Fill::kConstant), out};
    backward[2].limit = 5;  // a logsumexp of its own: p need not sum to 1
    if (terms) {
      for (auto* list : {&inputs, &backward}) {
        list->push_back(Fixed({h, t, t}));
        list->push_back({{2, t, t}, false, Fill::kMask, 0});
      }
    }
    Agree("attention", a, inputs, {out, rows});
    std::vector<Value> gradients = {qkv};
    if (terms) gradients.push_back(Fixed({h, t, t}));
    Agree("attention_backward", a, backward, gradients);
  }
}

// So many that a block has several, with other planes of the mask.
TEST_F(CudaOps, AttentionInManyWindows) {
  looser_ = 4;
  dtypes_ = {SY_F32, SY_BF16};                                        // f16 takes the path of bf16, and ten seconds
  const int64_t b = 3, t = 9, h = Watched() ? 2 : 530, d = 8, g = 3;  // watched, that many take minutes
  const sy_attention_attributes a{.scale = 0.3f, .bias = 1, .mask = 1};
  const Value qkv = {{b, t, 3, h, d}}, out = {{b, t, h, d}}, bias = Fixed({h, t, t});
  const Value mask = {{g, t, t}, false, Fill::kMask, 0};
  Agree("attention", a, {qkv, bias, mask}, {out, Fixed({b, h, t})});
  Value logsumexp = Fixed({b, h, t}, Fill::kConstant);
  logsumexp.limit = 5;
  Agree("attention_backward", a, {qkv, out, logsumexp, out, bias, mask}, {qkv, bias});
}

// The tokens of windows at rows of maps: fewer tokens and elements than a tile has, and as many; blocks of one window
// and of several; more planes of the mask than windows of a map, as many, and fewer.
TEST_F(CudaOps, AttentionInWindowsOfMaps) {
  looser_ = 4;
  dtypes_ = {SY_BF16};  // f16 takes its path
  struct Windows {
    int64_t b, t, h, d, w, g;
  };
  const int64_t many = Watched() ? 2 : 529;
  for (const Windows& s :
       {Windows{6, 49, 2, 32, 3, 3}, {8, 64, 1, 24, 2, 4}, {8, 16, 3, 8, 4, 2}, {2, 9, many, 8, 2, 1}}) {
    const sy_attention_attributes a{.scale = 0.3f, .bias = 1, .mask = 1};
    const Value qkv = {{s.b, s.t, 3, s.h, s.d}}, out = {{s.b, s.t, s.h, s.d}}, bias = Fixed({s.h, s.t, s.t});
    const Value rows = Fixed({s.w, s.t}, Fill::kPermutation), mask = {{s.g, s.t, s.t}, false, Fill::kMask, 0};
    Value logsumexp = Fixed({s.b, s.h, s.t}, Fill::kConstant);
    logsumexp.limit = 5;
    Agree("window_attention", a, {qkv, rows, bias, mask}, {out, Fixed({s.b, s.h, s.t})});
    Agree("window_attention_backward", a, {qkv, out, logsumexp, out, rows, bias, mask}, {qkv, bias});
  }
}

TEST_F(CudaOps, ImagesOfEights) {
  for (const bool average : {false, true}) {
    sy_pool_attributes a{
        .spatial_rank = 2, .average = average, .kernel = {3, 2}, .stride = {2, 1}, .before = {1, 0}, .after = {1, 1}};
    Agree("pool", a, {{{2, 7, 6, 16}}}, {{{2, 4, 6, 16}}});
    Agree("pool_backward", a, {{{2, 7, 6, 16}}, {{2, 4, 6, 16}}}, {{{2, 7, 6, 16}}});
  }
  for (const int mode : {SY_RESIZE_NEAREST, SY_RESIZE_LINEAR}) {
    const sy_resize_attributes a{.spatial_rank = 3, .mode = mode, .align_corners = 0};
    Agree("resize", a, {{{1, 3, 5, 4, 8}}}, {{{1, 6, 3, 9, 8}}});
    Agree("resize_backward", a, {{{1, 6, 3, 9, 8}}}, {{{1, 3, 5, 4, 8}}});
    Agree("resize_backward", a, {{{1, 6, 9, 23, 8}}}, {{{1, 3, 2, 4, 8}}});  // more readers than are loaded together
  }
}

TEST_F(CudaOps, ConvolutionInSeveralTiles) {
  const sy_convolution_attributes a{.spatial_rank = 2,
                                    .stride = {2, 1},
                                    .dilation = {1, 2},
                                    .before = {1, 0},
                                    .after = {1, 3},
                                    .groups = 2,
                                    .bias = 1};
  sy_convolution_attributes plain = a;
  plain.bias = 0;
  const Value x = {{2, 9, 8, 80}}, w = {{140, 3, 2, 40}}, y = {{2, 5, 9, 140}};
  Agree("convolution", a, {x, w, {{140}}}, {y});
  Agree("convolution_backward_data", plain, {y, w}, {x});
  Agree("convolution_backward_weights", plain, {x, y}, {w});
}

TEST_F(CudaOps, OptimizerInSeveralChunks) {
  for (int kind = SY_OPTIMIZER_SGD; kind <= SY_OPTIMIZER_LARS; ++kind) {
    const bool one_moment = kind == SY_OPTIMIZER_SGD || kind == SY_OPTIMIZER_LARS;
    const bool ratio = kind == SY_OPTIMIZER_LAMB || kind == SY_OPTIMIZER_LARS;  // of norms, which take a launch before
    sy_optimizer_attributes a{.kind = kind,
                              .momentum = 0.9f,
                              .nesterov = 1,
                              .beta1 = 0.9f,
                              .beta2 = 0.99f,
                              .eps = 1e-6f,
                              .weight_decay = 0.05f};
    if (ratio) a.trust_coefficient = 0.02f, a.adam_w_mode = a.grad_averaging = a.half_copies = 1;
    std::vector<Value> inputs = {{{1}, false, Fill::kConstant, 0.01},
                                 {{1}, false, Fill::kConstant, 19},
                                 {{1}, false, Fill::kConstant, 0.5},
                                 {{1}, false, Fill::kConstant, 1}};
    std::vector<Value> outputs;
    for (const int64_t n : {5, 40000}) {
      for (int s = 0; s < (one_moment ? 3 : 4); ++s)
        inputs.push_back({{n}, s == 1, s == 3 ? Fill::kPositive : Fill::kNormal, 0});
      for (int s = 0; s < (one_moment ? 2 : 3); ++s) outputs.push_back(Fixed({n}));
      if (a.half_copies) outputs.push_back({{n}});
    }
    Agree("optimizer_update", a, inputs, outputs);
  }
}

// Which has no context until cudaSetDevice, although it is told that device 0 is its own.
TEST_F(CudaOps, AFreshThreadMultiplies) {
  std::thread([this] {
    sy_matmul_attributes a{};
    a.alpha = 1;
    Agree("matmul", a, {{{8, 16}}, {{16, 24}}}, {{{8, 24}}});
  }).join();
}

TEST_F(CudaOps, MatmulWithEpiloguesOfTheLibraryAndOfItsOwn) {
  for (int activation = SY_ACTIVATION_NONE; activation <= SY_ACTIVATION_SILU; ++activation) {
    sy_matmul_attributes a{.transpose_b = 1, .alpha = 1, .bias = 1, .activation = activation, .save_preactivation = 1};
    for (const Value& bias : {Value{{24}}, Fixed({24})})
      Agree("matmul", a, {{{40, 16}}, {{24, 16}}, bias}, {{{40, 24}}, {{40, 24}}});
    a.save_preactivation = 0;
    a.residual = 1;
    Agree("matmul", a, {{{40, 16}}, {{24, 16}}, Fixed({24}), {{40, 24}}}, {{{40, 24}}});
    const sy_matmul_attributes gradient{.alpha = 1, .activation = activation, .activation_gradient = 1};
    Agree("matmul", gradient, {{{40, 16}}, {{16, 24}}, {{40, 24}}}, {{{40, 24}}});
    sy_matmul_attributes sums = gradient;  // of f32, which is not rounded before it is summed
    sums.column_sums = 1;
    Agree("matmul", sums, {{{2, 20, 16}}, {{2, 16, 24}}, {{2, 20, 24}}}, {Fixed({2, 20, 24}), Fixed({24})});
    Agree("matmul", sums, {{{11, 16}}, {{16, 9}}, {{11, 9}}}, {Fixed({11, 9}), Fixed({9})});  // no eights
    sums.residual = 1;  // a pass that does more than the derivative
    Agree("matmul", sums, {{{40, 16}}, {{16, 24}}, {{40, 24}}, {{40, 24}}}, {Fixed({40, 24}), Fixed({24})});
  }
  // Rows in parts of which the last is not full, and columns of more than one block.
  const sy_matmul_attributes sums{
      .alpha = 1, .activation = SY_ACTIVATION_GELU, .activation_gradient = 1, .column_sums = 1};
  Agree("matmul", sums, {{{403, 8}}, {{8, 264}}, {{403, 264}}}, {Fixed({403, 264}), Fixed({264})});
  const sy_matmul_attributes weights{.transpose_a = 1, .alpha = 1, .bias_gradient = 1};
  Agree("matmul", weights, {{{500, 40}}, {{500, 16}}}, {{{40, 16}}, Fixed({40})});
  accumulate_ = {true, true};  // the library's sum lies in the workspace, and is added from there
  Agree("matmul", weights, {{{500, 40}}, {{500, 16}}}, {Fixed({40, 16}), Fixed({40})});
  accumulate_.clear();
  // Weights of which the library makes no bias' gradient, in eights and not; so many rows that they are summed in
  // parts.
  const sy_matmul_attributes activated{
      .transpose_a = 1, .alpha = 1, .activation = SY_ACTIVATION_RELU, .bias_gradient = 1};
  for (const int64_t m : {8, 9, 264})
    Agree("matmul", activated, {{{1037, m}}, {{1037, 16}}}, {Fixed({m, 16}), Fixed({m})});
  if (Watched() || measured_) return;  // it takes them a while
  dtypes_ = {SY_BF16};                 // 32 MB, from which on our own pass sums them
  Agree("matmul", weights, {{{65540, 256}}, {{65540, 2}}}, {Fixed({256, 2}), Fixed({256})});
}

// Where products are measured, by cuDNN, which has no context on a fresh thread either.
TEST_F(CudaOps, AFreshThreadMultipliesWithGeluBehindIt) {
  std::thread([this] {
    sy_matmul_attributes a{};
    a.alpha = 1;
    a.activation = SY_ACTIVATION_GELU;
    dtypes_ = {SY_BF16};
    const size_t before = MeasuredGelu().size();
    Agree("matmul", a, {{{8, 16}}, {{16, 32}}}, {{{8, 32}}});
    EXPECT_EQ(MeasuredGelu().size(), before + measured_);
  }).join();
}

// Transposed and in batches, whatever makes them; where they are measured, cuDNN's double does.
TEST_F(CudaOps, ProductsWithGeluAndItsGradient) {
  dtypes_ = {SY_BF16, SY_F16};
  const size_t before = MeasuredGelu().size();
  sy_matmul_attributes a{.alpha = 1, .activation = SY_ACTIVATION_GELU};
  Agree("matmul", a, {{{3, 8, 16}}, {{3, 16, 24}}}, {{{3, 8, 24}}});
  a.transpose_a = a.bias = 1;
  Agree("matmul", a, {{{2, 16, 8}}, {{2, 16, 24}}, Fixed({24})}, {{{2, 8, 24}}});
  a.transpose_a = 0;
  a.transpose_b = a.save_preactivation = 1;
  Agree("matmul", a, {{{2, 3, 8, 16}}, {{2, 3, 24, 16}}, {{24}}}, {{{2, 3, 8, 24}}, {{2, 3, 8, 24}}});
  a = {.transpose_b = 1, .alpha = 1, .activation = SY_ACTIVATION_GELU, .activation_gradient = 1};
  Agree("matmul", a, {{{2, 8, 16}}, {{2, 24, 16}}, {{2, 8, 24}}}, {{{2, 8, 24}}});
  const std::vector<std::string> chosen = MeasuredGelu();
  EXPECT_EQ(chosen.size(), before + (measured_ ? 8 : 0));
  for (const std::string& plan : chosen) EXPECT_EQ(plan, "2 2");
  // Rows of 9 halves are none of cuDNN's.
  Agree("matmul", a, {{{8, 16}}, {{9, 16}}, {{8, 9}}}, {{{8, 9}}});
  EXPECT_EQ(MeasuredGelu().size(), chosen.size());
}

}  // namespace
}  // namespace switchyard::conform
