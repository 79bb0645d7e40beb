// What another program has of a network: the names and the layout of its weights, and the JSON that it keeps beside
// them. A family of models lists the programs that have it (ModelFamily::formats); whoever reads or writes files of
// others asks here and knows no family. Thread-safe: plain data and pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/data/evaluation_transform.h"
#include "core/graph/host_tensor.h"
#include "models/model.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// The network that a config.json of others describes.
struct ForeignModel {
  const ModelFamily* family = nullptr;
  std::string name;  // the listed model of that size, or one of which every size is then set
  std::optional<int> image_size;  // none: weights suit images of any size
  int channels = 0, classes = 0;
  SettingValues own;  // the family's settings of which the file speaks
  // The same, of those that follow the weights whichever model is chosen: beside another value weights would load in
  // silence, or the user would have to know which one fits.
  SettingValues of_weights;
  std::vector<std::string> class_names;  // by label; empty where there are none, or only meaningless ones
};

// config.json and preprocessor_config.json; null: there is none.
struct ForeignFiles {
  nlohmann::json config, preprocessor;
};

// The shape of a weight in a file; nullopt where the file has none of that name.
using FindShape = std::function<std::optional<Shape>(const std::string& name)>;

// What stays null is not there, but for to_file: then files have the graph's names and layouts.
struct ForeignFormat {
  std::string name;           // "timm": of `export --names`
  std::string words;          // "Hugging Face"
  std::string head = "head";  // in files the classifier is <head>.weight and <head>.bias
  HostTensors (*to_file)(HostTensors parameters) = nullptr;
  bool (*has)(const ResolvedModel& model) = nullptr;  // does the program have it? Null: all of the family
  // Settings that weights of this naming imply where no config.json speaks.
  SettingValues (*implied)(const FindShape& shape) = nullptr;
  // It is this family's where this field of config.json says `kind`, or `kind` and more behind "_", or has it anywhere.
  std::string kind_field, kind;
  bool kind_anywhere = false;
  // InvalidArgument names the field that is wrong or that we cannot follow.
  StatusOr<ForeignModel> (*read)(const nlohmann::json& config) = nullptr;
  StatusOr<ForeignFiles> (*write)(const ResolvedModel& model, const EvaluationTransform& transform,
                                  const std::vector<std::string>& class_names) = nullptr;
  std::string (*loader)(const std::string& folder) = nullptr;  // the Python that loads what was written there
};

// Every family's, each name once, in the order of the models.
std::vector<std::string> FormatNames();
// InvalidArgument where the program has no such model.
StatusOr<const ForeignFormat*> FormatOf(const ModelFamily& family, const std::string& name);
// In which runs publish the model: the first of its family that has it.
const ForeignFormat& PublishedFormat(const ResolvedModel& model);

// Any config.json of others that some family reads. InvalidArgument names the field that is wrong.
StatusOr<ForeignModel> ReadForeignConfig(const nlohmann::json& config);

// Under which names the classifier's bias may be in a file.
std::vector<std::string> HeadBiasNames();

// The family's settings that weights imply by their names and shapes alone.
SettingValues ImpliedByWeights(const ModelFamily& family, const FindShape& shape);

// "--heads=4 where the file has 3", one for each that differs; "" where the chosen model is the one of the file, but
// for what resampled tables of positions make up for, and for ratios that make the same hidden widths.
std::string Disagreements(const ResolvedModel& chosen, const ForeignModel& found);

}  // namespace switchyard
