// The optimizer's state in host memory (Ren et al. 2021, "ZeRO-Offload"): moments lie there, and the updates that read
// them run there, bucket by bucket. What a bucket of gradients holds for this rank goes to the host as soon as it is
// there, parameters when the step begins, the four scalars of the update (rate, counter, scale, whether all is finite)
// when they are known; new parameters come back. So a step that is left out after an overflow is left out there too,
// and nobody waits for the host but who reads the new parameters.
//
// A fraction of the state (offload_optim_frac, Colossal-AI's Gemini) is that of the buckets that are reduced first: the
// rest of the backward pass hides their way.
#include <map>
#include <set>

#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/optimizer.h"
#include "core/graph/ops/transfer.h"
#include "core/parallel/passes.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

constexpr int kOnDevice = -1;
constexpr size_t kScalars = 4;  // of an optimizer_update

// What this rank has of the gradients' sums, by bucket, of those whose state is to lie on the host.
std::map<Ref, int> OffloadedSums(const NamedGraph& plan, float fraction) {
  std::vector<std::pair<Ref, int64_t>> buckets;  // with their elements on all ranks
  if (plan.shared.empty()) {
    for (const Ref& flat : plan.flat_gradients) buckets.push_back({flat, plan.graph.type(flat).elements()});
  } else {
    for (const SharedBucket& bucket : plan.shared) buckets.push_back({bucket.sums, bucket.elements});
  }
  int64_t all = 0, held = 0;
  for (const auto& [sums, elements] : buckets) all += elements;
  std::map<Ref, int> offloaded;
  for (const auto& [sums, elements] : buckets) {
    if (static_cast<double>(held) >= static_cast<double>(fraction) * static_cast<double>(all)) break;
    held += elements;
    if (sums.node >= 0) offloaded.emplace(sums, static_cast<int>(offloaded.size()));
  }
  return offloaded;
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

class OffloadedUpdate {
 public:
  OffloadedUpdate(const Graph& source, std::map<Ref, int> sums) : source_(source), sums_(std::move(sums)) {
    for (const Node& node : source.nodes()) {
      if (!ops::IsOptimizerUpdate(node)) continue;
      const UpdateShape shape(node);
      for (size_t k = 0; k < shape.tensors; ++k) {
        if (shape.moments == 0 || BucketOf(node.inputs[shape.input(k) + 1]) == kOnDevice) continue;
        for (size_t m = 0; m < shape.moments; ++m)
          states_.insert(source.node(node.inputs[shape.input(k) + 2 + m].node).name);
      }
    }
  }

  void Move(const Node& input, TensorType*, InputInfo* info) const { info->host = states_.contains(input.name); }

  std::optional<std::vector<Value>> Replace(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    if (!ops::IsOptimizerUpdate(node)) return std::nullopt;
    const UpdateShape shape(node);
    std::map<int, std::vector<size_t>> by_bucket;
    for (size_t k = 0; k < shape.tensors; ++k)
      by_bucket[shape.moments > 0 ? BucketOf(node.inputs[shape.input(k) + 1]) : kOnDevice].push_back(k);
    if (by_bucket.size() == 1 && by_bucket.contains(kOnDevice)) return std::nullopt;
    std::vector<Value> values(node.outputs.size());
    for (const auto& [bucket, members] : by_bucket) Update(r, node, shape, bucket, members, &values);
    return values;
  }

 private:
  // The bucket that `gradient` is a part of; kOnDevice: none of those.
  int BucketOf(Ref gradient) const {
    for (;;) {
      const auto found = sums_.find(gradient);
      if (found != sums_.end()) return found->second;
      const Node& node = source_.node(gradient.node);
      if (!TraitsOf(node.op).view && !IsSlice(node)) return kOnDevice;
      gradient = node.inputs[0];
    }
  }

  // Where it is a part of a bucket, the same part of the bucket there.
  Value Stored(Rewriting& r, Ref ref) {
    Value& stored = stored_[ref];
    if (stored) return stored;
    const bool cut = !sums_.contains(ref) && BucketOf(ref) != kOnDevice;
    const Node& node = source_.node(ref.node);
    return stored = cut ? r.result.Clone(node, {Stored(r, node.inputs[0])})[0] : ops::Store(r.Map(ref), node.where);
  }

  // That of some tensors of `node`, which lie in one bucket; their values go to `values`.
  void Update(Rewriting& r, const Node& node, const UpdateShape& shape, int bucket, const std::vector<size_t>& members,
              std::vector<Value>* values) {
    const bool host = bucket != kOnDevice;
    const auto given = [&](Ref ref) { return host ? Stored(r, ref) : r.Map(ref); };
    std::vector<Value> inputs;
    for (size_t i = 0; i < kScalars; ++i) inputs.push_back(given(node.inputs[i]));
    Wanted wanted;
    for (const size_t k : members) {
      const size_t first = shape.input(k);
      for (size_t i = 0; i < 2; ++i) inputs.push_back(given(node.inputs[first + i]));
      for (size_t m = 0; m < shape.moments; ++m) inputs.push_back(r.Map(node.inputs[first + 2 + m]));
      for (size_t o = 0; o < shape.results; ++o) wanted.dtypes.push_back(node.outputs[k * shape.results + o].dtype);
    }
    const std::string name = host ? fmt::format("{}/on_host/{}", node.name, bucket) : node.name;
    const std::vector<Value> made = r.result.Add(node.op, inputs, node.attributes, wanted, node.where, name);
    for (size_t i = 0; i < members.size(); ++i) {
      for (size_t o = 0; o < shape.results; ++o) {
        const Value& value = made[i * shape.results + o];
        const bool is_moment = o >= 1 && o <= shape.moments;
        (*values)[members[i] * shape.results + o] = host && !is_moment ? ops::Fetch(value, node.where) : value;
      }
    }
  }

  const Graph& source_;
  const std::map<Ref, int> sums_;
  std::set<std::string> states_;  // the moments' names
  std::map<Ref, Value> stored_;   // by value of the source
};

Status OffloadLegal(const ProgramOptions& o) {
  if (!o.offload_optimizer || o.evaluation_only) return OkStatus();
  const bool by_norm = o.optimizer.kind == SY_OPTIMIZER_LAMB || o.optimizer.kind == SY_OPTIMIZER_LARS;
  if (by_norm && ((o.zero > 0 && o.mesh.data > 1) || o.mesh.tensor > 1)) {
    return Unimplemented(
        "LAMB and LARS, which add up norms over the ranks that share tensors, with --offload=optimizer: not there yet; "
        "use --offload=none, or --zero=0 and --tp=1");
  }
  return OkStatus();
}

void ApplyOffload(Program& program, const ProgramOptions& o) {
  if (!o.offload_optimizer) return;
  for (NamedGraph& plan : program.plans) {
    if (plan.finite.node < 0) continue;
    const Graph source = plan.graph;
    OffloadedUpdate update(source, OffloadedSums(plan, o.offload_optim_frac));
    RewritePlan(
        plan, "offload", [&](Rewriting& r, int id) { return update.Replace(r, id); },
        [&](const Node& input, TensorType* type, InputInfo* info) {
          update.Move(input, type, info);
          return true;
        });
  }
}

}  // namespace

Pass OffloadPass() { return {"offload", OffloadLegal, ApplyOffload}; }

}  // namespace switchyard
