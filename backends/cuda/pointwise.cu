// pointwise: an interpreter. Prepare merges the axes that all operands run through alike, and turns the program into
// steps (loads before their first use, the instructions, the stores at the end) whose results stay in a register for
// the next step and go to a slot of shared memory only where a later step wants them. A thread runs all steps on eight
// neighbouring elements, and on one at the end. What it wants of the first inputs is under way before the first step
// waits for any of it. Every element is loaded before anything is stored, so that an output may take the place of an
// input of its shape.
#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cuda/activation.cuh"
#include "backends/cuda/layout.h"
#include "backends/cuda/packed.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

constexpr int kMaxInputs = 12;
constexpr int kMaxSteps = kMaxInputs + SY_PW_MAX_INSTRUCTIONS + SY_PW_MAX_OUTPUTS;
constexpr uint8_t kNoSlot = 255;  // as an operand: the result of the step before; as a destination: nowhere else
enum : uint8_t { kLoad = 64, kStore = 65, kAddToStored = 66 };  // beside SY_PW_*
constexpr size_t kSharedLimit = 48 << 10;
constexpr int kAhead = 2;  // inputs that are loaded before the first step
constexpr int kMostThreads = 128;

struct Step {
  uint8_t op, a, b, c;  // operands: slots; kLoad: a is the input; stores: b is the output
  uint8_t to;           // slot
  float value;
};

struct Program {
  int32_t step_count;
  Step steps[kMaxSteps];
};

struct Operands {
  int32_t rank;                 // of the merged axes
  Divider extent[SY_MAX_RANK];  // outermost first
  View inputs[kMaxInputs];      // any dtype but f64 and i64
  int64_t strides[kMaxInputs][SY_MAX_RANK];
  uint32_t dense;  // bit i: input i lies as the outputs do
  uint32_t ahead;  // bit i, i < kAhead: input i is dense and a float, and is loaded before the first step
  bool in_eights;  // of the other inputs, rows of eights start where eights may be loaded
  View outputs[SY_PW_MAX_OUTPUTS];
};

// Where input i has the operand of output element `at`.
__device__ __forceinline__ int64_t Offset(const Operands& p, int i, int64_t at) {
  if (p.rank == 1) return at * p.strides[i][0];
  auto index = static_cast<uint32_t>(at);
  int64_t offset = 0;
  for (int d = p.rank - 1; d > 0; --d) {
    const uint32_t outer = p.extent[d].Quotient(index);
    offset += (index - outer * p.extent[d].divisor) * p.strides[i][d];
    index = outer;
  }
  return offset + index * p.strides[i][0];
}

__device__ float LoadAny(const View& x, int64_t i) {
  if (x.dtype == SY_I32) return static_cast<float>(reinterpret_cast<const int32_t*>(x.data)[i]);
  if (x.dtype == SY_U8) return static_cast<float>(reinterpret_cast<const uint8_t*>(x.data)[i]);
  return LoadOne(x, i);
}

__device__ void StoreAny(const View& x, int64_t i, float value) {
  if (x.dtype == SY_I32) {
    reinterpret_cast<int32_t*>(x.data)[i] = __float2int_rz(value);
  } else if (x.dtype == SY_U8) {
    const int whole = __float2int_rz(value);
    reinterpret_cast<uint8_t*>(x.data)[i] = static_cast<uint8_t>(whole < 0 ? 0 : whole > 255 ? 255 : whole);
  } else {
    StoreOne(x, i, value);
  }
}

__device__ __forceinline__ bool IsFloatView(const View& x) { return x.dtype <= SY_F16; }

template <int N>
__device__ __forceinline__ void LoadInput(const Operands& p, int i, int64_t at, float (&v)[N]) {
  const View& x = p.inputs[i];
  if constexpr (N > 1) {
    const bool dense = p.dense >> i & 1;
    if (dense && x.dtype == SY_U8) {
      const uint2 bytes = *reinterpret_cast<const uint2*>(x.data + at);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = static_cast<float>((k < 4 ? bytes.x : bytes.y) >> 8 * (k % 4) & 255);
      return;
    }
    if (!dense && !p.in_eights) {
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = LoadAny(x, Offset(p, i, at + k));
      return;
    }
  }
  const bool runs_on = N > 1 && (p.dense >> i & 1);
  const int64_t offset = runs_on ? at : Offset(p, i, at), inner = runs_on ? 1 : p.strides[i][p.rank - 1];
  if (N > 1 && inner == 1 && IsFloatView(x)) {
    Load<N>(x, offset, v);
    return;
  }
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = k > 0 && inner == 0 ? v[0] : LoadAny(x, offset + k);
}

