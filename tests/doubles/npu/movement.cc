// Copies between views, conversions, fills, and rows by index.
#include <algorithm>
#include <cmath>

#include "tests/doubles/npu/operator.h"

namespace simulator {
namespace {

template <typename Element>
void CopyAs(const aclTensor& to, char* destination, const Dims& from_strides, const char* source) {
  // Both walks are row-major over the same dims: the sources first, since ForEach follows one set of strides.
  auto* out = reinterpret_cast<Element*>(destination);
  const auto* in = reinterpret_cast<const Element*>(source);
  std::vector<Element> dense(static_cast<size_t>(Count(to.dims)));
  ForEach(to.dims, from_strides, [&](int64_t at, int64_t from) { dense[static_cast<size_t>(at)] = in[from]; });
  ForEach(to.dims, to.strides, [&](int64_t at, int64_t offset) { out[offset] = dense[static_cast<size_t>(at)]; });
}

// Bit for bit, broadcast.
Outcome Copy(const aclTensor& to, const aclTensor& from) {
  char *destination = Begin(to), *source = Begin(from);
  if (destination == nullptr || source == nullptr) return LostMemory("aclnnInplaceCopy");
  const size_t size = SizeOf(to.dtype);
  if (IsContiguous(to) && IsContiguous(from) && to.dims == from.dims) {
    std::memmove(destination, source, static_cast<size_t>(Count(to.dims)) * size);
    return {};
  }
  Dims strides(to.dims.size(), 0);
  const size_t lead = to.dims.size() - from.dims.size();
  for (size_t i = 0; i < from.dims.size(); ++i) {
    if (from.dims[i] != 1) strides[lead + i] = from.strides[i];
  }
  if (size == 4) CopyAs<uint32_t>(to, destination, strides, source);
  if (size == 2) CopyAs<uint16_t>(to, destination, strides, source);
  if (size == 1) CopyAs<uint8_t>(to, destination, strides, source);
  return {};
}

Outcome Convert(const char* name, const aclTensor& to, const aclTensor& from) {
  if (to.dtype == from.dtype) return Copy(to, from);
  const Read<double> x(from, to.dims);
  char* begin = Begin(to);
  if (!x.valid() || begin == nullptr) return LostMemory(name);
  const size_t size = SizeOf(to.dtype);
  ForEach(to.dims, to.strides, [&](int64_t at, int64_t offset) {
    WriteElement(begin + static_cast<size_t>(offset) * size, to.dtype, x[at]);
  });
  return {};
}

}  // namespace
}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclnnStatus aclnnInplaceCopyGetWorkspaceSize(aclTensor* selfRef, const aclTensor* src,
                                                        uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnInplaceCopy");
  plan.Takes({selfRef, src});
  Dims dims;
  if (plan.ok()) plan.Need(Broadcast(src->dims, selfRef->dims, &dims), "src does not broadcast").Shape(selfRef, dims);
  if (!plan.ok()) return plan.code();
  const aclnnStatus code = plan.Give([to = *selfRef, from = *src] { return Convert("aclnnInplaceCopy", to, from); }, 0,
                                     workspaceSize, executor);
  const bool itself = src->address != nullptr && src->address == selfRef->address && src->offset == selfRef->offset;
  if (itself) (*executor)->may_repeat = false;
  return code;
}

