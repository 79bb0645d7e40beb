// Parts of tensors: what one rank holds of a tensor that is divided over the ranks of a group. Thread-safe: pure
// functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/graph/types.h"

namespace switchyard {

// The axis along which a tensor is divided: dimension `dimension` is (outer, extent, inner), row-major, and `extent` is
// what the ranks share. The rows of q, k and v of 12 heads of 64 in one weight (2304, 768): {0, 3, 12, 64}.
struct DividedAxis {
  static constexpr int kAllElements = -1;  // as a dimension: the tensor is one list of elements, which is divided
  int dimension = 0;
  int64_t outer = 1, extent = 1, inner = 1;
  auto operator<=>(const DividedAxis&) const = default;
};

// Elements [begin, end) of the axis, of a tensor of shape `whole`. Behind what it holds of a list of elements a rank
// may have zeros, so that all have tensors of one size.
struct Part {
  Shape whole;
  DividedAxis axis;
  int64_t begin = 0, end = 0;
  int group = 0;                             // the ranks that share the tensor, an index as in Program::groups
  std::shared_ptr<const Part> of = nullptr;  // where that tensor is itself a part of one: which
};
const Shape& WholeShape(const Part& part);  // of the tensor that is no part

// Part `index` of `count`, which together are the tensor; they differ by one element of the axis at most. `count` is at
// most the axis' extent.
Part PartOf(const Shape& whole, const DividedAxis& axis, int index, int count);
Shape ShapeOf(const Part& part);

// The part's elements, row-major, out of those of the tensor that is no part, and back into those of shape `whole`; an
// element has `size` bytes. What is not of the part stays as it is.
void CutPart(const Part& part, size_t size, const std::byte* whole, std::byte* elements);
void PutPart(const Part& part, size_t size, const std::byte* elements, std::byte* whole);

}  // namespace switchyard
