#include "tools/conform/argument_checks.h"

#include <functional>
#include <set>

#include "tools/conform/op_cases.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

struct Planted {
  std::string what;
  Problem problem;
};

// What makes no sense for any op. Some ops have a meaning for some of it: squared_norm and pointwise take any number of
// inputs, slice and pointwise several output shapes.
std::vector<Planted> ForEveryOp(const Problem& good) {
  const std::set<std::string> any_inputs = {"squared_norm", "pointwise"}, any_output = {"slice", "pointwise"};
  std::vector<Planted> all;
  const auto plant = [&](const char* what, const std::function<void(Problem&)>& change) {
    all.push_back({what, good});
    change(all.back().problem);
  };
  plant("no outputs", [](Problem& p) { p.outputs.clear(); });
  plant("dtype 99", [](Problem& p) { p.inputs[0].dtype = 99; });
  plant("rank 9", [](Problem& p) { p.inputs[0].rank = SY_MAX_RANK + 1; });
  plant("rank -1", [](Problem& p) { p.inputs[0].rank = -1; });
  plant("a negative extent", [](Problem& p) { p.inputs[0].dims[0] = -4; });
  plant("an extent that overflows", [](Problem& p) { p.inputs[0].dims[0] = int64_t{1} << 62; });
  if (!any_inputs.count(good.op)) {
    plant("an input too few", [](Problem& p) { p.inputs.pop_back(); });
    plant("no inputs", [](Problem& p) { p.inputs.clear(); });
  }
  if (!any_output.count(good.op))
    plant("an output that is too large", [](Problem& p) { ++p.outputs[0].dims[p.outputs[0].rank - 1]; });
  if (!good.attributes.empty()) plant("no attributes", [](Problem& p) { p.attributes.clear(); });
  return all;
}

Status CheckOp(Device& device, const OpCase& one) {
  std::vector<Planted> all = ForEveryOp(MakeProblem(one, SY_F32, 1));
  for (const Nonsense& nonsense : NonsenseCases()) {
    if (nonsense.op != one.op) continue;
    OpCase planted = one;
    nonsense.plant(planted);
    all.push_back({nonsense.what, MakeProblem(planted, SY_F32, 1)});
  }
  for (const Planted& nonsense : all) {
    const auto kernel = PrepareOp(device, nonsense.problem);
    const auto code = kernel.status().code();
    if (code != absl::StatusCode::kInvalidArgument && code != absl::StatusCode::kUnimplemented) {
      return Internal("{}: expected SY_INVALID or SY_UNSUPPORTED, found {}", nonsense.what,
                      kernel.ok() ? "success" : kernel.status().ToString());
    }
  }
  return OkStatus();
}

}  // namespace

void CheckArguments(Recorder& recorder, Device& device) {
  if (!device.has_kernels()) return;
  for (const std::string& op : OpNames())
    recorder.Run("argument/" + op, [&] { return CheckOp(device, FirstCase(op)); });
}

}  // namespace switchyard::conform
