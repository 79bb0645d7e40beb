// pointwise: the program is written out as OpenCL C and compiled, once for each program, dtypes and steps along the
// innermost axis. Extents, strides, how many axes lie outside, and which outputs are added to are arguments: to compile
// a program takes longer than to run it thousands of times. Neighbouring axes along which every operand runs on are
// merged.
#include <algorithm>

#include "backends/opencl/kernel.h"

namespace switchyard {
namespace {

struct Axis {
  int64_t extent;
  std::vector<int64_t> strides;  // one per input, elements; 0: broadcast
};

// The output axes, merged. Never empty.
std::vector<Axis> MergedAxes(const sy_tensor& out, const std::vector<sy_tensor>& inputs) {
  std::vector<Axis> axes;
  for (int d = 0; d < out.rank; ++d) {
    if (out.dims[d] == 1) continue;
    Axis axis{out.dims[d], {}};
    for (const sy_tensor& t : inputs) {
      const int own = d - (out.rank - t.rank);
      axis.strides.push_back(own < 0 || t.dims[own] == 1 ? 0 : t.strides[own]);
    }
    bool joins = !axes.empty();
    for (size_t i = 0; joins && i < inputs.size(); ++i) joins = axes.back().strides[i] == axis.strides[i] * axis.extent;
    if (joins) {
      axes.back() = {axes.back().extent * axis.extent, axis.strides};
    } else {
      axes.push_back(axis);
    }
  }
  if (axes.empty()) axes.push_back({1, std::vector<int64_t>(inputs.size(), 0)});
  return axes;
}

// The expression of one instruction over the values named by a, b and c.
std::string Expression(const sy_instruction& step, const std::string& a, const std::string& b, const std::string& c) {
  const auto truth = [](const std::string& condition) {
    return "select((floatW)0.0f, (floatW)1.0f, " + condition + ")";
  };
  const auto call = [&](const char* function) { return std::string(function) + "(" + a + ")"; };
  const auto activation = [&](const char* function, const char* kind) {
    return Format("%s(%s, %s)", function, kind, a.c_str());
  };
  switch (step.op) {
    case SY_PW_CONSTANT: {
      uint32_t bits;
      std::memcpy(&bits, &step.value, sizeof bits);
      return Format("(floatW)as_float(0x%08xu)", bits);
    }
    case SY_PW_ADD:
      return a + " + " + b;
    case SY_PW_SUB:
      return a + " - " + b;
    case SY_PW_MUL:
      return a + " * " + b;
    case SY_PW_DIV:
      return a + " / " + b;
    case SY_PW_MAX:
      return "select(" + b + ", " + a + ", isnan(" + a + ") | (" + a + " > " + b + "))";
    case SY_PW_MIN:
      return "select(" + b + ", " + a + ", isnan(" + a + ") | (" + a + " < " + b + "))";
    case SY_PW_POW:
      return "pow(" + a + ", " + b + ")";
    case SY_PW_NEG:
      return "-" + a;
    case SY_PW_ABS:
      return call("fabs");
    case SY_PW_EXP:
      return call("exp");
    case SY_PW_LOG:
      return call("log");
    case SY_PW_SQRT:
      return call("sqrt");
    case SY_PW_RSQRT:
      return "1.0f / sqrt(" + a + ")";
    case SY_PW_RECIPROCAL:
      return "1.0f / " + a;
    case SY_PW_TANH:
      return call("tanh");
    case SY_PW_SIGMOID:
      return "1.0f / (1.0f + exp(-" + a + "))";
    case SY_PW_ERF:
      return call("erf_w");
    case SY_PW_FLOOR:
      return call("floor");
    case SY_PW_RELU:
      return activation("activate", "RELU");
    case SY_PW_GELU:
      return activation("activate", "GELU");
    case SY_PW_GELU_TANH:
      return activation("activate", "GELU_TANH");
    case SY_PW_SILU:
      return activation("activate", "SILU");
    case SY_PW_RELU_GRAD:
      return activation("activation_slope", "RELU");
    case SY_PW_GELU_GRAD:
      return activation("activation_slope", "GELU");
    case SY_PW_GELU_TANH_GRAD:
      return activation("activation_slope", "GELU_TANH");
    case SY_PW_SILU_GRAD:
      return activation("activation_slope", "SILU");
    case SY_PW_LESS:
      return truth(a + " < " + b);
    case SY_PW_LESS_EQUAL:
      return truth(a + " <= " + b);
    case SY_PW_EQUAL:
      return truth(a + " == " + b);
    case SY_PW_SELECT:
      return "select(" + c + ", " + b + ", " + a + " != 0.0f)";
    default:
      return truth(call("isfinite"));
  }
}

class Generator {
 public:
  Generator(const Request& r, const sy_pointwise_attributes& program)
      : r_(r), program_(program), axes_(MergedAxes(r.outputs[0], r.inputs)) {}

  const std::vector<Axis>& axes() const { return axes_; }

