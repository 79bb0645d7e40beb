// Results and gradients of the table's cases against PyTorch's (op_cases.safetensors, recorded by
// tools/fixtures/record_op_cases.py from the same table). On each plugin, with the reference plugin beside it for what
// the plugin lacks.
#include <algorithm>
#include <cmath>

#include "core/train/tensor_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/ops/case_graph.h"

namespace switchyard {
namespace {

using conform::OpCase;
using Json = nlohmann::json;

constexpr double kTolerance = 1e-5;              // of a tensor's norm
constexpr int64_t kMostRecordedElements = 4096;  // of an input: larger cases are for paths of kernels

class RecordedCases : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto opened = TensorFile::Open(std::string(SWITCHYARD_FIXTURES) + "/op_cases.safetensors");
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    file_ = std::make_unique<TensorFile>(std::move(*opened));
    cases_ = Json::parse(file_->metadata().at("cases"));
    ops_ = Json::parse(file_->metadata().at("ops")).get<std::vector<std::string>>();
  }
  // What should have been recorded.
  bool IsRecorded(const OpCase& one) const {
    if (one.forward >= 0 || std::find(ops_.begin(), ops_.end(), one.op) == ops_.end()) return false;
    return std::all_of(one.inputs.begin(), one.inputs.end(), [](const conform::Operand& input) {
      return Elements(input.dims) <= kMostRecordedElements && input.fill != conform::Fill::kSignedIndex;
    });
  }
  // The tensors of a case by their names, i0, o0, g0, d0, …
  NamedValues Tensors(const OpCase& one) const {
    NamedValues tensors;
    for (const TensorFile::Entry& entry : file_->entries()) {
      if (!entry.name.starts_with(one.id() + "/")) continue;
      std::vector<double>& values = tensors[entry.name.substr(one.id().size() + 1)];
      std::vector<uint32_t> words(static_cast<size_t>(entry.bytes) / sizeof(uint32_t));
      const Status read = file_->Read(entry, words.data());
      EXPECT_TRUE(read.ok()) << Message(read);
      for (const uint32_t word : words)
        values.push_back(entry.dtype == "F32" ? std::bit_cast<float>(word) : std::bit_cast<int32_t>(word));
    }
    return tensors;
  }
  void Compare(const OpCase& one, TestDevice& test) const;

  std::unique_ptr<TensorFile> file_;
  Json cases_;
  std::vector<std::string> ops_;
};

void RecordedCases::Compare(const OpCase& one, TestDevice& test) const {
  const Json recorded = cases_.value(one.id(), Json());
  ASSERT_EQ(recorded, Json(fmt::format("{:02x}", fmt::join(one.attributes, ""))))
      << "the table has changed: record anew with tools/fixtures/record_op_cases.py";
  const NamedValues tensors = Tensors(one);
  Graph graph;
  const CaseNode node = AddCase(graph, one);
  const Differentiated by = DifferentiatedBy(one);
  for (size_t o = 0; o < node.results.size(); ++o) {
    const std::string name = NameOf('o', static_cast<int>(o));
    if (tensors.contains(name)) graph.Output(name, node.results[o]);
  }
  if (by.named) AddGradients(graph, node, by);
  const std::vector<NamedValues> runs = RunGraph(graph, test, {tensors});
  ASSERT_EQ(runs.size(), 1u);
  for (const auto& [name, found] : runs[0]) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    const std::vector<double>& expected = tensors.at(name);
    ASSERT_EQ(found.size(), expected.size()) << name;
    double error = 0, squares = 0;
    for (size_t e = 0; e < found.size(); ++e) {
      error += std::pow(found[e] - expected[e], 2);
      squares += std::pow(expected[e], 2);
    }
    EXPECT_LE(std::sqrt(error), kTolerance * std::sqrt(squares) + 1e-6) << name;
  }
}

TEST_P(RecordedCases, EqualPyTorchsResultsAndGradients) {
  auto test = TestDevice::Open(GetParam(), 1);
  if (!test.ok()) GTEST_SKIP() << "the " << GetParam() << " plugin is not in this build";
  size_t count = 0;
  for (const OpCase& one : conform::OpCases()) {
    if (!IsRecorded(one)) continue;
    SCOPED_TRACE(one.id());
    Compare(one, **test);
    ++count;
  }
  EXPECT_EQ(count, cases_.size()) << "the fixture has cases that the table lacks";
}

INSTANTIATE_TEST_SUITE_P(Plugins, RecordedCases, ::testing::ValuesIn(TestDevices({"cpu", "reference", "null"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard
