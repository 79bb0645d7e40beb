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
      const FileLayout::Published& published = layout.Of(name, shape);
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
  const FileLayout::Published& published = layout.Of("fc", {2, 3});
  EXPECT_FALSE(published.moved);
  ASSERT_EQ(published.tensors.size(), 1u);
  EXPECT_EQ(published.tensors[0].name, "fc");
  EXPECT_EQ(published.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(published.tensors[0].begin, 0);
}

}  // namespace
}  // namespace switchyard
