// Images that travel as bytes and become floats on the device are, bit for bit, those that the host normalises; those
// that it mixes, those that the loader mixes; and those that it flips, those that the transforms flip.
#include "core/train/image_input.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>

#include "core/data/mixing.h"
#include "core/data/transforms.h"
#include "core/graph/ops/pointwise.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/npu/simulator_path.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

struct Case {
  int channels;
  std::vector<float> mean, std;
};

class ImageBytes : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "npu") setenv("SWITCHYARD_NPU_RUNTIME", SimulatorPath().c_str(), 0);
    auto opened = TestDevice::Open(GetParam(), 1);
    if (!opened.ok()) GTEST_SKIP() << Message(opened.status());
    test_ = std::move(*opened);
  }
  // What a graph with batch inputs of these bytes gives, without an op that the device lacks.
  std::vector<float> Floats(const std::function<Value(nn::Context&)>& build,
                            const std::map<std::string, std::vector<uint8_t>>& inputs) {
    Graph graph;
    nn::Context context(graph);
    graph.Output("floats", build(context));
    const auto compiled = Compiled::Make(graph, *test_);
    EXPECT_TRUE(compiled.ok()) << Message(compiled.status());
    if (!compiled.ok()) return {};
    EXPECT_TRUE((*compiled)->plan->report().fallbacks.empty());
    for (const auto& [name, bytes] : inputs) (*compiled)->Set(name, bytes);
    EXPECT_TRUE((*compiled)->instance->Run((*compiled)->stream).ok());
    return (*compiled)->Get("output/floats");
  }
  std::unique_ptr<TestDevice> test_;
};

TEST_P(ImageBytes, BecomeTheFloatsOfTheHost) {
  for (const Case& c : {Case{3, {0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}}, Case{3, {0.5f}, {0.5f}},
                        Case{1, {0.2860f}, {0.3530f}}, Case{3, {0.5f}, {0.229f, 0.224f, 0.225f}}}) {
    TransformOptions options;
    options.evaluation = {.image_size = 16, .channels = c.channels, .resize = 16, .mean = c.mean, .std = c.std};
    const Transform transform = *Transform::Create(options);
    Image image, again;
    image.Reshape(16, 16, c.channels);  // every byte in every channel
    for (size_t i = 0; i < image.bytes.size(); ++i) image.bytes[i] = static_cast<uint8_t>(i / c.channels);
    again = image;
    std::vector<float> expected(static_cast<size_t>(transform.elements()));
    std::vector<uint8_t> bytes(expected.size());
    transform.Apply(0, 0, &image, expected.data());
    transform.ApplyBytes(0, 0, &again, bytes.data());

    const ImageInput input = {1, 16, 16, c.channels, DType::kU8, c.mean, c.std};
    EXPECT_TRUE(TakesBytes(input, test_->kernels->Predicate()));
    const std::vector<float> found =
        Floats([&](nn::Context& context) { return AddImages(context, input); }, {{"images", bytes}});
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(float)), 0)
          << "byte " << int{bytes[i]} << " of channel " << i % c.channels << ": " << found[i] << ", expected "
          << expected[i];
    }
  }
}

