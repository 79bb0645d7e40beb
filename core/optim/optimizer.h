// The optimizer as a graph pass: adds to a step, behind its gradients, the norm, clipping, overflow check, learning
// rate and fused update of every parameter. All of it runs on the device; the host only reads the logged scalars.
//
//   norm   = √(Σ g²) · u                                  over all gradients; u: inverse_scale, or 1
//   scale  = min(1, clip / (norm + 1e-6)) · u or u        as torch.nn.utils.clip_grad_norm_
//   finite = is_finite(norm)                              0: every parameter, moment and the counter keep their values
//   lr     = lr_table[min(update, T−1)];  update += finite
//
// Inputs it makes: "lr_table" f32 (T), constant, to be filled by LearningRateTable; "update" i32 (1), state, counts
// updates made (exact up to 2^24); "moment1/<parameter>" and "moment2/<parameter>", f32, state, zero at first. Outputs:
// "lr" and "grad_norm" (before clipping), f32 (1). Not thread-safe. A gradient that is missing or of another shape
// throws BuildError.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/abi/ops.h"
#include "core/base/status.h"
#include "core/graph/graph.h"

namespace switchyard {

// Defaults are PyTorch's. core/abi/ops.h (optimizer_update) has the formulas.
struct OptimizerOptions {
  int kind = SY_OPTIMIZER_ADAMW;                    // SY_OPTIMIZER_*
  float weight_decay = 0.01f;                       // not for parameters whose InputInfo says weight_decay = false
  float clip = 0;                                   // largest global gradient norm; 0: no clipping
  float momentum = 0;                               // SGD
  float dampening = 0;                              // SGD
  bool nesterov = false;                            // SGD
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;  // Adam, AdamW
};

// "sgd", "adam", "adamw" → SY_OPTIMIZER_*; else InvalidArgument with a suggestion.
StatusOr<int> ParseOptimizer(const std::string& name);

struct ParameterGradient {
  Value parameter;  // an input of role kParameter, f32
  Value gradient;   // of the same shape, floating
};

// norm_inputs: tensors that hold every gradient element exactly once, for the norm, where that is cheaper than one by
// one (flat buckets); empty: the gradients themselves. table_length: T ≥ 1. inverse_scale: f32 (1), what gradients of a
// scaled loss are multiplied by; none: 1. Returns `finite`.
Value AddOptimizer(Graph& graph, const std::vector<ParameterGradient>& gradients, const std::vector<Value>& norm_inputs,
                   const OptimizerOptions& options, int64_t table_length, const Value& inverse_scale = {},
                   Graph::Location where = Graph::Location::current());

}  // namespace switchyard
