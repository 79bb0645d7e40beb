#include "core/plan/placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/graph/op.h"
#include "core/graph/ops/structure.h"

namespace switchyard {
namespace {

// Greedy by size (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference"): the largest
// storage first, each at the lowest offset free during its life.
void Pack(int arena, std::vector<Storage>& storages, Layout& layout) {
  std::vector<int> waiting, placed;
  for (size_t i = 0; i < storages.size(); ++i) {
    if (storages[i].arena == arena) waiting.push_back(static_cast<int>(i));
  }
  std::stable_sort(waiting.begin(), waiting.end(), [&](int a, int b) { return storages[a].bytes > storages[b].bytes; });
  uint64_t total = 0;
  for (const int i : waiting) {
    Storage& s = storages[i];
    const uint64_t size = layout.Align(std::max<uint64_t>(s.bytes, 1));
    uint64_t offset = 0;
    for (const int other : placed) {  // sorted by offset
      const Storage& p = storages[other];
      if (p.last < s.first || s.last < p.first) continue;
      if (offset + size <= p.offset) break;
      offset = std::max(offset, p.offset + layout.Align(std::max<uint64_t>(p.bytes, 1)));
    }
    s.offset = offset;
    total = std::max(total, offset + size);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](int a, int b) { return storages[a].offset < storages[b].offset; }),
                  i);
  }
  layout.Reserve(arena, total);
}

class Placer {
 public:
  Placer(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned, Layout& layout)
      : graph_(graph),
        order_(order),
        planned_(planned),
        layout_(layout),
        sharing_(FindSharing(graph, order, planned, layout.alignment())) {}

  Placement Run() {
    const int count = graph_.size();
    result_.spots.resize(count);
    result_.residuals.resize(count);
    result_.elided.assign(count, false);
    result_.copies.resize(count);
    last_backward_.assign(count, -1);
    for (int id = 0; id < count; ++id) {
      const Node& node = graph_.node(id);
      result_.spots[id].resize(node.outputs.size());
      if (node.forward >= 0)
        last_backward_[node.forward] = std::max(last_backward_[node.forward], sharing_.position[id]);
    }
    // Inputs first: an update may be written over its state, wherever that stands among the nodes.
    for (const bool input : {true, false}) {
      for (const int id : order_) {
        if (graph_.node(id).input.has_value() == input) Place(id);
      }
    }
    Finish();
    for (const bool host : {false, true}) Pack(StepArena(host), result_.storages, layout_);
    return std::move(result_);
  }

 private:
  int NewStorage(uint64_t bytes, int position, bool host = false) {
    result_.storages.push_back({StepArena(host), bytes, 0, position, position});
    return static_cast<int>(result_.storages.size()) - 1;
  }
  int NamedStorage(const std::string& name, int arena, const TensorType& type) {
    const Layout::Entry& entry = layout_.Place(name, arena, type, static_cast<uint64_t>(type.bytes()));
    result_.storages.push_back({arena, entry.bytes, entry.offset, 0, Sharing::kEnd});
    return static_cast<int>(result_.storages.size()) - 1;
  }
  Spot& At(Ref ref) { return result_.spots[ref.node][ref.output]; }
  void Extend(const Spot& spot, Ref ref) {
    Storage& s = result_.storages[spot.storage];
    s.last = std::max(s.last, sharing_.last_use[sharing_.group[ref]]);
  }

  // The storage of a concat whose parts are written in place; made when its first part is.
  int ConcatStorage(int id, int position) {
    const auto found = concat_storage_.find(id);
    if (found != concat_storage_.end()) return found->second;
    const Node& node = graph_.node(id);
    const int storage = node.bucket.empty()
                            ? NewStorage(static_cast<uint64_t>(node.outputs[0].bytes()), position, node.host)
                            : NamedStorage(node.bucket, kGradientsArena, node.outputs[0]);
    concat_storage_[id] = storage;
    return storage;
  }

