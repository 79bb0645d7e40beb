#include "core/train/mixed_precision.h"

#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"

namespace switchyard {
namespace {

constexpr char kDynamic[] = "dynamic";

// A loss scale multiplies the loss, and its reciprocal the gradients: both must be normal numbers.
bool IsScale(float scale) { return scale > 0 && std::isnormal(scale) && std::isnormal(1 / scale); }

struct Preset {
  const char* name;
  LossScaleOptions options;
  bool fixes_all, fixes_maximum;
};

const Preset& PresetNamed(const std::string& name) {
  static const Preset presets[] = {
      {"default", {.dynamic = true, .initial = 65536}, false, false},
      {"apex",
       {.dynamic = true, .initial = 65536, .growth_interval = 2000, .hysteresis = 1, .maximum = 16777216},
       true,
       true},
      {"torch", {.dynamic = true, .initial = 65536, .growth_interval = 2000, .hysteresis = 1}, true, false}};
  for (const Preset& preset : presets) {
    if (name == preset.name) return preset;
  }
  return presets[0];
}

StatusOr<LossScaleOptions> DynamicScale(const TrainConfig& c, const Preset& preset) {
  LossScaleOptions o = preset.options;
  Status status;
  const auto set = [&](const char* name, const auto& given, auto& value, bool fixed) {
    if (!given) return;
    if (fixed && *given != value) {
      const std::string whose = c.scaler_preset ? fmt::format("--scaler_preset={}", preset.name)
                                                : fmt::format("the preset {} of --amp=O2", preset.name);
      status.Update(
          InvalidArgument("--{0}={1:g} contradicts {2}, which has {3:g}; leave one of them out, or give "
                          "--scaler_preset=default with --{0}={1:g}",
                          name, static_cast<double>(*given), whose, static_cast<double>(value)));
    }
    value = *given;
  };
  set("init_scale", c.init_scale, o.initial, preset.fixes_all);
  set("growth_factor", c.growth_factor, o.growth_factor, preset.fixes_all);
  set("backoff_factor", c.backoff_factor, o.backoff_factor, preset.fixes_all);
  set("growth_interval", c.growth_interval, o.growth_interval, preset.fixes_all);
  set("hysteresis", c.hysteresis, o.hysteresis, preset.fixes_all);
  set("min_scale", c.min_scale, o.minimum, false);
  set("max_scale", c.max_scale, o.maximum, preset.fixes_maximum);
  SY_RETURN_IF_ERROR(status);
  if (!(o.growth_factor > 1) || !std::isfinite(o.growth_factor))
    return InvalidArgument("--growth_factor: expected above 1, found {:g}: the loss scale grows by it",
                           o.growth_factor);
  if (!(o.backoff_factor > 0 && o.backoff_factor < 1)) {
    return InvalidArgument("--backoff_factor: expected above 0 and below 1, found {:g}: the loss scale falls by it",
                           o.backoff_factor);
  }
  for (const auto& [name, scale] :
       {std::pair("min_scale", o.minimum), std::pair("init_scale", o.initial), std::pair("max_scale", o.maximum)}) {
    if (!IsScale(scale))
      return InvalidArgument("--{}: expected a loss scale from 1e-37 to 1e37, found {:g}", name, scale);
  }
  if (!(o.minimum <= o.initial && o.initial <= o.maximum)) {
    return InvalidArgument("--min_scale={:g}, --init_scale={:g}, --max_scale={:g}: expected in ascending order",
                           o.minimum, o.initial, o.maximum);
  }
  return o;
}

// nullopt: dynamic.
StatusOr<std::optional<float>> StaticScale(const std::string& text) {
  float scale = 0;
  if (text == kDynamic || text == "-1") return std::optional<float>();
  if (!absl::SimpleAtof(text, &scale) || !IsScale(scale))
    return InvalidArgument("--loss_scale: expected a number from 1e-37 to 1e37, or dynamic (or -1), found {}", text);
  return std::optional<float>(scale);
}

}  // namespace

const std::vector<const char*>& ScalerSettings() {
  static const auto& names =
      *new std::vector<const char*>{"scaler_preset",   "init_scale", "growth_factor", "backoff_factor",
                                    "growth_interval", "hysteresis", "min_scale",     "max_scale"};
  return names;
}

bool NeedsLossScale(const TrainConfig& c) { return c.precision == "fp16" && c.amp != "O3"; }

bool HasUsualLossScale(const TrainConfig& c) { return NeedsLossScale(c) && c.loss_scale == kDynamic; }

bool DependsOnDevice(const TrainConfig& c) { return c.amp == "on" || (NeedsLossScale(c) && !c.loss_scale); }

void ResolveMixedPrecision(std::optional<double> static_loss_scale, TrainConfig* c) {
  if (!DependsOnDevice(*c)) return;
  if (c->amp == "on") c->amp = static_loss_scale ? "O2" : "O1";
  if (c->precision == "fp16" && !c->loss_scale)
    c->loss_scale = static_loss_scale ? fmt::format("{:g}", *static_loss_scale) : kDynamic;
}

StatusOr<MixedPrecision> MixedPrecisionOf(const TrainConfig& config, std::optional<double> static_loss_scale) {
  TrainConfig c = config;
  ResolveMixedPrecision(static_loss_scale, &c);
  MixedPrecision m;
  const std::string level = c.amp.value_or(c.precision == "fp32" ? "O0" : "O1");
  if (level == "O0" && c.precision != "fp32") {
    return InvalidArgument("--amp=O0 computes in fp32, and --precision={}; leave one of them out", c.precision);
  }
  if (level != "O0" && c.precision == "fp32") {
    return InvalidArgument(
        "--amp={} computes in a half type, and --precision=fp32; give --precision=fp16 or bf16, or "
        "--amp=O0",
        level);
  }
  if (level != "O0") {
    m.half = c.precision == "fp16" ? DType::kF16 : DType::kBF16;
    m.level = level == "O3" ? AmpLevel::kO3 : level == "O2" ? AmpLevel::kO2 : AmpLevel::kO1;
  }
  const bool half_model = level == "O2" || level == "O3";
  if (c.keep_batchnorm_fp32 && !half_model) {
    return InvalidArgument(
        "--keep_batchnorm_fp32 is about a model in a half type, and with --amp={} norms compute in "
        "fp32 anyway; leave it out, or give --amp=O2",
        level);
  }
  if (c.residual_precision == "half" && level == "O0") {
    return InvalidArgument(
        "--residual_precision=half is about products in a half type, and --precision=fp32 has none; leave it out, or "
        "give --precision=bf16 or fp16");
  }
  if (c.residual_precision == "f32" && half_model) {
    return InvalidArgument(
        "--residual_precision=f32 contradicts --amp={}, whose model is in the half type; leave it out, or give "
        "--amp=O1",
        level);
  }
  m.residuals_in_half = level == "O1" && c.residual_precision == "half";
  m.norms_in_f32 = c.keep_batchnorm_fp32.value_or(level != "O3");

  if (c.num_losses != 1) {
    return InvalidArgument("--num_losses={}: every model here has one loss, which has the one loss scale; leave it out",
                           c.num_losses);
  }
  std::optional<float> fixed = 1;
  if (c.loss_scale) {
    SY_ASSIGN_OR_RETURN(fixed, StaticScale(*c.loss_scale));
  }
  if (fixed) {
    m.loss_scale.initial = *fixed;
    return m;
  }
  m.preset = c.scaler_preset.value_or(level == "O2" ? "apex" : "default");
  SY_ASSIGN_OR_RETURN(m.loss_scale, DynamicScale(c, PresetNamed(m.preset)));
  return m;
}

std::string Text(const MixedPrecision& m, bool resumes) {
  std::string text = "fp32";
  if (m.half != DType::kF32) {
    text = fmt::format("{} (O{}), {}{}fp32 master weights", m.half == DType::kF16 ? "fp16" : "bf16",
                       static_cast<int>(m.level), m.level == AmpLevel::kO1 || !m.norms_in_f32 ? "" : "norms in fp32, ",
                       m.residuals_in_half ? "half residuals, " : "");
  }
  if (m.loss_scale.dynamic) {
    text += fmt::format(", dynamic loss scale from {}{:g} ({})", resumes ? "the checkpoint's, else " : "",
                        m.loss_scale.initial, m.preset);
  } else if (m.loss_scale.scales()) {
    text += fmt::format(", loss scale {:g}", m.loss_scale.initial);
  }
  return text;
}

}  // namespace switchyard
