#include "tools/conform/op_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/random.h"
#include "tools/conform/op_compare.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

// Is every row of every output made of the same row of the first input alone (and of whole other inputs)?
bool HasRowsApart(const OpCase& one) {
  if (!RowsApart(one.op)) return false;
  const Operand& first = one.inputs[0];
  if (first.type != Type::kTested || first.dims.size() < 2 || first.fill == Fill::kExtreme) return false;
  for (const Operand& output : one.outputs) {
    // Broadcast to more axes, rows would be others.
    if (output.dims.empty() || output.dims[0] != first.dims[0]) return false;
    if (one.op == "pointwise" && output.dims.size() != first.dims.size()) return false;
  }
  const auto attributes = [&](auto known) {
    if (!one.attributes.empty())
      std::memcpy(&known, one.attributes.data(), std::min(sizeof known, one.attributes.size()));
    return known;
  };
  if (one.op == "reduce") return (attributes(sy_reduce_attributes{}).axes & 1u) == 0;
  const auto matmul = attributes(sy_matmul_attributes{});
  if (one.op != "matmul") return true;
  return !matmul.column_sums && (first.dims.size() > 2 || !(matmul.transpose_a || matmul.bias_gradient));
}

// Everything that a case is judged by.
class CaseChecker {
 public:
  CaseChecker(const OpCase& one, sy_dtype tested, Device& device, Device& reference, uint64_t seed)
      : case_(one), tested_(tested), device_(device), reference_(reference), seed_(seed) {}

  Status Check() {
    SY_ASSIGN_OR_RETURN(problem_, MakeWholeProblem(case_, tested_, seed_, reference_));
    auto kernel = PrepareOp(device_, problem_);
    if (!kernel.ok()) return kernel.status();
    const Status status = CheckKernel(*kernel);
    // From here on "unsupported" is no way out any more.
    if (status.code() == absl::StatusCode::kUnimplemented) return Internal("after prepare: {}", Message(status));
    return status;
  }

