#include "core/train/config.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/json.h"
#include "core/base/names.h"
#include "core/train/recipe.h"

namespace switchyard {

namespace {

template <typename T>
const T& Plain(const T& value) {
  return value;
}
// The double with the fewest digits that is this float: 0.9, not 0.8999999761581421.
double Plain(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

}  // namespace

nlohmann::ordered_json ToJson(const TrainConfig& config, std::initializer_list<SettingKind> kinds) {
  nlohmann::ordered_json json;
  const auto wanted = [&](SettingKind kind) { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); };
#define SY_FIELD(field, kind, help) \
  if (wanted(SettingKind::kind)) json[#field] = Plain(config.field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  return json;
}

StatusOr<TrainConfig> PropertiesFromJson(const nlohmann::json& json) {
  if (!json.is_object()) return InvalidArgument("expected a JSON object of settings, found {}", json.type_name());
  TrainConfig config;
  std::vector<std::string> known;
#define SY_FIELD(field, kind, help) known.push_back(#field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  for (const auto& [key, value] : json.items()) {
    bool found = false, read = false;
#define SY_FIELD(field, kind, help)                                                       \
  if (key == #field) {                                                                    \
    found = true;                                                                         \
    read = SettingKind::kind != SettingKind::kProperty || FromJson(value, &config.field); \
  }
    SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
    if (!found) {
      return InvalidArgument("unknown setting {}{}", Printable(key), DidYouMean(Printable(key), known));
    }
    if (!read) {
      return InvalidArgument("setting {}: {} has the wrong type or is out of range ({})", key, Excerpt(value),
                             value.type_name());
    }
  }
  return config;
}

Status CheckTrainConfig(const TrainConfig& c) {
  struct Range {
    const char* flag;
    double value, low, high;
  };
  constexpr double kMost = 2147483647.0;  // what 32 bits hold
  const Range ranges[] = {
      {"image_size", c.image_size * 1.0, 0, 8192},
      {"channels", c.channels * 1.0, 0, 4096},
      {"classes", c.classes * 1.0, 0, 1 << 24},
      {"patch", c.patch * 1.0, 0, 8192},
      {"width", c.width * 1.0, 0, 1 << 20},
      {"depth", c.depth * 1.0, 0, 4096},
      {"heads", c.heads * 1.0, 0, 1 << 16},
      {"mlp_ratio", c.mlp_ratio, 0, 1024},
      {"layer_norm_eps", c.layer_norm_eps, 0, 1},
      {"epochs", c.epochs * 1.0, 0, kMost},
      {"steps", static_cast<double>(c.steps), 0, kMost},
      {"batch_size", (c.batch_size == TrainConfig::kAutoBatch ? 0 : c.batch_size) * 1.0, 0, 1 << 24},
      {"global_batch_size", c.global_batch_size * 1.0, 0, kMost},
      {"accumulation", c.accumulation * 1.0, 1, 1 << 20},
      {"lr", c.lr, 0, kMost},
      {"weight_decay", c.weight_decay, -1, kMost},
      {"eps", c.eps, 0, kMost},
      {"clip", c.clip, -1, kMost},
      {"warmup_lr", c.warmup_lr, -1, kMost},
      {"min_lr", c.min_lr, -1, kMost},
      {"step_size", static_cast<double>(c.step_size), 0, kMost},
      {"base_batch_size", c.base_batch_size * 1.0, 1, kMost},
      {"scale_lr_factor", c.scale_lr_factor, 0, kMost},
      {"label_smoothing", c.label_smoothing, -1, 1},
      {"workers", c.workers * 1.0, 1, 1024},
      {"prefetch", c.prefetch * 1.0, 1, 1024},
      {"max_bad_samples", static_cast<double>(c.max_bad_samples), 0, kMost},
      {"color_jitter", c.color_jitter, 0, 1},
      {"crop_ratio", c.crop_ratio, c.crop_ratio == 0 ? 0 : 0.1, 1},
      {"train_size", static_cast<double>(c.train_size), 0, kMost},
      {"validation_size", static_cast<double>(c.validation_size), 0, kMost},
      {"ranks_per_device", c.ranks_per_device * 1.0, 0, 1 << 20},
      {"cpu_devices", c.cpu_devices * 1.0, 0, 4096},
      {"threads", c.threads * 1.0, 0, 4096},
      {"freeze_limit_ms", c.freeze_limit_ms * 1.0, 0, kMost},
      {"init_timeout_ms", c.init_timeout_ms * 1.0, 1, kMost},
      {"bucket_mb", c.bucket_mb, 1e-3, 1e6},
      {"log_every", static_cast<double>(c.log_every), 1, kMost},
      {"eval_every", c.eval_every * 1.0, 0, kMost},
      {"save_every", static_cast<double>(c.save_every), 0, kMost},
      {"keep", c.keep * 1.0, 0, kMost},
  };
  for (const Range& range : ranges) {
    if (range.value >= range.low && range.value <= range.high) continue;  // also false for not-a-number
    const std::string limit =
        range.value > range.high ? fmt::format("at most {}", range.high) : fmt::format("at least {}", range.low);
    return InvalidArgument("--{}: expected {}, found {}", range.flag, limit, range.value);
  }
  if (!(c.dropout >= 0 && c.dropout < 1) || !(c.drop_path >= 0 && c.drop_path < 1)) {
    return InvalidArgument("--dropout={} and --drop_path={}: expected probabilities in [0, 1)", c.dropout, c.drop_path);
  }
  if (c.precision != "fp32" && c.precision != "bf16") {
    return InvalidArgument("--precision: expected fp32 or bf16, found {}", c.precision);
  }
  return CheckRecipe(c);
}

}  // namespace switchyard