template <int N>
__device__ __forceinline__ void StoreOutput(const View& y, int64_t at, bool add, float (&v)[N]) {
  if (add) {
    float before[N];
    Load<N>(y, at, before);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] += before[k];
  }
  if (IsFloatView(y)) {
    Store<N>(y, at, v);
    return;
  }
#pragma unroll
  for (int k = 0; k < N; ++k) StoreAny(y, at + k, v[k]);
}

// This thread's part of the slots: slot s, group of 4 elements j: file[(s·groups + j)·threads + thread].
template <int N>
struct Slots {
  static constexpr int kWords = N == 1 ? 1 : 4, kGroups = N / kWords;
  float* file;

  __device__ __forceinline__ float* At(int slot, int group) const {
    return file + ((slot * kGroups + group) * blockDim.x + threadIdx.x) * kWords;
  }
  __device__ __forceinline__ void Read(int slot, const float (&last)[N], float (&v)[N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = last[k];
    if (slot == kNoSlot) return;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if constexpr (N == 1) {
        v[0] = *At(slot, 0);
      } else {
        const float4 four = *reinterpret_cast<const float4*>(At(slot, j));
        v[4 * j] = four.x, v[4 * j + 1] = four.y, v[4 * j + 2] = four.z, v[4 * j + 3] = four.w;
      }
    }
  }
  __device__ __forceinline__ void Write(int slot, const float (&v)[N]) const {
    if (slot == kNoSlot) return;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if constexpr (N == 1) {
        *At(slot, 0) = v[0];
      } else {
        *reinterpret_cast<float4*>(At(slot, j)) = make_float4(v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]);
      }
    }
  }
};

