// What others keep beside their weights: config.json and preprocessor_config.json of Hugging Face and timm.
#include <set>

#include "core/base/json.h"
#include "models/foreign_format.h"
#include "models/hugging_face.h"
#include "models/timm.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard {

int FuzzForeign(const uint8_t* data, size_t size) {
  const auto json = ParseJson({reinterpret_cast<const char*>(data), size});
  if (!json.ok() || !json->is_object()) return 0;
  const auto model = ReadForeignConfig(*json);
  if (model.ok()) {
    // As it is chosen and compared.
    const auto chosen = ResolveModel({.name = model->name});
    if (chosen.ok()) Disagreements(*chosen, *model);
    ResolveModel({model->name, model->image_size, model->channels, model->classes, model->own}).IgnoreError();
  }
  ReadHuggingFaceLabels(*json).IgnoreError();
  for (const std::optional<int> image_size : {std::optional<int>(), std::optional(224)})
    ReadHuggingFacePreprocessor(*json, image_size, 3).IgnoreError();
  IsTimmConfig(*json);
  ReadTimmLabels(*json, 3).IgnoreError();
  ReadTimmTransform(*json, 224, 3).IgnoreError();
  return 0;
}

// What we write for the smallest model of each family, by each program's names.
std::vector<FuzzInput> ForeignSeeds() {
  std::vector<FuzzInput> seeds;
  std::set<const ModelFamily*> seen;
  for (const ModelInfo& info : Models()) {
    if (!seen.insert(info.family).second) continue;
    const auto model = ResolveModel({.name = info.name, .classes = 3});
    for (const std::string& name : FormatNames()) {
      const auto format = FormatOf(*info.family, name);
      if (!model.ok() || !format.ok() || (*format)->write == nullptr) continue;
      const auto files = (*format)->write(*model, EvaluationTransform(), {"cat", "dog", "zebra"});
      if (!files.ok()) continue;
      for (const nlohmann::json& json : {files->config, files->preprocessor}) {
        const std::string text = json.dump();
        if (json.is_object()) seeds.emplace_back(text.begin(), text.end());
      }
    }
  }
  return seeds;
}

}  // namespace switchyard
