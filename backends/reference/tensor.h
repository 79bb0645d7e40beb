// Tensors as the reference ops see them: dense arrays of double, whatever dtype and strides the caller's memory has.
// Load and Store are the only two places that know about dtypes, so that an op is its formula and nothing else. i64
// values are exact up to 2^53. Thread-safe: pure functions on memory that the caller owns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/abi/base.h"

namespace switchyard {

using Dims = std::vector<int64_t>;

// Row-major, contiguous.
struct Array {
  Dims dims;
  std::vector<double> values;
  double& operator[](int64_t i) { return values[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
  int64_t size() const { return static_cast<int64_t>(values.size()); }
};

Dims DimsOf(const sy_tensor& tensor);
int64_t Count(const Dims& dims);           // elements
Dims ContiguousStrides(const Dims& dims);  // elements
Dims Join(const Dims& a, const Dims& b);
Dims WithoutLast(const Dims& dims, size_t how_many = 1);
std::string ToText(const Dims& dims);         // "(2, 3)"
std::string ToText(const sy_tensor& tensor);  // "f32 (2, 3)"

int64_t BytesPerElement(sy_dtype dtype);
bool IsFloat(sy_dtype dtype);
bool IsContiguous(const sy_tensor& tensor);
// Bytes from the first element to the end of the last one.
uint64_t Extent(const sy_tensor& tensor);
// "" for a tensor of a known dtype with rank ≤ SY_MAX_RANK, dims ≥ 1, strides ≥ 0 and an extent below 2^63 bytes; else
// what is wrong with it.
std::string Defect(const sy_tensor& tensor);

Array Load(const sy_tensor& tensor, const void* memory);
// Rounds to nearest even; integers truncate towards zero, saturate, and take NaN as 0. With `accumulate`, adds to what
// is there.
void Store(const Array& array, const sy_tensor& tensor, void* memory, bool accumulate);

// f(index, offset_a, offset_b) for every index of `dims` in row-major order, with running offsets over two sets of
// strides.
template <typename F>
void ForEach(const Dims& dims, const Dims& strides_a, const Dims& strides_b, F f) {
  Dims index(dims.size(), 0);
  int64_t a = 0, b = 0;
  for (int64_t left = Count(dims); left > 0; --left) {
    f(static_cast<const Dims&>(index), a, b);
    for (size_t axis = dims.size(); axis-- > 0;) {
      a += strides_a[axis];
      b += strides_b[axis];
      if (++index[axis] < dims[axis]) break;
      a -= strides_a[axis] * dims[axis];
      b -= strides_b[axis] * dims[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace switchyard
