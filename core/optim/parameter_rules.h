// What the update of a parameter goes by beside its gradient: whether it decays, and how deep in the model it lies.
// Thread-safe: pure functions.
#pragma once

#include <string_view>

#include "core/graph/graph.h"

namespace switchyard {

// Does weight decay apply to a parameter of this name and shape? Not to tensors of one dimension (biases, gains of
// norms), to whatever is called a bias, to tables of positions (pos_embed), of relative positions
// (relative_position_bias_table) and to tokens (cls_token), under the names that timm gives them. A model can exempt
// more of its parameters (InputInfo::weight_decay), none less.
bool Decays(std::string_view name, const Shape& shape);

// Tells each parameter of a model how many layers lie above its own (InputInfo::layers_above), for layer-wise rates, as
// BEiT counts them (Bao et al. 2021): layer 0 is what is made before the first block of the model (embeddings), i + 1
// block i (Graph::Block), and one more than the last block's what is made behind it (the final norm, the head). What
// stands between two blocks, as where a Swin stage ends, belongs to the one before it. timm counts alike, but for the
// final norm of a ViT, which it gives the layer of the last block. graph: has the whole model, its parameters in the
// order in which the model makes them. Nothing where the model has no blocks.
void TellLayers(Graph& graph);

// The factor on the rate: decay^(layers above), 1 for the head.
float LayerRate(float decay, int layers_above);

}  // namespace switchyard
