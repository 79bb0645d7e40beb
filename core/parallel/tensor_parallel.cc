// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM") as a sharding of the joint forward and backward graph, so
// that models say no more than along which axis a weight may be divided (InputInfo::divisible), and backward
// collectives need no rule of their own. Every value is whole on all ranks of the tensor group or divided along one
// axis. Divided weights are where it starts; from there each op's factors (core/graph/factors.h) say which results are
// divided in turn. What an op leaves as partial sums is summed over the group at once, what it cannot take divided is
// gathered, what it needs divided beside a divided input is cut out of the whole without communication.
#include <algorithm>
#include <set>

#include "core/graph/factors.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/parallel/passes.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

using Division = std::optional<DividedAxis>;  // nothing: whole

// The tensor as (before · outer, extent, inner · after): the divided axis in the middle.
struct Unfolded {
  int64_t before, extent, after;
  Unfolded(const Shape& shape, const DividedAxis& axis, int64_t extent)
      : before(axis.outer), extent(extent), after(axis.inner) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d < static_cast<size_t>(axis.dimension)) before *= shape[d];
      if (d > static_cast<size_t>(axis.dimension)) after *= shape[d];
    }
  }
  Shape shape() const { return {before, extent, after}; }
};

class Sharding {
 public:
  Sharding(const Graph& source, int ranks, int rank) : source_(source), ranks_(ranks), rank_(rank) {
    for (int id = 0; id < source_.size(); ++id) {
      const Node& node = source_.node(id);
      if (node.input && IsDivided(*node.input)) divided_[{id, 0}] = *node.input->divisible;
      if (!node.input && !IsCollective(node.op) && ReadsParts(node)) Follow(id);
    }
  }

  bool divides() const { return !divided_.empty(); }
  // Nodes that leave partial sums with something added to them, which every rank would add.
  const std::set<int>& with_addends() const { return with_addends_; }
  // Ops that were made whole, with how many nodes each.
  const std::map<std::string, int>& gathered() const { return gathered_; }

  void DivideInput(const Node& input, TensorType* type, InputInfo* info) const {
    if (!IsDivided(*info)) return;
    info->part = PartOf(input.outputs[0].shape, *info->divisible, rank_, ranks_);
    info->part->group = kTensorGroup;
    type->shape = ShapeOf(*info->part);
  }

  std::optional<std::vector<Value>> Replace(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    if (node.op == "assign") {
      r.result.Assign(r.Map(node.inputs[0]), As(r, node.inputs[1], DivisionOf(node.inputs[0])), node.where);
      return std::vector<Value>();
    }
    if (!ReadsParts(node)) return std::nullopt;
    const auto found = followed_.find(id);
    return found == followed_.end() ? Whole(r, node) : Divide(r, id, found->second);
  }

  Division DivisionOf(const Ref& old) const {
    const auto found = divided_.find(old);
    return found == divided_.end() ? Division() : found->second;
  }

  // `value`, of shape `whole` and held as `from` says, held as `to` says. `name`: of the collective that this takes.
  Value Convert(const Value& value, const Shape& whole, const Division& from, const Division& to,
                const std::string& name) const {
    if (from == to) return value;
    const Value all = from ? Gather(value, whole, *from, name) : value;
    return to ? Cut(all, *to) : all;
  }

 private:
  // An axis of a node's factors, of which (outer, extent, inner) divides `extent`.
  struct Choice {
    int axis = 0;
    int64_t outer = 1, extent = 1, inner = 1;
    auto operator<=>(const Choice&) const = default;
  };

  struct Followed {
    Factors factors;
    Choice choice;
  };

  // The axis of the factors in which the division of a tensor lies.
  static std::optional<Choice> AxisOf(const Factors& factors, const Factors::Operand& operand, const DividedAxis& d) {
    for (size_t axis = 0; axis < factors.axes.size(); ++axis) {
      const int64_t extent = factors.axes[axis].extent;
      const auto place = PlaceOf(factors, operand, static_cast<int>(axis));
      if (factors.axes[axis].whole() || !place || place->dimension != d.dimension) continue;
      const int64_t divided = d.extent * d.inner;  // elements of the dimension from one outer index to the next
      if (d.inner % place->inner != 0 || divided > extent * place->inner || extent * place->inner % divided != 0)
        continue;
      return Choice{static_cast<int>(axis), extent * place->inner / divided, d.extent, d.inner / place->inner};
    }
    return std::nullopt;
  }
  static Division DivisionAt(const Factors& factors, const Factors::Operand& operand, const Choice& choice) {
    const auto place = PlaceOf(factors, operand, choice.axis);
    if (!place) return std::nullopt;
    return DividedAxis{place->dimension, place->outer * choice.outer, choice.extent, choice.inner * place->inner};
  }

