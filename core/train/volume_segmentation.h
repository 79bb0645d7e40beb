// The task of a model that says of each voxel what it belongs to: random patches in training; in evaluation and
// prediction a window that slides over the whole volume, whose logits are averaged where windows overlap (as MONAI's
// sliding_window_inference). One logit a voxel: foreground where its sigmoid is above 0.5, and every label above 0 is
// foreground. Several: the class of the largest.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/data/volume_samples.h"
#include "core/nn/segmentation_loss.h"
#include "core/train/trainable_model.h"

namespace switchyard {

StatusOr<std::unique_ptr<Task>> MakeVolumeSegmentation(const TrainConfig& config, const TrainableModel& model,
                                                       const CanPrepare& can_prepare);

struct VolumeSegmentationOptions {
  int64_t batch = 0;
  int classes = 1;  // channels of the logits
  VolumeTransformOptions transform;
  nn::SegmentationLossOptions loss;
  float overlap = 0.25f;  // of neighbouring windows, as a share of the patch
  bool gaussian = false;  // how windows are weighed
};

// Inputs: "volumes" f32 (B, D, H, W, 1), "masks" i32 (B, D, H, W), of training alone. Output of evaluation:
// "eval_logits" f32 (B, D, H, W, classes).
class VolumeSegmentation : public Task {
 public:
  static StatusOr<std::unique_ptr<Task>> Create(const TrainConfig& config, const TrainableModel& model);

  StatusOr<std::unique_ptr<SampleSource>> Samples(const Dataset& dataset, bool train) const override;
  std::vector<SampleTensor> tensors() const override { return VolumeTensors(options_.transform.patch); }
  std::string samples() const override { return "volumes"; }
  Workload workload() const override;

  // "loss", as training has it, over all volumes together; "dice" and "iou", the means over the classes but the
  // background: of counts of voxels over all volumes together. By class: "dice", "iou" and "voxels", with one logit of
  // the background and the foreground.
  std::vector<Metric> metrics() const override;
  std::vector<std::string> outputs() const override { return {"eval_logits"}; }
  int sums() const override;
  void Count(std::span<const void* const> rows, std::span<double> sums) const override;  // never called: volumes are
  std::unique_ptr<Collector> Counting(const SampleSource& samples, std::span<double> sums,
                                      int64_t* count) const override;
  std::vector<double> Metrics(std::span<const double> sums, int64_t count) const override;
  nlohmann::ordered_json ByClass(std::span<const double> sums) const override;
  Metric best() const override { return metrics()[1]; }
  bool Better(double value, double than) const override { return value > than; }

  std::string prediction() const override { return "eval_logits"; }
  Prediction Predict(const void* row) const override;  // of one window; volumes are predicted by
  std::unique_ptr<Collector> Predicting(const SampleSource& samples, ReadPrediction read) const override;
  // The middle slice of a window along its depth, from its darkest voxel to its brightest.
  std::optional<Example> Show(std::span<const void* const> rows, const Prediction& prediction,
                              const std::vector<std::string>& names) const override;

  StatusOr<nlohmann::json> Record(const Dataset& train) const override;
  Status CheckRecord(const nlohmann::json& record, const Dataset& train, const std::string& folder) const override;

 private:
  VolumeSegmentation(const TrainConfig& config, const TrainableModel& model, const VolumeSegmentationOptions& options)
      : config_(config), model_(model), options_(options) {}
  const TrainConfig config_;
  const TrainableModel model_;
  const VolumeSegmentationOptions options_;
};

}  // namespace switchyard
