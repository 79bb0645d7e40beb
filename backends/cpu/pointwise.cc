// pointwise: the program is run on blocks of elements that stay in the L1 cache, one vectorised loop per instruction,
// so that each tensor crosses memory once. Prepare merges axes, gives each result a register (a block of f32 in the
// thread's scratch) that is reused after its last reader, and lets the last instruction write straight into an f32
// output. Short rows are computed several at once: a row that an input repeats, or its one value for each row, is
// repeated in its register.
#include "backends/cpu/copy.h"
#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

constexpr int64_t kPiece = 512;
constexpr int64_t kMostPeriod = 64;  // elements of a row that registers repeat
constexpr int64_t kRegister = kPiece + kMostPeriod;
// As a stride along joined rows:
constexpr int64_t kRepeats = -1;  // the input has one row, which it repeats
constexpr int64_t kSpreads = -2;  // the input has one value for each row

struct Axis {
  int64_t extent;
  std::vector<int64_t> strides;  // one per input, elements; 0 = broadcast, kRepeats or kSpreads
};

// The output axes, neighbours merged wherever every input runs on from one into the next. Never empty.
std::vector<Axis> MergedAxes(const sy_tensor& out, const std::vector<sy_tensor>& inputs) {
  std::vector<Axis> axes;
  for (int d = 0; d < out.rank; ++d) {
    if (out.dims[d] == 1) continue;
    Axis axis = {out.dims[d], {}};
    for (const sy_tensor& t : inputs) {
      const int own = d - (out.rank - t.rank);
      int64_t stride = 1;
      for (int i = own + 1; i < t.rank; ++i)
        if (i >= 0) stride *= t.dims[i];
      axis.strides.push_back(own < 0 || t.dims[own] == 1 ? 0 : stride);
    }
    if (!axes.empty()) {
      Axis& last = axes.back();
      bool joins = true;
      for (size_t i = 0; i < inputs.size(); ++i) joins = joins && last.strides[i] == axis.strides[i] * axis.extent;
      if (joins) {
        last.extent *= axis.extent;
        last.strides = axis.strides;
        continue;
      }
    }
    axes.push_back(axis);
  }
  if (axes.empty()) axes.push_back({1, std::vector<int64_t>(inputs.size(), 0)});
  return axes;
}

// Short rows, as the three channels of images or the scores of a window, become one long row where each input runs
// through all of them, is constant, repeats one row, or has one value for each. The length of those rows; 0: they stay.
int64_t JoinShortRows(std::vector<Axis>& axes) {
  if (axes.size() < 2 || axes.back().extent > kMostPeriod) return 0;
  Axis &inner = axes.back(), &outer = axes[axes.size() - 2];
  const int64_t period = inner.extent;
  std::vector<int64_t> joined;
  for (size_t i = 0; i < inner.strides.size(); ++i) {
    const int64_t along = inner.strides[i], across = outer.strides[i];
    if (across == 0 && along <= 1) {
      joined.push_back(along == 1 ? kRepeats : 0);
    } else if (along == 1 && across == period) {
      joined.push_back(1);
    } else if (along == 0 && across == 1) {
      joined.push_back(kSpreads);
    } else {
      return 0;
    }
  }
  outer = {period * outer.extent, std::move(joined)};
  axes.pop_back();
  return period;
}

class Pointwise : public Kernel {
 public:
  Pointwise(const Request& request, const sy_pointwise_attributes& program)
      : Kernel(request),
        program_(program),
        axes_(MergedAxes(outputs[0], inputs)),
        period_(JoinShortRows(axes_)),
        total_(Elements(outputs[0])) {
    AllocateRegisters();
    ChooseInPlace();
    workspace_bytes = static_cast<uint64_t>(device->threads * register_count_ * kRegister) * sizeof(float);
  }

  void Run(const Arguments& a) const override {
    const int64_t inner = axes_.back().extent;
    const int64_t grain =
        std::max<int64_t>(kPiece, kParallelElements / static_cast<int64_t>(1 + program_.instruction_count / 4));
    ParallelRanges(device->threads, total_, grain, [&](int64_t begin, int64_t end, int thread) {
      Thread t(*this, a, a.Workspace<float>() + thread * register_count_ * kRegister);
      while (begin < end) {
        const int64_t row = begin / inner, column = begin % inner;
        t.StartRow(row);
        const int64_t stop = std::min(end, (row + 1) * inner);
        for (int64_t c = column; begin < stop; c += kPiece) {
          const int64_t n = std::min(kPiece, stop - begin);
          t.RunBlock(begin, c, n);
          begin += n;
        }
      }
    });
  }

