// What timm keeps beside the weights of any model: one config.json, as its save_for_hf writes and its
// create_model("local-dir:…") reads it, with the classes and, as pretrained_cfg, what is done to an image before it.
// Thread-safe: pure functions.
#pragma once

#include <string>
#include <vector>

#include "core/data/evaluation_transform.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// Whether a config.json is timm's.
bool IsTimmConfig(const nlohmann::json& config);

// model_args without the pooling, which has to be one of `pools`, there and in the config itself. An empty object where
// there are none.
StatusOr<nlohmann::json> ReadTimmArguments(const nlohmann::json& config, const std::vector<std::string>& pools);
// label_names; empty where there are none.
StatusOr<std::vector<std::string>> ReadTimmLabels(const nlohmann::json& config, int classes);
// pretrained_cfg and what AddTimmTransform put beside it, as an evaluation transform. image_size and channels are the
// model's.
StatusOr<EvaluationTransform> ReadTimmTransform(const nlohmann::json& config, int image_size, int channels);

// Gives a config its pretrained_cfg: `fields`, and those that say the transform. How an odd remainder is cropped stands
// beside it where it is not timm's way: timm passes over that, we read it. fixed_input_size: does timm's model take the
// images' size?
void AddTimmTransform(const EvaluationTransform& transform, const nlohmann::json& fields, nlohmann::json* config,
                      bool fixed_input_size = true);

}  // namespace switchyard
