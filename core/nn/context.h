// What a model needs while its graph is built: the graph, whether it is built for training, the seed of its dropout
// masks, and parameters by name. Layers (core/nn/layers.h) are functions over a Context; nothing of it outlives the
// building. Parameters carry the names that timm gives them, by Graph::Scope: inside Scope "blocks.0" and layer
// "norm1", Parameter(context, "weight", …) is "blocks.0.norm1.weight".
//
// Not thread-safe (one thread builds one graph). Wrong shapes throw BuildError with the source line of the model.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>

#include "core/graph/graph.h"

namespace switchyard::nn {

using Where = std::source_location;

struct Context {
  explicit Context(Graph& graph, bool training = false, uint64_t seed = 42)
      : graph(graph), training(training), seed(seed) {}
  Graph& graph;
  bool training;  // false: dropout and drop_path are left out
  uint64_t seed;
  std::string averages;  // not "": parameter P is the state averages + P instead, an average of its values
  // Batch inputs that dropout reads, named "sample_ids" i32 (B) (the global index of each sample) and "step" i32 (2)
  // (data step, micro-step). None until the first layer that needs them makes them.
  Value sample_ids, step;
};

// The trained input `name` of the current scope, f32; made at the first use, the same one at later uses (shared
// weights). weight_decay: false for biases, norms, tokens and position tables.
Value Parameter(Context& context, const std::string& name, const Shape& shape, const Initializer& initializer,
                bool weight_decay, Where where = Where::current());

// Tensor-parallel ranks may divide a parameter along this axis (core/parallel/README.md); what they do not, each has
// whole.
void MayDivide(const Value& parameter, const DividedAxis& axis);

// State of the model itself, f32: what its forward pass changes in training and evaluation reads, as running
// statistics. Whoever makes it in training assigns it, in every micro-batch. Shared as parameters are.
Value State(Context& context, const std::string& name, const Shape& shape, const Initializer& initializer,
            Where where = Where::current());

// Makes context.sample_ids and context.step for a batch of `samples`, unless they are there. BuildError where they are
// there for another batch.
void UseSampleInputs(Context& context, int64_t samples, Where where = Where::current());

}  // namespace switchyard::nn
