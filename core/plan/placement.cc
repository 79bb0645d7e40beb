#include "core/plan/placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "core/abi/ops.h"
#include "core/graph/op.h"

namespace switchyard {
namespace {

// A slice that is a contiguous part of its input: the axes before the cut one have extent 1, and there is no step.
bool ContiguousSlice(const Graph& graph, const Node& node, uint64_t alignment, uint64_t* offset) {
  const auto& a = node.attributes.as<sy_slice_attributes>();
  const TensorType& in = graph.type(node.inputs[0]);
  const Shape& out = node.outputs[0].shape;
  int64_t start = 0, stride = in.elements();
  bool cut = false;
  for (size_t axis = 0; axis < out.size(); ++axis) {
    if (a.step[axis] != 1) return false;
    stride /= in.shape[axis];
    start += a.start[axis] * stride;
    if (out[axis] == in.shape[axis]) {
      if (!cut && in.shape[axis] != 1) cut = true;  // from here on everything must be whole
      continue;
    }
    if (cut) return false;
    cut = true;
  }
  *offset = static_cast<uint64_t>(start * SizeOf(in.dtype));
  return *offset % alignment == 0;
}

// These work on one place; the others read one and write another.
bool InPlaceCollective(const Node& node) { return node.op == "all_reduce" || node.op == "broadcast"; }

// A concat whose parts lie one behind the other in memory.
bool ContiguousConcat(const Node& node) {
  const int axis = node.attributes.as<sy_axes_attributes>().values[0];
  for (int i = 0; i < axis; ++i) {
    if (node.outputs[0].shape[i] != 1) return false;
  }
  return true;
}

class Placer {
 public:
  Placer(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned, Layout& layout)
      : graph_(graph), users_(graph.Users()), order_(order), planned_(planned), layout_(layout) {}

