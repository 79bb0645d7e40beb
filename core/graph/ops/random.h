// dropout and drop_path. The mask is a function of (key, sample, data step, micro-step, element), so nothing is stored
// for the backward pass and recomputation, resume and any world size draw the same mask. sample_ids (S) i32 and step
// (2) i32 are batch inputs of the graph.
#pragma once

#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

// key: Key(seed, HashName(node name)) of core/base/random.h. x holds S samples of equal size, outermost first. p = 0
// returns x.
Value Dropout(const Value& x, const Value& sample_ids, const Value& step, float p, uint64_t key,
              Where where = Where::current());
// Drops whole samples (stochastic depth, Huang et al. 2016).
Value DropPath(const Value& x, const Value& sample_ids, const Value& step, float p, uint64_t key,
               Where where = Where::current());

}  // namespace switchyard::ops
