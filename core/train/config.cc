#include "core/train/config.h"

#include <map>

#include "core/base/names.h"

namespace switchyard {

nlohmann::ordered_json ToJson(const TrainConfig& config) {
  nlohmann::ordered_json json;
#define SY_FIELD(field, help) json[#field] = config.field;
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  return json;
}

StatusOr<TrainConfig> TrainConfigFromJson(const nlohmann::json& json) {
  if (!json.is_object()) return InvalidArgument("expected a JSON object of settings, found {}", json.type_name());
  TrainConfig config;
  std::vector<std::string> known;
#define SY_FIELD(field, help) known.push_back(#field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  for (const auto& [key, value] : json.items()) {
    bool found = false;
    try {
#define SY_FIELD(field, help)                        \
  if (key == #field) {                               \
    found = true;                                    \
    value.get_to(config.field);                      \
  }
      SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
    } catch (const nlohmann::json::exception&) {
      return InvalidArgument("setting {}: {} has the wrong type ({})", key, value.dump(), value.type_name());
    }
    if (!found) return InvalidArgument("unknown setting {}{}", key, DidYouMean(key, known));
  }
  return config;
}

}  // namespace switchyard
