// Loss scaling (Micikevicius et al. 2018, "Mixed precision training"): gradients of the loss times S stay above the
// smallest numbers of a half type; the update divides them by S again, before it measures and clips them. A static S
// is a number. A dynamic one is state on the device and moves after each update, by nodes of the plan that ends it:
//
//   overflow        the norm of the gradients is not finite; the update is left out
//   after overflow  growth = 0, hysteresis = min(hysteresis + 1, H); where it is H: S = max(S · backoff, minimum)
//   after others    growth += 1; where it is `interval`: S = min(S · growth_factor, maximum), growth = hysteresis = 0
//
// So the H-th overflow backs off, and every later one until S grows. With H = 1 this is torch.amp.GradScaler's rule;
// apex's with interval 2000 and maximum 2^24.
//
// All ranks decide alike without a collective of their own: the norm is of gradients that were summed over the ranks,
// and a sum with an infinity or NaN on any rank is an infinity or NaN on every rank. It also sees what a maximum of the
// ranks' own flags would not: finite gradients whose sum overflows.
//
// State, of a dynamic scale: "loss_scale" f32 (1), "loss_scale_growth" and "loss_scale_hysteresis" i32 (1), saved in
// checkpoints. Outputs of the plan that updates, f32 (1): "loss_scale_of_update", that of its gradients; of a dynamic
// one also "loss_scale_at_floor", 1 where it should have been lowered and is at its minimum.
#pragma once

#include <cstdint>

namespace switchyard {

struct LossScaleOptions {
  bool dynamic = false;
  float initial = 1;  // of a static scale: its value; 1 scales nothing
  float growth_factor = 2, backoff_factor = 0.5f;
  int64_t growth_interval = 1000;  // updates; counted exactly up to 2^24
  int64_t hysteresis = 2;          // H
  float minimum = 1, maximum = 4294967296.0f;
  bool scales() const { return dynamic || initial != 1; }
};

struct Pass;
// Is a state of this name one of these?
bool IsLossScaleState(const std::string& name);

Pass LossScalePass();  // before "gradients": the scale; NamedGraph::loss_scale
Pass ScalerPass();     // behind "update": its next value

}  // namespace switchyard
