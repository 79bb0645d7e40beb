// Training a classifier: what a batch holds, the loss, and what evaluation reads.
#pragma once

#include <functional>
#include <string>

#include "core/nn/context.h"
#include "core/parallel/program.h"

namespace switchyard {

// images (B, H, W, C) f32 → logits (B, classes)
using ModelFunction = std::function<Value(nn::Context&, const Value& images)>;

struct ClassificationOptions {
  int64_t batch = 0;  // per rank and micro-step
  int64_t height = 0, width = 0, channels = 0;
  float label_smoothing = 0;
};

// Inputs: "images" f32 (B, H, W, C), "labels" i32 (B), and where the model draws random numbers "sample_ids" i32 (B)
// and "step" i32 (2). Evaluation's outputs: "eval_loss" f32 (B) per sample, 0 where the label is negative, "eval_rank"
// i32 (B): how many classes score above the true one, and "eval_logits" f32 (B, classes).
Workload ClassificationWorkload(const std::string& name, const ModelFunction& model,
                                const ClassificationOptions& options);

}  // namespace switchyard
