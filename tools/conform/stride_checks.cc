#include "tools/conform/stride_checks.h"

#include "tools/conform/op_compare.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

int64_t LongAxes(const sy_tensor& tensor) {
  int64_t count = 0;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) count += tensor.dims[axis] > 1;
  return count;
}

// The first axis innermost and the last one outermost.
bool Reverse(sy_tensor& tensor) {
  int64_t stride = 1;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    tensor.strides[axis] = stride;
    stride *= tensor.dims[axis];
  }
  return LongAxes(tensor) > 1;
}

// Rows with three elements between them that belong to nobody.
bool SpreadRows(sy_tensor& tensor) {
  int64_t stride = 1;
  for (int32_t axis = tensor.rank; axis-- > 0;) {
    tensor.strides[axis] = stride;
    stride = stride * tensor.dims[axis] + (axis == tensor.rank - 1 ? 3 : 0);
  }
  return tensor.rank > 1 && LongAxes(tensor) > 1;
}

// Every second element.
bool SkipElements(sy_tensor& tensor) {
  for (int32_t axis = 0; axis < tensor.rank; ++axis) tensor.strides[axis] *= 2;
  return LongAxes(tensor) > 0;
}

// Along an axis of one element there is no step: whatever its stride says, nothing is meant.
bool MakeUpUnitStrides(sy_tensor& tensor) {
  bool any = false;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.dims[axis] > 1) continue;
    tensor.strides[axis] = 1000003;
    any = true;
  }
  return any;
}

// The axis along which an input is the same everywhere: the first that is long enough; -1: none.
int32_t RepeatedAxis(const sy_tensor& tensor) {
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.dims[axis] > 1) return axis;
  }
  return -1;
}

// Element i of a row-major tensor, moved to the beginning of `axis`.
size_t WithoutAxis(const sy_tensor& tensor, int32_t axis, size_t i) {
  size_t inner = 1;
  for (int32_t a = axis + 1; a < tensor.rank; ++a) inner *= static_cast<size_t>(tensor.dims[a]);
  const size_t along = i / inner % static_cast<size_t>(tensor.dims[axis]);
  return i - along * inner;
}

constexpr Layout kLayouts[] = {{"reversed axes", Reverse},
                               {"gaps between rows", SpreadRows},
                               {"every second element", SkipElements},
                               {"made-up strides of axes of one element", MakeUpUnitStrides}};

class StrideChecker {
 public:
  StrideChecker(const OpCase& one, Device& device, Device& reference)
      : case_(one), device_(device), reference_(reference) {}

  Status Check(uint64_t seed) {
    SY_ASSIGN_OR_RETURN(plain_, MakeWholeProblem(case_, SY_F32, seed, reference_));
    const auto usual = PrepareOp(device_, plain_);
    if (!usual.ok()) return usual.status();
    SY_ASSIGN_OR_RETURN(expected_, RunOp(reference_, InDoubles(plain_)));
    for (const Layout& layout : kLayouts) {
      Problem all = plain_;
      bool any = false;
      const auto lay = [&](std::vector<sy_tensor> Problem::*list, const char* kind) -> Status {
        for (size_t i = 0; i < (plain_.*list).size(); ++i) {
          Problem one = plain_;
          if (!layout.apply((one.*list)[i])) continue;
          (all.*list)[i] = (one.*list)[i];
          any = true;
          SY_RETURN_IF_ERROR(Try(one, expected_, fmt::format("{} {} with {}", kind, i, layout.name)));
        }
        return OkStatus();
      };
      SY_RETURN_IF_ERROR(lay(&Problem::inputs, "input"));
      SY_RETURN_IF_ERROR(lay(&Problem::outputs, "output"));
      if (any) SY_RETURN_IF_ERROR(Try(all, expected_, fmt::format("every tensor with {}", layout.name)));
    }
    return CheckRepeated();
  }

 private:
  // Inputs of stride 0, which hold one number for a whole axis.
  Status CheckRepeated() {
    for (size_t i = 0; i < plain_.inputs.size(); ++i) {
      const int32_t axis = RepeatedAxis(plain_.inputs[i]);
      if (axis < 0) continue;
      Problem repeated = plain_;
      std::vector<double>& values = repeated.values[i];
      for (size_t e = 0; e < values.size(); ++e) values[e] = values[WithoutAxis(plain_.inputs[i], axis, e)];
      sy_tensor& tensor = repeated.inputs[i];
      int64_t stride = 1;
      for (int32_t a = tensor.rank; a-- > 0;) {
        tensor.strides[a] = a == axis ? 0 : stride;
        if (a != axis) stride *= tensor.dims[a];
      }
      const std::string what = fmt::format("input {} of stride 0 along axis {}", i, axis);
      SY_ASSIGN_OR_RETURN(const Values expected, RunOp(reference_, InDoubles(repeated)));
      SY_RETURN_IF_ERROR(Try(repeated, expected, what));
    }
    return OkStatus();
  }

  Status Try(const Problem& problem, const Values& expected, const std::string& what) {
    const auto kernel = PrepareOp(device_, problem);
    if (kernel.status().code() == absl::StatusCode::kUnimplemented) return OkStatus();
    if (!kernel.ok()) {
      return Internal("{}: expected SY_UNSUPPORTED where it is not taken, found {}", what, kernel.status().ToString());
    }
    SY_ASSIGN_OR_RETURN(const auto bound, BoundOp::Make(device_, problem, *kernel, {}));
    const auto found = bound->Run();
    if (!found.ok()) return Internal("{}, which prepare took: {}", what, Message(found.status()));
    return CompareOutputs(case_, SY_F32, problem.outputs, *found, expected, what);
  }

  const OpCase& case_;
  Device &device_, &reference_;
  Problem plain_;
  Values expected_;
};

}  // namespace

std::span<const Layout> Layouts() { return kLayouts; }

void CheckStrides(Recorder& recorder, Device& device, Device& reference, uint64_t seed) {
  if (!(device.info().dtypes & (uint64_t{1} << SY_F32))) return;
  for (const OpCase& one : OpCases()) {
    recorder.Run("strides/" + one.id(), [&] { return StrideChecker(one, device, reference).Check(seed); });
  }
}

}  // namespace switchyard::conform
