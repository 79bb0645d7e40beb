// The three foreign namings of a Swin Transformer's weights:
//
//   timm, and Microsoft but for the last two     Hugging Face
//   patch_embed.proj                             swin.embeddings.patch_embeddings.projection
//   patch_embed.norm                             swin.embeddings.norm
//   layers.i.blocks.j.norm1, norm2               swin.encoder.layers.i.blocks.j.layernorm_before, layernorm_after
//   ….attn.qkv                                   ….attention.self.query, key, value (its rows in turn)
//   ….attn.relative_position_bias_table          ….attention.self.relative_position_bias_table
//   ….attn.proj                                  ….attention.output.dense
//   ….mlp.fc1, fc2                               ….intermediate.dense, output.dense
//   norm                                         swin.layernorm
//   layers.(i+1).downsample                      swin.encoder.layers.i.downsample
//     (Microsoft: layers.i.downsample)
//   head.fc (Microsoft: head)                    classifier
//
// The graph has timm's names, and the patch projection as (D, p, p, C) where all have (D, C, p, p). The buffers
// relative_position_index and attn_mask, which older files hold, are dropped: the graph makes them.
// Tensors of other names pass through unchanged, for the check to report. Thread-safe: pure functions.
#pragma once

#include "core/graph/host_tensor.h"

namespace switchyard {

// Any of the three (found out from the names; Hugging Face's with or without the prefix "swin.") → ours.
HostTensors SwinWeightsFromFile(HostTensors tensors);

HostTensors SwinWeightsToTimm(HostTensors parameters);
HostTensors SwinWeightsToMicrosoft(HostTensors parameters);
HostTensors SwinWeightsToHuggingFace(HostTensors parameters);

}  // namespace switchyard
