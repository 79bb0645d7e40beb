#include "backends/cpu/kernel.h"

#include <algorithm>

namespace switchyard {

int64_t Elements(const sy_tensor& tensor) {
  int64_t n = 1;
  for (int i = 0; i < tensor.rank; ++i) n *= tensor.dims[i];
  return n;
}

int64_t DtypeBytes(sy_dtype dtype) {
  constexpr int64_t kBytes[SY_DTYPE_COUNT] = {4, 2, 2, 8, 4, 8, 1};
  return kBytes[dtype];
}

bool SameDims(const sy_tensor& a, const sy_tensor& b) {
  return a.rank == b.rank && std::equal(a.dims, a.dims + a.rank, b.dims);
}

bool Request::HasCounts(size_t least, size_t most, size_t outputs_wanted) const {
  if (inputs.size() >= least && inputs.size() <= most && outputs.size() == outputs_wanted) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %zu inputs and %zu outputs, expected %zu to %zu and %zu", op, inputs.size(),
          outputs.size(), least, most, outputs_wanted);
  return false;
}

bool Request::RequireFloat(const sy_tensor& tensor, const char* name) const {
  if (IsFloat(tensor.dtype)) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %s has dtype %d, expected f32, bf16 or f16", op, name, tensor.dtype);
  return false;
}

bool Request::RequireDtype(const sy_tensor& tensor, sy_dtype dtype, const char* name) const {
  if (tensor.dtype == dtype) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %s has dtype %d, expected %d", op, name, tensor.dtype, dtype);
  return false;
}

bool Request::RequireElements(const sy_tensor& tensor, int64_t elements, const char* name) const {
  if (Elements(tensor) == elements) return true;
  SY_FAIL(error, SY_UNSUPPORTED, "%s: %s has %lld elements, expected %lld", op, name,
          static_cast<long long>(Elements(tensor)), static_cast<long long>(elements));
  return false;
}

bool Request::Accumulates() const {
  return std::any_of(accumulate.begin(), accumulate.end(), [](uint8_t a) { return a != 0; });
}

}  // namespace switchyard
