// How the simulator's operators are written: checks, then a body over host arrays. Values are computed in f32 from
// operands of any dtype; Read gives the elements of a view in row-major order of the broadcast shape, Write puts a
// result back. Bodies run on a stream's worker; everything here is a pure function of its arguments and of device
// memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/doubles/npu/simulator.h"

namespace simulator {

using Dims = std::vector<int64_t>;
int64_t Count(const Dims& dims);
size_t SizeOf(aclDataType dtype);
std::string ToText(const Dims& dims);
bool IsFloat(aclDataType dtype);

// The host address of a view's first element; nullptr where some of it is not allocated.
char* Begin(const aclTensor& tensor);

// f(position in row-major order of `dims`, element offset of `strides`) for every element, the last axis innermost.
template <typename F>
void ForEach(const Dims& dims, const Dims& strides, F f) {
  const size_t last = dims.size() - 1;
  const int64_t rows = Count(dims) / dims[last], width = dims[last], step = strides[last];
  Dims index(dims.size(), 0);
  int64_t row_offset = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) f(row * width + i, row_offset + i * step);
    for (size_t axis = last; axis-- > 0;) {
      row_offset += strides[axis];
      if (++index[axis] < dims[axis]) break;
      row_offset -= strides[axis] * dims[axis];
      index[axis] = 0;
    }
  }
}

float ToFloat(uint16_t half, aclDataType dtype);
uint16_t ToHalf(float value, aclDataType dtype);  // rounded to nearest, ties to even
double ReadElement(const char* address, aclDataType dtype);
void WriteElement(char* address, aclDataType dtype, double value);

// A view as `T` (float or double) in the shape `dims` that it broadcasts to. Points into device memory where it can.
template <typename T>
class Read {
 public:
  Read(const aclTensor& tensor, const Dims& dims);
  const T* data() const { return direct_ != nullptr ? direct_ : own_.data(); }
  T operator[](int64_t i) const { return data()[i]; }
  bool valid() const { return valid_; }

 private:
  const T* direct_ = nullptr;
  std::vector<T> own_;
  bool valid_ = true;
};

// The place of a result of the view's own shape; reaches the view when Finish is called.
class Write {
 public:
  explicit Write(const aclTensor& tensor);
  float* data() { return direct_ != nullptr ? direct_ : own_.data(); }
  float& operator[](int64_t i) { return data()[i]; }
  bool valid() const { return begin_ != nullptr; }
  void Finish();

 private:
  const aclTensor& tensor_;
  char* begin_;
  float* direct_ = nullptr;
  std::vector<float> own_;
};

bool IsContiguous(const aclTensor& tensor);
// numpy's rule; false where the shapes do not agree.
bool Broadcast(const Dims& a, const Dims& b, Dims* result);
Outcome LostMemory(const char* name);

// The first phase of an operator: collects complaints, then hands out an executor.
class Planner {
 public:
  explicit Planner(const char* name);
  // Null operands are refused, and more than 8 axes.
  Planner& Known(std::initializer_list<const aclTensor*> tensors);
  // The same, and f64 and int64.
  Planner& Takes(std::initializer_list<const aclTensor*> tensors);
  Planner& Floats(std::initializer_list<const aclTensor*> tensors);
  Planner& SameDtype(std::initializer_list<const aclTensor*> tensors);
  Planner& Shape(const aclTensor* tensor, const Dims& dims);
  Planner& Need(bool condition, const std::string& complaint);
  bool ok() const { return code_ == ACL_SUCCESS; }
  aclnnStatus Give(Work work, uint64_t workspace_bytes, uint64_t* workspaceSize, aclOpExecutor** executor);
  aclnnStatus code() const { return code_; }

 private:
  const char* name_;
  aclnnStatus code_ = ACL_SUCCESS;
};

// out = f(self, other) on INT64.
aclnnStatus IntegerBinary(const char* name, const aclTensor* self, const aclTensor* other, const aclTensor* out,
                          int64_t (*f)(int64_t, int64_t), uint64_t* workspaceSize, aclOpExecutor** executor);

// c (m, n) = a (m, k) · b (k, n), row-major, in f32.
void Multiply(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n);

// The second phase.
aclnnStatus Launch(void* workspace, uint64_t workspace_bytes, aclOpExecutor* executor, aclrtStream stream);

}  // namespace simulator
