// Moving elements: reshape (a view, never a kernel), transpose, slice, pad, roll, concat, gather, flip.
#pragma once

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard {

// These two may be places in memory instead of copies. (A reshape always is one: OpTraits::view.)
inline bool IsSlice(const Node& node) { return node.op == "slice"; }
inline bool IsConcat(const Node& node) { return node.op == "concat"; }

}  // namespace switchyard

namespace switchyard::ops {

using Where = std::source_location;

Value Reshape(const Value& x, const Shape& shape, Where where = Where::current());  // one extent may be -1
// Axis i of the result is axis axes[i] of x.
Value Transpose(const Value& x, const std::vector<int>& axes, Where where = Where::current());
// y[i] = x[start + i·step] on one axis, for `length` elements.
Value Slice(const Value& x, int axis, int64_t start, int64_t length, int64_t step = 1, Where where = Where::current());
// before[i] elements of `value` in front of axis i, after[i] behind it; none is negative.
Value Pad(const Value& x, const Shape& before, const Shape& after, float value = 0, Where where = Where::current());
Value Roll(const Value& x, const std::vector<int>& shift,
           Where where = Where::current());  // a shift per axis, as torch.roll
// The parts one behind the other along `axis` (negative: from the end); dtypes and other extents are equal.
Value Concat(const std::vector<Value>& parts, int axis, Where where = Where::current());
// table (V, …R), indices i32 (…I) → (…I, …R)
Value Gather(const Value& table, const Value& indices, Where where = Where::current());
// (…I), updates (…I, …R) → (rows, …R)
Value ScatterAdd(const Value& indices, const Value& updates, int64_t rows, Where where = Where::current());
// x (B, …), flips u8 (B): samples whose entry is not 0 are reversed along `axis`, 1 or more, as torch.flip does.
Value Flip(const Value& x, const Value& flips, int axis, Where where = Where::current());

}  // namespace switchyard::ops
