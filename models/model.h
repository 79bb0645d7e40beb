// The models by name: what `--model=` chooses from, with their sizes and the recipe that trains them well when the user
// says nothing else. A model is a config struct whose fields are its settings, and one function that builds a graph; it
// lists its own variants (vit.h, mlp.h). This page knows what every model has, and puts the lists together. Thread-safe
// but for the graph that is built.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/nn/context.h"
#include "core/settings/setting.h"

namespace switchyard {

// What the user asks for; what is absent is left to the model.
struct ModelOptions {
  std::string name;
  std::optional<int> image_size;  // pixels
  std::optional<int> channels;
  std::optional<int> classes;
  SettingValues own;  // of the model's own settings, by name
};

struct ResolvedModel;

struct ModelInfo {
  std::string name;
  std::string help;    // one line for `switchyard models`
  std::string family;  // "vit", "mlp": whose names its weights have (models/weights.h)
  int image_size = 224, channels = 3, classes = 1000;
  SettingValues own;  // every setting of its own, with the value that is the model's
  // Settings of training that suit it, by name; the rest has the defaults of the table. global_batch_size is the batch
  // that its rates are meant for.
  SettingValues recipe;
  SettingValues preprocessing;  // mean and std of pixels in [0, 1]: one text, or one per channel
  // Of its family: the rows of `own`, and what a config with these values does.
  std::vector<Setting> (*settings)();
  Status (*check)(const ResolvedModel& model);
  Value (*build)(const ResolvedModel& model, nn::Context& context, const Value& images);
};

// All models, in the order in which they are shown.
const std::vector<ModelInfo>& Models();

// The models' own settings, each once, for flags, files and help; `by` is the model. Two families may share a name with
// the same type.
std::vector<Setting> ModelSettings();

struct ResolvedModel {
  const ModelInfo* info = nullptr;  // an entry of Models()
  int image_size = 0, channels = 0, classes = 0;
  SettingValues own;  // nothing left open
};

// Fills in the model's values. NotFound with a suggestion for an unknown name; InvalidArgument where the sizes do not
// fit together, or for a setting that the model does not have, unless that is 0.
StatusOr<ResolvedModel> ResolveModel(const ModelOptions& options);

// What weights have to agree with: name, image, channels, classes and the settings that are architecture.
nlohmann::json ArchitectureOf(const ResolvedModel& model);

// images (B, image_size, image_size, channels) f32 → logits (B, classes).
Value BuildModel(const ResolvedModel& model, nn::Context& context, const Value& images);

// The parameters of a model by name, as BuildModel makes them.
std::map<std::string, TensorType> ParameterTypes(const ResolvedModel& model);
int64_t ParameterCount(const ResolvedModel& model);  // elements

}  // namespace switchyard