 private:
  size_t Count() const { return inputs.size(); }
  // An input that instructions read where it lies.
  bool Direct(size_t input) const { return inputs[input].dtype == SY_F32 && axes_.back().strides[input] == 1; }

  void AllocateRegisters() {
    const size_t n = Count(), operands = n + program_.instruction_count;
    std::vector<size_t> last_use(operands, 0);
    bool reads_later = false;  // a direct input is read after the instruction at hand
    direct_output_.assign(operands, -1);
    for (size_t j = 0; j < program_.instruction_count; ++j) {
      const sy_instruction& i = program_.instructions[j];
      const int32_t read[] = {i.a, i.b, i.c};
      for (int k = 0; k < sy_pointwise_operands(i.op); ++k) last_use[read[k]] = n + j;
    }
    for (size_t o = 0; o < outputs.size(); ++o) last_use[program_.outputs[o]] = operands;
    for (size_t j = program_.instruction_count; j-- > 0;) {
      const sy_instruction& i = program_.instructions[j];
      for (size_t o = 0; o < outputs.size() && !reads_later && i.op != SY_PW_CONSTANT; ++o)
        if (static_cast<size_t>(program_.outputs[o]) == n + j && outputs[o].dtype == SY_F32 && !accumulate[o])
          direct_output_[n + j] = static_cast<int32_t>(o);
      const int32_t read[] = {i.a, i.b, i.c};
      for (int k = 0; k < sy_pointwise_operands(i.op); ++k)
        reads_later = reads_later || (static_cast<size_t>(read[k]) < n && Direct(read[k]));
    }
    registers_.assign(operands, -1);
    std::vector<int32_t> free;
    const auto take = [&] {
      if (free.empty()) return register_count_++;
      const int32_t r = free.back();
      free.pop_back();
      return r;
    };
    for (size_t i = 0; i < n; ++i)
      if (!Direct(i)) registers_[i] = register_count_++;  // broadcast values stay from row to row
    for (size_t j = 0; j < program_.instruction_count; ++j)
      if (program_.instructions[j].op == SY_PW_CONSTANT) registers_[n + j] = register_count_++;
    for (size_t j = 0; j < program_.instruction_count; ++j) {
      const sy_instruction& i = program_.instructions[j];
      if (i.op == SY_PW_CONSTANT) continue;
      const int32_t read[] = {i.a, i.b, i.c};
      for (int k = 0; k < sy_pointwise_operands(i.op); ++k) {
        const auto operand = static_cast<size_t>(read[k]);
        const bool result = operand >= n && program_.instructions[operand - n].op != SY_PW_CONSTANT;
        if (result && last_use[operand] == n + j && registers_[operand] >= 0 &&
            std::find(free.begin(), free.end(), registers_[operand]) == free.end())
          free.push_back(registers_[operand]);
      }
      if (direct_output_[n + j] < 0) registers_[n + j] = take();
    }
  }

  void ChooseInPlace() {
    std::vector<bool> taken(Count(), false);
    for (size_t o = 0; o < outputs.size(); ++o)
      for (size_t i = 0; i < Count() && inplace[o] < 0; ++i) {
        bool passed_on = taken[i];
        for (size_t p = 0; p < outputs.size(); ++p)
          passed_on = passed_on || static_cast<size_t>(program_.outputs[p]) == i;
        if (passed_on || inputs[i].dtype != outputs[o].dtype || Elements(inputs[i]) != total_ || accumulate[o])
          continue;
        inplace[o] = static_cast<int32_t>(i);
        taken[i] = true;
      }
  }

  // One thread's walk over its elements.
  class Thread {
   public:
    Thread(const Pointwise& kernel, const Arguments& arguments, float* registers)
        : k_(kernel), a_(arguments), registers_(registers) {
      const size_t n = k_.Count();
      for (size_t j = 0; j < k_.program_.instruction_count; ++j) {
        const sy_instruction& i = k_.program_.instructions[j];
        if (i.op == SY_PW_CONSTANT) std::fill_n(Register(n + j), kPiece, i.value);
      }
    }

