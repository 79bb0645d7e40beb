#include "core/graph/types.h"

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

const char* NameOf(DType dtype) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "f64", "i32", "i64", "u8"};
  return kNames[static_cast<int>(dtype)];
}

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

int64_t Elements(const Shape& shape) {
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
