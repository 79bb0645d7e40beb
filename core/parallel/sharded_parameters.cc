// Parameters as shares (Rajbhandari et al. 2020, "ZeRO"): each rank of the data group has its pieces of a bucket's
// parameters alone, those that it updates (core/optim/shared_update.h).
//
// In stage 3 what reads a parameter reads a view of its bucket, which is gathered before and let go after its last use;
// the backward pass gathers it once more. The scheduler brings buckets as early as PlanOptions::prefetch_bytes allows.
// With a shard_param_frac below 1 (Colossal-AI's Gemini) the buckets of the model's first layers stay whole, whose
// gathering nothing of the forward pass could hide. A bucket whose parameters are read in a half type alone is gathered
// in that type, from pieces that are rounded before: half the bytes, and no rank has half copies.
//
// In all stages nobody reads the f32 elements of such a bucket, so that ranks have pieces of them; of what is not
// gathered where it is read they have the half copies whole, which the update gathers.
#include <algorithm>
#include <map>
#include <memory>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/parallel/half_weights.h"
#include "core/parallel/passes.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// The buckets whose parameters are pieces: with `zero` 3 the first ones, until they hold `fraction` of all elements,
// which are gathered where they are read; and those that are read in half.
class Shards {
 public:
  Shards(const NamedGraph& update, const SharedUpdate& shared, int zero, float fraction) : shared_(shared) {
    int64_t all = 0, held = 0;
    for (const SharedBucket& bucket : update.shared) all += bucket.elements;
    for (size_t b = 0; b < update.shared.size(); ++b) {
      const SharedBucket& bucket = update.shared[b];
      const bool gathered =
          zero == 3 && static_cast<double>(held) < static_cast<double>(fraction) * static_cast<double>(all);
      held += bucket.elements;
      if (!gathered && !bucket.read_in_half) continue;
      for (const auto& [tensor, start] : bucket.members) {
        const std::string& name = update.graph.node(update.gradients[tensor].parameter.node).name;
        members_[name] = {b, start, gathered};
        names_[b].push_back(name);
      }
    }
  }

  struct Member {
    size_t bucket = 0;
    int64_t start = 0;
    bool gathered = false;  // where it is read
  };
  const Member* Find(const std::string& parameter) const {
    const auto found = members_.find(parameter);
    return found == members_.end() ? nullptr : &found->second;
  }
  const SharedBucket& BucketOf(const Member& member) const { return shared_.buckets[member.bucket]; }
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
  // half: of half copies.
  Sharded(const Graph& source, const Shards& shards, DType half) : source_(source), shards_(shards), half_(half) {}

  // False: a half copy that nobody has.
  bool Divide(const Node& input, TensorType* type, InputInfo* info) const {
    const Read read = ReadOf(input);
    if (read.member == nullptr) return true;
    if (read.copy) return !read.member->gathered;
    const SharedUpdate& shared = shards_.shared();
    const Piece piece = PieceOf(shards_.BucketOf(*read.member), read.member->start, type->elements(), shared);
    info->part = PartOfPiece(piece, type->shape, info->part, shared);
    type->shape = {std::max<int64_t>(1, piece.elements)};
    return true;
  }

  std::optional<std::vector<Value>> Replace(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    std::vector<Value> inputs;
    bool reads = false;
    for (const Ref& input : node.inputs) {
      const Read read = ReadOf(source_.node(input.node));
      const bool pieces = read.member != nullptr && (read.member->gathered || !read.copy);
      reads |= pieces;
      inputs.push_back(pieces ? Whole(r, input, read, node) : r.Map(input));
    }
    if (!reads) return std::nullopt;
    // What casts a parameter gets it in that type.
    if (ops::IsCast(source_, node) && inputs[0].type() == node.outputs[0]) return inputs;
    return r.result.Clone(node, inputs, WantedOf(node));
  }