  Placement Run() {
    const int count = graph_.size();
    result_.spots.resize(count);
    result_.residuals.resize(count);
    result_.elided.assign(count, false);
    result_.copies.resize(count);
    position_.assign(count, 0);
    for (size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = static_cast<int>(i);
    for (int id = 0; id < count; ++id) result_.spots[id].resize(graph_.node(id).outputs.size());
    FindParts();
    FindGroups();
    FindAssignments();
    for (const int id : order_) Place(id);
    Finish();
    Pack();
    return std::move(result_);
  }

 private:
  bool RunsKernel(int id) const { return planned_[id].kernel != nullptr; }

  // Where a value comes from that is a view or was added to a place by the kernel that made it.
  Ref Origin(Ref ref) const {
    for (;;) {
      const Node& node = graph_.node(ref.node);
      if (planned_[ref.node].absorbed) {
        ref = node.inputs[1];
      } else if (node.op == "reshape") {
        ref = node.inputs[0];
      } else {
        return ref;
      }
    }
  }

  // A bucket may be reduced as soon as it is full: whatever reads a member of it otherwise would find the sum. And what
  // it held before is overwritten: whatever reads that must have run.
  bool MayLieIn(int concat, Ref member, uint64_t offset) const {
    if (IsReduced(concat) && !ReadOnlyBy(concat, member)) return false;
    const auto held = held_.find(graph_.node(concat).bucket);
    return held == held_.end() ||
           IsReadBefore({held->second, 0}, 0, member, offset, static_cast<uint64_t>(graph_.type(member).bytes()));
  }
  // May a collective work where `id`, or what is a view of it, lies?
  bool IsReduced(int id) const {
    return std::any_of(users_[id].begin(), users_[id].end(), [&](int user) {
      const Node& node = graph_.node(user);
      return IsCollective(node.op) || ((TraitsOf(node.op).view || node.op == "slice") && IsReduced(user));
    });
  }
  // `place`, at byte `start` of a bucket: has what it held at [offset, offset + bytes) been read when `member` is
  // written there?
  bool IsReadBefore(Ref place, uint64_t start, Ref member, uint64_t offset, uint64_t bytes) const {
    const uint64_t end = start + static_cast<uint64_t>(graph_.type(place).bytes());
    if (end <= offset || offset + bytes <= start) return true;
    return std::all_of(users_[place.node].begin(), users_[place.node].end(), [&](int user) {
      const Node& node = graph_.node(user);
      uint64_t within = 0;
      if (node.op == "assign" || planned_[user].absorbed) return true;
      if (node.op == "reshape" || (node.op == "slice" && ContiguousSlice(graph_, node, layout_.alignment(), &within)))
        return IsReadBefore({user, 0}, start + within, member, offset, bytes);
      if (user != member.node) return HasRead(user) < position_[member.node];
      if (planned_[user].fallback) return true;
      const auto& inplace = planned_[user].kernel->info().inplace;
      const int shared = member.output < static_cast<int>(inplace.size()) ? inplace[member.output] : -1;
      return start == offset && end == offset + bytes && shared >= 0 && node.inputs[shared] == place &&
             std::count(node.inputs.begin(), node.inputs.end(), place) == 1;
    });
  }
  bool ReadOnlyBy(int reader, Ref value) const {
    return std::all_of(users_[value.node].begin(), users_[value.node].end(), [&](int user) {
      const Node& node = graph_.node(user);
      if (user == reader || std::find(node.inputs.begin(), node.inputs.end(), value) == node.inputs.end()) return true;
      return (TraitsOf(node.op).view || planned_[user].absorbed) && ReadOnlyBy(reader, {user, 0});
    });
  }

  // The position of the first node that waits for what `id` gives, behind views; kEnd: none does before all has run.
  int FirstReader(int id) const {
    int first = kEnd;
    for (const int user : users_[id]) {
      const std::string& op = graph_.node(user).op;
      const bool view = view_offset_.contains(user) && !IsCollective(op);
      if (op != "output" && op != "assign") first = std::min(first, view ? FirstReader(user) : position_[user]);
    }
    return first;
  }

  // The position behind which a node has read its inputs: of a collective that does not work in place, when it is
  // waited for; of what is copied when all has run, the end.
  int HasRead(int id) const {
    const Node& node = graph_.node(id);
    if (node.op == "output" || node.op == "assign") return kEnd;
    return !IsCollective(node.op) || InPlaceCollective(node) ? position_[id] : FirstReader(id);
  }

  // May a collective work where the value that it reads lies? Not where that is a named input's place, or where anybody
  // else reads the value or what it is a view of.
  bool OwnsItsPlace(Ref value, const std::vector<int>& reads) const {
    for (;;) {
      const Node& node = graph_.node(value.node);
      if (node.input || reads[value.node] != 1) return false;
      if (!TraitsOf(node.op).view && !view_offset_.contains(value.node)) return true;
      value = SourceOf(value.node);
    }
  }

  // Of which value is node `id`, which needs no launch, a view?
  Ref SourceOf(int id) const { return graph_.node(id).inputs[planned_[id].absorbed ? 1 : 0]; }

  // Which values are written straight into a concat's storage?
  void FindParts() {
    for (const int id : order_) {
      if (graph_.node(id).input && graph_.node(id).input->role == Role::kGradient) held_[graph_.node(id).name] = id;
    }
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (node.op != "concat" || !ContiguousConcat(node)) continue;
      std::vector<std::pair<Ref, uint64_t>> parts;
      uint64_t offset = 0;
      for (const Ref& input : node.inputs) {
        const Ref root = Origin(input);
        const bool fresh = RunsKernel(root.node) && !part_of_.contains(root) && graph_.node(root.node).op != "concat" &&
                           offset % layout_.alignment() == 0;
        uint64_t unused = 0;
        const bool view = graph_.node(root.node).op == "slice" &&
                          ContiguousSlice(graph_, graph_.node(root.node), layout_.alignment(), &unused);
        if (fresh && !view && MayLieIn(id, root, offset) &&
            std::none_of(parts.begin(), parts.end(), [&](const auto& p) { return p.first == root; }))
          parts.push_back({root, offset});
        offset += static_cast<uint64_t>(graph_.type(input).bytes());
      }
      const auto is_part = [&](Ref root) {
        return std::any_of(parts.begin(), parts.end(), [&](const auto& part) { return part.first == root; });
      };
      for (const Ref& input : node.inputs) {
        if (const Ref root = Origin(input); !planned_[root.node].accumulate.empty() && !is_part(root))
          throw BuildError("a kernel adds to a bucket in which its result does not lie: " + node.name);
      }
      if (parts.empty() && node.bucket.empty()) continue;
      in_place_concat_.insert(id);
      for (const auto& [root, at] : parts) part_of_[root] = {id, at};
    }
  }

