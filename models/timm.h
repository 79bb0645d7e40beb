// timm's config.json, as its save_for_hf writes and its create_model("local-dir:…") reads it: the architecture and what
// is done to an image before it, in one file. Thread-safe: pure functions.
#pragma once

#include <string>
#include <vector>

#include "models/hugging_face.h"

namespace switchyard {

// Whether a config.json is timm's.
bool IsTimmConfig(const nlohmann::json& config);

// The architecture of the Vision Transformers that are listed here (vit_base_patch16_224 and so on, with their
// model_args). InvalidArgument names what is not among them.
StatusOr<ForeignModel> ReadTimmConfig(const nlohmann::json& config);
// pretrained_cfg as an evaluation transform. image_size and channels are the model's.
StatusOr<EvaluationTransform> ReadTimmTransform(const nlohmann::json& config, int image_size, int channels);

// `model` is a Vision Transformer.
nlohmann::json TimmConfig(const ResolvedModel& model, const EvaluationTransform& transform,
                          const std::vector<std::string>& class_names);

}  // namespace switchyard
