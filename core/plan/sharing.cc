#include "core/plan/sharing.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/structure.h"

namespace switchyard {
namespace {

class Finder {
 public:
  Finder(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned, uint64_t alignment)
      : graph_(graph),
        users_(graph.Users()),
        order_(order),
        planned_(planned),
        alignment_(alignment),
        followers_(graph.size(),
                   [&](const auto& add) {
                     for (int id = 0; id < graph.size(); ++id) {
                       for (const int earlier : graph.node(id).control) add(earlier, id);
                     }
                   }),
        readers_(graph) {}

  Sharing Run() {
    const auto nodes = static_cast<size_t>(graph_.size());
    result_.position.assign(nodes, 0);
    for (auto* marks : {&result_.in_place_concat, &result_.written_in_place, &result_.copied_at_once})
      marks->assign(nodes, false);
    result_.view_offset.resize(nodes);
    result_.part_of = decltype(result_.part_of)(graph_);
    result_.group = ValueTable<Ref>(graph_);
    result_.last_use = ValueTable<int>(graph_);
    result_.over_state = ValueTable<std::optional<Ref>>(graph_);
    for (size_t i = 0; i < order_.size(); ++i) result_.position[order_[i]] = static_cast<int>(i);
    FindParts();
    FindGroups();
    FindReaders();
    FindCopiesAtOnce();
    FindLastUses();
    FindAssignments();
    return std::move(result_);
  }

