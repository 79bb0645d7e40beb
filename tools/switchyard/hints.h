// What a user would want to know of a run at its start, beside what contradicts or does nothing (core/train/recipe.h,
// without_effect.h): settings that cost much and bring little. Thread-safe.
#pragma once

#include <string>

#include "tools/switchyard/run_setup.h"

namespace switchyard {

// Does the model have batch norms?
bool HasBatchNorms(const ResolvedModel& model);

// A warning for each setting that was chosen and belongs to models of another kind; train warns of more.
void WarnOfSettingsOfOtherTasks(const RunSetup& setup);

// And one for each that was chosen and is of updates, which this command does not make.
void WarnOfSettingsOfUpdates(const RunSetup& setup, const std::string& command);
// A warning where --powersgd_compression was chosen and a run of so many updates ends before it begins.
void WarnOfCompressionThatNeverBegins(const RunSetup& setup, int64_t updates);

// Where the images of classification are squares of one size, smaller than the model takes, and the model could take
// them as they are: how they are enlarged, and what a step would cost without. "" elsewhere, and of models that cut
// images into patches, which would have to be smaller too.
std::string EnlargementHint(const RunSetup& setup);

}  // namespace switchyard
