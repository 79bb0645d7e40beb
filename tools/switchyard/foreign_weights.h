// Weights that were not trained here, as settings see them: what config.json and preprocessor_config.json beside them
// decide. Thread-safe: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/data/evaluation_transform.h"
#include "core/settings/settings.h"
#include "core/train/weight_files.h"
#include "models/model.h"

namespace switchyard {

// Makes the settings those of the model that the weights were made for. Without --model, config.json decides all its
// sizes. With it, what the user chose has to agree: heads, for one, change no shape, and other weights would load in
// silence. The eps of layer norms and the stem of a residual network follow the weights whichever model is chosen,
// unless they were given, and without a config.json too. The size of images, where config.json has none, is that of
// preprocessor_config.json, whichever model is chosen. Returns the class names by label, if there are any; none of a
// model of which the weights are the backbone's alone. InvalidArgument names each setting that does not agree; without
// a config.json there is nothing to check.
StatusOr<std::vector<std::string>> AdoptArchitecture(const WeightSource& source, Settings& settings);

// Settings that the shapes of the weights alone decide, such as a stem: see ImpliedByWeights.
SettingValues ImpliedBy(const WeightSource& source, const ModelFamily& family);

// The names of the classes that weights were trained on, by label: a checkpoint's own, or `described`, those of
// AdoptArchitecture. Empty where there are none.
std::vector<std::string> ClassesOfWeights(const WeightSource& source, std::vector<std::string> described);

// How a classifier made for the classes `known` serves the classes `wanted`.
struct ClassMatch {
  std::vector<int> order;  // class i becomes what class order[i] was; empty: rows stay where they are
  std::string other;       // "row 2 meant cat and is now dog", of those that then get another meaning
};
// rows: of the classifier. By name where `known` has all of `wanted`. Nothing is said of classes without names, of
// which "class 0" is none.
ClassMatch MatchClasses(const std::vector<std::string>& known, const std::vector<std::string>& wanted, int rows);

// InvalidArgument where the weights are fewer than the model has layers: before a graph of that size is built.
Status CheckEnoughWeights(const WeightSource& source, const ResolvedModel& model);

// What was done to images when the weights were evaluated: a checkpoint's own record, or preprocessor_config.json.
// `settings` as AdoptArchitecture left them. nullopt where neither is there.
StatusOr<std::optional<EvaluationTransform>> TransformBeside(const WeightSource& source, const Settings& settings);

// What it says of pixels (filter, mean, deviation), for settings that nobody gave.
void FillFromTransform(const EvaluationTransform& transform, const WeightSource& source, Settings& settings);

}  // namespace switchyard