  void Place(int id) {
    const Node& node = graph_.node(id);
    const int t = sharing_.position[id];
    if (node.input) {
      const Role role = node.input->role;
      const int arena = node.host                 ? kHostStateArena
                        : role == Role::kBatch    ? kIoArena
                        : role == Role::kGradient ? kGradientsArena
                                                  : kStateArena;
      At({id, 0}) = {NamedStorage(node.name, arena, node.outputs[0]), 0};
      Layout::Entry& entry = layout_.mutable_entries().at(node.name);
      entry.role = role;
      entry.initializer = node.input->initializer;
      entry.of_model = node.input->of_model;
      entry.of_rank = node.input->of_rank;
      entry.part = node.input->part;
      entry.content = node.input->content;
      return;
    }
    if (const auto& offset = sharing_.view_offset[id]) {
      const Spot source = At(SourceOf(graph_, planned_, id));
      At({id, 0}) = {source.storage, source.offset + *offset};
      Extend(source, {id, 0});
      result_.elided[id] = !IsCollective(node.op);
      return;
    }
    if (sharing_.in_place_concat[id]) {
      const int storage = ConcatStorage(id, t);
      At({id, 0}) = {storage, 0};
      Extend(At({id, 0}), {id, 0});
      uint64_t offset = 0;
      for (const Ref& input : node.inputs) {
        const uint64_t bytes = static_cast<uint64_t>(graph_.type(input).bytes());
        if (sharing_.part_of[Origin(graph_, planned_, input)] != std::make_pair(id, offset))
          result_.copies[id].push_back({At(input), {storage, offset}, bytes, id});
        offset += bytes;
      }
      result_.elided[id] = true;
      return;
    }
    if (IsCollective(node.op) && !WorksInPlace(node)) {
      if (node.outputs.empty()) return;
      At({id, 0}) = {NewStorage(static_cast<uint64_t>(node.outputs[0].bytes()), t), 0};
      Extend(At({id, 0}), {id, 0});
      return;
    }
    if (IsCollective(node.op)) {  // it works on a copy
      const uint64_t bytes = static_cast<uint64_t>(node.outputs[0].bytes());
      At({id, 0}) = {NewStorage(bytes, t), 0};
      Extend(At({id, 0}), {id, 0});
      result_.copies[id].push_back({At(node.inputs[0]), At({id, 0}), bytes, id});
      return;
    }
    if (sharing_.copied_at_once[id] && !sharing_.written_in_place[id]) {
      const Spot &state = At(node.inputs[0]), &value = At(node.inputs[1]);
      if (!SamePlace(state, value))
        result_.copies[id].push_back({value, state, static_cast<uint64_t>(graph_.type(node.inputs[0]).bytes()), id});
    }
    if (!MakesValue(graph_, planned_, id)) return;  // assign, output: see Finish
    std::set<int> taken;
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const Ref ref{id, static_cast<int>(o)};
      if (const auto& part = sharing_.part_of[ref]) {
        At(ref) = {ConcatStorage(part->first, t), part->second};
      } else if (const auto& state = sharing_.over_state[ref]) {
        At(ref) = At(*state);
      } else if (const int input = InPlaceInput(node, id, static_cast<int>(o));
                 input >= 0 && taken.insert(input).second) {
        At(ref) = At(node.inputs[input]);
      } else {
        At(ref) = {NewStorage(static_cast<uint64_t>(node.outputs[o].bytes()), t, node.host), 0};
      }
      Extend(At(ref), ref);
    }
    if (planned_[id].paired && planned_[id].kernel->info().residual_bytes > 0) {
      const int storage = NewStorage(planned_[id].kernel->info().residual_bytes, t);
      result_.storages[storage].last = std::max(t, last_backward_[id]);
      result_.residuals[id] = {storage, 0};
    }
  }

  // An input that dies here and whose place output o may take, or -1.
  int InPlaceInput(const Node& node, int id, int o) {
    if (planned_[id].kernel == nullptr || planned_[id].fallback) return -1;
    const auto& inplace = planned_[id].kernel->info().inplace;
    if (o >= static_cast<int>(inplace.size()) || inplace[o] < 0) return -1;
    const int input = inplace[o];
    const Ref ref = node.inputs[input];
    const Spot& spot = At(ref);
    const Storage& storage = result_.storages[spot.storage];
    if (!IsStepArena(storage.arena) || storage.last != sharing_.position[id] || spot.offset != 0) return -1;
    if (storage.bytes != static_cast<uint64_t>(node.outputs[o].bytes()) ||
        graph_.type(ref).bytes() != node.outputs[o].bytes())
      return -1;
    int readers = 0;
    for (const Ref& other : node.inputs) readers += At(other).storage == spot.storage;
    return readers == 1 ? input : -1;
  }

  bool SamePlace(const Spot& a, const Spot& b) const {
    const Storage &x = result_.storages[a.storage], &y = result_.storages[b.storage];
    return a.storage == b.storage
               ? a.offset == b.offset
               : x.arena == y.arena && !IsStepArena(x.arena) && x.offset + a.offset == y.offset + b.offset;
  }

  // What the host reads is copied first: it may be the old value of a state. The old value of a state that becomes
  // another's new one is taken aside before any state is written.
  void Finish() {
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (!IsOutput(node)) continue;
      const TensorType& type = graph_.type(node.inputs[0]);
      result_.final_copies.push_back({At(node.inputs[0]),
                                      {NamedStorage("output/" + node.name, kIoArena, type), 0},
                                      static_cast<uint64_t>(type.bytes()),
                                      id});
    }
    std::vector<PlannedCopy> writes;
    std::set<int> written;  // storages of states
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (!IsAssign(node) || sharing_.written_in_place[id] || sharing_.copied_at_once[id]) continue;
      const Spot &state = At(node.inputs[0]), &value = At(node.inputs[1]);
      if (SamePlace(state, value)) continue;
      written.insert(state.storage);
      writes.push_back({value, state, static_cast<uint64_t>(graph_.type(node.inputs[0]).bytes()), id});
    }
    for (PlannedCopy& write : writes) {
      if (!written.contains(write.source.storage)) continue;
      const bool host = layout_.on_host(result_.storages[write.source.storage].arena);
      const Spot aside{NewStorage(write.bytes, static_cast<int>(order_.size()), host), 0};
      result_.storages[aside.storage].last = Sharing::kEnd;
      result_.final_copies.push_back({write.source, aside, write.bytes, write.node});
      write.source = aside;
    }
    result_.final_copies.insert(result_.final_copies.end(), writes.begin(), writes.end());
  }

  const Graph& graph_;
  const std::vector<int>& order_;
  const std::vector<PlannedNode>& planned_;
  Layout& layout_;
  const Sharing sharing_;
  Placement result_;
  std::map<int, int> concat_storage_;
  std::vector<int> last_backward_;  // by forward node: where the last of those stands that are paired with it
};

}  // namespace

Placement PlaceValues(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned,
                      Layout& layout) {
  return Placer(graph, order, planned, layout).Run();
}

}  // namespace switchyard