  // Values that share storage for certain: reshapes, contiguous slices, parts of a concat, collectives in place.
  void FindGroups() {
    std::vector<int> reads(graph_.size(), 0);
    for (const int id : order_) {
      for (const Ref& input : graph_.node(id).inputs) ++reads[input.node];
    }
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        const Ref ref{id, static_cast<int>(o)};
        const auto part = part_of_.find(ref);
        group_[ref] = part != part_of_.end() ? Ref{part->second.first, 0} : ref;
      }
      uint64_t offset = 0;
      if (node.op == "reshape" || planned_[id].absorbed) {
        group_[{id, 0}] = group_.at(SourceOf(id));
        view_offset_[id] = 0;
      } else if (node.op == "slice" && ContiguousSlice(graph_, node, layout_.alignment(), &offset)) {
        group_[{id, 0}] = group_.at(node.inputs[0]);
        view_offset_[id] = offset;
      } else if (InPlaceCollective(node)) {
        if (OwnsItsPlace(node.inputs[0], reads)) {
          group_[{id, 0}] = group_.at(node.inputs[0]);
          view_offset_[id] = 0;
        }
      }
    }
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      for (const Ref& input : node.inputs)
        last_use_[group_.at(input)] =
            node.op == "output" || node.op == "assign" ? kEnd : std::max(last_use_[group_.at(input)], position_[id]);
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        int& last = last_use_[group_.at({id, static_cast<int>(o)})];
        last = std::max(last, position_[id]);
      }
    }
    // A collective may go on until its result is waited for: before its first reader, or at the end.
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (!IsCollective(node.op)) continue;
      const int joined = FirstReader(id);
      for (const Ref& input : node.inputs) last_use_[group_.at(input)] = std::max(last_use_[group_.at(input)], joined);
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        int& last = last_use_[group_.at({id, static_cast<int>(o)})];
        last = std::max(last, joined);
      }
    }
  }

  // New values of states that may be written over the old ones.
  void FindAssignments() {
    std::map<Ref, std::vector<std::pair<int, int>>> readers;  // group → (reader, input index)
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const bool is_target = node.op == "assign" && i == 0;
        if (!is_target && node.op != "reshape" && !planned_[id].absorbed &&
            !(node.op == "slice" && view_offset_.contains(id)))
          readers[group_.at(node.inputs[i])].push_back({id, static_cast<int>(i)});
      }
    }
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (node.op != "assign") continue;
      const Ref state = node.inputs[0], value = Origin(node.inputs[1]);
      bool possible = RunsKernel(value.node) && !part_of_.contains(value) && !in_place_concat_.contains(value.node) &&
                      !view_offset_.contains(value.node) && !over_state_.contains(value);
      for (const auto& [reader, index] : readers[group_.at(state)]) {
        if (!possible) break;
        if (reader == value.node) {
          const auto& inplace = planned_[reader].kernel->info().inplace;
          const bool legal = planned_[reader].fallback ||
                             (value.output < static_cast<int>(inplace.size()) && inplace[value.output] == index &&
                              graph_.node(reader).inputs[index] == state);
          possible = legal;
        } else {
          possible = HasRead(reader) < position_[value.node];
        }
      }
      if (possible) {
        over_state_[value] = state;
        written_in_place_.insert(id);
      }
    }
  }

  int NewStorage(uint64_t bytes, int position) {
    result_.storages.push_back({kActivationsArena, bytes, 0, position, position});
    return static_cast<int>(result_.storages.size()) - 1;
  }
  int NamedStorage(const std::string& name, int arena, const TensorType& type) {
    const Layout::Entry& entry = layout_.Place(name, arena, type, static_cast<uint64_t>(type.bytes()));
    result_.storages.push_back({arena, entry.bytes, entry.offset, 0, kEnd});
    return static_cast<int>(result_.storages.size()) - 1;
  }
  Spot& At(Ref ref) { return result_.spots[ref.node][ref.output]; }
  void Extend(const Spot& spot, Ref ref) {
    Storage& s = result_.storages[spot.storage];
    s.last = std::max(s.last, last_use_.at(group_.at(ref)));
  }

  // The storage of a concat whose parts are written in place; made when its first part is.
  int ConcatStorage(int id, int position) {
    const auto found = concat_storage_.find(id);
    if (found != concat_storage_.end()) return found->second;
    const Node& node = graph_.node(id);
    const int storage = node.bucket.empty() ? NewStorage(static_cast<uint64_t>(node.outputs[0].bytes()), position)
                                            : NamedStorage(node.bucket, kGradientsArena, node.outputs[0]);
    concat_storage_[id] = storage;
    return storage;
  }

  void Place(int id) {
    const Node& node = graph_.node(id);
    const int t = position_[id];
    if (node.op == "input") {
      const Role role = node.input->role;
      const int arena = role == Role::kBatch ? kIoArena : role == Role::kGradient ? kGradientsArena : kStateArena;
      At({id, 0}) = {NamedStorage(node.name, arena, node.outputs[0]), 0};
      Layout::Entry& entry = layout_.mutable_entries().at(node.name);
      entry.role = role;
      entry.initializer = node.input->initializer;
      entry.of_model = node.input->of_model;
      entry.part = node.input->part;
      entry.content = node.input->content;
      return;
    }
    if (view_offset_.contains(id)) {
      const Spot source = At(SourceOf(id));
      At({id, 0}) = {source.storage, source.offset + view_offset_[id]};
      Extend(source, {id, 0});
      result_.elided[id] = !IsCollective(node.op);
      return;
    }
    if (in_place_concat_.contains(id)) {
      const int storage = ConcatStorage(id, t);
      At({id, 0}) = {storage, 0};
      Extend(At({id, 0}), {id, 0});
      uint64_t offset = 0;
      for (const Ref& input : node.inputs) {
        const uint64_t bytes = static_cast<uint64_t>(graph_.type(input).bytes());
        const auto part = part_of_.find(Origin(input));
        if (part == part_of_.end() || part->second != std::make_pair(id, offset))
          result_.copies[id].push_back({At(input), {storage, offset}, bytes, id});
        offset += bytes;
      }
      result_.elided[id] = true;
      return;
    }
    if (IsCollective(node.op) && !InPlaceCollective(node)) {
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
    if (!RunsKernel(id)) return;  // assign, output: see Finish
    std::set<int> taken;
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const Ref ref{id, static_cast<int>(o)};
      const auto part = part_of_.find(ref);
      const auto over = over_state_.find(ref);
      if (part != part_of_.end()) {
        At(ref) = {ConcatStorage(part->second.first, t), part->second.second};
      } else if (over != over_state_.end()) {
        At(ref) = At(over->second);
      } else if (const int input = InPlaceInput(node, id, static_cast<int>(o));
                 input >= 0 && taken.insert(input).second) {
        At(ref) = At(node.inputs[input]);
      } else {
        At(ref) = {NewStorage(static_cast<uint64_t>(node.outputs[o].bytes()), t), 0};
      }
      Extend(At(ref), ref);
    }
    if (planned_[id].paired && planned_[id].kernel->info().residual_bytes > 0) {
      int last = t;
      for (const int other : order_) {
        if (graph_.node(other).forward == id) last = std::max(last, position_[other]);
      }
      const int storage = NewStorage(planned_[id].kernel->info().residual_bytes, t);
      result_.storages[storage].last = last;
      result_.residuals[id] = {storage, 0};
    }
  }

  // An input that dies here and whose place output o may take, or -1.
  int InPlaceInput(const Node& node, int id, int o) {
    const auto& inplace = planned_[id].kernel->info().inplace;
    if (planned_[id].fallback || o >= static_cast<int>(inplace.size()) || inplace[o] < 0) return -1;
    const int input = inplace[o];
    const Ref ref = node.inputs[input];
    const Spot& spot = At(ref);
    const Storage& storage = result_.storages[spot.storage];
    if (storage.arena != kActivationsArena || storage.last != position_[id] || spot.offset != 0) return -1;
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
               : x.arena == y.arena && x.arena != kActivationsArena && x.offset + a.offset == y.offset + b.offset;
  }

  // What the host reads is copied first: it may be the old value of a state. The old value of a state that becomes
  // another's new one is taken aside before any state is written.
  void Finish() {
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (node.op != "output") continue;
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
      if (node.op != "assign" || written_in_place_.contains(id)) continue;
      const Spot &state = At(node.inputs[0]), &value = At(node.inputs[1]);
      if (SamePlace(state, value)) continue;
      written.insert(state.storage);
      writes.push_back({value, state, static_cast<uint64_t>(graph_.type(node.inputs[0]).bytes()), id});
    }
    for (PlannedCopy& write : writes) {
      if (!written.contains(write.source.storage)) continue;
      const Spot aside{NewStorage(write.bytes, static_cast<int>(order_.size())), 0};
      result_.storages[aside.storage].last = kEnd;
      result_.final_copies.push_back({write.source, aside, write.bytes, write.node});
      write.source = aside;
    }
    result_.final_copies.insert(result_.final_copies.end(), writes.begin(), writes.end());
  }

  // Greedy by size (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference"): the largest
  // storage first, each at the lowest offset free during its life.
  void Pack() {
    std::vector<int> waiting, placed;
    for (size_t i = 0; i < result_.storages.size(); ++i) {
      if (result_.storages[i].arena == kActivationsArena) waiting.push_back(static_cast<int>(i));
    }
    std::stable_sort(waiting.begin(), waiting.end(),
                     [&](int a, int b) { return result_.storages[a].bytes > result_.storages[b].bytes; });
    uint64_t total = 0;
    for (const int i : waiting) {
      Storage& s = result_.storages[i];
      const uint64_t size = layout_.Align(std::max<uint64_t>(s.bytes, 1));
      uint64_t offset = 0;
      for (const int other : placed) {  // sorted by offset
        const Storage& p = result_.storages[other];
        if (p.last < s.first || s.last < p.first) continue;
        if (offset + size <= p.offset) break;
        offset = std::max(offset, p.offset + layout_.Align(std::max<uint64_t>(p.bytes, 1)));
      }
      s.offset = offset;
      total = std::max(total, offset + size);
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), i,
                           [&](int a, int b) { return result_.storages[a].offset < result_.storages[b].offset; }),
          i);
    }
    layout_.Reserve(kActivationsArena, total);
  }

  static constexpr int kEnd = 1 << 30;
  const Graph& graph_;
  const std::vector<std::vector<int>> users_;
  const std::vector<int>& order_;
  const std::vector<PlannedNode>& planned_;
  Layout& layout_;
  Placement result_;
  std::vector<int> position_;
  std::map<Ref, std::pair<int, uint64_t>> part_of_;  // value → (concat, offset in it)
  std::set<int> in_place_concat_, written_in_place_;
  std::map<Ref, Ref> group_, over_state_;
  std::map<Ref, int> last_use_;
  std::map<int, uint64_t> view_offset_;
  std::map<int, int> concat_storage_;
  std::map<std::string, int> held_;  // bucket → the input by which what it holds is read
};

}  // namespace

Placement PlaceValues(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned,
                      Layout& layout) {
  return Placer(graph, order, planned, layout).Run();
}

}  // namespace switchyard