    // Finds the inputs of one row of the innermost axis, and spreads those that are constant along it.
    void StartRow(int64_t row) {
      for (size_t i = 0; i < k_.Count(); ++i) {
        int64_t rest = row, offset = 0;
        for (size_t d = k_.axes_.size() - 1; d-- > 0;) {
          offset += rest % k_.axes_[d].extent * k_.axes_[d].strides[i];
          rest /= k_.axes_[d].extent;
        }
        const int64_t previous = first_ ? -1 : offsets_[i];
        offsets_[i] = offset;
        const Axis& inner = k_.axes_.back();
        const int64_t stride = inner.strides[i];
        if (stride > 0 || stride == kSpreads || offset == previous) continue;
        const sy_dtype dtype = k_.inputs[i].dtype;
        const int64_t given = stride == kRepeats ? k_.period_ : 1;
        const int64_t read = std::min(kRegister, stride == kRepeats ? inner.extent + k_.period_ : inner.extent);
        float* const values = Register(i);
        Vector().to_float(dtype, a_.inputs[i] + offset * DtypeBytes(dtype), values, given);
        for (int64_t e = given; e < read; ++e) values[e] = values[e - given];
      }
      first_ = false;
    }

    // `element`: of the outputs; `column`: along the innermost axis.
    void RunBlock(int64_t element, int64_t column, int64_t count) {
      const size_t n = k_.Count();
      for (size_t i = 0; i < n; ++i) {
        const sy_dtype dtype = k_.inputs[i].dtype;
        const int64_t stride = k_.axes_.back().strides[i];
        const auto from = [&](int64_t e) { return a_.inputs[i] + (offsets_[i] + e) * DtypeBytes(dtype); };
        if (k_.Direct(i)) {
          operands_[i] = const_cast<float*>(reinterpret_cast<const float*>(from(column)));
          continue;
        }
        operands_[i] = Register(i) + (stride == kRepeats ? column % k_.period_ : 0);
        if (stride > 0) Vector().to_float(dtype, from(column), operands_[i], count);
        if (stride == kSpreads) Spread(dtype, from(column / k_.period_), operands_[i], column % k_.period_, count);
      }
      for (size_t j = 0; j < k_.program_.instruction_count; ++j) {
        const sy_instruction& i = k_.program_.instructions[j];
        const int32_t output = k_.direct_output_[n + j];
        operands_[n + j] = output >= 0 ? a_.Output<float>(output) + element : Register(n + j);
        const int read = sy_pointwise_operands(i.op);
        if (read > 0)
          Vector().instruction(i, operands_[n + j], operands_[i.a], read > 1 ? operands_[i.b] : nullptr,
                               read > 2 ? operands_[i.c] : nullptr, count);
      }
      for (size_t o = 0; o < k_.outputs.size(); ++o) {
        const auto operand = static_cast<size_t>(k_.program_.outputs[o]);
        if (k_.direct_output_[operand] == static_cast<int32_t>(o)) continue;
        const sy_dtype dtype = k_.outputs[o].dtype;
        char* to = a_.outputs[o] + element * DtypeBytes(dtype);
        const float* values = operands_[operand];
        float sum[kPiece];
        if (k_.accumulate[o]) {
          Vector().to_float(dtype, to, sum, count);
          Vector().reduce_into(SY_REDUCE_SUM, sum, values, count);
          values = sum;
        }
        Vector().from_float(dtype, values, to, count);
      }
    }

   private:
    // One value for each row, whose elements from `skipped` of the first row on are asked for.
    void Spread(sy_dtype dtype, const char* from, float* to, int64_t skipped, int64_t count) const {
      float values[kPiece + 1];
      Vector().to_float(dtype, from, values, (skipped + count + k_.period_ - 1) / k_.period_);
      for (int64_t e = 0, end = k_.period_ - skipped, row = 0; e < count; end += k_.period_, ++row) {
        for (; e < std::min(end, count); ++e) to[e] = values[row];
      }
    }

    float* Register(size_t operand) const { return registers_ + k_.registers_[operand] * kRegister; }
    const Pointwise& k_;
    const Arguments& a_;
    float* registers_;
    bool first_ = true;
    int64_t offsets_[64];
    float* operands_[64 + SY_PW_MAX_INSTRUCTIONS];
  };

  sy_pointwise_attributes program_;
  std::vector<Axis> axes_;
  int64_t period_;  // the length of joined rows; 0: none are
  int64_t total_;
  int32_t register_count_ = 0;
  std::vector<int32_t> registers_;      // per operand; -1: direct
  std::vector<int32_t> direct_output_;  // per operand: the output that its instruction writes, or -1
};