// r = op(a, b, c)
template <int N>
__device__ __forceinline__ void Evaluate(const Step& step, const float (&a)[N], const float (&b)[N],
                                         const float (&c)[N], float (&r)[N]) {
  switch (step.op) {
    case SY_PW_CONSTANT:
      Each(r, [&](int) { return step.value; });
      break;
    case SY_PW_ADD:
      Each(r, [&](int k) { return a[k] + b[k]; });
      break;
    case SY_PW_SUB:
      Each(r, [&](int k) { return a[k] - b[k]; });
      break;
    case SY_PW_MUL:
      Each(r, [&](int k) { return a[k] * b[k]; });
      break;
    case SY_PW_DIV:
      Each(r, [&](int k) { return a[k] / b[k]; });
      break;
    case SY_PW_MAX:
      Each(r, [&](int k) { return a[k] > b[k] || a[k] != a[k] ? a[k] : b[k]; });
      break;
    case SY_PW_MIN:
      Each(r, [&](int k) { return a[k] < b[k] || a[k] != a[k] ? a[k] : b[k]; });
      break;
    case SY_PW_POW:
      Each(r, [&](int k) { return powf(a[k], b[k]); });
      break;
    case SY_PW_NEG:
      Each(r, [&](int k) { return -a[k]; });
      break;
    case SY_PW_ABS:
      Each(r, [&](int k) { return fabsf(a[k]); });
      break;
    case SY_PW_EXP:
      Each(r, [&](int k) { return expf(a[k]); });
      break;
    case SY_PW_LOG:
      Each(r, [&](int k) { return logf(a[k]); });
      break;
    case SY_PW_SQRT:
      Each(r, [&](int k) { return sqrtf(a[k]); });
      break;
    case SY_PW_RSQRT:
      Each(r, [&](int k) { return 1 / sqrtf(a[k]); });
      break;
    case SY_PW_RECIPROCAL:
      Each(r, [&](int k) { return 1 / a[k]; });
      break;
    case SY_PW_TANH:
      Each(r, [&](int k) { return tanhf(a[k]); });
      break;
    case SY_PW_SIGMOID:
      Each(r, [&](int k) { return Sigmoid(a[k]); });
      break;
    case SY_PW_ERF:
      Each(r, [&](int k) { return erff(a[k]); });
      break;
    case SY_PW_FLOOR:
      Each(r, [&](int k) { return floorf(a[k]); });
      break;
    case SY_PW_RELU:
      Each(r, [&](int k) { return Relu(a[k]); });
      break;
    case SY_PW_GELU:
      Each(r, [&](int k) { return Gelu(a[k]); });
      break;
    case SY_PW_GELU_TANH:
      Each(r, [&](int k) { return GeluTanh(a[k]); });
      break;
    case SY_PW_SILU:
      Each(r, [&](int k) { return Silu(a[k]); });
      break;
    case SY_PW_RELU_GRAD:
      Each(r, [&](int k) { return ReluGradient(a[k]); });
      break;
    case SY_PW_GELU_GRAD:
      Each(r, [&](int k) { return GeluGradient(a[k]); });
      break;
    case SY_PW_GELU_TANH_GRAD:
      Each(r, [&](int k) { return GeluTanhGradient(a[k]); });
      break;
    case SY_PW_SILU_GRAD:
      Each(r, [&](int k) { return SiluGradient(a[k]); });
      break;
    case SY_PW_LESS:
      Each(r, [&](int k) { return a[k] < b[k] ? 1.0f : 0.0f; });
      break;
    case SY_PW_LESS_EQUAL:
      Each(r, [&](int k) { return a[k] <= b[k] ? 1.0f : 0.0f; });
      break;
    case SY_PW_EQUAL:
      Each(r, [&](int k) { return a[k] == b[k] ? 1.0f : 0.0f; });
      break;
    case SY_PW_SELECT:
      Each(r, [&](int k) { return a[k] != 0 ? b[k] : c[k]; });
      break;
    default:
      Each(r, [&](int k) { return fabsf(a[k]) < INFINITY ? 1.0f : 0.0f; });
      break;  // SY_PW_IS_FINITE
  }
}

// Elements [first, last), whole groups of N.
template <int N>
__global__ void __launch_bounds__(kMostThreads, N == 1 ? 16 : 8)
    PointwiseKernel(const __grid_constant__ Program program, const __grid_constant__ Operands p, int64_t first,
                    int64_t last) {
  SWITCHYARD_DYNAMIC_SHARED(float, file);
  const int64_t at = first + (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N;
  if (at >= last) return;
  const Slots<N> slots{file};
  decltype(LoadRaw<N>(View(), 0)) ahead[kAhead] = {};
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (p.ahead >> i & 1) ahead[i] = LoadRaw<N>(p.inputs[i], at);
  }
  float value[N] = {};
  for (int s = 0; s < program.step_count; ++s) {
    const Step& step = program.steps[s];
    if (step.op == kLoad) {
      if (p.ahead >> step.a & 1) {
        auto raw = ahead[1];  // no index, which registers do not have
        if (step.a == 0) raw = ahead[0];
        Unpack(raw, p.inputs[step.a].dtype, value);
      } else {
        LoadInput<N>(p, step.a, at, value);
      }
    } else {
      float a[N], b[N], c[N];
      slots.Read(step.a, value, a);
      if (step.op >= kStore) {
        StoreOutput<N>(p.outputs[step.b], at, step.op == kAddToStored, a);
        continue;  // the result before it is still the last one
      }
      slots.Read(step.b, value, b);
      slots.Read(step.c, value, c);
      Evaluate<N>(step, a, b, c, value);
    }
    slots.Write(step.to, value);
  }
}

// Steps, and which slot holds what until when.
struct Compiler {
  const sy_pointwise_attributes& source;
  const int inputs;
  Program program{};
  int slot_count = 0;

