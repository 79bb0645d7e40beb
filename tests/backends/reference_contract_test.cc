// What the reference plugin promises beyond its formulas: dtypes, strides, accumulation, in-place pairs, refusals,
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Op kConvert("pointwise", sy_pointwise_attributes{.output_count = 1, .outputs = {0}});

class ReferenceContract : public testing::Test {
 protected:
  std::vector<double> Convert(const Tensor& from, sy_dtype to) {
    return backend_.Run(kConvert, {from}, {Tensor{to, from.dims, {}}})[0];
  }
  Backend backend_{"reference"};
};

TEST_F(ReferenceContract, Bf16RoundsToNearestEven) {
  // 1 + 2⁻⁸ lies between 0x3F80 and 0x3F81 and goes to the even one; 1 + 3·2⁻⁸ to 0x3F82. The next double beyond the
  // first tie goes up.
  const Tensor x = F64({7}, {1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-8 + 0x1p-40, -2, 3.4e38, 0x1p-133, 0x1.8p-133});
  EXPECT_THAT(Convert(x, SY_BF16), ElementsAre(0x3F80, 0x3F82, 0x3F81, 0xC000, 0x7F80, 0x0001, 0x0002));
  EXPECT_THAT(Convert({SY_BF16, {3}, {0x3F81, 0xFF80, 0x8001}}, SY_F64),
              ElementsAre(1 + 0x1p-7, -std::numeric_limits<double>::infinity(), -0x1p-133));
}

TEST_F(ReferenceContract, F16RoundsToNearestEvenWithSubnormalsAndOverflow) {
  const Tensor x =
      F64({9}, {1 + 0x1p-11, 1 + 3 * 0x1p-11, 65504, 65520, -1e9, 0x1p-24, 0x1p-25, 0x1.8p-24, 0x1p-14 * 0.9999999});
  EXPECT_THAT(Convert(x, SY_F16), ElementsAre(0x3C00, 0x3C02, 0x7BFF, 0x7C00, 0xFC00, 0x0001, 0x0000, 0x0002, 0x0400));
  std::vector<double> bits;
  for (int i = 0; i < 0x7C00; ++i) bits.push_back(i);
  const Tensor all{SY_F16, {static_cast<int64_t>(bits.size())}, bits};
  Tensor wide{SY_F64, all.dims, Convert(all, SY_F64)};
  EXPECT_EQ(Convert(wide, SY_F16), bits) << "every finite f16 survives the way there and back";
}

TEST_F(ReferenceContract, IntegersTruncateSaturateAndTakeNanAsZero) {
  const Tensor x = F64({5}, {-1.9, 300, 1e12, std::nan(""), 2.5});
  EXPECT_THAT(Convert(x, SY_U8), ElementsAre(0, 255, 255, 0, 2));
  EXPECT_THAT(Convert(x, SY_I32), ElementsAre(-1, 300, 2147483647, 0, 2));
  EXPECT_THAT(Convert({SY_I64, {1}, {-9007199254740991}}, SY_I64), ElementsAre(-9007199254740991));
}

TEST_F(ReferenceContract, StridedInputsAreReadWhereTheyLie) {
  Tensor x = F32({2, 2}, {1, 2, 3, 4, 5, 6});  // columns 0 and 2 of (2, 3)
  x.strides = {3, 2};
  const Result result = backend_.Run(kConvert, {x}, {F32({2, 2})});
  EXPECT_THAT(result[0], ElementsAre(1, 3, 4, 6));
  Tensor row = F32({2, 2}, {7, 8});
  row.strides = {0, 1};
  EXPECT_THAT(backend_.Run(kConvert, {row}, {F32({2, 2})})[0], ElementsAre(7, 8, 7, 8));
}

TEST_F(ReferenceContract, EveryFloatOutputAccumulates) {
  Op op = kConvert;
  op.accumulate = {1};
  const Result result = backend_.Run(op, {F32({2}, {1, 2})}, {F32({2}, {10, 20})});
  EXPECT_THAT(result[0], ElementsAre(11, 22));
  EXPECT_THAT(result.inplace, ElementsAre(-1)) << "an output that is read cannot lie on an input";
  EXPECT_EQ(backend_.Run(op, {I32({1}, {1})}, {I32({1}, {1})}).status, SY_UNSUPPORTED);
}

