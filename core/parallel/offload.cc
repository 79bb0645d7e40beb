// State in host memory (Ren et al. 2021, "ZeRO-Offload"). With `optimizer` moments lie there, and the updates that read
// them run there, bucket by bucket, or as formulas where ranks add up the norms of LAMB and LARS between. What a bucket
// of gradients holds for this rank goes to the host as soon as it is there, parameters when the step begins, the four
// scalars of the update (rate, counter, scale, whether all is finite) when they are known; new parameters come back. So
// a step that is left out after an overflow is left out there too, and nobody waits for the host but who reads the new
// parameters.
//
// With `all` parameters, their half copies and averages lie there too: each pass of a step fetches what it reads, which
// the scheduler brings as early as PlanOptions::prefetch_bytes allows, and updates write where they lie. In a pipeline,
// whose plan holds all micro-batches, each step of a stage does: else they would stay on the device between them.
//
// A fraction of either (offload_optim_frac, offload_param_frac, as Colossal-AI's Gemini has them) is that of the
// buckets that are reduced first: the rest of the backward pass hides the way of their gradients, and parameters that
// are read first are there.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/optimizer.h"
#include "core/graph/ops/structure.h"
#include "core/graph/ops/transfer.h"
#include "core/parallel/half_weights.h"
#include "core/parallel/passes.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

constexpr int kOnDevice = -1;
constexpr size_t kScalars = 4;  // of an optimizer_update

// A bucket of a plan that updates.
struct OffloadBucket {
  Ref sums;              // what this rank has of the gradients' sums; node −1: nothing
  int64_t elements = 0;  // on all ranks
};

std::vector<OffloadBucket> OffloadBucketsOf(const NamedGraph& plan) {
  std::vector<OffloadBucket> buckets;
  if (plan.shared.empty()) {
    for (const Ref& flat : plan.flat_gradients) buckets.push_back({flat, plan.graph.type(flat).elements()});
  } else {
    for (const SharedBucket& bucket : plan.shared) buckets.push_back({bucket.sums, bucket.elements});
  }
  return buckets;
}

// How many of the buckets, from the first on, hold that fraction of all elements.
int CountOf(const std::vector<OffloadBucket>& buckets, float fraction) {
  int64_t all = 0, held = 0;
  for (const OffloadBucket& bucket : buckets) all += bucket.elements;
  int count = 0;
  for (; count < static_cast<int>(buckets.size()); ++count) {
    if (static_cast<double>(held) >= static_cast<double>(fraction) * static_cast<double>(all)) break;
    held += buckets[static_cast<size_t>(count)].elements;
  }
  return count;
}

// Is the node a part of its input, or another shape of it?
bool IsPartOfInput(const Node& node) { return TraitsOf(node.op).view || IsSlice(node); }

// The bucket that a gradient is a part of; kOnDevice: none.
int BucketOf(const Graph& graph, const std::vector<OffloadBucket>& buckets, Ref gradient) {
  for (;;) {
    for (size_t b = 0; b < buckets.size(); ++b) {
      if (buckets[b].sums == gradient) return static_cast<int>(b);
    }
    const Node& node = graph.node(gradient.node);
    if (!IsPartOfInput(node)) return kOnDevice;
    gradient = node.inputs[0];
  }
}

// What parts of a value lead to.
Ref OriginOf(const Graph& graph, Ref ref) {
  while (IsPartOfInput(graph.node(ref.node))) ref = graph.node(ref.node).inputs[0];
  return ref;
}

// The operands of an update.
struct UpdateShape {
  explicit UpdateShape(const Node& node) {
    const auto& a = node.attributes.as<sy_optimizer_attributes>();
    moments = static_cast<size_t>(ops::OptimizerMoments(a));
    results = 1 + moments + (a.half_copies != 0 ? 1 : 0);
    tensors = (node.inputs.size() - kScalars) / (2 + moments);
  }
  size_t input(size_t tensor) const { return kScalars + tensor * (2 + moments); }  // of its parameter
  size_t moments, results, tensors;
};

