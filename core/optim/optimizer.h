// The optimizer as a graph pass: adds to a step, behind its gradients, the norm, clipping, overflow check, learning
// rate and fused update of every parameter, and the averages of the weights. All of it runs on the device; the host
// only reads the logged scalars.
//
//   norm   = √(Σ g²) · u                                  over all gradients; u: inverse_scale, or 1
//   scale  = min(1, clip / (norm + 1e-6)) · u or u        as torch.nn.utils.clip_grad_norm_
//            u / max(1, norm / max_grad_norm)             LAMB (You et al. 2020), which has no epsilon here
//   finite = is_finite(norm)                              0: every parameter, moment and the counter keep their values
//   lr     = lr_table[min(update, T−1)] · layer_decay^(InputInfo::layers_above);  update += finite
//   ema    = ema + (1 − d)·(p' − ema), d = min(ema_decay, (1 + t)/(10 + t)), t the updates made, where finite
//
// Inputs it makes: "lr_table" f32 (T), constant, to be filled by LearningRateTable; "update" f32 (1), state, counts
// updates made (exact up to 2^24); "lr_places" f32 (T), constant; "moment1/<parameter>" and "moment2/<parameter>", f32,
// state, zero at first; "ema/<parameter>", f32, state, to be filled with the parameters' start. Outputs: "lr" (of the
// top layer) and "grad_norm" (before clipping), f32 (1). Not thread-safe. A gradient that is missing or of another
// shape throws BuildError.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/abi/ops.h"
#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/optim/shared_update.h"

namespace switchyard {

// Defaults are PyTorch's; LAMB's are those of its published code. core/abi/ops.h (optimizer_update) has the formulas.
//
// LAMB scales the step of each tensor by its trust ratio ‖p‖/‖u‖ only where the tensor decays: a weight_decay of 0
// means no trust ratio anywhere, unless use_nvlamb. LARS likewise.
struct OptimizerOptions {
  int kind = SY_OPTIMIZER_ADAMW;                    // SY_OPTIMIZER_*
  float weight_decay = 0.01f;                       // for parameters that decay (parameter_rules.h)
  float clip = 0;                                   // largest global gradient norm; 0: no clipping. Not of LAMB
  float momentum = 0;                               // SGD, LARS
  float dampening = 0;                              // SGD
  bool nesterov = false;                            // SGD, LARS
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;  // Adam, AdamW, LAMB; eps also LARS
  bool adam_w_mode = true;                          // LAMB: weight decay in the step, not in the gradient
  bool grad_averaging = true;                       // LAMB: m = β1·m + (1−β1)·g, else + g
  bool use_nvlamb = false;                          // LAMB: the trust ratio also without weight decay
  float max_grad_norm = 1;                          // LAMB: as clip
  float trust_coefficient = 1e-3f;                  // LARS
  float layer_decay = 1;                            // factor on the rate from each layer to the one below
  float ema_decay = 0;                              // of the averaged weights; 0: none are kept
  bool fused = true;                                // one update for many tensors, else one for each: the same bits
};

// "sgd", "adam", "adamw", "lamb", "lars" → SY_OPTIMIZER_*; else InvalidArgument with a suggestion.
StatusOr<int> ParseOptimizer(const std::string& name);

// "ema/<parameter>": where the average of a parameter is kept.
std::string AverageOf(const std::string& parameter);

// squares: Σ g² over all gradients, f32 (1), where the caller has a cheaper way (flat buckets) or the gradients given
// are a part; none: of those given. table_length: T ≥ 1. inverse_scale: f32 (1), what gradients of a
// scaled loss are multiplied by; none: 1. shared: with more than one rank, gradients lie in its buckets, `squares` is
// needed, and the bits are those of a rank that updates all, for optimizers that work element by element. Returns
// `finite`.
Value AddOptimizer(Graph& graph, const std::vector<ParameterGradient>& gradients, const Value& squares,
                   const OptimizerOptions& options, int64_t table_length, const Value& inverse_scale = {},
                   const SharedUpdate& shared = {}, Graph::Location where = Graph::Location::current());

}  // namespace switchyard