 private:
  Status CheckKernel(const Kernel& kernel) {
    SY_ASSIGN_OR_RETURN(expected_, Expected(problem_));
    SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device_, problem_, kernel, {}));
    SY_ASSIGN_OR_RETURN(const Values first, bound->Run());
    SY_RETURN_IF_ERROR(Compare(first, expected_, "result"));
    SY_ASSIGN_OR_RETURN(const Values second, bound->Run());
    if (kernel.info().determinism >= SY_DETERMINISM_RUN) {
      for (size_t o = 0; o < first.size(); ++o) {
        if (!std::equal(first[o].begin(), first[o].end(), second[o].begin(), SameNumber)) {
          return Internal("output {} of a second launch has other bits, though the kernel says it is deterministic", o);
        }
      }
    }
    SY_RETURN_IF_ERROR(Compare(second, expected_, "second launch"));
    SY_RETURN_IF_ERROR(CheckInPlace(kernel, first));
    SY_RETURN_IF_ERROR(CheckRowsApart(kernel));
    SY_RETURN_IF_ERROR(CheckRequirements());
    if (tested_ != SY_F32) return OkStatus();
    SY_RETURN_IF_ERROR(CheckSecondBinding(kernel, *bound));
    SY_RETURN_IF_ERROR(CheckAccumulation());
    return CheckPair();
  }

  StatusOr<Values> Expected(const Problem& problem) {
    auto results = RunOp(reference_, InDoubles(problem));
    if (!results.ok()) return Annotate(results.status(), "reference");
    return results;
  }

  Status Compare(const Values& found, const Values& expected, const char* what) const {
    return CompareOutputs(case_, tested_, problem_.outputs, found, expected, what);
  }

  // What a kernel may answer where it is asked for more determinism, or for no workspace. The core checks the workspace
  // itself.
  Status CheckRequirements() {
    for (const uint32_t determinism : {SY_DETERMINISM_RUN, SY_DETERMINISM_EXACT}) {
      const auto kernel = PrepareOp(device_, problem_, {.determinism = determinism});
      if (kernel.status().code() == absl::StatusCode::kUnimplemented) continue;
      if (!kernel.ok()) return Annotate(kernel.status(), fmt::format("required determinism {}", determinism));
      if (kernel->info().determinism >= determinism) continue;
      return Internal("asked for determinism {}, the kernel has {}; SY_UNSUPPORTED was the answer to give", determinism,
                      kernel->info().determinism);
    }
    const auto lean = PrepareOp(device_, problem_, {.workspace_limit = 0});
    const bool refused = lean.status().code() == absl::StatusCode::kUnimplemented;
    return lean.ok() || refused ? OkStatus() : Annotate(lean.status(), "a workspace limit of 0");
  }

  // Whether two tensors share a place is for the planner to decide, and must change no result.
  Status CheckInPlace(const Kernel& kernel, const Values& apart) {
    const auto& pairs = kernel.info().inplace;
    if (std::all_of(pairs.begin(), pairs.end(), [](int input) { return input < 0; })) return OkStatus();
    SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device_, problem_, kernel, {.in_place = true}));
    SY_ASSIGN_OR_RETURN(const Values found, bound->Run());
    SY_RETURN_IF_ERROR(Compare(found, expected_, "in place"));
    if (kernel.info().determinism < SY_DETERMINISM_RUN) return OkStatus();
    for (size_t o = 0; o < found.size(); ++o) {
      if (!std::equal(found[o].begin(), found[o].end(), apart[o].begin(), SameNumber))
        return Internal("output {} has other bits where it shares an input's place", o);
    }
    return OkStatus();
  }

  // Where rows (slices along the first axis) have nothing to do with each other, an infinite or missing number in one
  // of them changes no other.
  Status CheckRowsApart(const Kernel& kernel) {
    const int64_t rows = problem_.inputs[0].dims[0];
    if (!HasRowsApart(case_) || rows < 2) return OkStatus();
    Problem spoilt = problem_;
    std::vector<double>& values = spoilt.values[0];
    const size_t row = values.size() / static_cast<size_t>(rows);
    const auto spoil = [&](int64_t which, double value) { values[static_cast<size_t>(which) * row + row / 2] = value; };
    const int64_t infinite = rows > 2 ? 1 : -1, missing = rows - 1;
    if (infinite > 0) spoil(infinite, std::numeric_limits<double>::infinity());
    spoil(missing, std::numeric_limits<double>::quiet_NaN());
    SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device_, spoilt, kernel, {}));
    SY_ASSIGN_OR_RETURN(const Values found, bound->Run());
    for (size_t o = 0; o < found.size(); ++o) {
      const size_t size = found[o].size() / static_cast<size_t>(rows);
      for (int64_t r = 0; r < rows; ++r) {
        if (r == infinite || r == missing) continue;
        const auto part = [&](const std::vector<double>& all) {
          const auto begin = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(r) * size);
          return std::vector<double>(begin, begin + static_cast<ptrdiff_t>(size));
        };
        SY_RETURN_IF_ERROR(
            CompareNumbers(part(found[o]), part(expected_[o]), tested_, case_.looser,
                           fmt::format("row {} of output {}, beside a row with inf and one with NaN", r, o)));
      }
    }
    return OkStatus();
  }

  // The same kernel at other places with other numbers, launched between two launches of the first binding.
  Status CheckSecondBinding(const Kernel& kernel, BoundOp& first) {
    SY_ASSIGN_OR_RETURN(const Problem other, MakeWholeProblem(case_, tested_, seed_ + 1, reference_));
    SY_ASSIGN_OR_RETURN(const Values other_expected, Expected(other));
    SY_ASSIGN_OR_RETURN(auto second, BoundOp::Make(device_, other, kernel, {.first_lead = 2}));
    SY_RETURN_IF_ERROR(first.Fill());
    SY_RETURN_IF_ERROR(second->Fill());
    SY_RETURN_IF_ERROR(first.Launch());
    SY_RETURN_IF_ERROR(second->Launch());
    SY_ASSIGN_OR_RETURN(const Values first_found, first.Collect());
    SY_ASSIGN_OR_RETURN(const Values second_found, second->Collect());
    SY_RETURN_IF_ERROR(Compare(first_found, expected_, "first of two bindings"));
    return Compare(second_found, other_expected, "second of two bindings");
  }

  // Into all outputs, and, since kernels may take it for some alone, into each one by itself.
  Status CheckAccumulation() {
    SY_RETURN_IF_ERROR(CheckAccumulation(-1));
    for (size_t o = 0; problem_.outputs.size() > 1 && o < problem_.outputs.size(); ++o)
      SY_RETURN_IF_ERROR(CheckAccumulation(static_cast<int>(o)));
    return OkStatus();
  }
  Status CheckAccumulation(int alone) {
    PrepareMode mode;
    BoundOp::Mode bind;
    Values sum = expected_;
    for (size_t o = 0; o < problem_.outputs.size(); ++o) {
      const bool accumulates = IsFloat(problem_.outputs[o].dtype) && (alone < 0 || alone == static_cast<int>(o));
      mode.accumulate.push_back(accumulates);
      bind.initial_outputs.emplace_back();
      if (!accumulates) continue;
      const Fill fill = case_.exact ? Fill::kIntegers : Fill::kNormal;
      bind.initial_outputs[o] = Random(fill, 0, problem_.outputs[o], Key(seed_, 77, o));
      for (size_t i = 0; i < sum[o].size(); ++i) sum[o][i] += bind.initial_outputs[o][i];
    }
    auto kernel = PrepareOp(device_, problem_, mode);
    if (kernel.status().code() == absl::StatusCode::kUnimplemented) return OkStatus();
    if (!kernel.ok()) return Annotate(kernel.status(), "accumulate");
    SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device_, problem_, *kernel, bind));
    SY_ASSIGN_OR_RETURN(const Values found, bound->Run());
    return Compare(found, sum, "accumulated");
  }

  // The forward prepared for a backward, the backward prepared with it, and the residual passed between them.
  Status CheckPair() {
    if (case_.forward < 0) return OkStatus();
    const Problem forward = MakeProblem(OpCases()[static_cast<size_t>(case_.forward)], tested_, seed_);
    auto forward_kernel = PrepareOp(device_, forward, {.paired_forward = true});
    if (!forward_kernel.ok()) {
      return forward_kernel.status().code() == absl::StatusCode::kUnimplemented ? OkStatus() : forward_kernel.status();
    }
    auto kernel = PrepareOp(device_, problem_, {.forward = &*forward_kernel});
    if (kernel.status().code() == absl::StatusCode::kUnimplemented) return OkStatus();
    if (!kernel.ok()) return Annotate(kernel.status(), "paired backward");
    SY_ASSIGN_OR_RETURN(auto forward_bound, BoundOp::Make(device_, forward, *forward_kernel, {}));
    if (auto done = forward_bound->Run(); !done.ok()) return Annotate(done.status(), "paired forward");
    SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device_, problem_, *kernel, {.residual = forward_bound->residual()}));
    SY_ASSIGN_OR_RETURN(const Values found, bound->Run());
    return Compare(found, expected_, "paired backward");
  }

  const OpCase& case_;
  const sy_dtype tested_;
  Device& device_;
  Device& reference_;
  const uint64_t seed_;
  Problem problem_;
  Values expected_;
};

