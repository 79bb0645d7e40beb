#include "core/train/volume_segmentation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/data/mask_picture.h"
#include "core/graph/ops/pointwise.h"
#include "core/parallel/mesh.h"
#include "core/train/confusion.h"
#include "core/train/sliding_window.h"

namespace switchyard {
namespace {

SegmentationSums SumsOf(const VolumeSegmentationOptions& o) { return {o.classes, o.loss.sigmoid}; }

std::vector<uint8_t> ClassesOf(std::span<const float> logits, int classes) {
  const auto width = static_cast<size_t>(classes);
  std::vector<uint8_t> taken(logits.size() / width);
  for (size_t i = 0; i < taken.size(); ++i) taken[i] = ClassOf(logits.subspan(i * width, width));
  return taken;
}

// Puts the windows of each volume together and hands over the volume's logits.
class VolumeCollector : public Collector {
 public:
  // sample: normalised, with its labels. Null where some of it could not be read; then there are no logits.
  using TakeVolume = std::function<Status(int64_t volume, const Sample* sample, std::span<const float> logits)>;
  VolumeCollector(const VolumeWindows& windows, const VolumeSegmentationOptions& o, TakeVolume take)
      : windows_(windows), window_(windows.patch(), o.classes, o.gaussian), take_(std::move(take)) {}

  Status Add(int64_t index, std::span<const void* const> rows) override {
    const VolumeWindows::Window& at = windows_.window(index);
    if (volume_ != at.volume) {
      volume_ = at.volume;
      sample_ = nullptr;
      auto sample = windows_.Get(at.volume);
      if (!sample.ok() && !rows.empty()) return sample.status();  // it could be read when its windows were cut
      if (sample.ok()) {
        sample_ = std::move(*sample);
        window_.Start(ExtentsOf(sample_->volume));
      }
    }
    if (rows.empty()) sample_ = nullptr;
    if (sample_ != nullptr) window_.Add(at.start, static_cast<const float*>(rows[0]));
    if (!at.last) return OkStatus();
    const auto sample = std::exchange(sample_, nullptr);
    volume_ = -1;
    return take_(at.volume, sample.get(), sample == nullptr ? std::span<const float>() : window_.Means());
  }

