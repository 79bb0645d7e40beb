#include "core/parallel/recompute.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "core/graph/op.h"

namespace switchyard {
namespace {

constexpr char kSuffix[] = "/recomputed";

class Recomputation {
 public:
  Recomputation(const NamedGraph& plan, int every)
      : source_(plan.graph), again_(source_.size(), false), needed_(Needed(plan)) {
    const Graph& source = source_;
    const auto users = source.Users();
    std::vector<bool> pairs(source.size(), false);
    for (int id = 0; id < source.size(); ++id) {
      const Node& node = source.node(id);
      if (node.forward >= 0 && needed_[id]) pairs[node.forward] = true;
    }
    // From the last on: what the backward part reads, and what leads there inside the block.
    for (int id = source.size() - 1; id >= 0; --id) {
      const Node& node = source.node(id);
      if (node.block < 0 || node.block % every != 0 || !MayRepeat(node)) continue;
      chosen_ = true;
      bool read = pairs[id], leaves = false;
      for (const int user : users[id]) {
        const Node& reader = source.node(user);
        read = read || (reader.phase == Phase::kBackward && needed_[user]) || again_[user];
        leaves = leaves || (reader.phase == Phase::kForward && reader.block != node.block);
      }
      again_[id] = read && !leaves;
    }
  }
  bool chosen() const { return chosen_; }

  std::optional<std::vector<Value>> Replace(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    if (node.phase != Phase::kBackward || !needed_[id]) return std::nullopt;
    const int before = last_;
    if (!node.inputs.empty()) last_ = id;
    const bool pair = node.forward >= 0 && again_[node.forward];
    bool reads = pair;
    if (pair) Repeat(r, source_.node(node.forward).block, before);
    for (const Ref& input : node.inputs) {
      if (!again_[input.node]) continue;
      reads = true;
      Repeat(r, source_.node(input.node).block, before);
    }
    if (!reads) return std::nullopt;
    const std::vector<Value> copy = r.result.Clone(node, Second(r, node.inputs));
    if (pair) pairs_[r.result.size() - 1] = second_.at({node.forward, 0}).ref().node;
    return copy;
  }

  // Backward nodes by id in the result, each with the forward node that it is paired with now.
  const std::map<int, int>& pairs() const { return pairs_; }

 private:
  static bool MayRepeat(const Node& node) {
    return node.phase == Phase::kForward && !node.input && !node.outputs.empty() && !IsCollective(node.op);
  }

  // Values as those see them that come after the first computation.
  std::vector<Value> Second(const Rewriting& r, const std::vector<Ref>& refs) const {
    std::vector<Value> values;
    for (const Ref& ref : refs) values.push_back(again_[ref.node] ? second_.at(ref) : r.Map(ref));
    return values;
  }

  // By id: does a gradient, or what is kept of a run, come of it? Gradient rules leave nodes behind that nobody reads.
  static std::vector<bool> Needed(const NamedGraph& plan) {
    const Graph& graph = plan.graph;
    std::vector<bool> needed(graph.size(), false);
    for (const GradientOf& gradient : plan.gradients) {
      if (gradient.gradient.node >= 0) needed[gradient.gradient.node] = true;
    }
    for (int id = graph.size() - 1; id >= 0; --id) {
      const Node& node = graph.node(id);
      needed[id] = needed[id] || node.outputs.empty() || IsCollective(node.op);
      if (!needed[id]) continue;
      for (const Ref& input : node.inputs) needed[input.node] = true;
      for (const int earlier : node.control) needed[earlier] = true;
    }
    return needed;
  }

  // The second computation of a block, where it has not been yet, behind the backward node `before`, if any.
  void Repeat(Rewriting& r, int block, int before) {
    if (!repeated_.insert(block).second) return;
    const int after = before < 0 ? -1 : r.Map({before, 0}).ref().node;
    for (int id = 0; id < source_.size(); ++id) {
      if (!again_[id] || source_.node(id).block != block) continue;
      Node node = source_.node(id);
      node.name += kSuffix;
      const std::vector<Value> values = r.result.Clone(node, Second(r, node.inputs));
      for (const Value& value : values) second_[{id, value.ref().output}] = value;
      Node& second = r.result.mutable_node(values[0].ref().node);
      second.repeats = r.Map({id, 0}).ref().node;
      const bool first =
          std::none_of(node.inputs.begin(), node.inputs.end(), [&](const Ref& input) { return again_[input.node]; });
      if (first && after >= 0) second.control.push_back(after);
    }
  }

  const Graph& source_;
  bool chosen_ = false;
  std::vector<bool> again_;      // by id: computed a second time
  const std::vector<bool> needed_;
  int last_ = -1;                // the last backward node so far that is needed
  std::map<Ref, Value> second_;  // old output → that of the second computation
  std::set<int> repeated_;       // blocks
  std::map<int, int> pairs_;
};

Status RecomputeLegal(const ProgramOptions& o) {
  if (!o.recompute || *o.recompute >= 1) return OkStatus();
  return InvalidArgument("recompute {}: expected every how-many-th block, 1 or more", *o.recompute);
}

void ApplyRecompute(Program& program, const ProgramOptions& o) {
  if (!o.recompute) return;
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains) continue;
    Recomputation recomputation(plan, *o.recompute);
    if (!recomputation.chosen()) throw BuildError("there is nothing to recompute: the model marks no blocks");
    RewritePlan(plan, "recompute", [&](Rewriting& r, int id) { return recomputation.Replace(r, id); });
    for (const auto& [backward, forward] : recomputation.pairs()) plan.graph.SetForward(backward, forward);
  }
}

}  // namespace

StatusOr<std::optional<int>> ParseRecompute(const std::string& setting) {
  constexpr char kEvery[] = "every:";
  int every = 0;
  if (setting == "none") return std::nullopt;
  if (setting == "blocks") return 1;
  if (setting.starts_with(kEvery) && absl::SimpleAtoi(setting.c_str() + sizeof(kEvery) - 1, &every) && every >= 1)
    return every;
  if (setting == kAutoRecompute)
    return InvalidArgument("--recompute=auto depends on a run's device; give none, blocks or every:K here");
  return InvalidArgument("--recompute: expected none, blocks, auto or every:K with K of 1 or more, found {}", setting);
}

std::string RecomputeText(std::optional<int> every) {
  return !every ? "none" : *every == 1 ? "blocks" : fmt::format("every:{}", *every);
}

Pass RecomputePass() { return {"recompute", RecomputeLegal, ApplyRecompute}; }

}  // namespace switchyard
