#include "backends/reference/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace switchyard {
namespace {

// 2^exponent, of a normal double.
double PowerOfTwo(int exponent) { return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52); }

// `value` rounded to nearest even at `digits` binary digits, with subnormals below 2^lowest.
double Round(double value, int digits, int lowest) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(value) >> 52 & 0x7FF) - 1022;  // as frexp has it
  const int quantum = std::max(exponent, lowest) - digits;
  // As std::nearbyint, of what has few digits before the point: beside this sum a double has none behind it.
  constexpr double kWhole = 0x1.8p52;
  const double count = (value * PowerOfTwo(-quantum) + kWhole) - kWhole;
  return std::copysign(count * PowerOfTwo(quantum), value);
}

// bf16 is the upper half of an f32.
struct Bf16 {
  uint16_t bits;
  static double Get(Bf16 stored) {
    const uint32_t wide = uint32_t{stored.bits} << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  static Bf16 Put(double value) {
    const float rounded = static_cast<float>(Round(value, 8, -125));
    uint32_t wide;
    std::memcpy(&wide, &rounded, 4);
    return {static_cast<uint16_t>(std::isnan(value) ? 0x7FC0 : wide >> 16)};
  }
};

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
struct F16 {
  uint16_t bits;
  static double Get(F16 stored) {
    const int exponent = stored.bits >> 10 & 31, fraction = stored.bits & 1023;
    const double magnitude = exponent == 31  ? (fraction ? std::numeric_limits<double>::quiet_NaN() : INFINITY)
                             : exponent == 0 ? fraction * 0x1p-24
                                             : (1024 + fraction) * PowerOfTwo(exponent - 25);
    return stored.bits & 0x8000 ? -magnitude : magnitude;
  }
  static F16 Put(double value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::abs(Round(value, 11, -13));
    if (std::isnan(value)) return {0x7E00};
    if (magnitude > 65504) return {static_cast<uint16_t>(sign | 0x7C00)};
    if (magnitude < 0x1p-14) return {static_cast<uint16_t>(sign | static_cast<int>(magnitude * 0x1p24))};
    // The exponent counts from 15 instead of 1023; of 52 digits of the fraction 10 are not zero.
    return {static_cast<uint16_t>(sign | ((std::bit_cast<uint64_t>(magnitude) >> 42) - (uint64_t{1023 - 15} << 10)))};
  }
};

template <typename T>
double Get(T stored) {
  return static_cast<double>(stored);
}
double Get(Bf16 stored) { return Bf16::Get(stored); }
double Get(F16 stored) { return F16::Get(stored); }

template <typename T>
T Put(double value) {
  if constexpr (std::is_same_v<T, Bf16> || std::is_same_v<T, F16>) {
    return T::Put(value);
  } else if constexpr (std::is_integral_v<T>) {
    if (std::isnan(value)) return 0;
    if (value <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (value >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return static_cast<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

// f(T{}) with the C++ type that stores `dtype`.
template <typename F>
void WithType(sy_dtype dtype, F f) {
  switch (dtype) {
    case SY_F32:
      return f(float{});
    case SY_BF16:
      return f(Bf16{});
    case SY_F16:
      return f(F16{});
    case SY_F64:
      return f(double{});
    case SY_I32:
      return f(int32_t{});
    case SY_I64:
      return f(int64_t{});
    case SY_U8:
      return f(uint8_t{});
  }
}

Dims StridesOf(const sy_tensor& tensor) { return Dims(tensor.strides, tensor.strides + tensor.rank); }

}  // namespace

Dims DimsOf(const sy_tensor& tensor) { return Dims(tensor.dims, tensor.dims + tensor.rank); }

int64_t Count(const Dims& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

Dims ContiguousStrides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t axis = dims.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * dims[axis];
  return strides;
}

Dims Join(const Dims& a, const Dims& b) {
  Dims joined = a;
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

Dims WithoutLast(const Dims& dims, size_t how_many) {
  return Dims(dims.begin(), dims.end() - static_cast<int64_t>(std::min(how_many, dims.size())));
}

std::string ToText(const Dims& dims) {
  std::string text = "(";
  for (const int64_t dim : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + ")";
}

std::string ToText(const sy_tensor& tensor) {
  return std::string(sy_dtype_name(tensor.dtype)) + " " + ToText(DimsOf(tensor));
}

int64_t BytesPerElement(sy_dtype dtype) { return sy_dtype_bits(dtype) / 8; }

bool IsFloat(sy_dtype dtype) { return dtype == SY_F32 || dtype == SY_BF16 || dtype == SY_F16 || dtype == SY_F64; }

bool IsContiguous(const sy_tensor& tensor) {
  int64_t expected = 1;
  for (int32_t axis = tensor.rank; axis-- > 0;) {
    if (tensor.dims[axis] != 1 && tensor.strides[axis] != expected) return false;
    expected *= tensor.dims[axis];
  }
  return true;
}

uint64_t Extent(const sy_tensor& tensor) {
  int64_t last = 0;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) last += (tensor.dims[axis] - 1) * tensor.strides[axis];
  return static_cast<uint64_t>((last + 1) * BytesPerElement(tensor.dtype));
}

std::string Defect(const sy_tensor& tensor) {
  if (tensor.rank < 0 || tensor.rank > SY_MAX_RANK) return "rank " + std::to_string(tensor.rank) + " is not in 0 … 8";
  int64_t count = BytesPerElement(tensor.dtype), last = 0;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    int64_t reach;
    if (tensor.dims[axis] < 1) return "dims must be at least 1, found " + std::to_string(tensor.dims[axis]);
    if (tensor.strides[axis] < 0) return "strides must not be negative, found " + std::to_string(tensor.strides[axis]);
    if (__builtin_mul_overflow(count, tensor.dims[axis], &count) ||
        __builtin_mul_overflow(tensor.dims[axis] - 1, tensor.strides[axis], &reach) ||
        __builtin_add_overflow(last, reach, &last) || last > INT64_MAX / 16) {
      return "more than 2^63 bytes";
    }
  }
  return "";
}

Array Load(const sy_tensor& tensor, const void* memory) {
  Array array{DimsOf(tensor), {}};
  array.values.resize(static_cast<size_t>(Count(array.dims)));
  WithType(tensor.dtype, [&](auto type) {
    const auto* stored = static_cast<const decltype(type)*>(memory);
    int64_t next = 0;
    if (IsContiguous(tensor)) {
      for (double& value : array.values) value = Get(stored[next++]);
    } else {
      const Dims strides = StridesOf(tensor);
      ForEach(array.dims, strides, strides, [&](const Dims&, int64_t at, int64_t) { array[next++] = Get(stored[at]); });
    }
  });
  return array;
}

void Store(const Array& array, const sy_tensor& tensor, void* memory, bool accumulate) {
  WithType(tensor.dtype, [&](auto type) {
    using T = decltype(type);
    auto* stored = static_cast<T*>(memory);
    const auto put = [&](int64_t at, double value) {
      stored[at] = Put<T>(accumulate ? Get(stored[at]) + value : value);
    };
    int64_t next = 0;
    if (IsContiguous(tensor)) {
      for (const double value : array.values) put(next++, value);
    } else {
      const Dims strides = StridesOf(tensor);
      ForEach(array.dims, strides, strides, [&](const Dims&, int64_t at, int64_t) { put(at, array[next++]); });
    }
  });
}

}  // namespace switchyard
