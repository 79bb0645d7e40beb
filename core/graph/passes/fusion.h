// Joins nodes into the larger kernels that a backend has, where `can_prepare` says that the fused kernel exists:
//   matmul + bias + activation · matmul + bias + residual sum · gradient of an activation behind a matmul · weight
//   gradient + bias gradient · residual sum + layer_norm · layer_norm gradient + the residual's gradient · batch norm +
//   residual sum + relu, and their gradients · a bias' gradient beside what makes the rows that it sums · two moves of
//   whole rows as one gather · attention within windows with the moves of rows around it · chains of elementwise ops
//   into one pointwise program.
#pragma once

#include "core/graph/passes/rewrite.h"

namespace switchyard {

Graph Fuse(Graph source, const CanPrepare& can_prepare);

}  // namespace switchyard
