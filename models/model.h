// The models by name: what `--model=` chooses from, with their sizes and the recipe that trains them well when the user
// says nothing else. A model is a config struct and one function that builds a graph (vit.h, mlp.h); this page lists
// them and fills in what is left open. Thread-safe but for the graph that is built.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/nn/context.h"

namespace switchyard {

// Layer norms of a Vision Transformer: what timm's weights were trained with, and transformers' default.
inline constexpr float kTimmEps = 1e-6f, kHuggingFaceEps = 1e-12f;

// What the user asks for. 0 (for the two rates: below 0) leaves it to the model.
struct ModelOptions {
  std::string name;
  int image_size = 0;  // pixels
  int channels = 0;
  int classes = 0;
  int patch = 0;  // pixels
  int width = 0;
  int depth = 0;
  int heads = 0;
  float mlp_ratio = 0;
  float layer_norm_eps = 0;
  float dropout = -1;
  float drop_path = -1;
};

// The training that suits a model; every value can be changed by a flag.
struct Recipe {
  int epochs = 300;
  int global_batch = 512;
  std::string optimizer = "adamw";
  float lr = 5e-4f;  // at global_batch; other batches scale it by --scale_lr
  float warmup_lr = 0, min_lr = 0;
  std::string schedule = "cosine";
  std::string warmup = "0.05";  // as --warmup: steps, epochs (20e) or a part of the run (0.3)
  float weight_decay = 0.05f;
  float clip = 0;  // global gradient norm; 0: none
  float label_smoothing = 0;
  std::string augmentation;  // as --augmentation; "" what suits the dataset
};

// (x/255 − mean)/std per channel; the last entry serves further channels.
struct Normalization {
  std::vector<float> mean = {0.485f, 0.456f, 0.406f}, std = {0.229f, 0.224f, 0.225f};  // ImageNet
};

struct ResolvedModel;

struct ModelInfo {
  std::string name;
  std::string help;       // one line for `switchyard models`
  std::string family;     // "vit", "mlp": whose names its weights have (models/weights.h)
  ModelOptions defaults;  // every field set that the model reads, the others left as "the model's": they are refused
  Recipe recipe;
  Normalization normalization;
  Status (*check)(const ModelOptions& options);
  Value (*build)(const ModelOptions& options, nn::Context& context, const Value& images);
};

// All models, in the order in which they are shown.
const std::vector<ModelInfo>& Models();

struct ResolvedModel {
  ModelOptions options;             // nothing left open
  const ModelInfo* info = nullptr;  // an entry of Models()
};

// Fills in the model's defaults. NotFound with a suggestion for an unknown name; InvalidArgument where the sizes do not
// fit together, or for one that the model does not read.
StatusOr<ResolvedModel> ResolveModel(const ModelOptions& options);

// images (B, image_size, image_size, channels) f32 → logits (B, classes).
Value BuildModel(const ResolvedModel& model, nn::Context& context, const Value& images);

// The parameters of a model by name, as BuildModel makes them.
std::map<std::string, TensorType> ParameterTypes(const ResolvedModel& model);
int64_t ParameterCount(const ResolvedModel& model);  // elements

}  // namespace switchyard
