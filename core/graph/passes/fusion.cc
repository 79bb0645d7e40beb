#include "core/graph/passes/fusion.h"

#include <algorithm>

#include "core/graph/passes/kernel_fusion.h"
#include "core/graph/passes/pointwise_chains.h"

namespace switchyard {

int Pattern::Opcode(const Node& node) const {
  if (node.op != "pointwise") return -1;
  const auto& p = node.attributes.as<sy_pointwise_attributes>();
  return p.instruction_count == 1 && p.output_count == 1 && p.outputs[0] == static_cast<int>(node.inputs.size())
             ? p.instructions[0].op
             : -1;
}

Ref Pattern::Behind(Ref ref) const {
  while (TraitsOf(graph.node(ref.node).op).view) ref = graph.node(ref.node).inputs[0];
  return ref;
}

bool Pattern::SeveralRead(int id) const {
  const std::span<const int> all = readers.Of(id);
  if (all.size() != 1) return all.size() > 1;
  return TraitsOf(graph.node(all[0]).op).view && SeveralRead(all[0]);
}

std::vector<int> Pattern::Readers(int id) const {
  std::vector<int> readers;
  for (const int user : users[id]) {
    if (TraitsOf(graph.node(user).op).view) {
      const auto further = Readers(user);
      readers.insert(readers.end(), further.begin(), further.end());
    } else {
      readers.push_back(user);
    }
  }
  return readers;
}

std::vector<int> Pattern::Alike(std::vector<int> nodes, int reader) const {
  std::erase_if(nodes, [&](int node) { return readers.First(node) != readers.First(reader); });
  return nodes;
}

bool Pattern::ReadOnlyBy(int id, int reader) const {
  std::vector<int> all = Readers(id);
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end() && Alike(all, reader).size() == all.size();
}

int Pattern::OnlyReader(Ref ref) const {
  int only = -1;
  for (const int user : users[ref.node]) {
    const Node& reader = graph.node(user);
    if (std::find(reader.inputs.begin(), reader.inputs.end(), ref) == reader.inputs.end()) continue;
    if (only >= 0 && readers.First(user) != readers.First(only)) return -1;
    if (only < 0) only = user;
  }
  return only;
}

KernelFusion::KernelFusion(const Graph& source, const CanPrepare& can_prepare)
    : source_(source),
      can_prepare_(can_prepare),
      pattern_(source),
      done_(source.size()),
      held_(source.size(), false),
      product_of_(source.size(), -1) {
  for (int id = 0; id < source.size(); ++id) HoldBackProduct(id);
}

Graph KernelFusion::Run() {
  return RemoveDeadNodes(Rewrite("fusion", source_, [this](Rewriting& r, int id) { return Replace(r, id); }));
}

KernelFusion::Replacement KernelFusion::Replace(Rewriting& r, int id) {
  if (!done_[id].empty()) return done_[id];
  const Node& node = source_.node(id);
  if (product_of_[id] >= 0 && node.repeats >= 0 && product_of_[node.repeats] == product_of_[id])
    return r.mapped[node.repeats];
  if (product_of_[id] >= 0)
    return pattern_.Combines(node, SY_PW_ADD) ? MatmulWithResidual(r, id) : GradientOfActivation(r, id);
  const bool view_of_held = TraitsOf(node.op).view && held_[pattern_.Behind(node.inputs[0]).node];
  if (held_[id] || view_of_held) return std::vector<Value>();
  for (const auto rule :
       {&KernelFusion::MatmulWithActivation, &KernelFusion::WeightAndBiasGradient, &KernelFusion::RowsMovedTwice,
        &KernelFusion::NormOfResidualSum, &KernelFusion::NormGradientWithResidual,
        &KernelFusion::BatchNormWithActivation, &KernelFusion::BatchNormGradientWithActivation}) {
    if (Replacement replacement = (this->*rule)(r, id)) return replacement;
  }
  return std::nullopt;
}

bool KernelFusion::Exists(const std::string& op, const std::vector<Ref>& inputs, const Attributes& attributes,
                          const Wanted& wanted) const {
  return Preparable(can_prepare_, op, source_, inputs, attributes, wanted);
}

std::vector<Value> KernelFusion::Emit(Rewriting& r, const Node& like, const std::vector<Ref>& inputs,
                                      const Attributes& attributes, const Wanted& wanted) {
  return r.result.Add(like.op, r.Map(inputs), attributes, wanted, like.where, like.name);
}

Graph Fuse(Graph source, const CanPrepare& can_prepare) {
  const Graph folded = FoldWindows(std::move(source), can_prepare);
  Graph joined = SumColumnsWhereTheyAreMade(KernelFusion(folded, can_prepare).Run(), can_prepare);
  return JoinPointwiseChains(std::move(joined), can_prepare);
}

}  // namespace switchyard