  Compiler(const sy_pointwise_attributes& attributes, size_t input_count, const std::vector<uint8_t>& accumulate)
      : source(attributes), inputs(static_cast<int>(input_count)) {
    for (uint32_t j = 0; j < source.instruction_count; ++j) {
      const sy_instruction& i = source.instructions[j];
      const int32_t read[] = {i.a, i.b, i.c};
      for (int k = 0; k < sy_pointwise_operands(i.op); ++k) Want(read[k]);
      Emit({static_cast<uint8_t>(i.op), 0, 0, 0, kNoSlot, i.value}, inputs + static_cast<int>(j));
      for (int k = 0; k < sy_pointwise_operands(i.op); ++k) reads_.back()[k] = read[k];
    }
    for (uint32_t o = 0; o < source.output_count; ++o) Want(source.outputs[o]);
    for (uint32_t o = 0; o < source.output_count; ++o) {
      Emit({accumulate[o] ? kAddToStored : kStore, 0, static_cast<uint8_t>(o), 0, kNoSlot, 0}, -1);
      reads_.back()[0] = source.outputs[o];
    }
    AssignSlots();
  }

 private:
  // Loads operand `operand` if it is an input that is not loaded yet.
  void Want(int operand) {
    if (operand >= inputs || std::find(result_.begin(), result_.end(), operand) != result_.end()) return;
    Emit({kLoad, static_cast<uint8_t>(operand), 0, 0, kNoSlot, 0}, operand);
  }
  void Emit(Step step, int result) {
    program.steps[program.step_count++] = step;
    result_.push_back(result);
    reads_.push_back({-1, -1, -1});
  }
  // A store has no result: what was computed before it remains.
  int Before(size_t step) const {
    while (step-- > 0) {
      if (result_[step] >= 0) return result_[step];
    }
    return -1;
  }
  void AssignSlots() {
    const size_t steps = result_.size();
    std::vector<size_t> last_use(static_cast<size_t>(inputs) + source.instruction_count, 0);
    std::vector<bool> kept(last_use.size(), false);  // read by another step than the one after it
    for (size_t s = 0; s < steps; ++s) {
      for (const int operand : reads_[s]) {
        if (operand < 0) continue;
        last_use[static_cast<size_t>(operand)] = s;
        if (Before(s) != operand) kept[static_cast<size_t>(operand)] = true;
      }
    }
    std::vector<uint8_t> slot(last_use.size(), kNoSlot);
    std::vector<uint8_t> free;
    for (size_t s = 0; s < steps; ++s) {
      Step& step = program.steps[s];
      uint8_t* fields[] = {&step.a, &step.b, &step.c};
      for (int k = 0; k < 3; ++k) {
        const int operand = reads_[s][static_cast<size_t>(k)];
        if (operand >= 0) *fields[k] = Before(s) == operand ? kNoSlot : slot[static_cast<size_t>(operand)];
      }
      if (step.op < kLoad) {  // unused operand fields read the last result, which costs nothing
        for (int k = sy_pointwise_operands(step.op); k < 3; ++k) *fields[k] = kNoSlot;
      }
      for (size_t operand = 0; operand < slot.size(); ++operand) {
        if (slot[operand] == kNoSlot || last_use[operand] != s) continue;
        free.push_back(slot[operand]);
        slot[operand] = kNoSlot;
      }
      const int result = result_[s];
      if (result < 0 || !kept[static_cast<size_t>(result)]) continue;
      if (free.empty()) free.push_back(static_cast<uint8_t>(slot_count++));
      step.to = slot[static_cast<size_t>(result)] = free.back();
      free.pop_back();
    }
  }

  std::vector<int> result_;                // operand that the step computes; -1: a store
  std::vector<std::array<int, 3>> reads_;  // operands that it reads; -1: none
};