TEST_F(ReferenceContract, InPlacePairsNeedEqualBytesAndAreGivenAwayOnce) {
  sy_pointwise_attributes two{.output_count = 2, .outputs = {0, 1}};
  EXPECT_THAT(backend_.Run(Op("pointwise", two), {F32({2}, {1, 2}), F32({2}, {3, 4})}, {F32({2}), F32({2})}).inplace,
              ElementsAre(0, 1));
  EXPECT_THAT(backend_.Run(kConvert, {F32({1}, {1})}, {F32({2})}).inplace, ElementsAre(-1)) << "broadcast";
  const Op adam("optimizer_update", sy_optimizer_attributes{.kind = SY_OPTIMIZER_ADAM});
  const Tensor one = F32({1}, {1});
  EXPECT_THAT(backend_.Run(adam, {one, F32({1}, {0}), one, one, one, one, one, one}, {one, one, one}).inplace,
              ElementsAre(4, 6, 7));
}

TEST_F(ReferenceContract, RefusalsSayWhatWasExpectedAndFound) {
  const auto refusal = [&](const Op& op, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
    const Result result = backend_.Run(op, inputs, outputs);
    return std::pair(result.status, result.message);
  };
  using testing::Pair;
  EXPECT_THAT(refusal(Op("fly"), {F32({1})}, {F32({1})}), Pair(SY_UNSUPPORTED, HasSubstr("no op fly")));
  EXPECT_THAT(refusal(Op("softmax"), {F32({2, 3})}, {F32({2, 4})}),
              Pair(SY_INVALID, "softmax: y must be (2, 3), found f32 (2, 4)"));
  EXPECT_THAT(refusal(Op("softmax"), {}, {}),
              Pair(SY_INVALID, HasSubstr("expected 1 inputs and 1 outputs, found 0 and 0")));
  EXPECT_THAT(refusal(Op("softmax"), {I32({2})}, {F32({2})}), Pair(SY_INVALID, HasSubstr("input 0 must be a float")));
  EXPECT_THAT(refusal(Op("softmax"), {F32({0, 2}, {0})}, {F32({0, 2}, {0})}),
              Pair(SY_INVALID, HasSubstr("dims must be at least 1")));
  EXPECT_THAT(refusal(Op("softmax"), {Tensor{99, {1}, {1}}}, {F32({1})}),
              Pair(SY_UNSUPPORTED, HasSubstr("unknown dtype 99")));
  EXPECT_THAT(refusal(Op("matmul"), {F32({1, 1}), F32({1, 1})}, {F32({1, 1})}),
              Pair(SY_INVALID, HasSubstr("bytes of attributes")));
  sy_pointwise_attributes program{
      .instruction_count = 1, .output_count = 1, .outputs = {1}, .instructions = {{SY_PW_ADD, 0, 1}}};
  EXPECT_THAT(refusal(Op("pointwise", program), {F32({1})}, {F32({1})}),
              Pair(SY_INVALID, HasSubstr("reads operand 1 of 1")));
  const sy_convolution_attributes convolution{.spatial_rank = 2, .stride = {0, 1}, .dilation = {1, 1}, .groups = 1};
  EXPECT_THAT(refusal(Op("convolution", convolution), {F32({1, 2, 2, 1}), F32({1, 1, 1, 1})}, {F32({1, 2, 2, 1})}),
              Pair(SY_INVALID, HasSubstr("stride")));
}

// A plugin of today cannot tell what a later version of an op means by them from nonsense.
TEST_F(ReferenceContract, UnknownValuesOfAttributesAreUnsupported) {
  const Tensor x = F32({1, 1});
  sy_pointwise_attributes program{
      .instruction_count = 1, .output_count = 1, .outputs = {1}, .instructions = {{SY_PW_OP_COUNT, 0, 0}}};
  EXPECT_EQ(backend_.Run(Op("pointwise", program), {x}, {x}).status, SY_UNSUPPORTED);
  EXPECT_EQ(backend_.Run(Op("matmul", sy_matmul_attributes{.alpha = 1, .activation = 99}), {x, x}, {x}).status,
            SY_UNSUPPORTED);
  EXPECT_EQ(backend_.Run(Op("reduce", sy_reduce_attributes{.reduction = 99, .axes = 1}), {x}, {x}).status,
            SY_UNSUPPORTED);
  EXPECT_EQ(backend_.Run(Op("optimizer_update", sy_optimizer_attributes{.kind = 99}), {x, x, x, x, x, x}, {x}).status,
            SY_UNSUPPORTED);
}

