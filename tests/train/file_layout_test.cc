// What parameters become in a file, found by their elements' numbers, is what the model's own function makes of them.
#include "core/train/file_layout.h"

#include <numeric>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

HostTensor Rows(const HostTensor& of, int64_t begin, int64_t end) {
  const auto columns = of.shape[1];
  return {{end - begin, columns}, {of.values.begin() + begin * columns, of.values.begin() + end * columns}};
}

// "same" keeps its name; "fc" has another one; "qkv" is three tensors, whose names have another order than they lie in;
// "patch" is transposed; "pair" is two, of which one is transposed.
HostTensors ToFile(HostTensors tensors) {
  const auto transposed = [](const HostTensor& of) {
    HostTensor result{{of.shape[1], of.shape[0]}, {}};
    for (int64_t column = 0; column < of.shape[1]; ++column) {
      for (int64_t row = 0; row < of.shape[0]; ++row)
        result.values.push_back(of.values[static_cast<size_t>(row * of.shape[1] + column)]);
    }
    return result;
  };
  HostTensors result;
  for (auto& [name, tensor] : tensors) {
    if (name == "fc") {
      result["linear"] = std::move(tensor);
    } else if (name == "qkv") {
      result["query"] = Rows(tensor, 0, 2);
      result["key"] = Rows(tensor, 2, 4);
      result["value"] = Rows(tensor, 4, 6);
    } else if (name == "patch") {
      result["patch"] = transposed(tensor);
    } else if (name == "pair") {
      result["a"] = transposed(Rows(tensor, 2, 6));
      result["b"] = Rows(tensor, 0, 2);
    } else {
      result[name] = std::move(tensor);
    }
  }
  return result;
}

TEST(FileLayout, IsThatOfTheModelsOwnFunction) {
  TrainableModel model;
  model.to_file = ToFile;
  FileLayout layout(model);
  const Shape shape = {6, 4};
  for (const std::string name : {"same", "fc", "qkv", "patch", "pair"}) {
    for (const int round : {0, 1}) {
      SCOPED_TRACE(fmt::format("{}, round {}", name, round));
      std::vector<float> values(static_cast<size_t>(Elements(shape)));
      std::iota(values.begin(), values.end(), static_cast<float>(100 * round));
      const HostTensors expected = ToFile({{name, {shape, values}}});
      const auto found = layout.Of(name, shape);
      ASSERT_TRUE(found.ok()) << Message(found.status());
      const FileLayout::Published& published = **found;
      EXPECT_EQ(published.moved, name == "patch" || name == "pair");
      if (published.moved) layout.Move(name, shape, values.data());
      ASSERT_EQ(published.tensors.size(), expected.size());
      for (const FileLayout::Tensor& tensor : published.tensors) {
        ASSERT_TRUE(expected.contains(tensor.name)) << tensor.name;
        const HostTensor& of_file = expected.at(tensor.name);
        EXPECT_EQ(tensor.shape, of_file.shape);
        const auto begin = values.begin() + tensor.begin;
        EXPECT_EQ(std::vector<float>(begin, begin + Elements(tensor.shape)), of_file.values) << tensor.name;
      }
    }
  }
}

TEST(FileLayout, IsTheGraphsWhereAModelHasNoOther) {
  FileLayout layout{TrainableModel()};
  const auto found = layout.Of("fc", {2, 3});
  ASSERT_TRUE(found.ok()) << Message(found.status());
  const FileLayout::Published& published = **found;
  EXPECT_FALSE(published.moved);
  ASSERT_EQ(published.tensors.size(), 1u);
  EXPECT_EQ(published.tensors[0].name, "fc");
  EXPECT_EQ(published.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(published.tensors[0].begin, 0);
}

// What is not a parameter's own elements, each once, cannot be written from where it lies.
TEST(FileLayout, RefusesAFunctionThatDoesMoreThanMove) {
  using Change = void (*)(std::vector<float>&);
  const std::pair<Change, const char*> changes[] = {
      {[](std::vector<float>& values) { values[0] = 1; }, "its own elements"},
      {[](std::vector<float>& values) { values[2] = values[3]; }, "its own elements"},
      {[](std::vector<float>& values) { values.push_back(0); }, "its own elements"},
      {[](std::vector<float>& values) { values.pop_back(); }, "5 of its 6 elements"}};
  for (const auto& [change, words] : changes) {
    TrainableModel model;
    model.to_file = [change = change](HostTensors tensors) {
      change(tensors.begin()->second.values);
      return tensors;
    };
    FileLayout layout(model);
    for (int round = 0; round < 2; ++round) {
      const auto found = layout.Of("fc", {2, 3});
      EXPECT_NE(Message(found.status()).find(words), std::string::npos) << Message(found.status());
    }
  }
}

}  // namespace
}  // namespace switchyard
