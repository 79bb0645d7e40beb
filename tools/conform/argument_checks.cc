#include "tools/conform/argument_checks.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "core/abi/ops.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

struct Nonsense {
  std::string what;
  std::function<void(Problem&)> plant;
};

// What makes no sense for any op. Some ops have a meaning for some of it: squared_norm and pointwise take any number of
// inputs, slice and pointwise several output shapes.
std::vector<Nonsense> ForEveryOp(const Problem& problem) {
  const std::set<std::string> any_inputs = {"squared_norm", "pointwise"}, any_output = {"slice", "pointwise"};
  std::vector<Nonsense> all = {
      {"no outputs", [](Problem& p) { p.outputs.clear(); }},
      {"dtype 99", [](Problem& p) { p.inputs[0].dtype = 99; }},
      {"rank 9", [](Problem& p) { p.inputs[0].rank = SY_MAX_RANK + 1; }},
      {"rank -1", [](Problem& p) { p.inputs[0].rank = -1; }},
      {"a negative extent", [](Problem& p) { p.inputs[0].dims[0] = -4; }},
      {"an extent that overflows", [](Problem& p) { p.inputs[0].dims[0] = int64_t{1} << 62; }},
  };
  if (!any_inputs.count(problem.op)) {
    all.push_back({"an input too few", [](Problem& p) { p.inputs.pop_back(); }});
    all.push_back({"no inputs", [](Problem& p) { p.inputs.clear(); }});
  }
  if (!any_output.count(problem.op)) {
    all.push_back({"an output that is too large", [](Problem& p) { ++p.outputs[0].dims[p.outputs[0].rank - 1]; }});
  }
  if (!problem.attributes.empty()) {
    all.push_back({"no attributes", [](Problem& p) { p.attributes.clear(); }});
  }
  return all;
}

template <typename A, typename F>
Nonsense Attribute(const char* what, F change) {
  return {what, [change](Problem& p) {
            A attributes;
            std::memcpy(&attributes, p.attributes.data(), sizeof attributes);
            change(attributes);
            std::memcpy(p.attributes.data(), &attributes, sizeof attributes);
          }};
}

std::vector<Nonsense> ForOp(const std::string& op) {
  using Matmul = sy_matmul_attributes;
  using Pointwise = sy_pointwise_attributes;
  using Reduce = sy_reduce_attributes;
  using Axes = sy_axes_attributes;
  using Slice = sy_slice_attributes;
  using Convolution = sy_convolution_attributes;
  using Pool = sy_pool_attributes;
  using Resize = sy_resize_attributes;
  using Optimizer = sy_optimizer_attributes;
  if (op == "matmul") return {Attribute<Matmul>("activation 99", [](Matmul& a) { a.activation = 99; })};
  if (op == "pointwise") {
    return {
        Attribute<Pointwise>("1000 instructions", [](Pointwise& a) { a.instruction_count = 1000; }),
        Attribute<Pointwise>("9 outputs", [](Pointwise& a) { a.output_count = SY_PW_MAX_OUTPUTS + 1; }),
        Attribute<Pointwise>("output 99", [](Pointwise& a) { a.outputs[0] = 99; }),
        Attribute<Pointwise>("output -1", [](Pointwise& a) { a.outputs[0] = -1; }),
        Attribute<Pointwise>("operand 77",
                             [](Pointwise& a) {
                               a.instructions[0] = {SY_PW_NEG, 77, 0, 0, 0};
                             }),
        Attribute<Pointwise>("operand -3",
                             [](Pointwise& a) {
                               a.instructions[0] = {SY_PW_NEG, -3, 0, 0, 0};
                             }),
        Attribute<Pointwise>("an unknown instruction", [](Pointwise& a) { a.instructions[0].op = SY_PW_OP_COUNT; })};
  }
  if (op == "reduce") {
    return {Attribute<Reduce>("reduction 99", [](Reduce& a) { a.reduction = 99; }),
            Attribute<Reduce>("axis 20", [](Reduce& a) { a.axes = 1u << 20; })};
  }
  if (op == "transpose") {
    return {Attribute<Axes>("an axis twice", [](Axes& a) { a.values[1] = a.values[0]; }),
            Attribute<Axes>("axis -1", [](Axes& a) { a.values[0] = -1; }),
            Attribute<Axes>("axis 12", [](Axes& a) { a.values[0] = 12; })};
  }
  if (op == "concat") {
    return {Attribute<Axes>("axis 9", [](Axes& a) { a.values[0] = 9; }),
            Attribute<Axes>("axis -1", [](Axes& a) { a.values[0] = -1; })};
  }
  if (op == "slice") {
    return {Attribute<Slice>("a start beyond the end", [](Slice& a) { a.start[0] = 1000000; }),
            Attribute<Slice>("a negative start", [](Slice& a) { a.start[0] = -5; })};
  }
  if (op.rfind("convolution", 0) == 0) {
    return {Attribute<Convolution>("0 groups", [](Convolution& a) { a.groups = 0; }),
            Attribute<Convolution>("7 groups of other channels", [](Convolution& a) { a.groups = 7; }),
            Attribute<Convolution>("stride 0", [](Convolution& a) { a.stride[0] = 0; }),
            Attribute<Convolution>("dilation 0", [](Convolution& a) { a.dilation[0] = 0; }),
            Attribute<Convolution>("7 spatial axes", [](Convolution& a) { a.spatial_rank = 7; })};
  }
  if (op.rfind("pool", 0) == 0) {
    return {Attribute<Pool>("an empty window", [](Pool& a) { a.kernel[0] = 0; }),
            Attribute<Pool>("stride 0", [](Pool& a) { a.stride[0] = 0; }),
            Attribute<Pool>("7 spatial axes", [](Pool& a) { a.spatial_rank = 7; })};
  }
  if (op.rfind("resize", 0) == 0) {
    return {Attribute<Resize>("mode 9", [](Resize& a) { a.mode = 9; }),
            Attribute<Resize>("7 spatial axes", [](Resize& a) { a.spatial_rank = 7; })};
  }
  if (op == "optimizer_update") return {Attribute<Optimizer>("kind 9", [](Optimizer& a) { a.kind = 9; })};
  return {};
}

Status CheckOp(Device& device, const OpCase& one) {
  const Problem good = MakeProblem(one, SY_F32, 1);
  std::vector<Nonsense> all = ForEveryOp(good);
  const std::vector<Nonsense> own = ForOp(one.op);
  all.insert(all.end(), own.begin(), own.end());
  for (const Nonsense& nonsense : all) {
    Problem problem = good;
    nonsense.plant(problem);
    const auto kernel = PrepareOp(device, problem);
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
  for (const std::string& op : OpNames()) {
    const auto& cases = OpCases();
    const auto one = std::find_if(cases.begin(), cases.end(), [&](const OpCase& c) { return c.op == op; });
    recorder.Run("argument/" + op, [&] { return CheckOp(device, *one); });
  }
}

}  // namespace switchyard::conform
