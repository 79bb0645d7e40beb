#include "core/parallel/sharding.h"

#include <algorithm>

#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/mesh.h"
#include "fmt/format.h"

namespace switchyard {

Sharding::Sharding(const Graph& source, const Divider& divider, bool sequence, std::set<Ref> late)
    : source_(source), divider_(divider), sequence_(sequence), late_(std::move(late)) {
  for (int id = 0; id < source_.size(); ++id) {
    const Node& node = source_.node(id);
    if (node.input && IsDivided(*node.input)) divided_[{id, 0}] = *node.input->divisible;
    if (sequence_) FollowSamples(id);
    if (!node.input && !IsCollective(node.op) && ReadsParts(node)) Follow(id);
  }
}

void Sharding::DivideInput(const Node& input, TensorType* type, InputInfo* info) const {
  if (!IsDivided(*info)) return;
  info->part = divider_.PartOf(input.outputs[0].shape, *info->divisible);
  info->part->group = kTensorGroup;
  type->shape = ShapeOf(*info->part);
}

std::optional<std::vector<Value>> Sharding::Replace(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  if (IsAssign(node)) {
    r.result.Assign(r.Map(node.inputs[0]), As(r, node.inputs[1], DivisionOf(node.inputs[0])), node.where);
    return std::vector<Value>();
  }
  if (!ReadsParts(node)) return std::nullopt;
  if (node.forward >= 0 && !ReadAlike(node.forward, id)) r.unpaired.insert(id);
  const auto found = followed_.find(id);
  return found == followed_.end() ? Whole(r, node) : Divide(r, id, found->second);
}

Division Sharding::DivisionOf(const Ref& old) const {
  const auto found = divided_.find(old);
  return found == divided_.end() ? Division() : found->second;
}

// The axis of the factors in which the division of a tensor lies.
std::optional<Sharding::Choice> Sharding::AxisOf(const Factors& factors, const Factors::Operand& operand,
                                                 const DividedAxis& d) {
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
Division Sharding::DivisionAt(const Factors& factors, const Factors::Operand& operand, const Choice& choice) {
  const auto place = PlaceOf(factors, operand, choice.axis);
  if (!place) return std::nullopt;
  return DividedAxis{place->dimension, place->outer * choice.outer, choice.extent, choice.inner * place->inner};
}

// Along which axis the node is divided: that of a weight before that of an activation, and that before samples.
std::optional<Sharding::Choice> Sharding::Choose(const Node& node, const Factors& factors) const {
  std::optional<Choice> chosen;
  int strength = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Division division = DivisionOf(node.inputs[i]);
    if (!division || factors.inputs[i].added) continue;
    const bool weight = source_.node(node.inputs[i].node).input.has_value();
    const int stronger = weight ? 3 : division != SamplesOf(node.inputs[i]) ? 2 : 1;
    const auto choice = AxisOf(factors, factors.inputs[i], *division);
    if (!choice || stronger <= strength) continue;
    chosen = choice;
    strength = stronger;
  }
  return chosen;
}

// Where in its tensors a node has the samples of the batch.
void Sharding::FollowSamples(int id) {
  const Node& node = source_.node(id);
  if (node.input) {
    const Shape& shape = node.outputs[0].shape;
    if (node.input->role == Role::kBatch && !shape.empty()) samples_[{id, 0}] = {0, 1, shape[0], 1};
    return;
  }
  const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                               [&](const Ref& input) { return SamplesOf(input).has_value(); });
  const std::optional<Factors> factors = any ? FactorsOf(source_, node) : std::nullopt;
  std::optional<Choice> choice;
  for (size_t i = 0; factors && !choice && i < node.inputs.size(); ++i) {
    if (const Division samples = SamplesOf(node.inputs[i])) choice = AxisOf(*factors, factors->inputs[i], *samples);
  }
  for (size_t o = 0; choice && o < node.outputs.size(); ++o) {
    if (const Division samples = DivisionAt(*factors, factors->outputs[o], *choice))
      samples_[{id, static_cast<int>(o)}] = *samples;
  }
}
Division Sharding::SamplesOf(const Ref& old) const {
  const auto found = samples_.find(old);
  return found == samples_.end() ? Division() : found->second;
}

bool Sharding::IsDivided(const InputInfo& info) const {
  return info.divisible && info.divisible->extent >= divider_.ranks();
}
bool Sharding::ReadsParts(const Node& node) const {
  return std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](const Ref& input) { return DivisionOf(input).has_value(); });
}

