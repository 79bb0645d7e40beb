// The models by name: what `--model=` chooses from, with their sizes and the recipe that trains them well when the user
// says nothing else. Models of one family are a config struct whose fields are their settings, and one function that
// builds a graph; the family lists its variants and says what is its own (vit.h, mlp.h). Nobody outside models/ asks
// for a family by name: what differs is in ModelFamily, as data and functions. Thread-safe but for the graph that is
// built.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/data/dataset.h"
#include "core/graph/host_tensor.h"
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
struct ForeignFormat;  // models/foreign_format.h

// What the models of one kind have in common.
struct ModelFamily {
  std::string name;                         // "vit"
  std::string words;                        // "Vision Transformer"
  Content data = Content::kLabelledImages;  // what it learns from
  // The rows of ModelInfo::own, and what a config with such values does.
  std::vector<Setting> (*settings)();
  Status (*check)(const ResolvedModel& model);
  Value (*build)(const ResolvedModel& model, nn::Context& context, const Value& images);
  // Of one sample: (H, W, C), or (D, H, W, C) where it takes volumes. Null: a square of image_size pixels.
  Shape (*input_shape)(const ResolvedModel& model) = nullptr;
  // How many layers with weights of their own: a file with fewer weights is refused before so large a graph is built.
  int (*layers)(const ResolvedModel& model);
  // The family whose weights may be loaded alone below "backbone." of the graph, where from_file brings them; the rest
  // then starts afresh. "": none.
  std::string backbone;
  // A network that shares the backbone and has another head: how its tensors there begin, and what it is in words. Of
  // its weights only the backbone's are taken. "": none.
  std::string sibling_head, sibling;
  std::string head = "head";  // the classifier's parameters are <head>.weight and <head>.bias
  // Weights of a file, in any of the formats, under the graph's names and in its layouts; tensors of other names or
  // shapes pass through. Null: they are so already.
  HostTensors (*from_file)(HostTensors tensors) = nullptr;
  // Tables of positions of another size than `expected`, by name, are resampled; the rest stays. Null: there are none.
  void (*resample)(const std::map<std::string, TensorType>& expected, HostTensors* tensors) = nullptr;
  // Settings that may differ from those that weights were made with: where tables are resampled, or none depends on
  // them.
  std::vector<std::string> resampled;
  // Settings that decide shapes and nothing else: two values with the same shapes of weights are the same model.
  std::vector<std::string> of_shapes;
  const std::vector<ForeignFormat>& (*formats)();  // at least one; PublishedFormat says how runs publish weights
};

struct ModelInfo {
  std::string name;
  std::string help;  // one line for `switchyard models`
  const ModelFamily* family = nullptr;
  int image_size = 224, channels = 3, classes = 1000;
  SettingValues own;  // every setting of its own, with the value that is the model's
  // Settings of training that suit it, by name; the rest has the defaults of the table. global_batch_size is the batch
  // that its rates are meant for.
  SettingValues recipe;
  SettingValues preprocessing;  // mean and std of pixels in [0, 1]: one text, or one per channel
};

// All models, in the order in which they are shown.
const std::vector<ModelInfo>& Models();
std::vector<const ModelFamily*> Families();  // of them, each once

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

// What the model takes, without the batch: (image_size, image_size, channels), or (D, H, W, channels) of volumes.
Shape InputShape(const ResolvedModel& model);

// images (B, …InputShape) f32 → logits (B, classes), or (B, …, classes) where each place has its own.
Value BuildModel(const ResolvedModel& model, nn::Context& context, const Value& images);

// The parameters of a model by name, as BuildModel makes them; and all that files of weights hold: with its state.
std::map<std::string, TensorType> ParameterTypes(const ResolvedModel& model);
std::map<std::string, TensorType> WeightTypes(const ResolvedModel& model);
int64_t ParameterCount(const ResolvedModel& model);  // elements

}  // namespace switchyard
