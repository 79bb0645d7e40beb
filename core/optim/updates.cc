#include "core/optim/updates.h"

#include <map>
#include <tuple>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/pointwise.h"
#include "core/optim/parameter_rules.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

sy_optimizer_attributes ToAbi(const OptimizerOptions& options, bool decay) {
  sy_optimizer_attributes attributes{};
  attributes.kind = options.kind;
  attributes.momentum = options.momentum;
  attributes.dampening = options.dampening;
  attributes.nesterov = options.nesterov;
  attributes.beta1 = options.beta1;
  attributes.beta2 = options.beta2;
  attributes.eps = options.eps;
  attributes.weight_decay = decay ? options.weight_decay : 0;
  attributes.adam_w_mode = options.adam_w_mode;
  attributes.grad_averaging = options.grad_averaging;
  attributes.use_nvlamb = options.use_nvlamb;
  attributes.trust_coefficient = options.trust_coefficient;
  return attributes;
}

// What one update has in common: tensors that differ in it are updated by another node.
struct Group {
  size_t bucket = 0;  // where ranks share the update: what is new of a bucket is sent before the next one's is made
  bool decay = true;
  int layers_above = 0;       // for the rate; 0 where it is that of all
  DType half = DType::kF32;   // of the half copies; kF32: there are none
  bool read_in_half = false;  // by norms alone: such tensors fill buckets apart, which end elsewhere on ranks with
                              // other parts, and norms over those ranks are added up by position
  int divides = -1;  // the ranks that divide the parameter, an index as in Program::groups; −1: none do
  size_t alone = 0;  // the parameter, where each is updated for itself
  auto operator<=>(const Group& o) const {
    return std::tuple(bucket, !decay, layers_above, half, read_in_half, divides, alone) <=>
           std::tuple(o.bucket, !o.decay, o.layers_above, o.half, o.read_in_half, o.divides, o.alone);
  }
};

// By index into `pieces`.
std::map<Group, std::vector<size_t>> GroupsOf(const std::vector<ParameterGradient>& gradients,
                                              const std::vector<Piece>& pieces, const OptimizerOptions& options) {
  const bool by_norm = options.kind == SY_OPTIMIZER_LAMB || options.kind == SY_OPTIMIZER_LARS;
  std::map<Group, std::vector<size_t>> groups;
  for (size_t k = 0; k < pieces.size(); ++k) {
    const size_t i = pieces[k].tensor;
    const auto& [parameter, gradient, half, read_in_half] = gradients[i];
    const Node& input = InputOf(parameter);
    const Part* const weight = DividedWeight(*input.input);
    groups[{.bucket = by_norm ? 0 : pieces[k].bucket,  // norms are summed over the ranks once a group
            .decay = input.input->weight_decay && Decays(input.name, UpdatedShape(parameter)),
            .layers_above = options.layer_decay == 1 ? 0 : input.input->layers_above,
            .half = half ? half.dtype() : DType::kF32,
            .read_in_half = by_norm && read_in_half,
            .divides = by_norm && weight != nullptr ? weight->group : -1,
            .alone = options.fused ? 0 : i}]
        .push_back(k);
  }
  return groups;
}

std::vector<Piece> WholesOf(const std::vector<ParameterGradient>& gradients) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& [parameter, gradient, half, read_in_half] = gradients[i];
    pieces.push_back(
        {.tensor = i, .elements = parameter.type().elements(), .parameter = parameter, .gradient = gradient});
  }
  return pieces;
}

class Adding {
 public:
  Adding(Graph& graph, const std::vector<ParameterGradient>& gradients, const OptimizerOptions& options,
         const SharedUpdate& shared, Graph::Location where, Updates* updates)
      : graph_(graph), gradients_(gradients), options_(options), shared_(shared), where_(where), updates_(*updates) {
    for (const ParameterGradient& pair : gradients) {
      if (const Part* const weight = DividedWeight(*InputOf(pair.parameter).input)) dividing_ = weight->group;
    }
  }

