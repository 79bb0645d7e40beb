// The rules by which several nodes become one kernel, as one pass over a graph. Private to fusion.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/op.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/passes/fusion.h"
#include "core/graph/passes/rewrite.h"

namespace switchyard {

// layout_fusion.cc: does the node move whole rows of the last axis? And for each row of its result the number of its
// row in the input, which has this shape, both without their first `skipped` axes, which stay.
bool MovesRows(const Node& node);
std::vector<int32_t> SourceRows(const Node& node, const Shape& input, size_t skipped = 0);

// window_fusion.cc: attention takes the numbers of the rows that are moved into windows before it, and back behind it.
Graph FoldWindows(Graph source, const CanPrepare& can_prepare);

// column_sums.cc: sums of rows beside what makes the rows.
Graph SumColumnsWhereTheyAreMade(Graph source, const CanPrepare& can_prepare);

// One fusion round's view of the source graph.
struct Pattern {
  const Graph& graph;
  IdLists users;
  switchyard::Readers readers;
  explicit Pattern(const Graph& g) : graph(g), users(g.Users()), readers(g) {}

  // The opcode of a pointwise node with one instruction, else -1.
  int Opcode(const Node& node) const;
  // Is it this operation of two values? A value with itself is a program over one input.
  bool Combines(const Node& node, int opcode) const { return Opcode(node) == opcode && node.inputs.size() == 2; }
  // What really produces `ref`, through reshapes.
  Ref Behind(Ref ref) const;
  // Is there more than one node that reads node `id` or its second computation, through reshapes?
  bool SeveralRead(int id) const;
  // Every reader of node `id`, through reshapes.
  std::vector<int> Readers(int id) const;
  // The one node that reads `ref`, or -1; its first computation where it has a second one that reads `ref` too.
  int OnlyReader(Ref ref) const;
  // Of nodes that read a value, `reader` and its second computation. Where the value is not computed again itself, what
  // joins its node with `reader` stands for both of them: it takes the memory that the value took.
  std::vector<int> Alike(std::vector<int> nodes, int reader) const;
  // Do node `reader` and its second computation alone read node `id`, each once, through reshapes?
  bool ReadOnlyBy(int id, int reader) const;
};

// Patterns that become one kernel. What a rule decides at a node may also settle a later one (`done`), or hold an
// earlier one back until then (`held`).
class KernelFusion {
 public:
  KernelFusion(const Graph& source, const CanPrepare& can_prepare);
  Graph Run();

 private:
  using Replacement = std::optional<std::vector<Value>>;
  Replacement Replace(Rewriting& r, int id);
  bool Exists(const std::string& op, const std::vector<Ref>& inputs, const Attributes& attributes,
              const Wanted& wanted) const;
  static std::vector<Value> Emit(Rewriting& r, const Node& like, const std::vector<Ref>& inputs,
                                 const Attributes& attributes, const Wanted& wanted);

  // matmul_fusion.cc
  void HoldBackProduct(int id);
  void HoldBackForResidual(int id, int side);
  Replacement MatmulWithResidual(Rewriting& r, int id);
  Replacement GradientOfActivation(Rewriting& r, int id);
  Replacement MatmulWithActivation(Rewriting& r, int id);
  Replacement WeightAndBiasGradient(Rewriting& r, int id);
  // layout_fusion.cc
  Replacement RowsMovedTwice(Rewriting& r, int id);
  // norm_fusion.cc
  Replacement NormOfResidualSum(Rewriting& r, int id);
  Replacement NormGradientWithResidual(Rewriting& r, int id);
  Replacement BatchNormWithActivation(Rewriting& r, int id);
  Replacement BatchNormGradientWithActivation(Rewriting& r, int id);

  const Graph& source_;
  const CanPrepare& can_prepare_;
  const Pattern pattern_;
  std::vector<std::vector<Value>> done_;  // replacements decided at an earlier node
  std::vector<bool> held_;                // comes later, with its only reader
  std::vector<int> product_of_;  // Mul by an activation's derivative, Add of a residual → the matmul that waits
  std::map<std::string, Value> row_tables_;  // of the result, by name
};

}  // namespace switchyard
