// Mixup (Zhang et al. 2018, "mixup: beyond empirical risk minimization") and CutMix (Yun et al. 2019, "CutMix:
// regularization strategy to train strong classifiers with localizable features") of the images of a batch, as timm
// does them: sample i is mixed with sample B−1−i of its rank's batch, which must have an even number of samples.
//
// Instead of soft targets a sample has two labels, its own and that of its partner, and the share of its own:
// λ·onehot(t) + (1−λ)·onehot(t′). A loss that is linear in its targets, as cross entropy is, also with label
// smoothing, is λ·loss(t) + (1−λ)·loss(t′) then. What is drawn is a function of (seed, epoch, batch), and, where each
// sample or pair has draws of its own, of its position in the global batch: never of the number of ranks.
//
// A λ that is drawn is a whole number of 65536ths: its products with bytes, and sums of them, are then exact in f32,
// so that bytes mixed by the loader and on any device, however its compiler joins products and sums, are the same.
// Thread-safe: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/base/status.h"

namespace switchyard {

struct MixingOptions {
  float mixup = 0, cutmix = 0;      // α of λ ~ Beta(α, α); 0: never
  float probability = 1;            // that a batch, pair or sample is mixed
  float switch_probability = 0.5f;  // that it is by CutMix, where both may be
  enum Mode {
    kBatch,  // batch: one draw for the batch
    kPair,   // pair: one for each pair of partners
    kElem,   // elem: one for each sample
  } mode = kBatch;
  // Where given, the sides of CutMix's rectangle are shares of the image's, drawn uniformly between these, and it lies
  // wholly inside; else its area is 1 − λ and it may be cut off by an edge.
  std::optional<std::pair<float, float>> cutmix_minmax;
  bool on_device = false;  // the graph mixes (core/train/image_input.h), and the loader says by how much
  uint64_t seed = 42;

  bool enabled() const { return mixup > 0 || cutmix > 0; }
};

StatusOr<MixingOptions::Mode> ParseMixingMode(const std::string& name);  // "batch", "pair", "elem"
// InvalidArgument names the setting that is out of its range, or a batch of an odd number of samples.
Status Check(const MixingOptions& options, int64_t batch_size);

// How sample i and its partner are mixed: by λ, or within the rectangle, of which λ is then the share that is kept.
struct Mix {
  float share = 1;  // λ: of the sample's own image and label
  bool cut = false;
  int top = 0, left = 0, bottom = 0, right = 0;  // the partner's part, where cut
};
// One draw. height, width: of the images.
Mix DrawMix(const MixingOptions& options, int height, int width, RandomStream* random);

// For each sample of a batch. positions: those of the samples in the global batch.
std::vector<Mix> DrawMixes(const MixingOptions& options, int64_t epoch, int64_t batch,
                           std::span<const int32_t> positions, int height, int width);

// images: (B, height, width, channels), mixed in place: bytes are rounded to nearest. mixes: of each sample.
void MixImages(std::span<const Mix> mixes, int height, int width, int channels, uint8_t* images);
void MixImages(std::span<const Mix> mixes, int height, int width, int channels, float* images);

// The same for who mixes elsewhere: of an element in row y and place x of its row the partner's share is
// rows[y]·columns[x] / kMixUnit. rows: (height), 0 … kMixUnit; columns: (width · channels), 0 or 1.
inline constexpr int32_t kMixUnit = 65536;
void WritePartnerShares(const Mix& mix, int height, int width, int channels, int32_t* rows, uint8_t* columns);

}  // namespace switchyard
