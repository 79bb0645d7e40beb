// reduce and squared_norm. Any set of axes is a sequence of reductions over one axis, the innermost first; long ones
// are cut into parts so that all compute units have some.
#include "backends/opencl/reduction.h"

#include <algorithm>

#include "backends/opencl/chunks.h"

namespace switchyard {
namespace {

constexpr int64_t kReductionGroupsPerUnit = 4, kLeastRows = 32, kLeastColumns = 4096, kChunk = 16384;

void AddStage(Kernel& kernel, const Reduction& r, int64_t parts, int64_t share) {
  const sy_device& device = *kernel.device();
  const std::string options = Define("T", r.x_dtype) + Define("TY", r.y_dtype) + Define("WHAT", int64_t{r.what});
  if (r.inner == 1) {
    kernel.Add("reduction", "reduce_rows", options)
        .Array(r.x)
        .Array(r.y)
        .Uint(r.outer)
        .Uint(parts)
        .Uint(r.reduced)
        .Uint(share)
        .Float(r.scale)
        .Uint(r.accumulate)
        .Groups(RowGroups(device, r.outer * parts));
    return;
  }
  const int64_t block = (device.grouped() ? 1 : 4) * device.lanes * device.width;  // BLOCK of reduction.cl
  kernel.Add("reduction", "reduce_columns", options)
      .Array(r.x)
      .Array(r.y)
      .Uint(r.inner)
      .Uint(parts)
      .Uint(r.reduced)
      .Uint(share)
      .Float(r.scale)
      .Uint(r.accumulate)
      .Groups(DivideUp(r.inner, block) * parts * r.outer);
}

}  // namespace

void AddReduction(Kernel& kernel, const Reduction& r) {
  const sy_device& device = *kernel.device();
  const int64_t wanted = device.traits.compute_units * kReductionGroupsPerUnit;
  const int64_t block = (device.grouped() ? 1 : 4) * device.lanes * device.width;
  const int64_t groups = r.outer * DivideUp(r.inner, block);
  const int64_t least = r.inner == 1 ? kLeastColumns : kLeastRows;
  const int64_t most = std::max<int64_t>(1, r.reduced / least);
  const int64_t share = DivideUp(r.reduced, std::clamp<int64_t>(wanted / groups, 1, most));
  const int64_t parts = DivideUp(r.reduced, share);
  if (parts == 1) return AddStage(kernel, r, 1, r.reduced);
  Reduction first = r, second = r;
  first.y = second.x = kernel.Scratch(r.outer * parts * r.inner * DtypeBytes(SY_F32));
  first.y_dtype = second.x_dtype = SY_F32;
  first.scale = 1;
  first.accumulate = false;
  second.reduced = parts;
  if (r.what == SY_REDUCE_SUM_OF_SQUARES) second.what = SY_REDUCE_SUM;
  AddStage(kernel, first, parts, share);
  AddStage(kernel, second, 1, parts);
}

namespace {

sy_status PrepareReduce(const Request& r, Kernel& kernel) {
  if (!r.HasCounts(1, 1, 1) || !r.RequireContiguous() || !r.RequireFloat(r.outputs[0], "y")) return SY_UNSUPPORTED;
  const auto a = r.Attributes<sy_reduce_attributes>();
  if (a.reduction < SY_REDUCE_SUM || a.reduction > SY_REDUCE_SUM_OF_SQUARES) {
    return SY_REFUSE_OP(r, "unknown reduction %d", a.reduction);
  }
  const sy_tensor& x = r.inputs[0];
  struct Group {
    int64_t extent;
    bool reduced;
  };
  std::vector<Group> groups;  // neighbouring axes with one fate, alternating
  for (int d = 0; d < x.rank; ++d) {
    const bool reduced = a.axes >> d & 1;
    if (x.dims[d] == 1) continue;
    if (!groups.empty() && groups.back().reduced == reduced) {
      groups.back().extent *= x.dims[d];
    } else {
      groups.push_back({x.dims[d], reduced});
    }
  }
  if (!r.RequireReduced(x, a.axes, r.outputs[0])) return SY_UNSUPPORTED;

  Reduction stage{a.reduction, In(0), x.dtype};
  int64_t left = std::count_if(groups.begin(), groups.end(), [](const Group& g) { return g.reduced; });
  for (; left > 1; --left) {
    auto last = groups.end();
    while (!(--last)->reduced) {
    }
    stage.outer = stage.inner = 1;
    for (auto g = groups.begin(); g != last; ++g) stage.outer *= g->extent;
    for (auto g = last + 1; g != groups.end(); ++g) stage.inner *= g->extent;
    stage.reduced = last->extent;
    stage.y = kernel.Scratch(stage.outer * stage.inner * DtypeBytes(SY_F32));
    stage.y_dtype = SY_F32;
    AddReduction(kernel, stage);
    stage.x = stage.y;
    stage.x_dtype = SY_F32;
    if (stage.what == SY_REDUCE_SUM_OF_SQUARES) stage.what = SY_REDUCE_SUM;
    groups.erase(last);
  }
  stage.outer = stage.reduced = stage.inner = 1;
  bool behind = false;
  for (const Group& g : groups) {
    if (g.reduced) {
      stage.reduced = g.extent;
      behind = true;
    } else {
      (behind || left == 0 ? stage.inner : stage.outer) *= g.extent;
    }
  }
  stage.y = Out(0);
  stage.y_dtype = r.outputs[0].dtype;
  stage.scale = a.scale;
  stage.accumulate = r.accumulate[0];
  AddReduction(kernel, stage);
  return SY_OK;
}

sy_status PrepareSquaredNorm(const Request& r, Kernel& kernel) {
  if (!r.HasCounts(1, SIZE_MAX, 1) || !r.RequireContiguous() || !r.RequireDtype(r.outputs[0], SY_F32, "the norm") ||
      !r.RequireElements(r.outputs[0], 1, "the norm")) {
    return SY_UNSUPPORTED;
  }
  struct Program {
    sy_dtype dtype;
    cl_program program;
  };
  std::vector<Program> programs;
  for (const sy_tensor& t : r.inputs) {
    if (!r.RequireFloat(t, "an input")) return SY_UNSUPPORTED;
    if (std::none_of(programs.begin(), programs.end(), [&](const Program& p) { return p.dtype == t.dtype; })) {
      programs.push_back({t.dtype, kernel.Compile("optimizer", Define("T", t.dtype))});
    }
  }
  int64_t chunk_count = 0;
  for (const sy_tensor& t : r.inputs) chunk_count += DivideUp(Elements(t), kChunk);
  const Operand partial = kernel.Scratch(chunk_count * DtypeBytes(SY_F32));
  const std::vector<sy_tensor> tensors = r.inputs;
  kernel.at_bind = [=, device = kernel.device()](const Places& places, std::vector<Launch>* launches,
                                                 MemoryHandle* memory, sy_error* error) -> sy_status {
    struct Chunk {
      uint64_t x, count;
    };
    ChunkTable<Chunk> table;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const sy_place& place = places.inputs[i];
      const int64_t bytes = DtypeBytes(tensors[i].dtype), elements = Elements(tensors[i]);
      for (int64_t first = 0; first < elements; first += kChunk) {
        table.Add({{place.buffer->memory.get()}, tensors[i].dtype},
                  {place.offset + static_cast<uint64_t>(first * bytes),
                   static_cast<uint64_t>(std::min(kChunk, elements - first))});
      }
    }
    return table.Launches(*device, memory, error, [&](const ChunkGroup& group, int64_t first, int64_t count) {
      const auto program =
          std::find_if(programs.begin(), programs.end(), [&](const Program& p) { return p.dtype == group.dtype; });
      launches->emplace_back(program->program, "squares");
      launches->back()
          .Memory(memory->get(), 0)
          .Memory(group.buffers[0], 0)
          .Array(partial)
          .Uint(first)
          .Groups(count)
          .Lanes(device->lanes);
    });
  };
  Reduction total{SY_REDUCE_SUM, partial, SY_F32, Out(0), SY_F32};
  total.reduced = chunk_count;
  total.accumulate = r.accumulate[0];
  AddReduction(kernel, total);
  return SY_OK;
}

const Registration kReduce{"reduce", PrepareReduce, sizeof(sy_reduce_attributes)};
const Registration kSquaredNorm{"squared_norm", PrepareSquaredNorm, 0};

}  // namespace

}  // namespace switchyard
