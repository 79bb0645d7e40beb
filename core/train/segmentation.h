// The task of a model that says a class for every pixel: images with masks, cross entropy over the pixels that count,
// intersection over union.
//
// The loss is the mean over the pixels that count in the micro-batches of all ranks together, so that W ranks of B
// images compute what torch.nn.CrossEntropyLoss(ignore_index=255) gives of W·B (the mean of the ranks' own means, which
// PyTorch's DistributedDataParallel takes, weighs pixels by how few others count beside them); over micro-steps
// gradients are averaged. The same with a Dice part (core/nn/segmentation_loss.h). Evaluation sums over all pixels of
// all ranks: its counts are the same for every number of ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/segmentation_loss.h"
#include "core/train/image_input.h"
#include "core/train/trainable_model.h"

namespace switchyard {

struct SegmentationOptions : ImageInput {
  int64_t classes = 0;
  float label_smoothing = 0;
  std::optional<nn::SegmentationLossOptions> dice;  // the loss has a Dice part; else it is the cross entropy
};

// Inputs: "images" (B, H, W, C), "masks" i32 (B, H, W), negative where a pixel does not count; in training, where the
// device flips both, "flips" u8 (B); and where the model draws random numbers "sample_ids" i32 (B) and "step" i32 (2).
// Evaluation's outputs: "eval_loss" f32 (B), the sum over the sample's pixels; "eval_logits" f32 (B, H, W, classes);
// "eval_pairs" i32 (B, H, W): truth · classes + likeliest, negative where a pixel does not count; with a Dice part
// "eval_dice" f32 (B, 2, classes), the sums over the sample's pixels of p·t and p + t.
Workload SegmentationWorkload(const std::string& name, const ModelFunction& model, const SegmentationOptions& options);

class Segmentation : public Task {
 public:
  Segmentation(const TrainConfig& config, const TrainableModel& model, const SegmentationOptions& options)
      : config_(config), model_(model), options_(options) {}

  StatusOr<std::unique_ptr<SampleSource>> Samples(const Dataset& dataset, bool train) const override;
  std::vector<SampleTensor> tensors() const override;
  Workload workload() const override { return SegmentationWorkload(model_.name, model_.build, options_); }

  std::vector<Metric> metrics() const override;
  std::vector<std::string> outputs() const override;
  int sums() const override;
  void Count(std::span<const void* const> rows, std::span<double> sums) const override;
  std::vector<double> Metrics(std::span<const double> sums, int64_t count) const override;
  nlohmann::ordered_json ByClass(std::span<const double> sums) const override;  // iou, recall, pixels
  Metric best() const override { return metrics()[1]; }
  bool Better(double value, double than) const override { return value > than; }

  std::string prediction() const override { return "eval_logits"; }
  Prediction Predict(const void* row) const override;  // scores of the pixels of the model's input

  std::optional<Example> Show(std::span<const void* const> rows, const Prediction& prediction,
                              const std::vector<std::string>& names) const override;

  StatusOr<nlohmann::json> Record(const Dataset& train) const override;
  Status CheckRecord(const nlohmann::json& record, const Dataset& train, const std::string& folder) const override;

 private:
  size_t pixels() const { return static_cast<size_t>(options_.height * options_.width); }
  const TrainConfig config_;
  const TrainableModel model_;
  const SegmentationOptions options_;
};

}  // namespace switchyard
