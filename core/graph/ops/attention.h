// Scaled dot-product attention on packed projections.
#pragma once

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

// qkv (B, T, 3, H, D), bias (H, T, T) or none, mask (G, T, T) or none → (B, T, H, D). scale 0 means 1/√D.
Value Attention(const Value& qkv, const Value& bias = {}, const Value& mask = {}, float scale = 0,
                Where where = Where::current());

}  // namespace switchyard::ops