// How a node is divided that reads parts, and what follows for its results.
void Sharding::Follow(int id) {
  const Node& node = source_.node(id);
  const std::optional<Factors> factors = FactorsOf(source_, node);
  const std::optional<Choice> choice = factors ? Choose(node, *factors) : std::nullopt;
  if (!choice) {
    if (!IsKept(node)) ++gathered_[node.op];
    return;
  }
  followed_.emplace(id, Followed{*factors, *choice});
  bool partial = false;
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const Ref result{id, static_cast<int>(o)};
    if (const Division division = DivisionAt(*factors, factors->outputs[o], *choice)) divided_[result] = *division;
    if (!IsPartial(*factors, factors->outputs[o], choice->axis)) continue;
    partial = true;
    if (late_.contains(result)) addends_.insert(result);
    TakeOwnSamples(result);
  }
  const bool addend =
      std::any_of(factors->inputs.begin(), factors->inputs.end(), [](const auto& i) { return i.added; });
  if (partial && addend) with_addends_.insert(id);
}

void Sharding::TakeOwnSamples(const Ref& sum) {
  const Division samples = SamplesOf(sum);
  if (!samples) return;
  if (samples->extent % divider_.ranks() != 0) {
    throw BuildError(fmt::format(
        "--sp divides the samples of a micro-batch over the {0} ranks that share a model, but there are {1}; use a "
        "--batch_size that {0} divides, or leave --sp out",
        divider_.ranks(), samples->extent));
  }
  if (!divider_.CanScatter(source_.type(sum).shape, *samples)) return;
  divided_[sum] = *samples;
  scattered_.insert(sum);
}

// As what a node reads its input.
Division Sharding::Read(int id, size_t input) const {
  const auto found = followed_.find(id);
  if (found == followed_.end()) return std::nullopt;
  return DivisionAt(found->second.factors, found->second.factors.inputs[input], found->second.choice);
}

// What a forward node leaves for its backward node is of the tensors that both read: it may have run on whole ones,
// before any division began.
bool Sharding::ReadAlike(int forward, int backward) const {
  const auto &before = source_.node(forward).inputs, &behind = source_.node(backward).inputs;
  for (size_t i = 0; i < before.size(); ++i) {
    const auto found = std::find(behind.begin(), behind.end(), before[i]);
    if (found == behind.end()) continue;
    if (Read(forward, i) != Read(backward, static_cast<size_t>(found - behind.begin()))) return false;
  }
  return true;
}

// The node on whole tensors.
std::vector<Value> Sharding::Whole(Rewriting& r, const Node& node) {
  std::vector<Value> inputs;
  for (const Ref& input : node.inputs) inputs.push_back(As(r, input, std::nullopt));
  return r.result.Clone(node, inputs);
}

std::vector<Value> Sharding::Divide(Rewriting& r, int id, const Followed& followed) {
  const Node& node = source_.node(id);
  const auto& [factors, choice] = followed;
  std::vector<Value> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) inputs.push_back(As(r, node.inputs[i], Read(id, i)));
  Wanted wanted = WantedOf(node);
  if (const Division division = DivisionAt(factors, factors.outputs[0], choice))
    wanted.shape = ShapeOf(divider_.PartOf(*wanted.shape, *division));
  std::vector<Value> results = r.result.Clone(node, inputs, wanted);
  for (size_t o = 0; o < results.size(); ++o) {
    const Ref old{id, static_cast<int>(o)};
    if (!IsPartial(factors, factors.outputs[o], choice.axis) || addends_.contains(old)) continue;
    const std::string name = node.name + "/sum";
    results[o] = scattered_.contains(old) ? divider_.ScatterSum(results[o], name, node.where)
                                          : ops::AllReduce(results[o], SY_SUM, 1, kTensorGroup, name, node.where);
  }
  return results;
}

// What an old value has become, held as `wanted` says.
Value Sharding::As(Rewriting& r, const Ref& old, const Division& wanted) {
  const Division held = DivisionOf(old);
  if (held == wanted) return r.Map(old);
  // With sequence parallelism the backward pass gathers again: nobody keeps what is whole until then.
  Value& converted = converted_[{old, wanted, sequence_ ? r.result.phase() : Phase::kForward}];
  if (!converted) {
    const Value whole = held && wanted ? As(r, old, std::nullopt) : r.Map(old);
    converted = divider_.Convert(whole, source_.type(old).shape, held && wanted ? Division() : held, wanted,
                                 source_.node(old.node).name);
  }
  return converted;
}

}  // namespace switchyard
