// The program of vit_micro on two images, for tests that want a whole training step.
#pragma once

#include "core/parallel/program.h"
#include "core/train/classification.h"
#include "models/model.h"

namespace switchyard {

inline StatusOr<Program> SmallProgram(int accumulation = 1) {
  ModelOptions options;
  options.name = "vit_micro";
  SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(options));
  ClassificationOptions batch;
  batch.batch = 2;
  batch.height = batch.width = model.image_size;
  batch.channels = model.channels;
  ProgramOptions program;
  program.accumulation = accumulation;
  const auto build = [=](nn::Context& context, const Value& images) { return BuildModel(model, context, images); };
  return BuildProgram(ClassificationWorkload(options.name, build, batch), program, 0);
}

}  // namespace switchyard
