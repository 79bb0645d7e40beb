#include "tools/conform/argument_checks.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <set>

#include "tools/conform/given_struct.h"
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

Status CheckNonsense(Device& device, const OpCase& one) {
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

// What a later edition may mean is not wrong, only unknown. What says the same in more or fewer bytes gets the same
// answer.
Status CheckOtherEditions(Device& device, const OpCase& one) {
  const Problem good = MakeProblem(one, SY_F32, 1);
  const auto usual = PrepareOp(device, good).status().code();
  const auto expect = [&](absl::StatusCode wanted, const char* what, const Problem& problem,
                          const PrepareMode& mode) -> Status {
    const Status found = PrepareOp(device, problem, mode).status();
    if (found.code() == wanted) return OkStatus();
    return Internal("{}: expected {}, found {}", what,
                    wanted == absl::StatusCode::kUnimplemented ? "SY_UNSUPPORTED" : "the answer of edition 2",
                    found.ok() ? "success" : found.ToString());
  };
  constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;
  Problem problem = good;
  problem.inputs[0].dtype = 99;
  SY_RETURN_IF_ERROR(expect(kUnsupported, "an input of dtype 99", problem, {}));
  problem = good;
  problem.outputs[0].dtype = 99;
  SY_RETURN_IF_ERROR(expect(kUnsupported, "an output of dtype 99", problem, {}));
  SY_RETURN_IF_ERROR(expect(kUnsupported, "version 99 of the op", good, {.op_version = 99}));
  if (good.attributes.empty()) return OkStatus();
  problem = good;
  problem.attributes.resize(good.attributes.size() + kLongerBy);
  SY_RETURN_IF_ERROR(expect(usual, "attributes with zeros behind them", problem, {}));
  problem.attributes.back() = 1;
  SY_RETURN_IF_ERROR(expect(kUnsupported, "attributes with something unknown behind them", problem, {}));
  problem = good;
  size_t size = good.attributes.size();
  while (size > 1 && good.attributes[size - 1] == 0) --size;
  std::fill(problem.attributes.begin() + static_cast<ptrdiff_t>(size), problem.attributes.end(), kUntouched);
  SY_RETURN_IF_ERROR(expect(usual, "attributes without the zeros at their end", problem,
                            {.attribute_bytes = static_cast<uint32_t>(size)}));
  return OkStatus();
}

}  // namespace

void CheckArguments(Recorder& recorder, Device& device) {
  if (!device.has_kernels()) return;
  for (const std::string& op : OpNames()) {
    recorder.Run("argument/" + op, [&] { return CheckNonsense(device, FirstCase(op)); });
    recorder.Run("argument/" + op + "/other_editions", [&] { return CheckOtherEditions(device, FirstCase(op)); });
  }
}

}  // namespace switchyard::conform
