// Images that travel as bytes and become floats on the device are, bit for bit, those that the host normalises.
#include "core/train/image_input.h"

#include <cstdlib>
#include <cstring>

#include "core/data/transforms.h"
#include "core/graph/ops/pointwise.h"
#include "gtest/gtest.h"
#include "tests/npu/simulator_path.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

struct Case {
  int channels;
  std::vector<float> mean, std;
};

class ImageBytes : public ::testing::TestWithParam<const char*> {};

TEST_P(ImageBytes, BecomeTheFloatsOfTheHost) {
  if (std::string(GetParam()) == "npu") setenv("SWITCHYARD_NPU_RUNTIME", SimulatorPath().c_str(), 0);
  auto opened = TestDevice::Open(GetParam(), 1);
  if (!opened.ok()) GTEST_SKIP() << Message(opened.status());
  TestDevice& test = **opened;
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
    Graph graph;
    nn::Context context(graph);
    graph.Output("floats", AddImages(context, input));
    EXPECT_TRUE(TakesBytes(input, test.kernels->Predicate()));
    const auto compiled = Compiled::Make(graph, test);
    ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
    EXPECT_TRUE((*compiled)->plan->report().fallbacks.empty());
    (*compiled)->Set("images", bytes);
    ASSERT_TRUE((*compiled)->instance->Run((*compiled)->stream).ok());
    const std::vector<float> found = (*compiled)->Get("output/floats");
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(float)), 0)
          << "byte " << int{bytes[i]} << " of channel " << i % c.channels << ": " << found[i] << ", expected "
          << expected[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ImageBytes, ::testing::Values("reference", "cpu", "null", "opencl", "npu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ImageInput, TravelsAsFloatsWhereADeviceTakesNoBytes) {
  const ImageInput input = {2, 4, 4, 1, DType::kU8, {0.5f}, {0.5f}};
  EXPECT_TRUE(TakesBytes(input, [](const Graph&, const Node&) { return true; }));
  EXPECT_FALSE(TakesBytes(
      input, [](const Graph& graph, const Node& node) { return graph.type(node.inputs.at(0)).dtype != DType::kU8; }));
}

}  // namespace
}  // namespace switchyard
