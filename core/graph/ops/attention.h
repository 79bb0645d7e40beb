// Scaled dot-product attention on packed projections.
#pragma once

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

// qkv (B, T, 3, H, D), bias (H, T, T) or none, mask (G, T, T) or none → (B, T, H, D). scale 0 means 1/√D.
Value Attention(const Value& qkv, const Value& bias = {}, const Value& mask = {}, float scale = 0,
                Where where = Where::current());

// The same of windows that lie scattered in maps. rows (W, T) i32 is a permutation of the W·T tokens of a map: token t
// of window b is token rows[b mod W, t] of map ⌊b / W⌋, in qkv and in the result. A backend need not have it: fusion
// makes it where there is a kernel (core/graph/passes/window_fusion.cc).
Value WindowAttention(const Value& qkv, const Value& rows, const Value& bias = {}, const Value& mask = {},
                      float scale = 0, Where where = Where::current());

}  // namespace switchyard::ops