 private:
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
      return IsCollective(node.op) || ((TraitsOf(node.op).view || IsSlice(node)) && IsReduced(user));
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
      if (IsAssign(node) || planned_[user].absorbed) return true;
      if (TraitsOf(node.op).view || ContiguousSlice(graph_, node, alignment_, &within))
        return IsReadBefore({user, 0}, start + within, member, offset, bytes);
      if (user != member.node) return HasRead(user) < result_.position[member.node];
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
      const bool goes_on = TraitsOf(node.op).view || planned_[user].absorbed || planned_[user].sums;
      return goes_on && ReadOnlyBy(reader, {user, 0});
    });
  }

  // The position of the first node that waits for what `id` gives, behind views, or by a control edge; Sharing::kEnd:
  // none does before all has run.
  int FirstReader(int id) const {
    int first = Sharing::kEnd;
    for (const int user : users_[id]) {
      const Node& node = graph_.node(user);
      const bool view = result_.view_offset[user].has_value() && !IsCollective(node.op);
      if (IsOutput(node) || (IsAssign(node) && !result_.copied_at_once[user])) continue;
      first = std::min(first, view ? FirstReader(user) : result_.position[user]);
    }
    for (const int follower : followers_[id]) first = std::min(first, result_.position[follower]);
    return first;
  }

  // The position behind which a node has read its inputs: of a collective that does not work in place, when it is
  // waited for; of what is copied when all has run, the end.
  int HasRead(int id) const {
    const Node& node = graph_.node(id);
    if (IsKept(node)) return Sharing::kEnd;
    return !IsCollective(node.op) || WorksInPlace(node) ? result_.position[id] : FirstReader(id);
  }

  // May a collective work where the value that it reads lies? Not where that is a named input's place, or where anybody
  // else reads the value or what it is a view of.
  bool OwnsItsPlace(Ref value, const std::vector<int>& reads) const {
    for (;;) {
      const Node& node = graph_.node(value.node);
      if (node.input || reads[value.node] != 1) return false;
      if (!TraitsOf(node.op).view && !result_.view_offset[value.node].has_value()) return true;
      value = SourceOf(graph_, planned_, value.node);
    }
  }

  // Does node `id` add to what its first input is where that lies, which nobody else reads?
  bool AddsInPlace(int id) const {
    const PlannedNode& plan = planned_[id];
    if (!plan.sums || plan.fallback || plan.kernel == nullptr) return false;
    const auto& inplace = plan.kernel->info().inplace;
    return !inplace.empty() && inplace[0] == 0 && ReadOnlyBy(id, Origin(graph_, planned_, graph_.node(id).inputs[0]));
  }
  // The values that lie at a part of a bucket one after the other: what is put there, and the sums that it was before,
  // the last first.
  std::vector<Ref> ValuesAt(Ref part) const {
    std::vector<Ref> values;
    for (Ref ref = part;;) {
      const Node& node = graph_.node(ref.node);
      if (planned_[ref.node].absorbed) {
        values.push_back(Origin(graph_, planned_, node.inputs[1]));
        ref = node.inputs[0];
      } else if (TraitsOf(node.op).view) {
        ref = node.inputs[0];
      } else {
        values.push_back(ref);
        if (!AddsInPlace(ref.node)) return values;
        ref = node.inputs[0];
      }
    }
  }

  // Which values are written straight into a concat's storage?
  void FindParts() {
    for (const int id : order_) {
      if (graph_.node(id).input && graph_.node(id).input->role == Role::kGradient) held_[graph_.node(id).name] = id;
    }
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (!ContiguousConcat(node)) continue;
      std::map<Ref, uint64_t> parts;  // the offset of each
      uint64_t offset = 0;
      for (const Ref& input : node.inputs) {
        bool lies = offset % alignment_ == 0;
        for (const Ref& value : ValuesAt(input)) {
          uint64_t unused = 0;
          lies = lies && MakesValue(graph_, planned_, value.node) && !result_.part_of[value] &&
                 !IsConcat(graph_.node(value.node)) &&
                 !ContiguousSlice(graph_, graph_.node(value.node), alignment_, &unused) &&
                 MayLieIn(id, value, offset) && !parts.contains(value);
          if (lies) parts.emplace(value, offset);
        }
        offset += static_cast<uint64_t>(graph_.type(input).bytes());
      }
      if (parts.empty() && node.bucket.empty()) continue;
      result_.in_place_concat[id] = true;
      if (!node.bucket.empty()) made_[node.bucket] = id;
      for (const auto& [root, at] : parts) result_.part_of[root] = std::make_pair(id, at);
    }
    for (const int id : order_) {
      for (size_t o = 0; o < planned_[id].accumulate.size(); ++o) {
        if (planned_[id].accumulate[o] != 0 && !result_.part_of[{id, static_cast<int>(o)}])
          throw BuildError("its kernel adds to a bucket in which its result does not lie: " + graph_.node(id).name);
      }
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
        const auto& part = result_.part_of[ref];
        result_.group[ref] = part ? Ref{part->first, 0} : ref;
      }
      uint64_t offset = 0;
      if (TraitsOf(node.op).view || planned_[id].absorbed) {
        result_.group[{id, 0}] = result_.group[SourceOf(graph_, planned_, id)];
        result_.view_offset[id] = 0;
      } else if (ContiguousSlice(graph_, node, alignment_, &offset)) {
        result_.group[{id, 0}] = result_.group[node.inputs[0]];
        result_.view_offset[id] = offset;
      } else if (WorksInPlace(node)) {
        if (OwnsItsPlace(node.inputs[0], reads)) {
          result_.group[{id, 0}] = result_.group[node.inputs[0]];
          result_.view_offset[id] = 0;
        }
      }
    }
  }

  void FindReaders() {
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const bool is_target = IsAssign(node) && i == 0;
        if (!is_target && !TraitsOf(node.op).view && !planned_[id].absorbed &&
            !(IsSlice(node) && result_.view_offset[id].has_value()))
          readers_[result_.group[node.inputs[i]]].push_back({id, static_cast<int>(i)});
      }
    }
  }

  // What reads at the place of a state: the state itself, and where it is a bucket's place, what is put together there.
  std::vector<std::pair<int, int>> ReadersAt(Ref state) const {
    std::vector<std::pair<int, int>> found = readers_[result_.group[state]];
    if (const auto made = made_.find(graph_.node(state.node).name); made != made_.end()) {
      const auto& others = readers_[{made->second, 0}];
      found.insert(found.end(), others.begin(), others.end());
    }
    return found;
  }
  bool LiesOver(Ref value, Ref state) const {
    const auto made = made_.find(graph_.node(state.node).name);
    return value == state || (made != made_.end() && result_.group[value] == Ref{made->second, 0} &&
                              graph_.type(value).bytes() == graph_.type(state).bytes());
  }

  // New values that lie elsewhere are copied over their states where their assignments stand, so that their place is
  // free from there on; but not before the old value has been read by all, and not from another state.
  void FindCopiesAtOnce() {
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (!IsAssign(node) || graph_.node(result_.group[node.inputs[1]].node).input) continue;
      const auto readers = ReadersAt(node.inputs[0]);
      if (std::all_of(readers.begin(), readers.end(),
                      [&](const auto& reader) { return HasRead(reader.first) < result_.position[id]; }))
        result_.copied_at_once[id] = true;
    }
  }

  // Until when is each storage needed?
  void FindLastUses() {
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      for (const Ref& input : node.inputs)
        result_.last_use[result_.group[input]] =
            IsOutput(node) || (IsAssign(node) && !result_.copied_at_once[id])
                ? Sharing::kEnd
                : std::max(result_.last_use[result_.group[input]], result_.position[id]);
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        int& last = result_.last_use[result_.group[{id, static_cast<int>(o)}]];
        last = std::max(last, result_.position[id]);
      }
    }
    // A collective may go on until its result is waited for: before its first reader, or at the end.
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (!IsCollective(node.op)) continue;
      const int joined = FirstReader(id);
      for (const Ref& input : node.inputs)
        result_.last_use[result_.group[input]] = std::max(result_.last_use[result_.group[input]], joined);
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        int& last = result_.last_use[result_.group[{id, static_cast<int>(o)}]];
        last = std::max(last, joined);
      }
    }
  }

  // New values of states that may be written over the old ones.
  void FindAssignments() {
    for (const int id : order_) {
      const Node& node = graph_.node(id);
      if (!IsAssign(node)) continue;
      const Ref state = node.inputs[0], value = Origin(graph_, planned_, node.inputs[1]);
      bool possible = MakesValue(graph_, planned_, value.node) && !result_.part_of[value] &&
                      !result_.in_place_concat[value.node] && !result_.view_offset[value.node].has_value() &&
                      !result_.over_state[value];
      for (const auto& [reader, index] : ReadersAt(state)) {
        if (!possible) break;
        if (reader == value.node) {
          const auto& inplace = planned_[reader].kernel->info().inplace;
          const bool legal = planned_[reader].fallback ||
                             (value.output < static_cast<int>(inplace.size()) && inplace[value.output] == index &&
                              LiesOver(graph_.node(reader).inputs[index], state));
          possible = legal;
        } else {
          possible = HasRead(reader) < result_.position[value.node];
        }
      }
      if (possible) {
        result_.over_state[value] = state;
        result_.written_in_place[id] = true;
      }
    }
  }

  const Graph& graph_;
  const IdLists users_;
  const std::vector<int>& order_;
  const std::vector<PlannedNode>& planned_;
  const uint64_t alignment_;
  Sharing result_;
  const IdLists followers_;                               // by node: those with a control edge from it
  ValueTable<std::vector<std::pair<int, int>>> readers_;  // by group: (reader, input index)
  std::map<std::string, int> held_;                       // bucket → the input by which what it holds is read
  std::map<std::string, int> made_;                       // bucket → the concat that fills it
};

}  // namespace

Sharing FindSharing(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned,
                    uint64_t alignment) {
  return Finder(graph, order, planned, alignment).Run();
}

}  // namespace switchyard