  // The update of a group's tensors, and the assignments of their moments.
  void Update(const Group& group, const std::vector<size_t>& members, const UpdateScalars& scalars) {
    sy_optimizer_attributes attributes = ToAbi(options_, group.decay);
    const bool in_parts = shared_.ranks > 1 || group.divides >= 0;
    std::vector<ops::OptimizerTensor> tensors, updated;
    for (const size_t k : members) tensors.push_back(TensorOf(updates_.pieces[k], ops::OptimizerMoments(attributes)));
    if (in_parts && ops::HasTrustRatio(attributes)) {
      updated =
          ops::OptimizerUpdateByFormulas(scalars.lr, scalars.update, scalars.gradient_scale, scalars.finite, tensors,
                                         attributes, [&](const Value& squares) { return Summed(squares, group); });
    } else {
      updated = Together(tensors, attributes, group, scalars);
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].parameter) continue;
      if (tensors[i].moment1) graph_.Assign(tensors[i].moment1, updated[i].moment1, where_);
      if (tensors[i].moment2) graph_.Assign(tensors[i].moment2, updated[i].moment2, where_);
      updates_.results[members[i]] = updated[i];
    }
  }

 private:
  ops::OptimizerTensor TensorOf(const Piece& piece, int moments) {
    const Value& parameter = gradients_[piece.tensor].parameter;
    const auto moment = [&](const char* which) {
      const std::string name = fmt::format("{}/{}", which, InputOf(parameter).name);
      return shared_.ranks > 1 ? StateOf(piece, parameter, name, shared_, where_)
                               : graph_.Input(name, parameter.type(), Following(parameter), where_);
    };
    ops::OptimizerTensor tensor = {piece.parameter, piece.gradient, {}, {}, {}};
    if (moments > 0) tensor.moment1 = moment("moment1");
    if (moments > 1) tensor.moment2 = moment("moment2");
    return tensor;
  }

  // As one node, without the tensors that are none.
  std::vector<ops::OptimizerTensor> Together(const std::vector<ops::OptimizerTensor>& tensors,
                                             sy_optimizer_attributes attributes, const Group& group,
                                             const UpdateScalars& scalars) {
    attributes.half_copies = group.half != DType::kF32 && shared_.ranks == 1;
    std::vector<ops::OptimizerTensor> present, updated(tensors.size());
    for (const ops::OptimizerTensor& tensor : tensors) {
      if (tensor.parameter) present.push_back(tensor);
    }
    if (present.empty()) return updated;
    const std::vector<ops::OptimizerTensor> next = ops::OptimizerUpdate(
        scalars.lr, scalars.update, scalars.gradient_scale, scalars.finite, present, attributes, group.half, where_);
    for (size_t i = 0, k = 0; i < tensors.size(); ++i) {
      if (tensors[i].parameter) updated[i] = next[k++];
    }
    return updated;
  }

  // Over the ranks that have parts of the tensors, in one order on all of them.
  Value Summed(Value squares, const Group& group) {
    const auto sum = [&](int ranks) {
      squares = InOrder(ops::AllReduce(squares, SY_SUM, 1, ranks, "trust_ratio/sum", where_));
    };
    if (group.divides >= 0) sum(group.divides);
    if (shared_.ranks > 1) sum(shared_.group);
    // Ranks whose parts of other tensors are larger cut a whole one elsewhere, and have added up its pieces otherwise.
    if (group.divides < 0 && dividing_ >= 0)
      squares = InOrder(ops::Broadcast(squares, 0, dividing_, "trust_ratio/same", where_));
    return squares;
  }
  const Value& InOrder(const Value& exchanged) {
    graph_.mutable_node(exchanged.ref().node).control.push_back(updates_.last.ref().node);
    return updates_.last = exchanged;
  }

  Graph& graph_;
  const std::vector<ParameterGradient>& gradients_;
  const OptimizerOptions& options_;
  const SharedUpdate& shared_;
  const Graph::Location where_;
  Updates& updates_;
  int dividing_ = -1;  // the ranks that divide some of the parameters, as Group::divides
};

}  // namespace

const Node& InputOf(const Value& parameter) { return parameter.graph().node(parameter.ref().node); }

InputInfo Following(const Value& parameter) {
  InputInfo info = {Role::kState};
  info.part = InputOf(parameter).input->part;
  return info;
}

Updates AddUpdates(Graph& graph, const std::vector<ParameterGradient>& gradients, const UpdateScalars& scalars,
                   const OptimizerOptions& options, const SharedUpdate& shared, const BucketUpdated& done,
                   Graph::Location where) {
  Updates updates;
  updates.pieces = shared.ranks > 1 ? PiecesOf(graph, gradients, shared, where) : WholesOf(gradients);
  updates.results.resize(updates.pieces.size());
  updates.last = scalars.finite;
  Adding adding(graph, gradients, options, shared, where, &updates);
  size_t bucket = 0;
  for (const auto& [group, members] : GroupsOf(gradients, updates.pieces, options)) {
    for (; bucket < group.bucket; ++bucket) done(bucket, updates);
    UpdateScalars own = scalars;
    const float factor = LayerRate(options.layer_decay, group.layers_above);
    if (factor != 1) own.lr = ops::Scale(scalars.lr, factor, where);
    adding.Update(group, members, own);
  }
  for (; bucket < shared.buckets.size(); ++bucket) done(bucket, updates);
  return updates;
}

}  // namespace switchyard