bool HasTestedOperand(const OpCase& one) {
  const auto tested = [](const Operand& operand) { return operand.type == Type::kTested; };
  return std::any_of(one.inputs.begin(), one.inputs.end(), tested) ||
         std::any_of(one.outputs.begin(), one.outputs.end(), tested);
}

// Elements of each input that are moved to and fro; all of them where there are fewer.
constexpr size_t kSampledElements = 10;
constexpr double kStep = 1e-5;
constexpr double kSmallestSlope = 1e-2;  // a gradient that vanishes is judged by its absolute error

Status CheckGradient(const OpCase& one, Device& device, Device& reference, uint64_t seed) {
  const OpCase& forward_case = OpCases()[static_cast<size_t>(one.forward)];
  sy_dtype tested = SY_F64;
  SY_ASSIGN_OR_RETURN(Problem backward, MakeWholeProblem(one, tested, seed, reference));
  auto found = RunOp(device, backward);
  if (!found.ok()) {  // no f64 here, as on every real device
    tested = SY_F32;
    SY_ASSIGN_OR_RETURN(backward, MakeWholeProblem(one, tested, seed, reference));
    found = RunOp(device, backward);
  }
  if (!found.ok()) return found.status();
  const double limit = tested == SY_F64 ? 1e-11 : 1e-7;

  Problem forward = InDoubles(MakeProblem(forward_case, tested, seed));
  SY_ASSIGN_OR_RETURN(const Kernel kernel, PrepareOp(reference, forward));
  SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(reference, forward, kernel, {}));
  // Σ over the outputs of (incoming gradient · output).
  const auto loss = [&]() -> StatusOr<double> {
    SY_ASSIGN_OR_RETURN(const Values outputs, bound->Run());
    double sum = 0;
    for (size_t i = 0; i < one.inputs.size(); ++i) {
      if (one.inputs[i].gradient_of < 0) continue;
      const std::vector<double>& output = outputs[one.inputs[i].gradient_of];
      for (size_t e = 0; e < output.size(); ++e) sum += backward.values[i][e] * output[e];
    }
    return sum;
  };
  for (size_t o = 0; o < one.outputs.size(); ++o) {
    const int input = one.outputs[o].gradient_of;
    std::vector<double>& values = forward.values[input];
    RandomStream random(Key(seed, HashName(one.id()), o));
    std::vector<double> slopes, gradients;
    for (size_t sample = 0; sample < std::min(kSampledElements, values.size()); ++sample) {
      size_t e = sample == 0 ? 0 : sample == 1 ? values.size() - 1 : random.Below(static_cast<uint32_t>(values.size()));
      if (values.size() <= kSampledElements) e = sample;
      const double before = values[e];
      values[e] = before + kStep;
      SY_ASSIGN_OR_RETURN(const double above, loss());
      values[e] = before - kStep;
      SY_ASSIGN_OR_RETURN(const double below, loss());
      values[e] = before;
      slopes.push_back((above - below) / (2 * kStep));
      gradients.push_back((*found)[o][e]);
    }
    double error = 0, scale = 0;
    for (size_t s = 0; s < slopes.size(); ++s) {
      error += (slopes[s] - gradients[s]) * (slopes[s] - gradients[s]);
      scale += slopes[s] * slopes[s];
    }
    const double least = kSmallestSlope * kSmallestSlope * static_cast<double>(slopes.size());
    if (!(error <= limit * std::max(scale, least))) {
      return Internal(
          "gradient {} differs from central differences: normalised error {:.2g}, at most {:.2g} is allowed", o,
          error / std::max(scale, least), limit);
    }
  }
  return OkStatus();
}

}  // namespace

void CheckOps(Recorder& recorder, Device& device, Device& reference, uint64_t seed) {
  for (const OpCase& one : OpCases()) {
    for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16}) {
      if (!(device.info().dtypes & (uint64_t{1} << dtype)) || (dtype != SY_F32 && !HasTestedOperand(one))) continue;
      recorder.Run(fmt::format("op/{}/{}", one.id(), sy_dtype_name(dtype)),
                   [&] { return CaseChecker(one, dtype, device, reference, seed).Check(); });
    }
  }
}

void CheckGradients(Recorder& recorder, Device& device, Device& reference, uint64_t seed) {
  for (const OpCase& one : OpCases()) {
    if (one.forward < 0) continue;
    recorder.Run("gradient/" + one.id(), [&] { return CheckGradient(one, device, reference, seed); });
  }
}

}  // namespace switchyard::conform
