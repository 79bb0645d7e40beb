// Factors: along which axes an op may be split over ranks, in one line in the manner of einsum. They are all that a
// sharding pass knows of an op.
//
//   b m k, b k n -> b m n     inputs, outputs; each name is an axis. A part that is given its share of every input with
//                             axis m computes its share of the outputs with axis m. What lacks the axis is given whole.
//                             An output that lacks it (k) is then a partial sum: the parts' results are to be added.
//   ... _, _ -> ... _         "..." stands for axes that the op does not tell apart, the same in the whole line; "_" is
//                             a dimension that stays whole, "_..." any number of them, a number one of that extent.
//   x (p h d) -> x p h d      a packed dimension: its axes, outermost first. Splitting h cuts it inside.
//   m k, k n, +n -> m n       an addend: where the split leaves a partial sum, one part takes it and the others zeros.
//   k m, k n -> m n, m =n     an output that lacks axis n and is no sum over it: every part has it whole. "=*": along
//                             every axis that it lacks.
//
// An axis may be cut anywhere: parts need be neither equal nor contiguous. The attributes of a part are those of the
// whole; what would need others is not an axis. An op without a line is gathered for and computed by every rank.
// Thread-safe: pure functions and values.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

// What an op's definition says: one line for all its nodes, or a function for what attributes and ranks decide, beside
// a line that shows people the most usual case.
class FactorRule {
 public:
  using Function = std::string (*)(const Graph& graph, const Node& node);
  FactorRule() = default;
  FactorRule(const char* line) : shown_(line) {}
  FactorRule(const char* shown, Function line_of) : shown_(shown), line_of_(line_of) {}
  explicit operator bool() const { return !shown_.empty(); }
  const std::string& shown() const { return shown_; }
  std::string LineOf(const Graph& graph, const Node& node) const { return line_of_ ? line_of_(graph, node) : shown_; }

 private:
  std::string shown_;
  Function line_of_ = nullptr;
};

struct Factors {
  struct Axis {
    std::string name;  // "_" where it stays whole
    int64_t extent = 0;
    bool whole() const { return name == "_"; }
  };
  using Dimension = std::vector<int>;  // indices of its axes, outermost first: their extents multiply to its own
  struct Operand {
    std::vector<Dimension> dimensions;
    bool added = false;        // inputs
    std::vector<int> same_on;  // outputs: the axes that it lacks without being a sum over them
  };
  std::vector<Axis> axes;
  std::vector<Operand> inputs, outputs;
};

// Where an axis lies in a tensor: dimension `dimension` is (outer, extent, inner), row-major, and `extent` is the axis.
struct AxisPlace {
  int dimension = 0;
  int64_t outer = 1, inner = 1;
};
// Nothing where the operand lacks the axis.
std::optional<AxisPlace> PlaceOf(const Factors& factors, const Factors::Operand& operand, int axis);
// Is this output of a part a sum that is still to be taken, where the node is split along `axis`?
bool IsPartial(const Factors& factors, const Factors::Operand& output, int axis);

// The line, read for tensors of these shapes. A line that does not fit them throws BuildError.
Factors ParseFactors(const std::string& line, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs);
// Nothing where the node's op has no factors. A line that does not fit throws BuildError with op and source line.
std::optional<Factors> FactorsOf(const Graph& graph, const Node& node);

}  // namespace switchyard
