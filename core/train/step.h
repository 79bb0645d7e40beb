// From a model to the graphs that a run needs: the training step (for each place in an accumulation round) and
// evaluation. This is where the passes meet, in this order: model and loss → autocast → gradients → data parallel →
// optimizer; the planner then decomposes, fuses and places.
#pragma once

#include <functional>

#include "core/graph/graph.h"
#include "core/nn/context.h"
#include "core/optim/optimizer.h"
#include "core/parallel/data_parallel.h"

namespace switchyard {

// images (B, H, W, C) f32 → logits (B, classes)
using ModelFunction = std::function<Value(nn::Context&, const Value& images)>;

struct StepOptions {
  int64_t batch = 0;  // per rank and micro-step
  int64_t height = 0, width = 0, channels = 0;
  float label_smoothing = 0;
  DType precision = DType::kF32;  // kBF16: autocast
  uint64_t seed = 42;
  int accumulation = 1;
  DataParallelOptions parallel;
  OptimizerOptions optimizer;
  int64_t table_length = 1;  // of the learning-rate table
  bool find_unused_parameters = false;
};

// Inputs: "images" f32 (B, H, W, C), "labels" i32 (B), and where the model draws random numbers "sample_ids" i32 (B)
// and "step" i32 (2). Outputs: "loss" f32 (1), the mean over this rank's micro-batch; with the update also "lr" and
// "grad_norm"; `places`: where the gradients lie then, unless null.
Graph BuildTrainingStep(const ModelFunction& model, const StepOptions& options, MicroStep micro_step,
                        std::vector<GradientPlace>* places = nullptr);

// Outputs: "eval_loss" f32 (B) per sample, 0 where the label is negative, and "eval_rank" i32 (B): how many classes
// score above the true one, and "eval_logits" f32 (B, classes).
Graph BuildEvaluation(const ModelFunction& model, const StepOptions& options);

}  // namespace switchyard
