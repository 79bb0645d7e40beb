// Graphs that several tests look at: a model's forward pass and its whole training step; and what it says of wrong
// ones.
#pragma once

#include <functional>
#include <string>

#include "core/graph/graph.h"
#include "models/model.h"

namespace switchyard {

ResolvedModel Resolved(const ModelOptions& options);  // a test failure where it cannot be resolved

// images (batch, …) → output "logits".
Graph ForwardGraph(const ModelOptions& options, int batch, bool training = false);

// Forward, mean cross entropy (output "loss"), gradients, AdamW with clipping.
Graph TrainingGraph(const ModelOptions& options, int batch);

// Two residual blocks as a ResNet has them, the second with a norm on its other branch too: x (2, 4, 4, 3) and vectors
// (3) "gamma<i>", "beta<i>", "mean<i>", "variance<i>", i < 5 → outputs "y", "loss" and the gradients "dx", "dgamma<i>",
// "dbeta<i>". Training: with the batch's statistics, and outputs "next_mean<i>" and
// "next_variance<i>" instead of y.
Graph ResidualBlocksGraph(bool training);

// The text of the BuildError that `build` throws; "no error" without one.
std::string ErrorOf(const std::function<void()>& build);

int Count(const Graph& graph, const std::string& op);

}  // namespace switchyard