class Pointwise : public Kernel {
 public:
  Pointwise(const Request& r, const sy_pointwise_attributes& attributes)
      : Kernel(r), total_(Elements(outputs[0])), compiled_(attributes, inputs.size(), accumulate) {
    MergeAxes();
    in_eights_ = extents_.size() == 1 || Packs(extents_.back());
    for (size_t i = 0; i < strides_.size(); ++i) {
      const std::vector<int64_t>& strides = strides_[i];
      bool dense = true;
      int64_t step = 1;
      for (size_t d = strides.size(); d-- > 0; step *= extents_[d]) dense = dense && strides[d] == step;
      if (dense) dense_ |= uint32_t{1} << i;
      for (size_t d = 0; d + 1 < strides.size(); ++d)
        in_eights_ = in_eights_ && (dense || strides.back() != 1 || Packs(strides[d]));
    }
    const size_t bytes = static_cast<size_t>(compiled_.slot_count) * sizeof(float);
    while (threads_ > kWarp && bytes * kPack * threads_ > kSharedLimit) threads_ /= 2;
    std::vector<bool> taken(inputs.size(), false);
    for (size_t o = 0; o < outputs.size(); ++o) {
      for (size_t i = 0; i < inputs.size() && inplace[o] < 0 && !accumulate[o]; ++i) {
        if (taken[i] || inputs[i].dtype != outputs[o].dtype || Elements(inputs[i]) != total_) continue;
        inplace[o] = static_cast<int32_t>(i);
        taken[i] = true;
      }
    }
  }

  // False where even the smallest block's slots do not fit into shared memory, or indices do not fit into 31 bits.
  bool Fits() const {
    return static_cast<size_t>(compiled_.slot_count) * sizeof(float) * kPack * threads_ <= kSharedLimit &&
           (extents_.size() == 1 || total_ <= kMostIndices);
  }

  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    Operands p{};
    p.rank = static_cast<int32_t>(extents_.size());
    for (size_t d = 0; d < extents_.size(); ++d) p.extent[d] = p.rank > 1 ? Divider(extents_[d]) : Divider();
    for (size_t i = 0; i < inputs.size(); ++i) {
      p.inputs[i] = In(b, i);
      std::copy(strides_[i].begin(), strides_[i].end(), p.strides[i]);
    }
    p.dense = dense_;
    for (size_t i = 0; i < std::min<size_t>(kAhead, inputs.size()); ++i)
      p.ahead |= IsFloat(inputs[i].dtype) ? dense_ & uint32_t{1} << i : 0;
    p.in_eights = in_eights_;
    for (size_t o = 0; o < outputs.size(); ++o) p.outputs[o] = Out(b, o);
    const int64_t packed = total_ / kPack * kPack;
    if (packed > 0) SY_TRY(Elementwise<kPack>(PointwiseKernel<kPack>, p, 0, packed, context, error));
    if (packed < total_) SY_TRY(Elementwise<1>(PointwiseKernel<1>, p, packed, total_, context, error));
    return SY_OK;
  }

 private:
  static constexpr int kWarp = 32;

  template <int N, typename F>
  sy_status Elementwise(F kernel, const Operands& p, int64_t first, int64_t last, const LaunchContext& context,
                        sy_error* error) const {
    const auto blocks = static_cast<unsigned>(CeilDivide(last - first, int64_t{N} * static_cast<int64_t>(threads_)));
    const size_t shared = static_cast<size_t>(compiled_.slot_count) * sizeof(float) * N * threads_;
    SY_CUDA(error, Launch(kernel, dim3(blocks), dim3(static_cast<unsigned>(threads_)), shared, context.stream,
                          compiled_.program, p, first, last));
    return SY_OK;
  }

  // The output's axes, neighbours merged where every input runs on from one into the next; at least one.
  void MergeAxes() {
    const sy_tensor& y = outputs[0];
    strides_.resize(inputs.size());
    for (int d = 0; d < y.rank; ++d) {
      if (y.dims[d] == 1) continue;
      std::vector<int64_t> stride;
      bool joins = !extents_.empty();
      for (size_t i = 0; i < inputs.size(); ++i) {
        const sy_tensor& x = inputs[i];
        const int own = d - (y.rank - x.rank);
        int64_t step = own < 0 || x.dims[own] == 1 ? 0 : 1;
        for (int e = own + 1; step != 0 && e < x.rank; ++e) step *= x.dims[e];
        stride.push_back(step);
        joins = joins && strides_[i].back() == step * y.dims[d];
      }
      if (joins) {
        extents_.back() *= y.dims[d];
        for (size_t i = 0; i < inputs.size(); ++i) strides_[i].back() = stride[i];
      } else {
        extents_.push_back(y.dims[d]);
        for (size_t i = 0; i < inputs.size(); ++i) strides_[i].push_back(stride[i]);
      }
    }
    if (!extents_.empty()) return;
    extents_.push_back(1);
    for (auto& strides : strides_) strides.push_back(0);
  }

  const int64_t total_;
  const Compiler compiled_;
  std::vector<int64_t> extents_;               // merged axes, outermost first
  std::vector<std::vector<int64_t>> strides_;  // of each input, elements; 0: broadcast
  uint32_t dense_ = 0;
  bool in_eights_ = false;
  size_t threads_ = kMostThreads;
};