  std::string Source() const {
    const size_t inputs = r_.inputs.size();
    std::string text = Format("typedef struct {\n  uint extent[%zu], stride[%zu];\n} Walk;\n", Room(),
                              std::max<size_t>(inputs, 1) * Room());
    text += "GROUP_KERNEL void pointwise(";
    for (size_t i = 0; i < inputs; ++i) text += Format("ARRAY(x%zu), ", i);
    for (size_t o = 0; o < r_.outputs.size(); ++o) text += Format("ARRAY(y%zu), ", o);
    text += "Walk walk, uint outer, uint rows, uint columns, uint rows_each, uint columns_each, uint added_to";
    for (size_t i = 0; i < inputs; ++i) {
      if (Inner(i) > 1) text += Format(", uint step%zu", i);
    }
    text += ") {\n  TILE_OF(rows, columns, rows_each, columns_each)\n";
    text += "  for (uint row = first_row; row < last_row; ++row) {\n    uint rest = row;\n";
    for (size_t i = 0; i < inputs; ++i) text += Format("    uint at%zu = 0;\n", i);
    text += "    for (uint axis = outer; axis-- > 0;) {\n";
    text += "      const uint index = rest % walk.extent[axis];\n      rest /= walk.extent[axis];\n";
    for (size_t i = 0; i < inputs; ++i) {
      text += Format("      at%zu += index * walk.stride[%zu + axis];\n", i, i * Room());
    }
    text += "    }\n    EACH_VECTOR_OF_TILE(i) {\n";
    for (size_t i = 0; i < inputs; ++i) text += Read(i);
    for (uint32_t j = 0; j < program_.instruction_count; ++j) {
      const sy_instruction& step = program_.instructions[j];
      const auto name = [](int32_t operand) { return Format("v%d", operand); };
      text += Format("      const floatW v%zu = ", inputs + j) +
              Expression(step, name(step.a), name(step.b), name(step.c)) + ";\n";
    }
    for (size_t o = 0; o < r_.outputs.size(); ++o) text += Write(o);
    return text + "    }\n  }\n}\n";
  }

  void AddArguments(Launch& launch, const Tiling& tiling, int64_t rows, int64_t columns) const {
    const size_t inputs = r_.inputs.size(), outer = axes_.size() - 1;
    for (size_t i = 0; i < inputs; ++i) launch.In(i);
    for (size_t o = 0; o < r_.outputs.size(); ++o) launch.Out(o);
    // Walk of the source: extents of the outer axes, then each input's strides along them.
    std::vector<uint32_t> walk((1 + std::max<size_t>(inputs, 1)) * Room(), 0);
    for (size_t axis = 0; axis < outer; ++axis) {
      walk[axis] = static_cast<uint32_t>(axes_[axis].extent);
      for (size_t i = 0; i < inputs; ++i) {
        walk[(1 + i) * Room() + axis] = static_cast<uint32_t>(axes_[axis].strides[i]);
      }
    }
    uint32_t added_to = 0;
    for (size_t o = 0; o < r_.outputs.size(); ++o) added_to |= r_.accumulate[o] ? 1u << o : 0u;
    launch.Words(walk).Uint(static_cast<int64_t>(outer));
    launch.Uint(rows).Uint(columns).Uint(tiling.rows_each).Uint(tiling.columns_each).Uint(added_to);
    for (size_t i = 0; i < inputs; ++i) {
      if (Inner(i) > 1) launch.Uint(Inner(i));
    }
    launch.Groups(tiling.groups);
  }

 private:
  int64_t Inner(size_t input) const { return axes_.back().strides[input]; }
  // For how many outer axes a Walk has room: few, since a driver may take no more than 1024 bytes of arguments.
  size_t Room() const { return std::max<size_t>(axes_.size() - 1, 3); }

  // Integers that are only copied do not become floats, which do not hold all of them.
  bool OnlyCopies(size_t output) const {
    return program_.instruction_count == 0 && !IsFloat(r_.outputs[output].dtype) &&
           !IsFloat(r_.inputs[program_.outputs[output]].dtype);
  }
  std::string Copy(size_t o) const {
    const auto i = static_cast<size_t>(program_.outputs[o]);
    const char *to = TypeName(r_.outputs[o].dtype), *from = TypeName(r_.inputs[i].dtype);
    const std::string at = Inner(i) == 0 ? "0" : Inner(i) == 1 ? "i + l" : Format("(i + l) * step%zu", i);
    return Format(
        "      for (uint l = 0; l < WIDTH && i + l < last; ++l)\n"
        "        OF(S_%s, y%zu)[(ulong)row * columns + i + l] = convert_%s_sat((OF(S_%s, x%zu) + at%zu)[%s]);\n",
        to, o,
        r_.outputs[o].dtype == SY_I32   ? "int"
        : r_.outputs[o].dtype == SY_I64 ? "long"
                                        : "uchar",
        from, i, i, at.c_str());
  }

