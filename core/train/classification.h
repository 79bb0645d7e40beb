// The task of a classifier: images with a label each, cross-entropy, accuracy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/data/mixing.h"
#include "core/train/image_input.h"
#include "core/train/trainable_model.h"

namespace switchyard {

struct ClassificationOptions : ImageInput {
  float label_smoothing = 0;
  MixingOptions mixing;  // of training images
};

// Inputs: "images" (B, H, W, C), "labels" i32 (B); in training, where images are mixed, "partner_labels" i32 (B) and
// "own_share" f32 (B), and where the device does that, what AddMixedImages adds; where it flips them, "flips" u8 (B);
// and where the model draws random numbers "sample_ids" i32 (B) and "step" i32 (2). Evaluation's outputs: "eval_loss"
// f32 (B) per sample, 0 where the label is negative, "eval_rank" i32 (B): how many classes score above the true one,
// and "eval_logits" f32 (B, classes).
Workload ClassificationWorkload(const std::string& name, const ModelFunction& model,
                                const ClassificationOptions& options);

class Classification : public Task {
 public:
  // options: those of OptionsOf, or with what the device cannot do left to the loader.
  Classification(const TrainConfig& config, const TrainableModel& model, const ClassificationOptions& options)
      : config_(config), model_(model), options_(options) {}
  // Of images that travel as bytes, to be flipped by the device where they are to be flipped and the loader does not
  // mix them.
  static StatusOr<ClassificationOptions> OptionsOf(const TrainConfig& config, const TrainableModel& model);

  StatusOr<std::unique_ptr<SampleSource>> Samples(const Dataset& dataset, bool train) const override;
  std::vector<SampleTensor> tensors() const override;
  Workload workload() const override { return ClassificationWorkload(model_.name, model_.build, options_); }

  std::vector<Metric> metrics() const override;
  std::vector<std::string> outputs() const override { return {"eval_loss", "eval_rank"}; }
  int sums() const override { return 3; }
  void Count(std::span<const void* const> rows, std::span<double> sums) const override;
  std::vector<double> Metrics(std::span<const double> sums, int64_t count) const override;
  Metric best() const override { return metrics()[1]; }
  bool Better(double value, double than) const override { return value > than; }

  std::string prediction() const override { return "eval_logits"; }
  Prediction Predict(const void* row) const override;  // the probability of each class

  std::optional<Example> Show(std::span<const void* const> rows, const Prediction& prediction,
                              const std::vector<std::string>& names) const override;

  StatusOr<nlohmann::json> Record(const Dataset& train) const override;
  StatusOr<ForeignConfig> ForOthers(const Dataset& train) const override;
  Status CheckRecord(const nlohmann::json& record, const Dataset& train, const std::string& folder) const override;

 private:
  const TrainConfig config_;
  const TrainableModel model_;
  const ClassificationOptions options_;
};

}  // namespace switchyard
