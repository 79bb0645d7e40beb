#include "tests/graph/fixtures.h"

#include "core/train/tensor_file.h"
#include "gtest/gtest.h"

namespace switchyard {

HostTensors ReadFixture(const std::string& file, const std::string& prefix) {
  HostTensors tensors;
  const auto opened = TensorFile::Open(std::string(SWITCHYARD_FIXTURES) + "/" + file);
  if (!opened.ok()) {
    ADD_FAILURE() << Message(opened.status());
    return tensors;
  }
  for (const TensorFile::Entry& entry : opened->entries()) {
    if (!entry.name.starts_with(prefix) || (entry.dtype != "F32" && entry.dtype != "F64")) continue;
    HostTensor& tensor = tensors[entry.name.substr(prefix.size())];
    tensor.shape.assign(entry.shape.begin(), entry.shape.end());
    tensor.values.resize(static_cast<size_t>(Elements(entry.shape)));
    std::vector<double> wide(entry.dtype == "F64" ? tensor.values.size() : 0);
    const Status read = opened->Read(entry, wide.empty() ? static_cast<void*>(tensor.values.data()) : wide.data());
    EXPECT_TRUE(read.ok()) << Message(read);
    if (!wide.empty()) tensor.values.assign(wide.begin(), wide.end());
  }
  return tensors;
}

}  // namespace switchyard
