// What a tensor is: element type and shape. Plain values; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/container/inlined_vector.h"
#include "core/abi/base.h"

namespace switchyard {

enum class DType : int32_t {
  kF32 = SY_F32,
  kBF16 = SY_BF16,
  kF16 = SY_F16,
  kF64 = SY_F64,
  kI32 = SY_I32,
  kI64 = SY_I64,
  kU8 = SY_U8
};

int64_t SizeOf(DType dtype);      // bytes of one element
const char* NameOf(DType dtype);  // "f32"
bool IsFloating(DType dtype);
DType Widest(
    DType a,
    DType b);  // of two floating types: f64 > f32 > f16 = bf16 (mixed halves give f32); integers give way to floats

// Elements per axis, outermost first; empty is a scalar. Up to six axes, which all but a few shapes have, lie in the
// object itself: passes copy shapes all the time.
using Shape = absl::InlinedVector<int64_t, 6>;
int64_t Elements(std::span<const int64_t> shape);
std::string ToString(const Shape& shape);               // "(8, 197, 768)"
bool BroadcastsTo(const Shape& from, const Shape& to);  // numpy rules

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  int64_t elements() const { return Elements(shape); }
  int64_t bytes() const { return elements() * SizeOf(dtype); }
  bool operator==(const TensorType&) const = default;
};
std::string ToString(const TensorType& type);  // "f32(8, 197, 768)"
sy_tensor ToAbi(const TensorType& type);       // row-major contiguous

}  // namespace switchyard