KernelPointer PreparePointwise(const Request& r) {
  const auto program = r.Attributes<sy_pointwise_attributes>();
  if (r.inputs.size() > kMaxInputs)
    return SY_REFUSE(r, "pointwise: %zu inputs, at most %d", r.inputs.size(), kMaxInputs);
  if (program.instruction_count > SY_PW_MAX_INSTRUCTIONS || program.output_count < 1 ||
      program.output_count > SY_PW_MAX_OUTPUTS || program.output_count != r.outputs.size())
    return SY_REFUSE(r, "pointwise: a program of %u instructions and %u outputs for %zu outputs",
                     program.instruction_count, program.output_count, r.outputs.size());
  const auto inputs = static_cast<int32_t>(r.inputs.size());
  for (uint32_t j = 0; j < program.instruction_count; ++j) {
    const sy_instruction& i = program.instructions[j];
    if (i.op < 0 || i.op >= SY_PW_OP_COUNT) return SY_REFUSE(r, "pointwise: instruction %u has op %d", j, i.op);
    const int32_t read[] = {i.a, i.b, i.c};
    for (int k = 0; k < sy_pointwise_operands(i.op); ++k) {
      if (read[k] < 0 || read[k] >= inputs + static_cast<int32_t>(j))
        return SY_REFUSE(r, "pointwise: instruction %u reads operand %d, which is not computed yet", j, read[k]);
    }
  }
  bool copies = program.instruction_count == 0 && !r.Accumulates();
  for (uint32_t o = 0; o < program.output_count; ++o) {
    const sy_tensor& y = r.outputs[o];
    if (program.outputs[o] < 0 || program.outputs[o] >= inputs + static_cast<int32_t>(program.instruction_count))
      return SY_REFUSE(r, "pointwise: output %u is the unknown operand %d", o, program.outputs[o]);
    if (!SameDims(y, r.outputs[0])) return SY_REFUSE(r, "pointwise: outputs of different dims");
    copies = copies && r.inputs[static_cast<size_t>(program.outputs[o])].dtype == y.dtype;
  }
  const sy_tensor& y = r.outputs[0];
  for (const sy_tensor& x : r.inputs) {
    bool fits = x.rank <= y.rank;
    for (int d = 0; fits && d < x.rank; ++d) fits = x.dims[d] == 1 || x.dims[d] == y.dims[d + y.rank - x.rank];
    if (!fits) return SY_REFUSE(r, "pointwise: an input cannot be broadcast to the output");
  }
  if (copies) return PrepareBroadcast(r, program.outputs);
  for (const auto* tensors : {&r.inputs, &r.outputs}) {
    for (const sy_tensor& x : *tensors) {
      if (!IsFloat(x.dtype) && x.dtype != SY_I32 && x.dtype != SY_U8)
        return SY_REFUSE(r, "pointwise: dtype %d is only copied", x.dtype);
    }
  }
  for (uint32_t o = 0; o < program.output_count; ++o) {
    if (r.accumulate[o] && !IsFloat(r.outputs[o].dtype))
      return SY_REFUSE(r, "pointwise: output %u has dtype %d and cannot accumulate", o, r.outputs[o].dtype);
  }
  auto kernel = std::make_unique<Pointwise>(r, program);
  if (!kernel->Fits()) return SY_REFUSE(r, "pointwise: too many values are alive at once, or too many elements");
  return kernel;
}

const Registration kPointwise{"pointwise", PreparePointwise, sizeof(sy_pointwise_attributes)};

}  // namespace
}  // namespace switchyard