TEST_F(ReferenceContract, ARefusedPrepareChangesNothing) {
  const std::vector<sy_tensor> tensors = {Describe(F32({4})), Describe(I32({4}))};
  const Op op("pointwise", sy_pointwise_attributes{.output_count = 2, .outputs = {0, 1}});
  sy_prepare_request request = backend_.Request(op, tensors, tensors);
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  std::vector<int32_t> inplace(2, -1);
  info.inplace = inplace.data();
  info.workspace_bytes = 7;
  sy_kernel* kernel = nullptr;
  const std::vector<uint8_t> accumulate = {0, 1};  // into an integer
  request.accumulate = accumulate.data();
  EXPECT_EQ(backend_.kernels().prepare(backend_.device(), &request, &kernel, &info, backend_.error()), SY_UNSUPPORTED);
  request.accumulate = nullptr;
  request.determinism = SY_DETERMINISM_EXACT + 1;
  EXPECT_EQ(backend_.kernels().prepare(backend_.device(), &request, &kernel, &info, backend_.error()), SY_UNSUPPORTED);
  EXPECT_EQ(info.workspace_bytes, 7u);
  EXPECT_THAT(inplace, ElementsAre(-1, -1));
  EXPECT_EQ(kernel, nullptr);
}

TEST_F(ReferenceContract, AttributesMayBeShorterAndLongerThanKnown) {
  const Tensor x = F32({1, 1}, {2});
  Op op("matmul", sy_matmul_attributes{.alpha = 3});
  const auto run = [&](size_t bytes) {
    Op resized = op;
    resized.attributes.resize(bytes, 0);
    return backend_.Run(resized, {x, x}, {F32({1, 1})});
  };
  EXPECT_THAT(run(offsetof(sy_matmul_attributes, bias))[0], ElementsAre(12)) << "what is missing reads as zero";
  EXPECT_THAT(run(offsetof(sy_matmul_attributes, alpha))[0], ElementsAre(0));
  EXPECT_THAT(run(sizeof(sy_matmul_attributes) + 64)[0], ElementsAre(12)) << "zeros ask for nothing";
  EXPECT_EQ(run(0).status, SY_INVALID);
  op.attributes.push_back(1);
  EXPECT_EQ(run(sizeof(sy_matmul_attributes) + 64).status, SY_UNSUPPORTED);
}

TEST_F(ReferenceContract, RequiredExtensionsAreUnsupportedAndOthersAreNot) {
  const sy_extension required{SY_HEADER(sy_extension), "tests.required/1", 1};
  sy_extension optional{SY_HEADER(sy_extension), "tests.optional/1", 0};
  sy_alloc_options options{SY_HEADER(sy_alloc_options)};
  options.header.next = &optional;
  sy_buffer* buffer = nullptr;
  ASSERT_EQ(backend_.api().alloc(backend_.device(), 4, &options, &buffer, backend_.error()), SY_OK);
  backend_.api().free(backend_.device(), buffer);
  optional.header.next = &required;  // behind one that may be ignored
  EXPECT_EQ(backend_.api().alloc(backend_.device(), 4, &options, &buffer, backend_.error()), SY_UNSUPPORTED);
  EXPECT_THAT(backend_.message(), HasSubstr("tests.required/1"));
}

TEST_F(ReferenceContract, OlderAndNewerStructsAreUnderstood) {
  // A host of a later version hands over larger structs.
  struct Newer {
    sy_device_info info;
    char more[64];
  } newer{};
  newer.info.header = {sizeof newer, SY_ABI_MAJOR, 7, nullptr};
  newer.more[0] = 'x';
  ASSERT_EQ(backend_.api().query(backend_.instance(), 0, &newer.info, backend_.error()), SY_OK);
  EXPECT_EQ(newer.more[0], 'x');
  EXPECT_EQ(newer.info.header.minor, 7);
  sy_device_info older{};
  older.header = {offsetof(sy_device_info, memory_bytes), SY_ABI_MAJOR, 0, nullptr};
  ASSERT_EQ(backend_.api().query(backend_.instance(), 0, &older, backend_.error()), SY_OK);
  EXPECT_NE(older.name[0], '\0');
  EXPECT_EQ(older.memory_bytes, 0u) << "beyond the size that the caller gave";
  EXPECT_EQ(backend_.api().query(backend_.instance(), 5, &older, nullptr), SY_INVALID) << "error may be NULL";
}