  // Of the plan that makes half copies anew: leaves out those that nobody has.
  bool MakesCopyOfNobody(int id) const {
    const Node& node = source_.node(id);
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](const Ref& input) {
      const Read read = ReadOf(source_.node(input.node));
      return read.member != nullptr && read.member->gathered;
    });
  }

 private:
  struct Read {
    const Shards::Member* member = nullptr;  // none: an input that stays whole
    std::string prefix;                      // of the inputs that are read: averages', or none
    bool copy = false;                       // it is the half copy
  };
  Read ReadOf(const Node& input) const {
    if (!input.input) return {};
    if (input.input->average) return {shards_.Find(input.name.substr(AverageOf("").size())), AverageOf("")};
    if (input.input->role == Role::kParameter) return {shards_.Find(input.name), ""};
    const std::string copied = CopiedBy(input);
    return copied.empty() ? Read() : Read{shards_.Find(copied), "", true};
  }

  // What is computed again in the backward pass belongs to it.
  Value Whole(Rewriting& r, const Ref& input, const Read& read, const Node& reader) {
    const Shards::Member& member = *read.member;
    const bool backward = reader.phase != Phase::kForward || reader.repeats >= 0;
    Value& gathered = gathered_[{member.bucket, backward}];
    if (!gathered) gathered = Gather(r.result, member.bucket, read.prefix, backward ? "backward" : "forward");
    const TensorType& type = source_.type(input);
    const Value whole = ops::Reshape(ops::Slice(gathered, 0, member.start, type.elements()), type.shape);
    return read.copy ? ops::Cast(whole, type.dtype) : whole;
  }

  Value Gather(Graph& graph, size_t index, const std::string& prefix, const char* pass) const {
    const SharedUpdate& shared = shards_.shared();
    const SharedBucket& bucket = shared.buckets[index];
    const DType dtype = bucket.read_in_half ? half_ : DType::kF32;
    std::vector<std::pair<int64_t, Value>> held;
    for (size_t m = 0; m < bucket.members.size(); ++m) {
      const Value input = graph.FindInput(prefix + shards_.names(index)[m]);
      if (!input) continue;  // this plan reads other parameters of the bucket alone
      const Part& part = *graph.node(input.ref().node).input->part;
      const Piece piece = PieceOf(bucket, bucket.members[m].start, Elements(part.whole), shared);
      if (piece.elements > 0) held.push_back({piece.at, ops::Cast(input, dtype)});
    }
    return GatherBucket(graph, bucket, shared, held, dtype, fmt::format("parameters/{}/{}", index, pass));
  }

  const Graph& source_;
  const Shards& shards_;
  const DType half_;
  std::map<std::pair<size_t, bool>, Value> gathered_;  // by bucket, and whether for the backward pass
};

Status ShardedParametersLegal(const ProgramOptions& o) {
  if (!(o.shard_param_frac >= 0 && o.shard_param_frac <= 1))
    return InvalidArgument("--shard_param_frac={:g}: expected 0 to 1", o.shard_param_frac);
  return OkStatus();
}

void ApplyShardedParameters(Program& program, const ProgramOptions& o) {
  const NamedGraph* const update = program.Find("update");
  if (o.zero == 0 || o.mesh.data == 1 || update == nullptr) return;
  const Shards shards(*update, SharedUpdateOf(program, o, *update), o.zero, o.shard_param_frac);
  for (NamedGraph& plan : program.plans) {
    const Graph& source = plan.graph;
    Sharded sharded(source, shards, o.precision);
    RewritePlan(
        plan, "sharded_parameters",
        [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
          if (plan.name == "halves" && sharded.MakesCopyOfNobody(id)) return std::vector<Value>();
          return sharded.Replace(r, id);
        },
        [&](const Node& input, TensorType* type, InputInfo* info) { return sharded.Divide(input, type, info); });
  }
  std::erase_if(program.plans, [](const NamedGraph& plan) {
    return plan.name == "halves" && std::all_of(plan.graph.nodes().begin(), plan.graph.nodes().end(),
                                                [](const Node& node) { return node.input.has_value(); });
  });
}

}  // namespace

Pass ShardedParametersPass() { return {"sharded_parameters", ShardedParametersLegal, ApplyShardedParameters}; }

}  // namespace switchyard
