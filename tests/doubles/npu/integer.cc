// Elementwise operators on 64-bit integers, with numpy's broadcasting.
#include "tests/doubles/npu/operator.h"

namespace simulator {
namespace {

// A view in the shape `dims` that it broadcasts to; empty where it is not allocated.
std::vector<int64_t> Integers(const aclTensor& tensor, const Dims& dims) {
  const char* const begin = Begin(tensor);
  if (begin == nullptr) return {};
  Dims strides(dims.size(), 0);
  const size_t lead = dims.size() - tensor.dims.size();
  for (size_t i = 0; i < tensor.dims.size(); ++i) {
    if (tensor.dims[i] != 1) strides[lead + i] = tensor.strides[i];
  }
  std::vector<int64_t> values(static_cast<size_t>(Count(dims)));
  ForEach(dims, strides, [&](int64_t at, int64_t from) {
    std::memcpy(&values[static_cast<size_t>(at)], begin + static_cast<size_t>(from) * sizeof(int64_t), sizeof(int64_t));
  });
  return values;
}

}  // namespace

aclnnStatus IntegerBinary(const char* name, const aclTensor* self, const aclTensor* other, const aclTensor* out,
                          int64_t (*f)(int64_t, int64_t), uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan(name);
  plan.Known({self, other, out}).SameDtype({self, other, out});
  Dims dims;
  if (plan.ok()) {
    plan.Need(self->dtype == ACL_INT64, "simulated on INT64")
        .Need(Broadcast(self->dims, other->dims, &dims), "its operands do not broadcast")
        .Shape(out, dims);
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [name, a = *self, b = *other, to = *out, f] {
        const std::vector<int64_t> x = Integers(a, to.dims), z = Integers(b, to.dims);
        char* const begin = Begin(to);
        if (x.empty() || z.empty() || begin == nullptr) return LostMemory(name);
        ForEach(to.dims, to.strides, [&](int64_t at, int64_t offset) {
          const int64_t value = f(x[static_cast<size_t>(at)], z[static_cast<size_t>(at)]);
          std::memcpy(begin + static_cast<size_t>(offset) * sizeof value, &value, sizeof value);
        });
        return Outcome{};
      },
      0, workspaceSize, executor);
}

}  // namespace simulator

using namespace simulator;

#define SIMULATE_INTEGERS(name, expression)                                                                    \
  NPU_EXPORT aclnnStatus aclnn##name##GetWorkspaceSize(const aclTensor* x, const aclTensor* z, aclTensor* out, \
                                                       uint64_t* workspaceSize, aclOpExecutor** executor) {    \
    return IntegerBinary(                                                                                      \
        "aclnn" #name, x, z, out, [](int64_t a, int64_t b) -> int64_t { return expression; }, workspaceSize,   \
        executor);                                                                                             \
  }
SIMULATE_INTEGERS(RightShift, a >> (b < 0 ? 0 : b))
SIMULATE_INTEGERS(BitwiseAndTensor, a& b)
SIMULATE_INTEGERS(BitwiseXorTensor, a ^ b)
