// The Swin Transformer (Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", ICCV
// 2021), with the names and the arithmetic of timm. Attention stays within windows of M×M places; every second block of
// a stage shifts them by M/2 places, around the edges, where a mask of −100 keeps apart what was not together before.
// Each head adds a bias that depends on the relative position alone. Between stages 2×2 places become one of twice the
// width. The head reads the mean over all places. Thread-safe but for the graph that is built.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/nn/context.h"
#include "models/model.h"

namespace switchyard {

inline constexpr float kSwinEps = 1e-5f;  // of layer norms: what published weights were trained with

struct SwinTransformerConfig {
  int image_size = 224;  // pixels, height and width
  int channels = 3;
  int classes = 1000;
  // Its settings; swin.cc says what may stand in them.
  int patch = 4;                                           // pixels
  int width = 96;                                          // of the first stage; doubles from stage to stage
  std::vector<std::string> depths = {"2", "2", "6", "2"};  // blocks of each stage
  int heads = 3;                                           // of the first stage; doubles with the width
  int window = 7;                                          // M, places; a stage of no more places a side is one window
  float mlp_ratio = 4;                                     // hidden width of a block's MLP over its width
  float drop_path = 0;  // of the last block; rises linearly over all blocks, from 0 at the first
};

// The variants with their recipes, and the config of one of them.
std::vector<ModelInfo> SwinTransformers();
SwinTransformerConfig SwinTransformerConfigOf(const ResolvedModel& model);
// The settings by name, of a config; sizes of the image and classes are none of them.
SettingValues OwnSettings(const SwinTransformerConfig& config);

// The numbers in `depths`; empty where one of them is no whole number from 1 to 4096, or where there are none or more
// than 8.
std::vector<int> DepthsOf(const SwinTransformerConfig& config);

// InvalidArgument where the numbers do not fit together: an image that does not divide into patches, halves and
// windows, width % heads, anything below 1.
Status Check(const SwinTransformerConfig& config);

// images (B, image_size, image_size, channels) → logits (B, classes). Parameters: patch_embed.{proj, norm};
// layers.<i>.downsample.{norm, reduction} (i ≥ 1); layers.<i>.blocks.<j>.{norm1, attn.qkv, attn.proj,
// attn.relative_position_bias_table ((2M−1)², heads), norm2, mlp.fc1, mlp.fc2}; norm; head.fc. Throws BuildError for
// other images.
Value SwinTransformer(const SwinTransformerConfig& config, nn::Context& context, const Value& images,
                      nn::Where where = nn::Where::current());

// Which row of a bias table belongs to a pair of places in a window of `window`×`window`, (M², M²) row by row:
// (Δh + M − 1)·(2M − 1) + Δw + M − 1.
std::vector<int32_t> RelativePositionIndex(int64_t window);
// What is added to the scores within each window of a map of `side`×`side` places that was shifted by `shift`,
// (windows, M², M²) row by row: −100 between places that were not neighbours before, else 0.
std::vector<float> ShiftMask(int64_t side, int64_t window, int64_t shift);

}  // namespace switchyard
