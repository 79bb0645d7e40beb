// The two foreign namings of a Vision Transformer's weights:
//
//   timm                              Hugging Face
//   cls_token, pos_embed              vit.embeddings.cls_token, .position_embeddings
//   patch_embed.proj                  vit.embeddings.patch_embeddings.projection
//   blocks.i.norm1, norm2             vit.encoder.layer.i.layernorm_before, layernorm_after
//   blocks.i.attn.qkv                 vit.encoder.layer.i.attention.attention.query, key, value (its rows in turn)
//   blocks.i.attn.proj                vit.encoder.layer.i.attention.output.dense
//   blocks.i.mlp.fc1, fc2             vit.encoder.layer.i.intermediate.dense, output.dense
//   norm, head                        vit.layernorm, classifier
//
// The graph has timm's names, and the patch projection as (D, p, p, C) where both have (D, C, p, p).
// Tensors of names or shapes that are not a ViT's pass through unchanged, for the check to report. Thread-safe: pure
// functions.
#pragma once

#include "core/graph/host_tensor.h"

namespace switchyard {

// timm's or Hugging Face's (found out from the names; with or without the prefix "vit.") → ours. Hugging Face's pooler,
// which classification does not use, is dropped.
HostTensors VitWeightsFromFile(HostTensors tensors);

HostTensors VitWeightsToTimm(HostTensors parameters);
HostTensors VitWeightsToHuggingFace(HostTensors parameters);

}  // namespace switchyard
