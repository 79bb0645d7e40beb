#include "core/graph/op.h"

#include <set>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "core/base/names.h"
#include "core/graph/ops/families.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

std::map<std::string, OpDefinition>& Table() {
  static std::map<std::string, OpDefinition> table = [] {
    std::map<std::string, OpDefinition> ops;
    const std::pair<const char*, std::vector<OpDefinition> (*)()> families[] = {{"structure", StructureOps},
                                                                                {"matmul", MatmulOps},
                                                                                {"attention", AttentionOps},
                                                                                {"normalization", NormalizationOps},
                                                                                {"softmax", SoftmaxOps},
                                                                                {"loss", LossOps},
                                                                                {"pointwise", PointwiseOps},
                                                                                {"reduction", ReductionOps},
                                                                                {"layout", LayoutOps},
                                                                                {"random", RandomOps},
                                                                                {"optimizer", OptimizerOps},
                                                                                {"convolution", ConvolutionOps},
                                                                                {"collective", CollectiveOps},
                                                                                {"normalization", BatchNormOps},
                                                                                {"convolution", PoolingOps},
                                                                                {"transfer", TransferOps},
                                                                                {"orthonormalize", OrthonormalizeOps}};
    for (const auto& [family, of_family] : families) {
      for (OpDefinition& op : of_family()) {
        op.family = family;
        ops.emplace(op.name, std::move(op));
      }
    }
    return ops;
  }();
  return table;
}

// The same by hash: every pass looks up the op of every node several times.
absl::flat_hash_map<std::string_view, const OpDefinition*>& Index() {
  static absl::flat_hash_map<std::string_view, const OpDefinition*> index = [] {
    absl::flat_hash_map<std::string_view, const OpDefinition*> ops;
    for (const auto& [name, op] : Table()) ops.emplace(name, &op);
    return ops;
  }();
  return index;
}

std::set<std::string>& FromOutside() {
  static std::set<std::string> names;
  return names;
}

}  // namespace

int64_t Signature::dim(size_t i, int axis) const {
  const Shape& s = inputs[i].shape;
  return s.at(axis < 0 ? s.size() + axis : axis);
}

void Signature::Require(bool fits, const char* problem) const {
  if (!fits) throw TypeMismatch(problem);
}

void Signature::RequireInputs(size_t count) const {
  Require(inputs.size() == count, [&] { return fmt::format("expected {} inputs, found {}", count, inputs.size()); });
}

DType Signature::DTypeOr(DType otherwise, size_t o) const {
  return o < wanted.dtypes.size() ? wanted.dtypes[o] : otherwise;
}

const Shape& Signature::WantedShape() const {
  Require(wanted.shape.has_value(), "the result's shape must be given");
  return *wanted.shape;
}

const std::map<std::string, OpDefinition>& AllOps() { return Table(); }

const OpDefinition* FindOp(const std::string& name) {
  const auto found = Index().find(name);
  return found == Index().end() ? nullptr : found->second;
}

void RegisterOp(OpDefinition op) {
  if (!op.infer) throw BuildError(fmt::format("op {}: its definition has no type rule", op.name));
  const std::string name = op.name;
  const auto [entered, fresh] = Table().emplace(name, std::move(op));
  if (!fresh) throw BuildError(fmt::format("op {}: the name is taken", name));
  Index().emplace(entered->first, &entered->second);
  FromOutside().insert(name);
}

bool IsFromOutside(const std::string& op) { return FromOutside().contains(op); }

std::vector<TensorType> SameType(const Signature& call) {
  call.RequireInputs(1);
  return {call[0]};
}

bool HasInference(const std::string& op) { return op != "region"; }

std::vector<TensorType> InferTypes(const std::string& op, const std::vector<TensorType>& inputs,
                                   const Attributes& attributes, const Wanted& wanted) {
  const OpDefinition* definition = FindOp(op);
  if (definition == nullptr) {
    std::vector<std::string> known;
    for (const auto& [name, other] : Table()) known.push_back(name);
    throw TypeMismatch(fmt::format("there is no op of this name{}", DidYouMean(op, known)));
  }
  try {
    return definition->infer({inputs, attributes, wanted});
  } catch (const std::logic_error& error) {  // Attributes::as
    throw TypeMismatch(error.what());
  }
}

const OpTraits& TraitsOf(const std::string& op) {
  static const OpTraits ordinary;
  const OpDefinition* definition = FindOp(op);
  return definition == nullptr ? ordinary : definition->traits;
}

Precision PrecisionOf(const Node& node) {
  const OpDefinition* definition = FindOp(node.op);
  if (definition == nullptr) return Precision::kWidest;
  return definition->precision ? definition->precision(node) : definition->traits.precision;
}

std::string FamilyOf(const std::string& op) {
  const OpDefinition* definition = FindOp(op);
  return definition == nullptr || definition->family.empty() ? op : definition->family;
}

Cost CostOf(const Graph& graph, const Node& node) {
  Cost cost;
  if (IsStructural(node.op)) return cost;
  const OpDefinition* op = FindOp(node.op);
  if (op != nullptr && op->bytes) {
    cost.bytes = op->bytes(graph, node);
  } else {
    for (const Ref& input : node.inputs) cost.bytes += static_cast<double>(graph.type(input).bytes());
    for (const TensorType& output : node.outputs) cost.bytes += static_cast<double>(output.bytes());
  }
  if (op != nullptr && op->flops) {
    cost.flops = op->flops(graph, node);
  } else if (!node.outputs.empty()) {
    cost.flops = static_cast<double>(node.outputs[0].elements());
  }
  return cost;
}

bool IsStructural(const std::string& op) { return TraitsOf(op).structural; }
bool IsCollective(const std::string& op) { return TraitsOf(op).collective; }

}  // namespace switchyard
