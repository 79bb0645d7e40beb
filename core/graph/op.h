// The table of ops: all that is known about an op without knowing a device. Each op is defined once, in
// core/graph/ops/<family>.cc: its builder is declared in the family's header; its type rule, gradient, decomposition,
// cost and traits are entered here, and passes ask them instead of comparing names. RegisterOp adds ops from outside
// the tree. Read-only once graphs are built, and thread-safe then.
#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "core/graph/factors.h"
#include "core/graph/graph.h"

namespace switchyard {

struct Cost {
  double flops = 0;  // multiply and add count as two
  double bytes = 0;  // read and written, each tensor once
};

// What an op's type rule throws about inputs that do not fit; becomes a BuildError with op, shapes and source line.
class TypeMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A call of an op, as its type rule sees it. The helpers throw TypeMismatch.
struct Signature {
  const std::vector<TensorType>& inputs;
  const Attributes& attributes;
  const Wanted& wanted;

  const TensorType& operator[](size_t i) const { return inputs[i]; }
  const Shape& shape(size_t i) const { return inputs[i].shape; }
  int64_t dim(size_t i, int axis) const;  // of input i; negative counts from the end
  int rank(size_t i) const { return static_cast<int>(inputs[i].shape.size()); }

  void Require(bool fits, const char* problem) const;
  template <typename Say>
  requires std::is_invocable_r_v<std::string, Say>
  void Require(bool fits, const Say& problem) const {  // put into words where there is one
    if (!fits) throw TypeMismatch(problem());
  }
  void RequireInputs(size_t count) const;
  // The dtype asked for of result `o`, else `otherwise`.
  DType DTypeOr(DType otherwise, size_t o = 0) const;
  // The shape asked for; an op that cannot do without one refuses a call that asks for none.
  const Shape& WantedShape() const;
};

// How an op runs under mixed precision.
enum class Precision {
  kWidest,   // computes in f32 on whatever comes; its floating results have the widest floating dtype of its inputs
  kHalf,     // a product: the first `half_inputs` inputs and result 0 are half, what is added to it stays as it is
  kFull,     // floating inputs are made f32
  kReaders,  // reads whatever comes; result 0 is half where only half ops read it, directly or through kSelects
  kSelects,  // gives values of its inputs on, so that rounding before and after is the same; kWidest, but half where
             // only half ops read it and an input is half
  kBetween,  // gives what lies between neighbouring values of its inputs; as kSelects, at the price of rounding twice
};

struct OpTraits {
  bool structural = false;  // no kernel runs it: input, output, assign, reshape
  bool view = false;        // its result is its input's bytes under another shape
  bool collective = false;  // a collective plugin runs it
  bool transfer = false;    // a copy between the memory of the device and that of the host
  bool pointwise = false;   // each element of its results is made of one of each input, as they broadcast
  int moves = -1;           // the input whose elements it only moves, or adds up where they meet; -1: none
  bool one_dtype = false;   // all inputs must have the dtype of the result
  bool fused = false;       // one kernel for several ops, into which it decomposes: --compile=0 runs those
  bool wide_sums = false;   // result 0 is sums over halves that may be asked for in f32, without being rounded to half
  Precision precision = Precision::kWidest;
  int half_inputs = 0;
};

struct OpDefinition {
  std::string name;
  std::string summary;  // one line for `switchyard ops`
  // The types of the results.
  std::function<std::vector<TensorType>(const Signature& call)> infer;
  // Adds nodes for the gradients of `node`'s inputs to `graph`, given those of its outputs (none where an output does
  // not matter). wanted[i] tells whether input i needs one; returns one Value per input, none where not wanted or not
  // differentiable. nullptr: not differentiable.
  std::function<std::vector<Value>(Graph& graph, int node, const std::vector<Value>& dy,
                                   const std::vector<bool>& wanted)>
      gradient = nullptr;
  // Rebuilds the node from simpler ops: returns a Value per output, or nothing where this node is elementary. nullptr:
  // it always is.
  std::function<std::vector<Value>(Graph& graph, const Node& node, const std::vector<Value>& inputs)> decompose =
      nullptr;
  // FLOPs of one run; nullptr: one per output element.
  std::function<double(const Graph& graph, const Node& node)> flops = nullptr;
  // Bytes that one run reads and writes; nullptr: every tensor once.
  std::function<double(const Graph& graph, const Node& node)> bytes = nullptr;
  OpTraits traits = {};
  // The precision class where a node's attributes decide it; nullptr: that of the traits.
  std::function<Precision(const Node& node)> precision = nullptr;
  // Along which axes it may be split over ranks (core/graph/factors.h). None: it is gathered for.
  FactorRule factors = {};
  // Under which name its time is counted: a header of core/graph/ops, which the table fills in.
  std::string family = {};
};

// nullptr for a name that is no op.
const OpDefinition* FindOp(const std::string& name);
const std::map<std::string, OpDefinition>& AllOps();
// Adds an op from outside the tree; before the first graph is built. Throws BuildError where the name is taken or the
// definition has no type rule.
void RegisterOp(OpDefinition op);
// True for an op of RegisterOp: no plugin needs to know it, the reference included.
bool IsFromOutside(const std::string& op);

// The types of an op's results. Throws TypeMismatch, also for a name that is no op.
std::vector<TensorType> InferTypes(const std::string& op, const std::vector<TensorType>& inputs,
                                   const Attributes& attributes, const Wanted& wanted);
// The type rule of ops with one input and one result of its type.
std::vector<TensorType> SameType(const Signature& call);
// False for what comes ready from a plugin (Graph::Region).
bool HasInference(const std::string& op);

const OpTraits& TraitsOf(const std::string& op);
Precision PrecisionOf(const Node& node);
std::string FamilyOf(const std::string& op);  // "matmul", "pointwise", …; an op from outside without one: its own name
Cost CostOf(const Graph& graph, const Node& node);

// True for ops that need no kernel: input, output, assign, reshape.
bool IsStructural(const std::string& op);
// True for all_reduce and the other ops that a collective plugin runs.
bool IsCollective(const std::string& op);

}  // namespace switchyard