TEST_F(ReferenceContract, BindRefusesPlacesOutsideTheirBuffers) {
  const std::vector<sy_tensor> tensors = {Describe(F32({4}))};
  const Op softmax("softmax");
  const sy_prepare_request request = backend_.Request(softmax, tensors, tensors);
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(backend_.kernels().prepare(backend_.device(), &request, &kernel, &info, backend_.error()), SY_OK);
  sy_buffer* buffer = backend_.Upload(std::vector<char>(16));
  const sy_place good{buffer, nullptr, 0}, bad{buffer, nullptr, 4};
  sy_binding binding{SY_HEADER(sy_binding), &good, &bad, {}, {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  EXPECT_EQ(backend_.kernels().bind(backend_.device(), kernel, &binding, &bound, &launch, backend_.error()),
            SY_INVALID);
  EXPECT_THAT(backend_.message(), HasSubstr("16 bytes at offset 4"));
  backend_.kernels().release(backend_.device(), kernel);
  backend_.api().free(backend_.device(), buffer);
}

TEST_F(ReferenceContract, OutOfMemoryIsToldAndSurvived) {
  const Backend small("reference", {{"REFERENCE_MEMORY", "1000"}});
  sy_buffer *first = nullptr, *second = nullptr;
  EXPECT_EQ(small.api().alloc(small.device(), 1001, nullptr, &first, backend_.error()), SY_OUT_OF_MEMORY);
  EXPECT_EQ(small.api().alloc(small.device(), UINT64_MAX, nullptr, &first, backend_.error()), SY_OUT_OF_MEMORY);
  EXPECT_EQ(small.api().alloc(small.device(), 600, nullptr, &first, backend_.error()), SY_OK);
  EXPECT_EQ(small.api().alloc(small.device(), 600, nullptr, &second, backend_.error()), SY_OUT_OF_MEMORY);
  EXPECT_THAT(backend_.message(), HasSubstr("600 of 1000"));
  small.api().free(small.device(), first);
  EXPECT_EQ(small.api().alloc(small.device(), 1000, nullptr, &second, backend_.error()), SY_OK);
  small.api().free(small.device(), second);
  small.api().free(small.device(), nullptr);
}

TEST_F(ReferenceContract, ImportedMemoryIsUsedInPlace) {
  const auto* memory = backend_.Interface<sy_memory_ext_v2>("memory_ext/2");
  ASSERT_NE(memory, nullptr);
  alignas(64) float shared[4] = {1, 2, 3, 4};
  sy_buffer* buffer = nullptr;
  ASSERT_EQ(memory->import_memory(backend_.device(), shared, "host", sizeof shared, &buffer, backend_.error()), SY_OK);
  void* address = nullptr;
  ASSERT_EQ(memory->native_address(backend_.device(), buffer, &address, backend_.error()), SY_OK);
  EXPECT_EQ(address, shared);
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(backend_.api().query(backend_.instance(), 0, &info, backend_.error()), SY_OK);
  EXPECT_STREQ(info.memory_kind, "host");
  EXPECT_EQ(backend_.api().fill(backend_.device(), nullptr, {buffer, nullptr, 4}, 0, 4, nullptr, backend_.error()),
            SY_OK);
  EXPECT_THAT(shared, ElementsAre(1, 0, 3, 4));
  backend_.api().free(backend_.device(), buffer);
  EXPECT_EQ(memory->import_memory(backend_.device(), shared, "cuda", 16, &buffer, backend_.error()), SY_UNSUPPORTED);
}

TEST_F(ReferenceContract, EachInstanceHasTheSettingsOfItsHost) {
  const Backend three("reference", {{"CPU_DEVICES", "3"}});
  int32_t count = 0;
  EXPECT_EQ(three.api().count(three.instance(), &count, nullptr), SY_OK);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(backend_.api().count(backend_.instance(), &count, nullptr), SY_OK);
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace switchyard::test