// What lies on the host, by the plan that updates.
struct Offloaded {
  Offloaded(const NamedGraph& update, const ProgramOptions& o) {
    const Graph& graph = update.graph;
    const std::vector<OffloadBucket> buckets = OffloadBucketsOf(update);
    const int with_state = CountOf(buckets, o.offload_optim_frac);
    const int with_parameters = o.offload == Offload::kAll ? CountOf(buckets, o.offload_param_frac) : 0;
    std::set<std::string> moments;  // of which this rank has something
    for (const Node& node : graph.nodes()) {
      if (!node.name.starts_with("moment1/") && !node.name.starts_with("moment2/")) continue;
      if (node.input && (!node.input->part || node.input->part->begin < node.input->part->end))
        moments.insert(node.name);
    }
    const bool has_moments = !moments.empty();
    for (size_t i = 0; i < update.gradients.size(); ++i) {
      const std::string& name = graph.node(update.gradients[i].parameter.node).name;
      int bucket = kOnDevice;
      if (update.shared.empty()) bucket = BucketOf(graph, buckets, update.gradients[i].gradient);
      for (size_t b = 0; b < update.shared.size(); ++b) {
        for (const auto& member : update.shared[b].members) {
          if (member.tensor == i) bucket = static_cast<int>(b);
        }
      }
      if (bucket == kOnDevice) continue;
      if (bucket < with_parameters) inputs.insert({name, HalfWeightName(name), AverageOf(name)});
      if (bucket >= (has_moments ? with_state : with_parameters)) continue;
      updated_there.emplace(name, bucket);
      for (const std::string& moment : {"moment1/" + name, "moment2/" + name}) {
        if (moments.contains(moment)) inputs.insert(moment);
      }
    }
  }

  // The bucket with which a parameter, or a piece of one, is updated on the host.
  int BucketToUpdate(const Graph& graph, Ref parameter) const {
    const auto found = updated_there.find(graph.node(OriginOf(graph, parameter).node).name);
    return found == updated_there.end() ? kOnDevice : found->second;
  }

  std::set<std::string> inputs;              // that lie there
  std::map<std::string, int> updated_there;  // parameters with their buckets
};

// A plan some of whose inputs lie on the host: what runs on the device fetches what it reads of it, the backward pass
// anew, so that it need not be kept from the forward pass on.
class OffloadedPlan {
 public:
  // plan: as it is before, with a graph like `source`.
  OffloadedPlan(const NamedGraph& plan, const Graph& source, const Offloaded& offloaded)
      : source_(source), offloaded_(offloaded), buckets_(OffloadBucketsOf(plan)), steps_(plan.steps) {}

  std::optional<std::vector<Value>> Replace(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    while (step_ < steps_.size() && steps_[step_].node <= id) ++step_;
    if (ops::IsOptimizerUpdate(node)) return ReplaceUpdate(r, node);
    const auto on_host = [&](Ref input) { return IsOnHost(r.Map(input)); };
    if (IsAssign(node) && on_host(node.inputs[0]))
      return r.result.Clone(node, {r.Map(node.inputs[0]), OnHost(r, node.inputs[1])});
    std::vector<Value> inputs;
    if (IsOfUpdateThere(r, node)) {
      of_updates_there_.insert(id);
      for (const Ref& input : node.inputs) inputs.push_back(OnHost(r, input));
      return r.result.Clone(node, inputs);
    }
    if (std::none_of(node.inputs.begin(), node.inputs.end(), on_host)) return std::nullopt;
    for (const Ref& input : node.inputs) inputs.push_back(OnDevice(r, input, node));
    return r.result.Clone(node, inputs);
  }

 private:
  static bool IsOnHost(const Value& value) { return value.graph().node(value.ref().node).host; }

  // A step of an average that lies on the host towards the new parameter, or of an update whose moments lie there and
  // that is a formula, since ranks add up its norms?
  bool IsOfUpdateThere(Rewriting& r, const Node& node) const {
    if (node.phase != Phase::kUpdate) return false;
    if (FamilyOf(node.op) == "reduction")
      return std::any_of(node.inputs.begin(), node.inputs.end(), [&](Ref input) { return IsOnHost(r.Map(input)); });
    return FamilyOf(node.op) == "pointwise" && std::any_of(node.inputs.begin(), node.inputs.end(), [&](Ref input) {
             const Node& read = source_.node(input.node);
             return of_updates_there_.contains(input.node) ||
                    (read.input && read.input->role == Role::kState && offloaded_.inputs.contains(read.name));
           });
  }

  // A value of the source on the device, for `reader`.
  Value OnDevice(Rewriting& r, Ref ref, const Node& reader) {
    const Value value = r.Map(ref);
    if (!IsOnHost(value)) return value;
    const bool again = reader.phase == Phase::kForward && reader.repeats >= 0;
    Value& fetched = fetched_[{step_, again ? Phase::kBackward : reader.phase, ref}];
    return fetched ? fetched : fetched = ops::Fetch(value, reader.where);
  }

