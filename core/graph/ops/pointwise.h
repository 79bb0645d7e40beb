// Elementwise ops with numpy broadcasting. Each builder makes a one-instruction `pointwise` node (core/abi/ops.h); the
// fusion pass joins chains into longer programs. The result has the widest input dtype; arithmetic is f32.
#pragma once

#include <optional>

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

// A program over `inputs`; results have these dtypes (none given: the widest of the inputs) and the common broadcast
// shape.
std::vector<Value> Pointwise(const std::vector<Value>& inputs, const sy_pointwise_attributes& program,
                             const std::vector<DType>& dtypes, Where where = Where::current());
Value Unary(int op, const Value& x, Where where = Where::current());  // op: SY_PW_*
Value Binary(int op, const Value& a, const Value& b, Where where = Where::current());
Value Select(const Value& condition, const Value& a, const Value& b,
             Where where = Where::current());  // condition ≠ 0 ? a : b
Value Full(Graph& graph, const Shape& shape, float value, DType dtype = DType::kF32, Where where = Where::current());
Value Cast(const Value& x, DType dtype, Where where = Where::current());  // x itself where the dtype is already that
bool IsCast(const Graph& graph, const Node& node);                        // does it change the dtype and nothing else?
// The decomposition of an op of OpTraits::wide_sums whose sums over halves are f32, for who has them in half alone:
// those, and a cast. Nothing where its result is as wide as its operands.
std::vector<Value> CastSums(Graph& graph, const Node& node, const std::vector<Value>& inputs);
Value BroadcastTo(const Value& x, const Shape& shape, Where where = Where::current());

inline Value Add(const Value& a, const Value& b, Where w = Where::current()) { return Binary(SY_PW_ADD, a, b, w); }
inline Value Sub(const Value& a, const Value& b, Where w = Where::current()) { return Binary(SY_PW_SUB, a, b, w); }
inline Value Mul(const Value& a, const Value& b, Where w = Where::current()) { return Binary(SY_PW_MUL, a, b, w); }
inline Value Div(const Value& a, const Value& b, Where w = Where::current()) { return Binary(SY_PW_DIV, a, b, w); }
inline Value Minimum(const Value& a, const Value& b, Where w = Where::current()) { return Binary(SY_PW_MIN, a, b, w); }
Value Scale(const Value& x, float factor, Where where = Where::current());
Value AddScalar(const Value& x, float term, Where where = Where::current());
// At the end of the step `state` becomes `value` where condition (1) is not 0, and stays as it is elsewhere: what is
// written "when finite". The first input of the node is the state, over which its result may be written.
void AssignWhen(const Value& condition, const Value& state, const Value& value, Where where = Where::current());
// act: SY_ACTIVATION_*
Value Activation(const Value& x, int act, Where where = Where::current());

}  // namespace switchyard::ops
