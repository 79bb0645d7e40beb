// Losses of segmentation: cross entropy over places and the Dice loss over classes (Milletari et al., "V-Net", 3DV
// 2016), weighted and added. Both are of the batch of all ranks: what they divide is summed over the data group first,
// so that W ranks of B samples compute what one rank computes on W·B. Places whose label is negative count nowhere.
//
// Not thread-safe. Wrong shapes throw BuildError with the line that called.
#pragma once

#include "core/nn/context.h"

namespace switchyard::nn {

struct SegmentationLossOptions {
  // What a logit becomes: true: σ, each class on its own, with binary cross entropy as the mean over places and
  // classes; false: the softmax over the classes, with cross entropy as the mean over places.
  bool sigmoid = true;
  float entropy_weight = 1, dice_weight = 1;  // a and b in a·CE + b·Dice
  int group = 0;                              // over which sums are taken, an index as in Program::groups
};

// What the loss sums, f32. logits (…, C) and labels of P places.
struct SegmentationTerms {
  Value entropy;  // (P), with a sigmoid and several classes (P, C); 0 where a place does not count
  Value counts;   // (P), with several classes (P, 1): 1 where the place counts, else 0
  Value overlap;  // (P, C), of one class (P): p·t
  Value size;     // the same: p + t
};
SegmentationTerms TermsOfSegmentation(const Value& logits, const Value& labels, const SegmentationLossOptions& options,
                                      Where where = Where::current());

// logits (…, C), labels i32 (…), of classes or negative → (1) f32:
//   a·Σ CE / Σ places + b·(1 − mean over c of 2Σ p·t / max(Σ (p + t), 1e-5))
// with t the one-hot label; of one class t = (label > 0), the foreground.
Value SegmentationLoss(const Value& logits, const Value& labels, const SegmentationLossOptions& options,
                       Where where = Where::current());

}  // namespace switchyard::nn