// A program without instructions whose outputs have their input's dtype moves bytes.
class Broadcast : public Kernel {
 public:
  Broadcast(const Request& request, const sy_pointwise_attributes& program) : Kernel(request), program_(program) {
    for (size_t o = 0; o < outputs.size(); ++o) {
      const sy_tensor& from = inputs[program.outputs[o]];
      StridedCopy copy(DtypeBytes(from.dtype));
      int64_t to_stride = Elements(outputs[o]), from_stride = Elements(from);
      for (int d = 0; d < outputs[o].rank; ++d) {
        const int own = d - (outputs[o].rank - from.rank);
        to_stride /= outputs[o].dims[d];
        if (own >= 0) from_stride /= from.dims[own];
        copy.AddAxis(outputs[o].dims[d], own < 0 || from.dims[own] == 1 ? 0 : from_stride, to_stride);
      }
      copies_.push_back(copy.Simplified());
      if (outputs.size() == 1 && SameDims(from, outputs[o])) inplace[o] = program.outputs[o];
    }
  }
  void Run(const Arguments& a) const override {
    for (size_t o = 0; o < outputs.size(); ++o)
      if (a.inputs[program_.outputs[o]] != a.outputs[o])
        copies_[o].Run(device->threads, a.inputs[program_.outputs[o]], a.outputs[o]);
  }

 private:
  sy_pointwise_attributes program_;
  std::vector<StridedCopy> copies_;
};

KernelPointer PreparePointwise(const Request& r) {
  const auto program = r.Attributes<sy_pointwise_attributes>();
  if (r.inputs.size() > 64) return SY_REFUSE(r, "pointwise: %zu inputs, at most 64", r.inputs.size());
  if (program.instruction_count > SY_PW_MAX_INSTRUCTIONS || program.output_count < 1 ||
      program.output_count > SY_PW_MAX_OUTPUTS || program.output_count != r.outputs.size())
    return SY_REFUSE(r, "pointwise: a program of %u instructions and %u outputs for %zu outputs",
                     program.instruction_count, program.output_count, r.outputs.size());
  const auto inputs = static_cast<int32_t>(r.inputs.size());
  for (uint32_t j = 0; j < program.instruction_count; ++j) {
    const sy_instruction& i = program.instructions[j];
    if (i.op < 0 || i.op >= SY_PW_OP_COUNT) return SY_REFUSE(r, "pointwise: instruction %u has op %d", j, i.op);
    const int32_t read[] = {i.a, i.b, i.c};
    for (int k = 0; k < sy_pointwise_operands(i.op); ++k)
      if (read[k] < 0 || read[k] >= inputs + static_cast<int32_t>(j))
        return SY_REFUSE(r, "pointwise: instruction %u reads operand %d, which is not computed yet", j, read[k]);
  }
  bool moves = program.instruction_count == 0 && !r.Accumulates();
  for (uint32_t o = 0; o < program.output_count; ++o) {
    const int32_t operand = program.outputs[o];
    if (operand < 0 || operand >= inputs + static_cast<int32_t>(program.instruction_count))
      return SY_REFUSE(r, "pointwise: output %u is operand %d", o, operand);
    if (!SameDims(r.outputs[o], r.outputs[0])) return SY_REFUSE(r, "pointwise: outputs of different dims");
    moves = moves && r.inputs[operand].dtype == r.outputs[o].dtype;
  }
  const sy_tensor& out = r.outputs[0];
  for (const sy_tensor& t : r.inputs) {
    if (t.rank > out.rank) return SY_REFUSE(r, "pointwise: an input of rank %d, the output has %d", t.rank, out.rank);
    for (int d = 0; d < t.rank; ++d)
      if (t.dims[d] != 1 && t.dims[d] != out.dims[d + out.rank - t.rank])
        return SY_REFUSE(r, "pointwise: an input does not broadcast to the output");
  }
  if (moves) return std::make_unique<Broadcast>(r, program);
  for (const auto* tensors : {&r.inputs, &r.outputs})
    for (const sy_tensor& t : *tensors)
      if (t.dtype == SY_F64) return SY_REFUSE(r, "pointwise: f64 is only copied");
  for (uint32_t o = 0; o < program.output_count && program.instruction_count == 0; ++o) {
    const sy_dtype from = r.inputs[program.outputs[o]].dtype, to = r.outputs[o].dtype;
    const auto is_wide = [](sy_dtype dtype) { return dtype == SY_I32 || dtype == SY_I64; };
    if (is_wide(from) && is_wide(to) && from != to)
      return SY_REFUSE(r, "pointwise: integers of dtype %d become %d through f32, which does not hold them", from, to);
  }
  return std::make_unique<Pointwise>(r, program);
}

const Registration kPointwise{"pointwise", PreparePointwise, sizeof(sy_pointwise_attributes)};

}  // namespace
}  // namespace switchyard
