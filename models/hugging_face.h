// What Hugging Face keeps beside weights: config.json, the architecture, and preprocessor_config.json, what is done to
// an image before it. Ours are written so that transformers loads a Vision Transformer of ours by from_pretrained,
// theirs are read so that their weights run as they were meant to. Both come from files of others: each field is
// checked for its type and range, and what we cannot do (another activation, no qkv bias) is an error that names the
// field. Thread-safe: pure functions.
#pragma once

#include <string>
#include <vector>

#include "core/data/evaluation_transform.h"
#include "models/vit.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// The architecture that a config.json describes, theirs or timm's.
struct ForeignModel {
  VisionTransformerConfig config;
  bool says_eps = false;                 // whether layer_norm_eps comes from the file
  std::vector<std::string> class_names;  // by label; empty where there are none, or the meaningless LABEL_0, LABEL_1, …
};
StatusOr<ForeignModel> ReadHuggingFaceConfig(const nlohmann::json& config);

// ViTImageProcessor's settings. image_size and channels are the model's.
StatusOr<EvaluationTransform> ReadHuggingFacePreprocessor(const nlohmann::json& preprocessor, int image_size,
                                                          int channels);

// The content of config.json. Classes without a name are called LABEL_<i>. InvalidArgument for a model that is not in
// transformers.
StatusOr<nlohmann::json> HuggingFaceConfig(const ResolvedModel& model, const std::vector<std::string>& class_names);

// The content of preprocessor_config.json with which ViTImageProcessor (of transformers 5, or the fast one of 4) does
// the same as we.
nlohmann::json HuggingFacePreprocessor(const EvaluationTransform& transform);

}  // namespace switchyard
