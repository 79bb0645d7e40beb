#include "core/plan/steps.h"

#include "core/abi/ops.h"
#include "core/graph/op.h"
#include "core/graph/ops/transfer.h"

namespace switchyard {
namespace {

class StepBuilder {
 public:
  StepBuilder(const Graph& graph, const std::vector<PlannedNode>& planned, const Placement& placement, Layout& layout)
      : graph_(graph), planned_(planned), placement_(placement), layout_(layout) {}

  std::vector<Step> Run(const std::vector<int>& order) {
    for (const int id : order) {
      for (const PlannedCopy& copy : placement_.copies[id]) AddCopy(copy);
      if (IsCollective(graph_.node(id).op)) {
        AddCollective(id);
      } else if (IsTransfer(graph_.node(id))) {
        const auto bytes = static_cast<uint64_t>(graph_.type({id, 0}).bytes());
        AddCopy({placement_.spots[graph_.node(id).inputs[0].node][graph_.node(id).inputs[0].output],
                 placement_.spots[id][0], bytes, id});
      } else if (planned_[id].kernel != nullptr && !placement_.elided[id]) {
        AddKernel(id);
      }
    }
    for (const PlannedCopy& copy : placement_.final_copies) AddCopy(copy);
    return std::move(steps_);
  }

 private:
  PlanPlace At(const Spot& spot, uint64_t bytes) const {
    const Storage& storage = placement_.storages[spot.storage];
    return {storage.arena, storage.offset + spot.offset, bytes};
  }
  PlanPlace PlaceOf(Ref ref) const {
    return At(placement_.spots[ref.node][ref.output], static_cast<uint64_t>(graph_.type(ref).bytes()));
  }
  Step& Add(Step::Kind kind, int node) {
    steps_.push_back({kind, node});
    return steps_.back();
  }

  void AddCopy(const PlannedCopy& copy) {
    Step& step = Add(Step::kCopy, copy.node);
    step.inputs = {At(copy.source, copy.bytes)};
    step.outputs = {At(copy.destination, copy.bytes)};
    const bool from_host = layout_.on_host(step.inputs[0].arena), to_host = layout_.on_host(step.outputs[0].arena);
    if (from_host || to_host) step.stream = !from_host ? kStoreStream : !to_host ? kFetchStream : kHostStream;
  }

  void AddCollective(int id) {
    const Node& node = graph_.node(id);
    Step& step = Add(Step::kCollective, id);
    step.stream = CommunicationStream(node.attributes.as<sy_collective_attributes>().group);
    // In place, what is sent lies where the result will be.
    const bool in_place = WorksInPlace(node);
    for (const Ref& input : node.inputs) step.inputs.push_back(PlaceOf(in_place ? Ref{id, 0} : input));
    for (size_t o = 0; o < node.outputs.size(); ++o) step.outputs.push_back(PlaceOf({id, static_cast<int>(o)}));
  }

  void AddKernel(int id) {
    const Node& node = graph_.node(id);
    const PlannedNode& planned = planned_[id];
    Step& step = Add(node.host ? Step::kHost : planned.fallback ? Step::kFallback : Step::kLaunch, id);
    if (node.host) step.stream = kHostStream;
    step.kernel = planned.kernel;
    for (const Ref& input : node.inputs) step.inputs.push_back(PlaceOf(input));
    for (size_t o = 0; o < node.outputs.size(); ++o) step.outputs.push_back(PlaceOf({id, static_cast<int>(o)}));
    const Kernel::Info& info = step.kernel->info();
    if (info.persistent_bytes > 0 && !planned.fallback) {
      const auto& entry =
          layout_.Place(fmt::format("persistent/{}/{}", layout_.entries().size(), node.name), kPersistentArena,
                        {DType::kU8, {static_cast<int64_t>(info.persistent_bytes)}}, info.persistent_bytes);
      step.persistent = {entry.arena, entry.offset, info.persistent_bytes};
    }
    if (info.constant_bytes > 0 && !planned.fallback) {  // one place for all that use the kernel
      const auto& entry =
          layout_.Place(fmt::format("constants/{}", static_cast<const void*>(step.kernel)), kConstantsArena,
                        {DType::kU8, {static_cast<int64_t>(info.constant_bytes)}}, info.constant_bytes);
      step.constants = {entry.arena, entry.offset, info.constant_bytes};
    }
    const int forward = planned.paired ? id : node.forward;
    if (forward >= 0 && placement_.residuals[forward].storage >= 0)
      step.residual = At(placement_.residuals[forward], planned_[forward].kernel->info().residual_bytes);
  }

  const Graph& graph_;
  const std::vector<PlannedNode>& planned_;
  const Placement& placement_;
  Layout& layout_;
  std::vector<Step> steps_;
};

}  // namespace

std::vector<Step> BuildSteps(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned,
                             const Placement& placement, Layout& layout) {
  return StepBuilder(graph, planned, placement, layout).Run(order);
}

}  // namespace switchyard
