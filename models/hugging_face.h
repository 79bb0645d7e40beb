// What Hugging Face keeps beside the weights of any model: the classes in config.json, and preprocessor_config.json,
// what is done to an image before it. Ours are written so that transformers does as we do, theirs are read so that
// their weights run as they were meant to. Both come from files of others: each field is checked for its type and
// range, and what we cannot do is an error that names the field. Thread-safe: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/data/evaluation_transform.h"
#include "nlohmann/json.hpp"

namespace switchyard {

struct ForeignLabels {
  std::optional<int> count;        // of classes, where the file says it
  std::vector<std::string> names;  // by label; empty where there are none, or the meaningless LABEL_0, LABEL_1, …
};
StatusOr<ForeignLabels> ReadHuggingFaceLabels(const nlohmann::json& config);
// id2label and label2id. Classes without a name are called LABEL_<i>.
void AddHuggingFaceLabels(int classes, const std::vector<std::string>& class_names, nlohmann::json* config);

// ViTImageProcessor's settings. image_size and channels are the model's; nullopt: images of any size suit it.
StatusOr<EvaluationTransform> ReadHuggingFacePreprocessor(const nlohmann::json& preprocessor,
                                                          std::optional<int> image_size, int channels);

// The content of preprocessor_config.json with which ViTImageProcessor (of transformers 5, or the fast one of 4) does
// the same as we.
nlohmann::json HuggingFacePreprocessor(const EvaluationTransform& transform);

}  // namespace switchyard
