#include "tools/conform/values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/random.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard::conform {
namespace {

uint16_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t ToF16(float value) {
  const uint16_t sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7E00;
  if (magnitude >= 65520.0f) return sign | 0x7C00;
  if (magnitude < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(magnitude * 0x1p24f)));
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = f · 2^exponent, f in [½, 1)
  const int mantissa = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 11 - exponent)));  // 1024 … 2048
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + mantissa - 1024));  // a carry runs into the exponent
}

float FromF16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  float value = 0;
  if (exponent == 31) {
    value = mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else {
    value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                          : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return bits & 0x8000 ? -value : value;
}

template <typename T, typename Convert>
void EncodeAs(const std::vector<double>& values, Bytes& bytes, Convert convert) {
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T, typename Convert>
void DecodeAs(const Bytes& bytes, std::vector<double>& values, Convert convert) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(convert(value));
  }
}

}  // namespace

Bytes RandomBytes(uint64_t count, uint64_t key) {
  RandomStream random(key);
  Bytes bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next32());
  return bytes;
}

bool IsFloat(sy_dtype dtype) { return dtype == SY_F32 || dtype == SY_BF16 || dtype == SY_F16 || dtype == SY_F64; }

uint64_t BytesOf(sy_dtype dtype) { return sy_dtype_bits(dtype) / 8; }

int64_t Elements(const sy_tensor& tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) count *= tensor.dims[i];
  return count;
}

sy_tensor Contiguous(sy_dtype dtype, const std::vector<int64_t>& dims) {
  sy_tensor tensor{};
  tensor.dtype = dtype;
  tensor.rank = static_cast<int32_t>(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    tensor.dims[i] = dims[i];
    tensor.strides[i] = stride;
    stride *= dims[i];
  }
  return tensor;
}

std::string DimsText(const sy_tensor& tensor) {
  return fmt::format("({})", fmt::join(tensor.dims, tensor.dims + tensor.rank, ", "));
}

Bytes Encode(const std::vector<double>& values, sy_dtype dtype) {
  Bytes bytes(values.size() * BytesOf(dtype));
  switch (dtype) {
    case SY_F32:
      EncodeAs<float>(values, bytes, [](double v) { return static_cast<float>(v); });
      break;
    case SY_BF16:
      EncodeAs<uint16_t>(values, bytes, [](double v) { return ToBf16(static_cast<float>(v)); });
      break;
    case SY_F16:
      EncodeAs<uint16_t>(values, bytes, [](double v) { return ToF16(static_cast<float>(v)); });
      break;
    case SY_F64:
      EncodeAs<double>(values, bytes, [](double v) { return v; });
      break;
    case SY_I32:
      EncodeAs<int32_t>(values, bytes, [](double v) { return static_cast<int32_t>(v); });
      break;
    case SY_I64:
      EncodeAs<int64_t>(values, bytes, [](double v) { return static_cast<int64_t>(v); });
      break;
    default:
      EncodeAs<uint8_t>(values, bytes, [](double v) { return static_cast<uint8_t>(v); });
      break;
  }
  return bytes;
}

std::vector<double> Decode(const Bytes& bytes, sy_dtype dtype) {
  std::vector<double> values(bytes.size() / BytesOf(dtype));
  const auto same = [](auto v) { return v; };
  switch (dtype) {
    case SY_F32:
      DecodeAs<float>(bytes, values, same);
      break;
    case SY_BF16:
      DecodeAs<uint16_t>(bytes, values, FromBf16);
      break;
    case SY_F16:
      DecodeAs<uint16_t>(bytes, values, FromF16);
      break;
    case SY_F64:
      DecodeAs<double>(bytes, values, same);
      break;
    case SY_I32:
      DecodeAs<int32_t>(bytes, values, same);
      break;
    case SY_I64:
      DecodeAs<int64_t>(bytes, values, same);
      break;
    default:
      DecodeAs<uint8_t>(bytes, values, same);
      break;
  }
  return values;
}

std::vector<double> Rounded(const std::vector<double>& values, sy_dtype dtype) {
  return Decode(Encode(values, dtype), dtype);
}

}  // namespace switchyard::conform
