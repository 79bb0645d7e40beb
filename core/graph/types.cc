#include "core/graph/types.h"

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {

int64_t SizeOf(DType dtype) { return sy_dtype_bits(static_cast<sy_dtype>(dtype)) / 8; }
const char* NameOf(DType dtype) { return sy_dtype_name(static_cast<sy_dtype>(dtype)); }

bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
}

DType Widest(DType a, DType b) {
  if (a == b) return a;
  if (!IsFloating(a)) return IsFloating(b) ? b : (SizeOf(a) >= SizeOf(b) ? a : b);
  if (!IsFloating(b)) return a;
  if (a == DType::kF64 || b == DType::kF64) return DType::kF64;
  return DType::kF32;
}

int64_t Elements(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::string ToString(const Shape& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }
std::string ToString(const TensorType& type) { return NameOf(type.dtype) + ToString(type.shape); }

bool BroadcastsTo(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  const size_t lead = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1 && from[i] != to[lead + i]) return false;
  }
  return true;
}

sy_tensor ToAbi(const TensorType& type) {
  sy_tensor tensor{};
  tensor.dtype = static_cast<sy_dtype>(type.dtype);
  tensor.rank = static_cast<int32_t>(type.shape.size());
  int64_t stride = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.dims[axis] = type.shape[axis];
    tensor.strides[axis] = stride;
    stride *= type.shape[axis];
  }
  return tensor;
}

}  // namespace switchyard
