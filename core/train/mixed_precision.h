// Mixed precision of a run, from its settings: the half type, the level of apex.amp, and the loss scale with its
// presets. Thread-safe: pure functions.
//
//   preset    initial  growth  backoff  interval  hysteresis  minimum  maximum
//   default   2^16     2       0.5      1000      2           1        2^32
//   apex      2^16     2       0.5      2000      1           1        2^24
//   torch     2^16     2       0.5      2000      1           1        2^32
//
// apex is apex.amp's, and that of O2 unless another is given; torch is torch.amp.GradScaler's.
//
// A single parameter changes the preset `default`; beside another preset it is an error where it says something else,
// except for the minimum (and the maximum of torch), which those leave open.
#pragma once

#include <string>
#include <vector>

#include "core/graph/passes/autocast.h"
#include "core/parallel/loss_scaling.h"
#include "core/train/config.h"

namespace switchyard {

struct MixedPrecision {
  DType half = DType::kF32;  // of products; kF32: O0
  AmpLevel level = AmpLevel::kO1;
  bool norms_in_f32 = true;
  bool residuals_in_half = false;  // chosen at O1; O2 and O3 have them so anyway
  LossScaleOptions loss_scale;
  std::string preset;  // of a dynamic loss scale
};

// Does the precision need a loss scale? fp16, but for O3, which scales nothing unless it is told to.
bool NeedsLossScale(const TrainConfig& config);
// Is the loss scale the dynamic one that ResolveMixedPrecision gives to such a precision, rather than one of the
// user's? A static one, of either, does no harm to any precision.
bool HasUsualLossScale(const TrainConfig& config);

// Whether something of it is for the device to say: what a bare --amp means, or an open --loss_scale of fp16.
bool DependsOnDevice(const TrainConfig& config);
// Says it in the configuration: from then on every device gives the same run. static_loss_scale: DeviceInfo's of the
// device that computes. Where it has one (npu), that is what an open --loss_scale of fp16 means, and a bare --amp is
// O2; elsewhere the scale is dynamic and --amp is O1.
void ResolveMixedPrecision(std::optional<double> static_loss_scale, TrainConfig* config);

// static_loss_scale as above; a configuration that was resolved does not ask for it. Settings that contradict each
// other are InvalidArgument and say what to do.
StatusOr<MixedPrecision> MixedPrecisionOf(const TrainConfig& config, std::optional<double> static_loss_scale = {});

// "fp16 (O2), norms in fp32, fp32 master weights, dynamic loss scale from 65536 (apex)". resumes: a scale that
// was kept goes on.
std::string Text(const MixedPrecision& precision, bool resumes = false);

// The settings that matter only to a dynamic loss scale.
const std::vector<const char*>& ScalerSettings();

}  // namespace switchyard