 private:
  const VolumeWindows& windows_;
  SlidingWindow window_;
  const TakeVolume take_;
  int64_t volume_ = -1;                   // whose windows come
  std::shared_ptr<const Sample> sample_;  // null: it cannot be read
};

}  // namespace

StatusOr<std::unique_ptr<Task>> MakeVolumeSegmentation(const TrainConfig& config, const TrainableModel& model,
                                                       const CanPrepare&) {
  return VolumeSegmentation::Create(config, model);
}

StatusOr<std::unique_ptr<Task>> VolumeSegmentation::Create(const TrainConfig& c, const TrainableModel& model) {
  if (model.input_shape.size() != 4 || model.input_shape[3] != 1) {
    return InvalidArgument("{}: a model of volumes takes (D, H, W, 1), found {}", model.name,
                           ToString(model.input_shape));
  }
  SY_RETURN_IF_ERROR(CheckForMasks(c));
  for (const auto& [name, given] :
       {std::pair("auto_augment", c.auto_augment.has_value()), std::pair("erase_prob", c.erase_prob > 0)}) {
    if (given) return InvalidArgument("--{} is for images: volumes cannot be put through it; leave it out", name);
  }
  VolumeSegmentationOptions o;
  o.batch = c.batch_size;
  o.classes = model.classes;
  o.transform.patch = {model.input_shape[0], model.input_shape[1], model.input_shape[2]};
  SY_ASSIGN_OR_RETURN(o.transform.normalization, ParseNormalization(c.normalization));
  o.transform.intensity_scale = c.intensity_scale;
  o.transform.intensity_shift = c.intensity_shift;
  o.transform.seed = c.seed;
  const std::string loss = c.loss.value_or(model.classes == 1 ? "bce_dice" : "dice_ce");
  if (model.classes == 1 && loss != "bce_dice") {
    return InvalidArgument(
        "--loss={}: with --classes=1 there is one logit a voxel, for bce_dice; give --classes=2, or as "
        "many as the labels have with the background",
        loss);
  }
  o.loss.sigmoid = loss == "bce_dice";
  o.loss.entropy_weight = c.entropy_weight;
  o.loss.dice_weight = loss == "ce" ? 0 : c.dice_weight;
  if (o.loss.entropy_weight == 0 && o.loss.dice_weight == 0)
    return InvalidArgument("--entropy_weight=0 leaves nothing of --loss={}{}; give one of its parts a weight", loss,
                           loss == "ce" ? "" : " without --dice_weight");
  o.loss.group = kDataGroup;
  o.overlap = c.window_overlap;
  o.gaussian = c.window_weights == "gaussian";
  return std::unique_ptr<Task>(new VolumeSegmentation(c, model, o));
}

StatusOr<std::unique_ptr<SampleSource>> VolumeSegmentation::Samples(const Dataset& dataset, bool train) const {
  VolumeTransformOptions o = options_.transform;
  o.augmentation = dataset.augmentation();
  if (config_.augmentation) {
    SY_ASSIGN_OR_RETURN(o.augmentation, ParseAugmentation(*config_.augmentation));
  }
  SY_RETURN_IF_ERROR(Check(o));
  if (train) return std::make_unique<VolumePatches>(dataset, o);
  return std::make_unique<VolumeWindows>(dataset, o, options_.overlap);
}

Workload VolumeSegmentation::workload() const {
  const auto logits = [options = options_, build = model_.build](nn::Context& context) {
    const Extents& p = options.transform.patch;
    const TensorType type = {DType::kF32, {options.batch, p[0], p[1], p[2], 1}};
    return build(context, context.graph.Input("volumes", type, {Role::kBatch, {}, false}));
  };
  Workload workload;
  workload.name = model_.name;
  workload.loss = [options = options_, logits](nn::Context& context) {
    const Extents& p = options.transform.patch;
    const TensorType type = {DType::kI32, {options.batch, p[0], p[1], p[2]}};
    const Value x = logits(context);
    return nn::SegmentationLoss(x, context.graph.Input("masks", type, {Role::kBatch, {}, false}), options.loss);
  };
  workload.evaluate = [logits](nn::Context& context) {
    context.graph.Output("eval_logits", ops::Cast(logits(context), DType::kF32));
  };
  return workload;
}

std::vector<Metric> VolumeSegmentation::metrics() const {
  return {{"loss", "loss", "loss", "val_loss", "Loss/validation/val_loss"},
          {"dice", "Dice", "overlap", "dice", "Metrics/validation/dice", true},
          {"iou", "IoU", "overlap", "iou", "Metrics/validation/iou", true}};
}

int VolumeSegmentation::sums() const { return SumsOf(options_).count(); }

void VolumeSegmentation::Count(std::span<const void* const>, std::span<double>) const {}

std::unique_ptr<Collector> VolumeSegmentation::Counting(const SampleSource& samples, std::span<double> sums,
                                                        int64_t* count) const {
  return std::make_unique<VolumeCollector>(
      dynamic_cast<const VolumeWindows&>(samples), options_,
      [counts = SumsOf(options_), sums, count](int64_t, const Sample* sample, std::span<const float> logits) {
        if (sample == nullptr) return OkStatus();
        counts.Add(logits, sample->voxels, sums);
        ++*count;
        return OkStatus();
      });
}

std::vector<double> VolumeSegmentation::Metrics(std::span<const double> sums, int64_t) const {
  const SegmentationSums counts = SumsOf(options_);
  const auto classes = static_cast<size_t>(counts.told_apart());
  double dice = 0, iou = 0;
  int there = 0;
  for (size_t c = 1; c < classes; ++c) {
    const auto own = Dice(counts.Confusion(sums), classes, c);
    if (!own) continue;
    dice += *own;
    iou += *IoU(counts.Confusion(sums), classes, c);
    ++there;
  }
  const double share = 1.0 / std::max(there, 1);
  return {counts.Loss(sums, options_.loss.entropy_weight, options_.loss.dice_weight), dice * share, iou * share};
}

nlohmann::ordered_json VolumeSegmentation::ByClass(std::span<const double> sums) const {
  const std::span<const double> confusion = SumsOf(options_).Confusion(sums);
  const auto classes = static_cast<size_t>(SumsOf(options_).told_apart());
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json by_class = nlohmann::ordered_json::array();
  for (size_t c = 0; c < classes; ++c) {
    nlohmann::ordered_json& own = by_class.emplace_back(nlohmann::ordered_json::object());
    if (options_.classes == 1) own["class"] = c == 0 ? "background" : "foreground";
    own["dice"] = number(Dice(confusion, classes, c));
    own["iou"] = number(IoU(confusion, classes, c));
    own["voxels"] = static_cast<int64_t>(Total(confusion.subspan(c * classes, classes)));
  }
  return by_class;
}

Prediction VolumeSegmentation::Predict(const void* row) const {
  const auto logits = static_cast<size_t>(VoxelsOf(options_.transform.patch) * options_.classes);
  return {.classes = ClassesOf({static_cast<const float*>(row), logits}, options_.classes)};
}

std::unique_ptr<Collector> VolumeSegmentation::Predicting(const SampleSource& samples, ReadPrediction read) const {
  return std::make_unique<VolumeCollector>(
      dynamic_cast<const VolumeWindows&>(samples), options_,
      [classes = options_.classes, read](int64_t volume, const Sample* sample, std::span<const float> logits) {
        if (sample == nullptr) return read(volume, Prediction());
        const bool finite = std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
        return read(volume, Prediction{.classes = ClassesOf(logits, classes), .finite = finite});
      });
}

std::optional<Example> VolumeSegmentation::Show(std::span<const void* const> rows, const Prediction& prediction,
                                                const std::vector<std::string>& /*names*/) const {
  const Extents& patch = options_.transform.patch;
  const auto slice = static_cast<size_t>(patch[1] * patch[2]);
  const size_t first = slice * static_cast<size_t>(patch[0] / 2);
  const std::span<const float> voxels(static_cast<const float*>(rows[0]) + first, slice);
  const std::span<const int32_t> truth(static_cast<const int32_t*>(rows[1]) + first, slice);
  const auto picture = [&](auto color_of) {
    Raster raster{static_cast<int>(patch[2]), static_cast<int>(patch[1]), {}};
    for (size_t i = 0; i < slice; ++i) {
      const std::array<uint8_t, 3> color = color_of(i);
      raster.rgb.insert(raster.rgb.end(), color.begin(), color.end());
    }
    return raster;
  };
  const auto [low, high] = std::minmax_element(voxels.begin(), voxels.end());
  const float scale = 255 / std::max(*high - *low, 1e-6f);
  Example example;
  example.image = picture([&](size_t i) {
    const float share = (voxels[i] - *low) * scale;
    const auto grey = static_cast<uint8_t>(share > 0 ? std::min(share, 255.0f) : 0);
    return std::array<uint8_t, 3>{grey, grey, grey};
  });
  const bool foreground = options_.classes == 1;
  example.truth_mask = picture([&](size_t i) {
    if (truth[i] < 0) return ClassColor(kIgnoredClass);
    return ClassColor(static_cast<uint8_t>(foreground ? std::min(truth[i], 1) : truth[i]));
  });
  example.predicted_mask = picture([&](size_t i) { return ClassColor(prediction.classes[first + i]); });
  return example;
}

StatusOr<nlohmann::json> VolumeSegmentation::Record(const Dataset& train) const {
  return nlohmann::json{{"classes", train.class_names()}};
}

Status VolumeSegmentation::CheckRecord(const nlohmann::json& record, const Dataset& train,
                                       const std::string& folder) const {
  return CheckClassNames(record, train, folder);
}

}  // namespace switchyard