  // A value of the source on the host. Parts of what lies there, or goes there as a whole, are cut there.
  Value OnHost(Rewriting& r, Ref ref) {
    Value& value = on_host_[ref];
    if (value) return value;
    const Node& node = source_.node(ref.node);
    const bool goes_whole =
        std::any_of(buckets_.begin(), buckets_.end(), [&](const OffloadBucket& bucket) { return bucket.sums == ref; });
    const bool cut = !goes_whole && IsPartOfInput(node) && IsPartOfWhole(r, node.inputs[0]);
    if (cut) {
      const Value whole = OnHost(r, node.inputs[0]);
      return on_host_[ref] = r.result.Clone(node, {whole})[0];
    }
    const Value given = r.Map(ref);
    return on_host_[ref] = IsOnHost(given) ? given : ops::Store(given, node.where);
  }
  // Of a bucket's sums, or of an input that lies on the host?
  bool IsPartOfWhole(Rewriting& r, Ref ref) const {
    return BucketOf(source_, buckets_, ref) != kOnDevice || IsOnHost(r.Map(OriginOf(source_, ref)));
  }

  std::optional<std::vector<Value>> ReplaceUpdate(Rewriting& r, const Node& node) {
    const UpdateShape shape(node);
    std::map<int, std::vector<size_t>> by_bucket;
    for (size_t k = 0; k < shape.tensors; ++k)
      by_bucket[offloaded_.BucketToUpdate(source_, node.inputs[shape.input(k)])].push_back(k);
    std::vector<Value> values(node.outputs.size());
    for (const auto& [bucket, members] : by_bucket) Update(r, node, shape, bucket, members, &values);
    return values;
  }

  // That of some tensors of `node`, which lie in one bucket; their values go to `values`.
  void Update(Rewriting& r, const Node& node, const UpdateShape& shape, int bucket, const std::vector<size_t>& members,
              std::vector<Value>* values) {
    const bool host = bucket != kOnDevice;
    const auto given = [&](Ref ref) { return host ? OnHost(r, ref) : OnDevice(r, ref, node); };
    std::vector<Value> inputs;
    for (size_t i = 0; i < kScalars; ++i) inputs.push_back(given(node.inputs[i]));
    Wanted wanted;
    for (const size_t k : members) {
      for (size_t i = 0; i < 2 + shape.moments; ++i) inputs.push_back(given(node.inputs[shape.input(k) + i]));
      for (size_t o = 0; o < shape.results; ++o) wanted.dtypes.push_back(node.outputs[k * shape.results + o].dtype);
    }
    const std::string name = host ? fmt::format("{}/on_host/{}", node.name, bucket) : node.name;
    const std::vector<Value> made = r.result.Add(node.op, inputs, node.attributes, wanted, node.where, name);
    for (size_t i = 0; i < members.size(); ++i) {
      for (size_t o = 0; o < shape.results; ++o)
        (*values)[members[i] * shape.results + o] = made[i * shape.results + o];
    }
  }

  const Graph& source_;
  const Offloaded& offloaded_;
  const std::vector<OffloadBucket> buckets_;  // of this plan
  const std::vector<Ref> steps_;
  size_t step_ = 0;                                          // how many of them have begun
  std::map<std::tuple<size_t, Phase, Ref>, Value> fetched_;  // by step, and value of the source as on_host_
  std::map<Ref, Value> on_host_;
  std::set<int> of_updates_there_;  // nodes of the source
};

void ApplyOffload(Program& program, const ProgramOptions& o) {
  const NamedGraph* const update = program.Find("update");
  if (o.offload == Offload::kNone || update == nullptr) return;
  const Offloaded offloaded(*update, o);
  for (NamedGraph& plan : program.plans) {
    const Graph& source = plan.graph;
    OffloadedPlan rewritten(plan, source, offloaded);
    RewritePlan(
        plan, "offload", [&](Rewriting& r, int id) { return rewritten.Replace(r, id); },
        [&](const Node& input, TensorType*, InputInfo* info) {
          info->host = offloaded.inputs.contains(input.name);
          return true;
        });
  }
}

}  // namespace

Pass OffloadPass() { return {"offload", [](const ProgramOptions&) { return OkStatus(); }, ApplyOffload}; }

}  // namespace switchyard
