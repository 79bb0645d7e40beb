// optimizer_update of many tensors at once.
#include <algorithm>
#include <cmath>

#include "backends/opencl/chunks.h"

namespace switchyard {
namespace {

constexpr size_t kScalars = 4;  // lr, update, gradient_scale, finite
constexpr int64_t kElementsPerChunk = 16384;

struct Chunk {  // as in optimizer.cl; bytes, and `count` elements
  uint64_t from[4], to[3], count;
};

sy_status PrepareOptimizerUpdate(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_optimizer_attributes>();
  if (a.kind < SY_OPTIMIZER_SGD || a.kind > SY_OPTIMIZER_ADAMW)
    return SY_REFUSE_OP(r, "kind %d; there are SGD, Adam and AdamW, LAMB and LARS run as simpler ops", a.kind);
  if (a.half_copies) return SY_REFUSE_OP(r, "no half copies; the graph converts what this op updated");
  const size_t states = a.kind != SY_OPTIMIZER_SGD ? 2 : a.momentum != 0 ? 1 : 0, in = 2 + states, out = 1 + states;
  const size_t given = r.inputs.size();
  if (given <= kScalars || (given - kScalars) % in != 0) {
    return SY_REFUSE_OP(r, "expected 4 scalars and %zu inputs per tensor, found %zu inputs", in, given);
  }
  const size_t count = (given - kScalars) / in;
  if (!r.HasCounts(given, given, count * out) || !r.RequireContiguous() || !r.RequireNoAccumulation())
    return SY_UNSUPPORTED;
  const char* scalars[] = {"lr", "update", "gradient_scale", "finite"};
  for (size_t i = 0; i < kScalars; ++i) {
    if (!r.RequireDtype(r.inputs[i], i == 1 ? SY_I32 : SY_F32, scalars[i]) ||
        !r.RequireElements(r.inputs[i], 1, scalars[i])) {
      return SY_UNSUPPORTED;
    }
  }
  const sy_dtype gradient = r.inputs[kScalars + 1].dtype;
  std::vector<int64_t> sizes;
  for (size_t k = 0; k < count; ++k) {
    sizes.push_back(Elements(r.inputs[kScalars + k * in]));
    for (size_t i = 0; i < in; ++i) {
      const sy_tensor& t = r.inputs[kScalars + k * in + i];
      if (!r.RequireElements(t, sizes[k], "p, g, m and v") ||
          !r.RequireDtype(t, i == 1 ? gradient : SY_F32, "p, g, m and v")) {
        return SY_UNSUPPORTED;
      }
    }
    for (size_t o = 0; o < out; ++o) {
      const sy_tensor& t = r.outputs[k * out + o];
      if (!r.RequireElements(t, sizes[k], "p', m' and v'") || !r.RequireDtype(t, SY_F32, "p', m' and v'")) {
        return SY_UNSUPPORTED;
      }
      kernel.inplace[k * out + o] = static_cast<int32_t>(kScalars + k * in + (o == 0 ? 0 : o + 1));
    }
  }
  if (!r.RequireFloat(r.inputs[kScalars + 1], "g")) return SY_UNSUPPORTED;
  std::string options =
      Define("KIND", int64_t{a.kind}) + Define("STATES", static_cast<int64_t>(states)) + Define("TG", gradient);
  if (a.nesterov) options += Define("NESTEROV", int64_t{1});
  const cl_program program = kernel.Compile("optimizer", options);

  kernel.at_bind = [=, device = kernel.device()](const Places& places, std::vector<Launch>* launches,
                                                 MemoryHandle* memory, sy_error* error) -> sy_status {
    ChunkTable<Chunk> table;
    for (size_t k = 0; k < count; ++k) {
      const sy_place *from = places.inputs + kScalars + k * in, *to = places.outputs + k * out;
      ChunkGroup group{{}, gradient};  // absent states stand where p does
      Chunk chunk{};
      for (size_t i = 0; i < 4; ++i) {
        const sy_place& place = i < in ? from[i] : from[0];
        group.buffers.push_back(place.buffer->memory.get());
        chunk.from[i] = place.offset;
      }
      for (size_t o = 0; o < 3; ++o) {
        const sy_place& place = o < out ? to[o] : to[0];
        group.buffers.push_back(place.buffer->memory.get());
        chunk.to[o] = place.offset;
      }
      for (int64_t first = 0; first < sizes[k]; first += kElementsPerChunk) {
        Chunk moved = chunk;
        for (size_t i = 0; i < 4; ++i) {
          moved.from[i] += static_cast<uint64_t>(first * DtypeBytes(i == 1 ? gradient : SY_F32));
        }
        for (uint64_t& offset : moved.to) offset += static_cast<uint64_t>(first * DtypeBytes(SY_F32));
        moved.count = static_cast<uint64_t>(std::min(kElementsPerChunk, sizes[k] - first));
        table.Add(group, moved);
      }
    }
    return table.Launches(*device, memory, error, [&](const ChunkGroup& group, int64_t first, int64_t chunks) {
      Launch& launch = launches->emplace_back(program, "update");
      for (size_t i = 0; i < kScalars; ++i) launch.In(i);
      launch.Memory(memory->get(), 0);
      for (const cl_mem buffer : group.buffers) launch.Memory(buffer, 0);
      launch.Uint(first).Float(a.momentum).Float(a.dampening).Float(a.beta1).Float(a.beta2);
      launch.Float(std::log(double{a.beta1})).Float(std::log(double{a.beta2})).Float(a.eps).Float(a.weight_decay);
      launch.Groups(chunks).Lanes(device->lanes);
    });
  };
  return SY_OK;
}

const Registration kOptimizerUpdate{"optimizer_update", PrepareOptimizerUpdate, sizeof(sy_optimizer_attributes)};

}  // namespace
}  // namespace switchyard
