// What a user would want to know of a run at its start, beside what contradicts or does nothing (core/train/recipe.h,
// without_effect.h): settings that cost much and bring little. Thread-safe.
#pragma once

#include <string>

#include "core/train/without_effect.h"
#include "tools/switchyard/run_setup.h"

namespace switchyard {

// Does the model have batch norms?
bool HasBatchNorms(const ResolvedModel& model);

// What is known of a run on this mesh and device; of its length nothing.
RunFacts FactsOf(const RunSetup& setup, const Mesh& mesh, Device& device);

// A warning for each setting that was chosen and changes nothing, but for one that this command uses itself.
void WarnOfSettingsWithoutEffect(const RunSetup& setup, const RunFacts& facts, const std::string& used = "");

// Of those, the settings of models of another kind alone, for commands that train nothing.
void WarnOfSettingsOfOtherTasks(const RunSetup& setup);

// And one for each that was typed and is of updates, which this command does not make. given: what the user said.
void WarnOfSettingsOfUpdates(const Settings& given, const std::string& command);

// Where the images of classification are squares of one size, smaller than the model takes, and the model could take
// them as they are: how they are enlarged, and what a step would cost without. "" elsewhere, and of models that cut
// images into patches, which would have to be smaller too.
std::string EnlargementHint(const RunSetup& setup);

// Of a model with batch norms whose batch --pp divides into micro-batches without having been told into how many: what
// that changes. "" elsewhere.
std::string MicroBatchHint(const RunSetup& setup);

}  // namespace switchyard
