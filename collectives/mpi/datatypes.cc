#include "collectives/mpi/datatypes.h"

#include <array>
#include <bit>
#include <cstdint>

#include "core/abi/collective.h"

namespace mpi {
namespace {

struct Bf16 {
  static float Load(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }
  static uint16_t Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
};
struct F16 {
  static float Load(uint16_t value) { return static_cast<float>(std::bit_cast<_Float16>(value)); }
  static uint16_t Store(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }
};

template <typename Element, int kReduction>
void Apply(void* values, void* accumulator, int* count, MPI_Datatype*) {
  const auto* const in = static_cast<const uint16_t*>(values);
  auto* const out = static_cast<uint16_t*>(accumulator);
  for (int i = 0; i < *count; ++i) {
    const float a = Element::Load(out[i]), b = Element::Load(in[i]);
    if (kReduction == SY_SUM)
      out[i] = Element::Store(a + b);
    else if (kReduction == SY_PRODUCT)
      out[i] = Element::Store(a * b);
    else if (kReduction == SY_MAX)
      out[i] = a > b || a != a ? out[i] : in[i];
    else
      out[i] = a < b || a != a ? out[i] : in[i];
  }
}

template <typename Element>
std::array<MPI_Op, SY_REDUCTION_COUNT> MakeOperations() {
  std::array<MPI_Op, SY_REDUCTION_COUNT> operations;
  MPI_Op_create(Apply<Element, SY_SUM>, 1, &operations[SY_SUM]);
  MPI_Op_create(Apply<Element, SY_MAX>, 1, &operations[SY_MAX]);
  MPI_Op_create(Apply<Element, SY_MIN>, 1, &operations[SY_MIN]);
  MPI_Op_create(Apply<Element, SY_PRODUCT>, 1, &operations[SY_PRODUCT]);
  return operations;
}

}  // namespace

MPI_Datatype DatatypeOf(sy_dtype dtype) {
  switch (dtype) {
    case SY_F32:
      return MPI_FLOAT;
    case SY_F64:
      return MPI_DOUBLE;
    case SY_I32:
      return MPI_INT32_T;
    case SY_I64:
      return MPI_INT64_T;
    case SY_U8:
      return MPI_UINT8_T;
    default:
      return MPI_UINT16_T;
  }
}

MPI_Op OperationOf(sy_dtype dtype, int reduction) {
  if (dtype == SY_BF16 || dtype == SY_F16) {
    static const auto bf16 = MakeOperations<Bf16>(), f16 = MakeOperations<F16>();
    return (dtype == SY_BF16 ? bf16 : f16)[static_cast<size_t>(reduction)];
  }
  switch (reduction) {
    case SY_SUM:
      return MPI_SUM;
    case SY_MAX:
      return MPI_MAX;
    case SY_MIN:
      return MPI_MIN;
    default:
      return MPI_PROD;
  }
}

}  // namespace mpi