  // Along which axis the node is divided: that of a weight before that of an activation.
  std::optional<Choice> Choose(const Node& node, const Factors& factors) const {
    std::optional<Choice> chosen;
    bool by_weight = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Division division = DivisionOf(node.inputs[i]);
      if (!division || factors.inputs[i].added) continue;
      const auto choice = AxisOf(factors, factors.inputs[i], *division);
      const bool weight = source_.node(node.inputs[i].node).input.has_value();
      if (!choice || (chosen && (by_weight || !weight))) continue;
      chosen = choice;
      by_weight = weight;
    }
    return chosen;
  }

  bool IsDivided(const InputInfo& info) const { return info.divisible && info.divisible->extent >= ranks_; }
  bool ReadsParts(const Node& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](const Ref& input) { return DivisionOf(input).has_value(); });
  }

  // How a node is divided that reads parts, and what follows for its results.
  void Follow(int id) {
    const Node& node = source_.node(id);
    const std::optional<Factors> factors = FactorsOf(source_, node);
    const std::optional<Choice> choice = factors ? Choose(node, *factors) : std::nullopt;
    if (!choice) {
      if (node.op != "assign" && node.op != "output") ++gathered_[node.op];
      return;
    }
    followed_.emplace(id, Followed{*factors, *choice});
    bool partial = false;
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const Division division = DivisionAt(*factors, factors->outputs[o], *choice);
      if (division) divided_[{id, static_cast<int>(o)}] = *division;
      partial |= IsPartial(*factors, factors->outputs[o], choice->axis);
    }
    const bool addend =
        std::any_of(factors->inputs.begin(), factors->inputs.end(), [](const auto& i) { return i.added; });
    if (partial && addend) with_addends_.insert(id);
  }

  // The node on whole tensors.
  std::vector<Value> Whole(Rewriting& r, const Node& node) {
    std::vector<Value> inputs;
    for (const Ref& input : node.inputs) inputs.push_back(As(r, input, std::nullopt));
    return r.result.Clone(node, inputs);
  }

  std::vector<Value> Divide(Rewriting& r, int id, const Followed& followed) {
    const Node& node = source_.node(id);
    const auto& [factors, choice] = followed;
    std::vector<Value> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      inputs.push_back(As(r, node.inputs[i], DivisionAt(factors, factors.inputs[i], choice)));
    Wanted wanted = WantedOf(node);
    const Division division = DivisionOf({id, 0});
    if (division) wanted.shape = ShapeOf(PartOf(*wanted.shape, *division, rank_, ranks_));
    std::vector<Value> results = r.result.Clone(node, inputs, wanted);
    for (size_t o = 0; o < results.size(); ++o) {
      if (IsPartial(factors, factors.outputs[o], choice.axis))
        results[o] = ops::AllReduce(results[o], SY_SUM, 1, kTensorGroup, node.name + "/sum", node.where);
    }
    return results;
  }

  // What an old value has become, held as `wanted` says.
  Value As(Rewriting& r, const Ref& old, const Division& wanted) {
    const Division held = DivisionOf(old);
    if (held == wanted) return r.Map(old);
    Value& converted = converted_[{old, wanted}];
    if (!converted) {
      const Value whole = held && wanted ? As(r, old, std::nullopt) : r.Map(old);
      converted = Convert(whole, source_.type(old).shape, held && wanted ? Division() : held, wanted,
                          source_.node(old.node).name);
    }
    return converted;
  }

  Value Cut(const Value& whole, const DividedAxis& axis) const {
    const Part part = PartOf(whole.shape(), axis, rank_, ranks_);
    const Value unfolded = ops::Reshape(whole, Unfolded(whole.shape(), axis, axis.extent).shape());
    return ops::Reshape(ops::Slice(unfolded, 1, part.begin, part.end - part.begin), ShapeOf(part));
  }

  // Ranks gather parts of one size: a shorter one is padded, and what is too much is cut out again.
  Value Gather(const Value& value, const Shape& shape, const DividedAxis& axis, const std::string& name) const {
    const Part own = PartOf(shape, axis, rank_, ranks_);
    const int64_t most = (axis.extent + ranks_ - 1) / ranks_, held = own.end - own.begin;
    const Unfolded whole(shape, axis, axis.extent);
    Value part = ops::Reshape(value, {whole.before, held, whole.after});
    if (held < most) part = ops::Pad(part, {0, 0, 0}, {0, most - held, 0});
    part = ops::Reshape(part, {1, whole.before, most, whole.after});
    const Value all = ops::AllGather(part, ranks_, kTensorGroup, name + "/gather");
    Value joined;
    if (axis.extent == most * ranks_) {
      joined = ops::Transpose(all, {1, 0, 2, 3});
    } else {
      std::vector<Value> parts;
      for (int rank = 0; rank < ranks_; ++rank) {
        const Part p = PartOf(shape, axis, rank, ranks_);
        const Value one = ops::Reshape(ops::Slice(all, 0, rank, 1), {whole.before, most, whole.after});
        parts.push_back(ops::Slice(one, 1, 0, p.end - p.begin));
      }
      joined = ops::Concat(parts, 1);
    }
    return ops::Reshape(joined, shape);
  }

  const Graph& source_;
  const int ranks_, rank_;
  std::map<Ref, DividedAxis> divided_;  // old values; others are whole
  std::map<int, Followed> followed_;    // nodes that work on parts
  std::set<int> with_addends_;
  std::map<std::string, int> gathered_;
  std::map<std::pair<Ref, Division>, Value> converted_;
};

