// The Vision Transformer (Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021), with the names and the
// arithmetic of timm: pre-norm blocks, one class token, learned positions, exact GELU, the head on the normed class
// token. Thread-safe but for the graph that is built.
#pragma once

#include "core/base/status.h"
#include "core/nn/context.h"
#include "models/model.h"

namespace switchyard {

inline constexpr float kTimmEps = 1e-6f;  // of layer norms: what timm's weights were trained with

struct VisionTransformerConfig {
  int image_size = 224;  // pixels, height and width
  int channels = 3;
  int classes = 1000;
  // Its settings; vit.cc says what may stand in them.
  int patch = 16;   // pixels
  int width = 768;  // D
  int depth = 12;   // blocks
  int heads = 12;
  float mlp_ratio = 4;              // hidden width of a block's MLP over D
  float layer_norm_eps = kTimmEps;  // weights from Hugging Face usually want 1e-12
  float dropout = 0;                // behind the positions, the attention's projection and both products of an MLP
  float drop_path = 0;              // of the last block; rises linearly from 0 at the first
};

// The variants with their recipes, and the config of one of them.
std::vector<ModelInfo> VisionTransformers();
VisionTransformerConfig VisionTransformerConfigOf(const ResolvedModel& model);
// The settings by name, of a config; sizes of the image and classes are none of them.
SettingValues OwnSettings(const VisionTransformerConfig& config);

// InvalidArgument where the numbers do not fit together: image_size % patch, width % heads, anything below 1.
Status Check(const VisionTransformerConfig& config);

// images (B, image_size, image_size, channels) → logits (B, classes). Parameters: cls_token (1, 1, D), pos_embed (1,
// N+1, D) with N patches, patch_embed.proj, blocks.<i>.{norm1, attn.qkv, attn.proj, norm2, mlp.fc1, mlp.fc2}, norm,
// head. Throws BuildError for other images.
Value VisionTransformer(const VisionTransformerConfig& config, nn::Context& context, const Value& images,
                        nn::Where where = nn::Where::current());

}  // namespace switchyard