// Every byte with every other, by shares that are drawn, halves and quarters, whose results lie between bytes, and none
// and all; and rectangles.
TEST_P(ImageBytes, MixedOnTheDeviceAreThoseThatTheLoaderMixes) {
  constexpr int kSide = 256;
  std::vector<Mix> mixes = {{.share = 0.5f}, {.share = 0.25f}, {.share = 0}, {}, {.cut = true}};
  mixes.back() = {.share = 0.9f, .cut = true, .top = 250, .left = 0, .bottom = 256, .right = 7};
  mixes.push_back({.share = 0.9f, .cut = true, .top = 3, .left = 200, .bottom = 4, .right = 256});
  RandomStream random(Key(7));
  for (int i = 0; i < 4; ++i) mixes.push_back(DrawMix({.mixup = 0.8f}, kSide, kSide, &random));
  for (const int channels : {1, 3}) {
    const int height = channels == 1 ? kSide : 5, width = kSide, elements = height * width * channels;
    const auto batch = static_cast<int64_t>(mixes.size());
    std::vector<uint8_t> images;
    for (int64_t i = 0; i < batch * elements; ++i) {
      const int64_t row = i / (width * channels), column = i % (width * channels);
      images.push_back(static_cast<uint8_t>(i / elements < batch / 2 ? row : column + 31 * (channels - 1) * row));
    }
    std::vector<Mix> cut = mixes;
    for (Mix& mix : cut) mix.top = std::min(mix.top, height - 1), mix.bottom = std::min(mix.bottom, height);
    std::vector<int32_t> partners, rows(static_cast<size_t>(batch * height));
    std::vector<uint8_t> columns(static_cast<size_t>(batch * width * channels));
    for (int64_t i = 0; i < batch; ++i) {
      partners.push_back(static_cast<int32_t>(batch - 1 - i));
      WritePartnerShares(cut[static_cast<size_t>(i)], height, width, channels, rows.data() + i * height,
                         columns.data() + i * width * channels);
    }
    const auto bytes_of = [](const std::vector<int32_t>& numbers) {
      const auto* const first = reinterpret_cast<const uint8_t*>(numbers.data());
      return std::vector<uint8_t>(first, first + numbers.size() * sizeof(int32_t));
    };
    const ImageInput input = {batch, height, width, channels, DType::kU8, {0.485f}, {0.229f}};
    EXPECT_TRUE(MixesBytes(input, test_->kernels->Predicate()));
    const std::vector<float> found =
        Floats([&](nn::Context& context) { return AddMixedImages(context, input); }, {{"images", images},
                                                                                      {"partners", bytes_of(partners)},
                                                                                      {"partner_rows", bytes_of(rows)},
                                                                                      {"partner_columns", columns}});
    MixImages(cut, height, width, channels, images.data());
    const std::vector<float> expected =
        Floats([&](nn::Context& context) { return AddImages(context, input); }, {{"images", images}});
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(float)), 0)
          << "element " << i << ", byte " << int{images[i]} << ": " << found[i] << ", expected " << expected[i];
    }
  }
}

TEST_P(ImageBytes, FlippedOnTheDeviceAreThoseThatTheTransformsFlip) {
  constexpr int kBatch = 6, kSide = 16;
  for (const int channels : {1, 3}) {
    TransformOptions options;
    options.evaluation = {.image_size = kSide, .channels = channels, .resize = kSide, .mean = {0.5f}, .std = {0.5f}};
    options.train = true;
    options.augmentation = Augmentation::kCropFlip;
    const Transform transform = *Transform::Create(options);
    const auto elements = static_cast<size_t>(transform.elements());
    std::vector<uint8_t> expected(kBatch * elements), bytes(expected.size()), flips;
    for (int i = 0; i < kBatch; ++i) {
      Image image;
      image.Reshape(kSide, kSide, channels);
      for (size_t k = 0; k < elements; ++k) image.bytes[k] = static_cast<uint8_t>(k * 7 + static_cast<size_t>(i));
      Image again = image;
      bool flip = false;
      transform.ApplyBytes(0, i, &image, expected.data() + static_cast<size_t>(i) * elements);
      transform.ApplyBytes(0, i, &again, bytes.data() + static_cast<size_t>(i) * elements, &flip);
      flips.push_back(flip);
    }
    ASSERT_THAT(flips, testing::AllOf(testing::Contains(0), testing::Contains(1)));
    ASSERT_NE(bytes, expected);

    ImageInput input = {kBatch, kSide, kSide, channels, DType::kU8, {0.5f}, {0.5f}};
    EXPECT_TRUE(FlipsBytes(input, test_->kernels->Predicate()));
    const std::vector<float> as_they_are =
        Floats([&](nn::Context& context) { return AddImages(context, input); }, {{"images", expected}});
    input.flips = true;
    const std::vector<float> found =
        Floats([&](nn::Context& context) { return AddImages(context, input, AddFlips(context, input)); },
               {{"images", bytes}, {"flips", flips}});
    EXPECT_EQ(found, as_they_are) << channels << " channels";
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ImageBytes, ::testing::Values("reference", "cpu", "null", "opencl", "npu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ImageInput, TravelsAsFloatsWhereADeviceTakesNoBytes) {
  const ImageInput input = {2, 4, 4, 1, DType::kU8, {0.5f}, {0.5f}};
  EXPECT_TRUE(TakesBytes(input, [](const Graph&, const Node&) { return true; }));
  const CanPrepare no_bytes = [](const Graph& graph, const Node& node) {
    return graph.type(node.inputs.at(0)).dtype != DType::kU8;
  };
  EXPECT_FALSE(TakesBytes(input, no_bytes));
  EXPECT_FALSE(MixesBytes(input, no_bytes));
  EXPECT_FALSE(MixesBytes(input, [](const Graph&, const Node& node) { return node.op != "gather"; }));
}

}  // namespace
}  // namespace switchyard
