// optimizer_update of many tensors at once: in one launch, or in two where a ratio of norms scales each tensor's step.
#include <algorithm>
#include <cmath>

#include "backends/opencl/chunks.h"

namespace switchyard {
namespace {

constexpr size_t kScalars = 4;  // lr, update, gradient_scale, finite
constexpr int64_t kElementsPerChunk = 16384;

// As in optimizer.cl. In bytes `from` and `to`; `count` elements. Its sums stand at `place`, those of the whole tensor
// at `first` … `first` + `parts` − 1.
struct Chunk {
  uint64_t from[4], to[4], count, place, first, parts;
};

size_t StateCount(const sy_optimizer_attributes& a) {
  if (a.kind == SY_OPTIMIZER_SGD || a.kind == SY_OPTIMIZER_LARS) return a.momentum != 0 ? 1 : 0;
  return 2;
}
// Whether the step is scaled by a ratio of norms.
bool HasRatio(const sy_optimizer_attributes& a) {
  return (a.kind == SY_OPTIMIZER_LAMB && (a.weight_decay != 0 || a.use_nvlamb)) ||
         (a.kind == SY_OPTIMIZER_LARS && a.weight_decay != 0);
}
std::string OptionsOf(const sy_optimizer_attributes& a, sy_dtype gradient, sy_dtype half) {
  std::string options =
      Define("KIND", int64_t{a.kind}) + Define("STATES", static_cast<int64_t>(StateCount(a))) + Define("TG", gradient);
  if (a.half_copies) options += Define("TH", half);
  return options;
}
int64_t FlagsOf(const sy_optimizer_attributes& a) {
  constexpr int64_t kNesterov = 1, kCoupled = 2, kRatio = 4;  // NESTEROV and so on of optimizer.cl
  return (a.nesterov ? kNesterov : 0) + (a.adam_w_mode ? 0 : kCoupled) + (HasRatio(a) ? kRatio : 0);
}

sy_status PrepareOptimizerUpdate(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_optimizer_attributes>();
  if (a.kind < SY_OPTIMIZER_SGD || a.kind > SY_OPTIMIZER_LARS)
    return SY_REFUSE_OP(r, "kind %d; there are SGD, Adam, AdamW, LAMB and LARS", a.kind);
  const size_t states = StateCount(a), in = 2 + states, out = 1 + states + (a.half_copies ? 1 : 0);
  const size_t given = r.inputs.size();
  if (given <= kScalars || (given - kScalars) % in != 0) {
    return SY_REFUSE_OP(r, "expected 4 scalars and %zu inputs per tensor, found %zu inputs", in, given);
  }
  const size_t count = (given - kScalars) / in;
  if (!r.HasCounts(given, given, count * out) || !r.RequireContiguous() || !r.RequireNoAccumulation())
    return SY_UNSUPPORTED;
  const char* scalars[] = {"lr", "update", "gradient_scale", "finite"};
  for (size_t i = 0; i < kScalars; ++i) {
    if (!r.RequireDtype(r.inputs[i], SY_F32, scalars[i]) || !r.RequireElements(r.inputs[i], 1, scalars[i])) {
      return SY_UNSUPPORTED;
    }
  }
  const sy_dtype gradient = r.inputs[kScalars + 1].dtype, half = a.half_copies ? r.outputs[1 + states].dtype : SY_F32;
  std::vector<int64_t> sizes;
  int64_t all_chunks = 0;
  for (size_t k = 0; k < count; ++k) {
    sizes.push_back(Elements(r.inputs[kScalars + k * in]));
    all_chunks += DivideUp(sizes[k], kElementsPerChunk);
    for (size_t i = 0; i < in; ++i) {
      const sy_tensor& t = r.inputs[kScalars + k * in + i];
      if (!r.RequireElements(t, sizes[k], "p, g, m and v") ||
          !r.RequireDtype(t, i == 1 ? gradient : SY_F32, "p, g, m and v")) {
        return SY_UNSUPPORTED;
      }
    }
    for (size_t o = 0; o < out; ++o) {
      const sy_tensor& t = r.outputs[k * out + o];
      if (!r.RequireElements(t, sizes[k], "p', m', v' and h'") ||
          !r.RequireDtype(t, o <= states ? SY_F32 : half, "p', m', v' and h'")) {
        return SY_UNSUPPORTED;
      }
      if (o > states) continue;
      kernel.inplace[k * out + o] = static_cast<int32_t>(kScalars + k * in + (o == 0 ? 0 : o + 1));
    }
  }
  if (!r.RequireFloat(r.inputs[kScalars + 1], "g")) return SY_UNSUPPORTED;
  if (!IsFloat(half)) return SY_REFUSE_OP(r, "h' has dtype %s, expected bf16 or f16", TypeName(half));
  const cl_program program = kernel.Compile("optimizer", OptionsOf(a, gradient, half));
  const Operand sums = kernel.Scratch(2 * all_chunks * DtypeBytes(SY_F32));

  kernel.at_bind = [=, device = kernel.device()](const Places& places, std::vector<Launch>* launches,
                                                 MemoryHandle* memory, sy_error* error) -> sy_status {
    ChunkTable<Chunk> table;
    uint64_t place = 0;
    for (size_t k = 0; k < count; ++k) {
      const sy_place *from = places.inputs + kScalars + k * in, *to = places.outputs + k * out;
      ChunkGroup group{{}, gradient};  // absent states stand where p does
      Chunk chunk{};
      chunk.first = place;
      chunk.parts = static_cast<uint64_t>(DivideUp(sizes[k], kElementsPerChunk));
      for (size_t i = 0; i < 4; ++i) {
        const sy_place& operand = i < in ? from[i] : from[0];
        group.buffers.push_back(operand.buffer->memory.get());
        chunk.from[i] = operand.offset;
      }
      for (size_t o = 0; o < 4; ++o) {
        const sy_place& operand = o <= states ? to[o] : o == 3 ? to[out - 1] : to[0];  // h' is the last
        group.buffers.push_back(operand.buffer->memory.get());
        chunk.to[o] = operand.offset;
      }
      for (int64_t first = 0; first < sizes[k]; first += kElementsPerChunk) {
        Chunk moved = chunk;
        for (size_t i = 0; i < 4; ++i) {
          moved.from[i] += static_cast<uint64_t>(first * DtypeBytes(i == 1 ? gradient : SY_F32));
        }
        for (size_t o = 0; o < 4; ++o) moved.to[o] += static_cast<uint64_t>(first * DtypeBytes(o == 3 ? half : SY_F32));
        moved.place = place++;
        moved.count = static_cast<uint64_t>(std::min(kElementsPerChunk, sizes[k] - first));
        table.Add(group, moved);
      }
    }
    return table.Launches(*device, memory, error, [&](const ChunkGroup& group, int64_t first, int64_t chunks) {
      // A tensor's chunks are all in this group.
      for (const char* function : {"norms", "update"}) {
        if (function == std::string("norms") && !HasRatio(a)) continue;
        Launch& launch = launches->emplace_back(program, function);
        for (size_t i = 0; i < kScalars; ++i) launch.In(i);
        launch.Memory(memory->get(), 0);
        for (const cl_mem buffer : group.buffers) launch.Memory(buffer, 0);
        launch.Array(sums)
            .Uint(first)
            .Float(a.momentum)
            .Float(a.kind == SY_OPTIMIZER_LARS ? 0 : a.dampening)
            .Float(a.beta1)
            .Float(a.beta2);
        launch.Float(a.kind == SY_OPTIMIZER_LAMB && !a.grad_averaging ? 1 : 1 - double{a.beta1});
        launch.Float(std::log(double{a.beta1})).Float(std::log(double{a.beta2})).Float(a.eps).Float(a.weight_decay);
        launch.Float(a.trust_coefficient).Uint(FlagsOf(a)).Groups(chunks).Lanes(device->lanes);
      }
    });
  };
  return SY_OK;
}

const Registration kOptimizerUpdate{"optimizer_update", PrepareOptimizerUpdate, sizeof(sy_optimizer_attributes)};

}  // namespace
}  // namespace switchyard