  std::string Read(size_t i) const {
    const char* type = TypeName(r_.inputs[i].dtype);
    const std::string from = Format("OF(S_%s, x%zu) + at%zu", type, i, i);
    if (Inner(i) == 0) return Format("      const floatW v%zu = (floatW)at_%s(%s, 0);\n", i, type, from.c_str());
    if (Inner(i) == 1) {
      return Format("      const floatW v%zu = load_%s(%s, i, last, 0.0f);\n", i, type, from.c_str());
    }
    return Format(
        "      float w%zu[WIDTH];\n"
        "      for (uint l = 0; l < WIDTH; ++l) w%zu[l] = at_%s(%s, min(i + l, last - 1) * step%zu);\n"
        "      const floatW v%zu = VLOAD(w%zu);\n",
        i, i, type, from.c_str(), i, i, i);
  }

  std::string Write(size_t o) const {
    if (OnlyCopies(o)) return Copy(o);
    const char* type = TypeName(r_.outputs[o].dtype);
    const std::string to = Format("OF(S_%s, y%zu) + (ulong)row * columns", type, o);
    if (!IsFloat(r_.outputs[o].dtype)) {
      return Format("      store_%s(%s, i, last, v%d);\n", type, to.c_str(), program_.outputs[o]);
    }
    return Format(
        "      floatW r%zu = v%d;\n"
        "      if (added_to & %uu) r%zu += load_%s(%s, i, last, 0.0f);\n"
        "      store_%s(%s, i, last, r%zu);\n",
        o, program_.outputs[o], 1u << o, o, type, to.c_str(), type, to.c_str(), o);
  }

  const Request& r_;
  const sy_pointwise_attributes& program_;
  std::vector<Axis> axes_;
};

// Every operand of the program names an input or an earlier result.
sy_status CheckProgram(const Request& r, const sy_pointwise_attributes& p) {
  const auto inputs = static_cast<int64_t>(r.inputs.size());
  if (p.instruction_count > SY_PW_MAX_INSTRUCTIONS || p.output_count < 1 || p.output_count > SY_PW_MAX_OUTPUTS ||
      p.output_count != r.outputs.size()) {
    return SY_REFUSE_OP(r, "%u instructions and %u outputs for %zu tensors", p.instruction_count, p.output_count,
                        r.outputs.size());
  }
  for (uint32_t j = 0; j < p.instruction_count; ++j) {
    const sy_instruction& step = p.instructions[j];
    if (step.op < 0 || step.op >= SY_PW_OP_COUNT)
      return SY_REFUSE_OP(r, "instruction %u has the unknown op %d", j, step.op);
    const int32_t operands[] = {step.a, step.b, step.c};
    for (int k = 0; k < sy_pointwise_operands(step.op); ++k) {
      if (operands[k] < 0 || operands[k] >= inputs + j) {
        return SY_REFUSE_OP(r, "instruction %u reads the unknown operand %d", j, operands[k]);
      }
    }
  }
  for (uint32_t o = 0; o < p.output_count; ++o) {
    if (p.outputs[o] < 0 || p.outputs[o] >= inputs + p.instruction_count) {
      return SY_REFUSE_OP(r, "output %u is the unknown operand %d", o, p.outputs[o]);
    }
  }
  return SY_OK;
}

sy_status PreparePointwise(const Request& r, Kernel& kernel) {
  const auto program = r.Attributes<sy_pointwise_attributes>();
  if (const sy_status status = CheckProgram(r, program); status != SY_OK) return status;
  const sy_tensor& y = r.outputs[0];
  for (size_t o = 0; o < r.outputs.size(); ++o) {
    if (!r.RequireDims(r.outputs[o], {y.dims, y.dims + y.rank}, "every output")) return SY_UNSUPPORTED;
    if (!IsContiguous(r.outputs[o])) return SY_REFUSE_OP(r, "writes contiguous tensors only");
    if (r.accumulate[o] && !IsFloat(r.outputs[o].dtype)) return SY_REFUSE_OP(r, "cannot accumulate into integers");
  }
  for (const sy_tensor& t : r.inputs) {
    bool fits = t.rank <= y.rank;
    for (int d = 0; fits && d < t.rank; ++d) fits = t.dims[d] == 1 || t.dims[d] == y.dims[y.rank - t.rank + d];
    if (!fits) return SY_REFUSE_OP(r, "an input cannot be broadcast to the output");
  }
  // An output may take the place of an input that is read element by element in the same order.
  std::vector<bool> taken(r.inputs.size(), false);
  for (size_t o = 0; o < r.outputs.size(); ++o) {
    for (size_t i = 0; i < r.inputs.size() && kernel.inplace[o] < 0 && !r.accumulate[o]; ++i) {
      const sy_tensor& t = r.inputs[i];
      if (taken[i] || t.dtype != r.outputs[o].dtype || Elements(t) != Elements(y) || !IsContiguous(t)) continue;
      taken[i] = true;
      kernel.inplace[o] = static_cast<int32_t>(i);
    }
  }
  const Generator generator(r, program);
  const int64_t columns = generator.axes().back().extent, rows = Elements(y) / columns;
  Launch& launch = kernel.Add(kernel.CompileText(generator.Source()), "pointwise");
  generator.AddArguments(launch, TileOver(*kernel.device(), rows, columns), rows, columns);
  return SY_OK;
}

const Registration kPointwise{"pointwise", PreparePointwise, sizeof(sy_pointwise_attributes)};

}  // namespace
}  // namespace switchyard