NPU_EXPORT aclnnStatus aclnnCastGetWorkspaceSize(const aclTensor* self, aclDataType dtype, aclTensor* out,
                                                 uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnCast");
  plan.Known({self, out});
  if (plan.ok()) plan.Need(self->dtype != ACL_DOUBLE && out->dtype != ACL_DOUBLE, "DOUBLE is not simulated");
  if (plan.ok()) plan.Shape(out, self->dims).Need(out->dtype == dtype, "out is not of the dtype asked for");
  if (!plan.ok()) return plan.code();
  return plan.Give([to = *out, from = *self] { return Convert("aclnnCast", to, from); }, 0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnInplaceFillScalarGetWorkspaceSize(aclTensor* selfRef, const aclScalar* value,
                                                              uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnInplaceFillScalar");
  plan.Takes({selfRef});
  return plan.Give(
      [to = *selfRef, number = value->value]() -> Outcome {
        char* begin = Begin(to);
        if (begin == nullptr) return LostMemory("aclnnInplaceFillScalar");
        const size_t size = SizeOf(to.dtype);
        ForEach(to.dims, to.strides, [&](int64_t, int64_t offset) {
          WriteElement(begin + static_cast<size_t>(offset) * size, to.dtype, number);
        });
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnClampGetWorkspaceSize(const aclTensor* self, const aclScalar* clipValueMin,
                                                  const aclScalar* clipValueMax, aclTensor* out,
                                                  uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnClamp");
  plan.Takes({self, out}).SameDtype({self, out});
  if (plan.ok()) {
    // A float limit would make the whole a float, by the rules of promotion.
    plan.Shape(out, self->dims)
        .Need(IsFloat(self->dtype) || (!IsFloat(clipValueMin->dtype) && !IsFloat(clipValueMax->dtype)),
              "limits of integers must be integers");
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [to = *out, from = *self, low = clipValueMin->value, high = clipValueMax->value]() -> Outcome {
        const Read<double> x(from, to.dims);
        char* begin = Begin(to);
        if (!x.valid() || begin == nullptr) return LostMemory("aclnnClamp");
        const size_t size = SizeOf(to.dtype);
        ForEach(to.dims, to.strides, [&](int64_t at, int64_t offset) {
          WriteElement(begin + static_cast<size_t>(offset) * size, to.dtype, std::clamp(x[at], low, high));
        });
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnIndexSelectGetWorkspaceSize(const aclTensor* self, int64_t dim, const aclTensor* index,
                                                        aclTensor* out, uint64_t* workspaceSize,
                                                        aclOpExecutor** executor) {
  Planner plan("aclnnIndexSelect");
  plan.Takes({self, index, out}).SameDtype({self, out});
  if (plan.ok()) {
    plan.Need(index->dtype == ACL_INT32 && index->dims.size() == 1, "index must be INT32 with one axis")
        .Need(dim >= 0 && dim < static_cast<int64_t>(self->dims.size()), "dim is out of range");
  }
  const auto axis = static_cast<size_t>(dim);
  if (plan.ok()) {
    Dims dims = self->dims;
    dims[axis] = index->dims[0];
    plan.Shape(out, dims);
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [axis, table = *self, rows = *index, to = *out]() -> Outcome {
        const Read<double> which(rows, rows.dims);
        if (!which.valid() || Begin(table) == nullptr || Begin(to) == nullptr) return LostMemory("aclnnIndexSelect");
        for (int64_t i = 0; i < rows.dims[0]; ++i) {
          const auto row = static_cast<int64_t>(which[i]);
          if (row < 0 || row >= table.dims[axis])
            return {ACL_ERROR_RT_AICORE_EXCEPTION,
                    "aclnnIndexSelect: index " + std::to_string(row) + " is out of range"};
          aclTensor from = table, target = to;
          from.dims[axis] = target.dims[axis] = 1;
          from.offset += row * table.strides[axis];
          target.offset += i * to.strides[axis];
          if (const Outcome copied = Copy(target, from); copied.code != ACL_SUCCESS) return copied;
        }
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnIndexAddGetWorkspaceSize(const aclTensor* self, int64_t dim, const aclTensor* index,
                                                     const aclTensor* source, const aclScalar* alpha, aclTensor* out,
                                                     uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnIndexAdd");
  plan.Takes({index}).Floats({self, source, out}).SameDtype({self, source, out});
  if (plan.ok()) {
    plan.Need(index->dtype == ACL_INT32 && index->dims.size() == 1, "index must be INT32 with one axis")
        .Need(dim == 0 && self->dims.size() == 2, "simulated for rows of a matrix");
  }
  if (plan.ok()) plan.Shape(out, self->dims).Shape(source, {index->dims[0], self->dims[1]});
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [table = *self, rows = *index, added = *source, to = *out,
       factor = static_cast<float>(alpha->value)]() -> Outcome {
        const Read<double> which(rows, rows.dims);
        const Read<float> old(table, table.dims), x(added, added.dims);
        Write y(to);
        if (!which.valid() || !old.valid() || !x.valid() || !y.valid()) return LostMemory("aclnnIndexAdd");
        const int64_t width = table.dims[1];
        std::copy_n(old.data(), Count(table.dims), y.data());
        for (int64_t i = 0; i < rows.dims[0]; ++i) {
          const auto row = static_cast<int64_t>(which[i]);
          if (row < 0 || row >= table.dims[0])
            return {ACL_ERROR_RT_AICORE_EXCEPTION, "aclnnIndexAdd: index " + std::to_string(row) + " is out of range"};
          for (int64_t c = 0; c < width; ++c) y[row * width + c] += factor * x[i * width + c];
        }
        y.Finish();
        return {};
      },
      0, workspaceSize, executor);
}