// The nodes apart from what is added to their results.
void TakeAddendsOut(NamedGraph& plan, const std::set<int>& nodes) {
  const Graph source = plan.graph;
  RewritePlan(plan, "tensor_parallel", [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = source.node(id);
    if (!nodes.contains(id)) return std::nullopt;
    const auto& decompose = FindOp(node.op)->decompose;
    std::vector<Value> parts = decompose ? decompose(r.result, node, r.Map(node.inputs)) : std::vector<Value>();
    if (parts.empty()) throw BuildError(fmt::format("{} ({}) adds to a sum that ranks share", node.name, node.op));
    return parts;
  });
}

Status TensorParallelLegal(const ProgramOptions& o) {
  if (o.mesh.tensor > 1 && !o.evaluation_only &&
      (o.optimizer.kind == SY_OPTIMIZER_LAMB || o.optimizer.kind == SY_OPTIMIZER_LARS)) {
    return Unimplemented(
        "tensor parallelism over {} ranks with lamb or lars: no rank has the norm of a weight that is divided; use "
        "--optimizer=adamw, adam or sgd",
        o.mesh.tensor);
  }
  return OkStatus();
}

void ApplyTensorParallel(Program& program, const ProgramOptions& o) {
  if (o.mesh.tensor == 1) return;
  const int rank = program.rank % o.mesh.tensor;
  for (NamedGraph& plan : program.plans) {
    if (const Sharding first(plan.graph, o.mesh.tensor, rank); !first.with_addends().empty())
      TakeAddendsOut(plan, first.with_addends());
    const Graph source = plan.graph;
    const std::vector<GradientOf> before = plan.gradients;
    Sharding sharding(source, o.mesh.tensor, rank);
    RewritePlan(
        plan, "tensor_parallel", [&](Rewriting& r, int id) { return sharding.Replace(r, id); },
        [&](const Node& input, TensorType* type, InputInfo* info) { sharding.DivideInput(input, type, info); });
    if (!sharding.divides()) throw BuildError("it marks no weight that tensor-parallel ranks could divide; use --tp=1");
    plan.graph.SetPhase(Phase::kBackward);
    for (size_t i = 0; i < before.size(); ++i) {
      Ref& gradient = plan.gradients[i].gradient;
      if (gradient.node < 0) continue;
      const auto& [parameter, old] = before[i];
      gradient = sharding
                     .Convert(plan.graph.value(gradient), source.type(old).shape, sharding.DivisionOf(old),
                              sharding.DivisionOf(parameter), source.node(old.node).name)
                     .ref();
    }
    plan.graph.SetPhase(Phase::kForward);
    for (const auto& [op, nodes] : sharding.gathered()) program.gathered[op] += nodes;
  }
}

}  // namespace

Pass TensorParallelPass() { return {"tensor_parallel", TensorParallelLegal, ApplyTensorParallel}; }

}  // namespace switchyard
