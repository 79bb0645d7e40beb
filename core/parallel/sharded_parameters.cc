// Parameters as shares (Rajbhandari et al. 2020, "ZeRO", stage 3): each rank of the data group has its pieces of every
// bucket's parameters alone, those that it updates (core/optim/shared_update.h). What reads a parameter reads a view
// of its bucket, which is gathered before and let go after its last use; the backward pass gathers it once more. The
// scheduler brings buckets as early as PlanOptions::prefetch_bytes allows. With a shard_param_frac below 1 (Colossal-AI's
// Gemini) the buckets of the model's first layers stay whole, whose gathering nothing of the forward pass could hide.
#include <map>
#include <memory>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/parallel/passes.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// The buckets of the parameters, as those of their gradients: the first ones, until they hold `fraction` of all elements.
class Shards {
 public:
  Shards(const NamedGraph& update, int ranks, int rank, float fraction)
      : shared_{ranks, rank, kDataGroup, update.shared} {
    int64_t all = 0, held = 0;
    for (const SharedBucket& bucket : update.shared) all += bucket.elements;
    for (size_t b = 0; b < update.shared.size(); ++b) {
      const SharedBucket& bucket = update.shared[b];
      if (static_cast<double>(held) >= static_cast<double>(fraction) * static_cast<double>(all)) break;
      held += bucket.elements;
      for (size_t m = 0; m < bucket.members.size(); ++m) {
        const auto& [tensor, start] = bucket.members[m];
        const Ref parameter = update.gradients[tensor].parameter;
        members_[update.graph.node(parameter.node).name] = {b, start};
        names_[b].push_back(update.graph.node(parameter.node).name);
      }
    }
  }

  struct Member {
    size_t bucket = 0;
    int64_t start = 0;
  };
  // Of a parameter, or of the average that stands for one.
  const Member* Find(const Node& input) const {
    if (!input.input || (input.input->role != Role::kParameter && !input.input->average)) return nullptr;
    const std::string name = input.input->average ? input.name.substr(AverageOf("").size()) : input.name;
    const auto found = members_.find(name);
    return found == members_.end() ? nullptr : &found->second;
  }
  const SharedUpdate& shared() const { return shared_; }
  const std::vector<std::string>& names(size_t bucket) const { return names_.at(bucket); }

 private:
  const SharedUpdate shared_;
  std::map<std::string, Member> members_;
  std::map<size_t, std::vector<std::string>> names_;  // by bucket, in its order
};

// A plan in which parameters become pieces.
class Sharded {
 public:
  Sharded(const Graph& source, const Shards& shards) : source_(source), shards_(shards) {}

  void Divide(const Node& input, TensorType* type, InputInfo* info) const {
    const Shards::Member* const member = shards_.Find(input);
    if (member == nullptr) return;
    const SharedUpdate& shared = shards_.shared();
    const Piece piece = PieceOf(shared.buckets[member->bucket], member->start, type->elements(), shared);
    info->part = PartOfPiece(piece, type->shape, info->part, shared);
    type->shape = {std::max<int64_t>(1, piece.elements)};
  }

  std::optional<std::vector<Value>> Replace(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    std::vector<Value> inputs;
    bool reads = false;
    for (const Ref& input : node.inputs) {
      const Shards::Member* const member = shards_.Find(source_.node(input.node));
      reads |= member != nullptr;
      inputs.push_back(member == nullptr ? r.Map(input) : Whole(r, input, *member, node));
    }
    if (!reads) return std::nullopt;
    return r.result.Clone(node, inputs, WantedOf(node));
  }

 private:
  // What is computed again in the backward pass belongs to it.
  Value Whole(Rewriting& r, const Ref& parameter, const Shards::Member& member, const Node& reader) {
    const bool backward = reader.phase != Phase::kForward || reader.repeats >= 0;
    Value& gathered = gathered_[{member.bucket, backward}];
    const std::string prefix = source_.node(parameter.node).input->average ? AverageOf("") : "";
    if (!gathered) gathered = Gather(r.result, member.bucket, prefix, backward ? "backward" : "forward");
    const TensorType& type = source_.type(parameter);
    return ops::Reshape(ops::Slice(gathered, 0, member.start, type.elements()), type.shape);
  }

  Value Gather(Graph& graph, size_t index, const std::string& prefix, const char* pass) const {
    const SharedUpdate& shared = shards_.shared();
    const SharedBucket& bucket = shared.buckets[index];
    std::vector<std::pair<int64_t, Value>> held;
    for (size_t m = 0; m < bucket.members.size(); ++m) {
      const Value input = graph.FindInput(prefix + shards_.names(index)[m]);
      const Part& part = *graph.node(input.ref().node).input->part;
      const Piece piece = PieceOf(bucket, bucket.members[m].start, Elements(part.whole), shared);
      if (piece.elements > 0) held.push_back({piece.at, input});
    }
    return GatherBucket(graph, bucket, shared, held, fmt::format("parameters/{}/{}", index, pass));
  }

  const Graph& source_;
  const Shards& shards_;
  std::map<std::pair<size_t, bool>, Value> gathered_;  // by bucket, and whether for the backward pass
};

Status ShardedParametersLegal(const ProgramOptions& o) {
  if (!(o.shard_param_frac >= 0 && o.shard_param_frac <= 1))
    return InvalidArgument("--shard_param_frac={:g}: expected 0 to 1", o.shard_param_frac);
  if (o.zero == 3 && o.mesh.data > 1 && o.precision != DType::kF32 && !o.evaluation_only) {
    return Unimplemented("--zero=3 with a precision of {}: not there yet; use --zero=2, or --precision=fp32",
                         NameOf(o.precision));
  }
  return OkStatus();
}

void ApplyShardedParameters(Program& program, const ProgramOptions& o) {
  const NamedGraph* const update = program.Find("update");
  if (o.zero < 3 || o.mesh.data == 1 || update == nullptr) return;
  const Shards shards(*update, o.mesh.data, o.mesh.DataRankOf(program.rank), o.shard_param_frac);
  for (NamedGraph& plan : program.plans) {
    const Graph source = plan.graph;
    Sharded sharded(source, shards);
    RewritePlan(
        plan, "sharded_parameters", [&](Rewriting& r, int id) { return sharded.Replace(r, id); },
        [&](const Node& input, TensorType* type, InputInfo* info) { sharded.Divide(input, type, info); });
  }
}

}  // namespace

Pass ShardedParametersPass() { return {"sharded_parameters", ShardedParametersLegal, ApplyShardedParameters}; }

}  // namespace switchyard
