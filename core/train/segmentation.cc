#include "core/train/segmentation.h"

#include <algorithm>

#include "core/data/mask_picture.h"
#include "core/data/masked_images.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/mesh.h"
#include "core/train/confusion.h"
#include "core/train/sliding_window.h"

namespace switchyard {
namespace {

Value AddMasks(nn::Context& context, const SegmentationOptions& o) {
  return context.graph.Input("masks", {DType::kI32, {o.batch, o.height, o.width}}, {Role::kBatch, {}, false});
}

// Of each pixel: (B·H·W) f32, 0 where it does not count.
Value PixelLosses(const Value& logits, const Value& masks, float label_smoothing) {
  const int64_t pixels = masks.dim(0) * masks.dim(1) * masks.dim(2);
  return ops::CrossEntropy(ops::Reshape(logits, {pixels, logits.dim(-1)}), ops::Reshape(masks, {pixels}),
                           label_smoothing);
}

// f32: 1 where the pixel counts, else 0.
Value Counted(const Value& masks) {
  return ops::Binary(SY_PW_LESS_EQUAL, ops::Full(masks.graph(), {1}, 0), ops::Cast(masks, DType::kF32));
}

// 0, 1, … count − 1 as f32 (count), twice as many with each step.
Value Ramp(Graph& graph, int64_t count) {
  Value ramp = ops::Full(graph, {1}, 0);
  while (ramp.dim(0) < count) ramp = ops::Concat({ramp, ops::AddScalar(ramp, static_cast<float>(ramp.dim(0)))}, 0);
  return ramp.dim(0) == count ? ramp : ops::Slice(ramp, 0, 0, count);
}

// logits (B, H, W, classes) → f32 (B, H, W): the first class with the largest logit; the last one where all are NaN.
Value Likeliest(const Value& logits) {
  const int64_t classes = logits.dim(3);
  const Value x = ops::Cast(logits, DType::kF32);
  const Value largest = ops::Reduce(x, SY_REDUCE_MAX, 1u << 3, 1, /*keep=*/true);
  const Value last = ops::Full(logits.graph(), {1}, static_cast<float>(classes - 1));
  const Value candidates = ops::Select(ops::Binary(SY_PW_LESS_EQUAL, largest, x), Ramp(logits.graph(), classes), last);
  return ops::Reduce(candidates, SY_REDUCE_MIN, 1u << 3);
}

// Of images that travel as bytes, to be flipped by the device where they are to be flipped.
StatusOr<SegmentationOptions> OptionsOfSegmentation(const TrainConfig& config, const TrainableModel& model) {
  SY_RETURN_IF_ERROR(CheckForMasks(config));
  if (config.crop_ratio && *config.crop_ratio != 1)
    return InvalidArgument("--crop_ratio={}: images with masks are evaluated whole", *config.crop_ratio);
  if (model.classes > kIgnoredClass)
    return InvalidArgument("--classes={}: expected at most {}, as masks have 8 bits", model.classes,
                           int{kIgnoredClass});
  SY_ASSIGN_OR_RETURN(const EvaluationTransform evaluation, EvaluationOf(config, model));
  const Shape input = InputShapeOf(model);
  SegmentationOptions o;
  o.batch = config.batch_size;
  o.height = input[0], o.width = input[1], o.channels = input[2];
  o.dtype = DType::kU8;
  SY_ASSIGN_OR_RETURN(o.flips, MirrorsInTraining(config));
  o.mean = evaluation.mean, o.std = evaluation.std;
  o.classes = model.classes;
  o.label_smoothing = config.label_smoothing;
  const std::string loss = config.loss.value_or("ce");
  if (loss == "ce") return o;
  if (o.classes < 2)
    return InvalidArgument("--loss={}: of images, a class for every pixel is one of two at least; --classes={}", loss,
                           o.classes);
  if (o.label_smoothing > 0)
    return InvalidArgument("--label_smoothing={} with --loss={}: only --loss=ce is smoothed; give one of them",
                           o.label_smoothing, loss);
  if (config.entropy_weight == 0 && config.dice_weight == 0)
    return InvalidArgument(
        "--entropy_weight=0 leaves nothing of --loss={} without --dice_weight; give one of its parts a weight", loss);
  o.dice = {.sigmoid = loss == "bce_dice",
            .entropy_weight = config.entropy_weight,
            .dice_weight = config.dice_weight,
            .group = kDataGroup};
  return o;
}

// (P, C) or (P) of the places of a batch → (B, …).
Value BySample(const Value& places, const SegmentationOptions& o, Shape behind) {
  behind.insert(behind.begin(), o.batch);
  return ops::Reshape(places, behind);
}

}  // namespace

Workload SegmentationWorkload(const std::string& name, const ModelFunction& model, const SegmentationOptions& o) {
  Workload workload;
  workload.name = name;
  workload.loss = [=](nn::Context& context) {
    const Value flips = AddFlips(context, o);
    const Value logits = model(context, AddImages(context, o, flips)), masks = Flipped(AddMasks(context, o), flips);
    if (o.dice) return nn::SegmentationLoss(logits, masks, *o.dice);
    // Of the pixels that count on all W ranks: the mean over the ranks of W·Σ own losses / Σ all counts.
    const Value one = ops::Full(context.graph, {1}, 1);
    const Value sums =
        ops::AllReduce(ops::Concat({ops::Sum(Counted(masks)), one}, 0), SY_SUM, 1, kDataGroup, "counted_pixels");
    const Value counted = ops::Binary(SY_PW_MAX, ops::Slice(sums, 0, 0, 1), one), ranks = ops::Slice(sums, 0, 1, 1);
    return ops::Div(ops::Mul(ops::Sum(PixelLosses(logits, masks, o.label_smoothing)), ranks), counted);
  };
  workload.evaluate = [=](nn::Context& context) {
    Graph& graph = context.graph;
    const Value logits = model(context, AddImages(context, o)), masks = AddMasks(context, o);
    Value losses;
    if (o.dice) {
      const nn::SegmentationTerms terms = nn::TermsOfSegmentation(logits, masks, *o.dice);
      losses = BySample(terms.entropy, o, {-1});
      const auto by_class = [&](const Value& y) {
        return ops::Reduce(BySample(y, o, {o.height * o.width, o.classes}), SY_REDUCE_SUM, 1u << 1, 1, /*keep=*/true);
      };
      graph.Output("eval_dice", ops::Concat({by_class(terms.overlap), by_class(terms.size)}, 1));
    } else {
      losses = BySample(PixelLosses(logits, masks, 0), o, {o.height * o.width});
    }
    const Value likeliest = Likeliest(logits), truth = ops::Cast(masks, DType::kF32);
    const Value pairs = ops::Add(ops::Scale(truth, static_cast<float>(o.classes)), likeliest);
    graph.Output("eval_loss", ops::Reduce(losses, SY_REDUCE_SUM, 1u << 1));
    graph.Output("eval_logits", ops::Cast(logits, DType::kF32));
    // A pixel that does not count has truth −1, and so −classes to −1.
    graph.Output("eval_pairs", ops::Cast(pairs, DType::kI32));
  };
  return workload;
}

StatusOr<std::unique_ptr<Task>> MakeSegmentation(const TrainConfig& config, const TrainableModel& model,
                                                 const CanPrepare& can_prepare) {
  SY_ASSIGN_OR_RETURN(SegmentationOptions options, OptionsOfSegmentation(config, model));
  if (!TakesBytes(options, can_prepare)) options.dtype = DType::kF32;
  options.flips = options.flips && options.dtype == DType::kU8 && FlipsBytes(options, can_prepare);
  return std::make_unique<Segmentation>(config, model, options);
}

StatusOr<std::unique_ptr<SampleSource>> Segmentation::Samples(const Dataset& dataset, bool train) const {
  SY_ASSIGN_OR_RETURN(const EvaluationTransform evaluation, EvaluationOf(config_, model_));
  MaskTransformOptions o;
  o.height = static_cast<int>(options_.height), o.width = static_cast<int>(options_.width);
  o.channels = static_cast<int>(options_.channels);
  o.interpolation = evaluation.interpolation;
  o.mean = evaluation.mean, o.std = evaluation.std;
  o.train = train;
  if (config_.augmentation) {
    SY_ASSIGN_OR_RETURN(o.augmentation, ParseAugmentation(*config_.augmentation));
  }
  if (!config_.auto_augment) o.brightness = o.contrast = o.saturation = config_.color_jitter;
  SY_ASSIGN_OR_RETURN(o.rand_augment, RandAugmentOf(config_));
  SY_ASSIGN_OR_RETURN(o.erasing, ErasingOf(config_));
  o.seed = config_.seed;
  SY_ASSIGN_OR_RETURN(const MaskTransform transform, MaskTransform::Create(o));
  return std::make_unique<MaskedImages>(dataset, transform, options_.dtype, options_.flips);
}

std::vector<SampleTensor> Segmentation::tensors() const {
  return MaskedImages::Tensors(options_.dtype, options_.height, options_.width, options_.channels, options_.flips);
}

std::vector<Metric> Segmentation::metrics() const {
  return {{"loss", "loss", "loss", "val_loss", "Loss/validation/val_loss"},
          {"miou", "mIoU", "mean IoU", "miou", "Metrics/validation/miou", true},
          {"pixel_accuracy", "pixel accuracy", "accuracy", "pixel_accuracy", "Metrics/validation/pixel_accuracy", true},
          {"dice", "mean Dice", "mean overlap", "dice", "Metrics/validation/dice", true}};
}

std::vector<std::string> Segmentation::outputs() const {
  std::vector<std::string> names = {"eval_loss", "eval_pairs"};
  if (options_.dice) names.push_back("eval_dice");
  return names;
}

// The entropy, the confusion matrix, and for a Dice part Σ p·t and Σ (p + t) by class.
int Segmentation::sums() const {
  const int64_t classes = options_.classes;
  return static_cast<int>(1 + classes * classes + (options_.dice ? 2 * classes : 0));
}

void Segmentation::Count(std::span<const void* const> rows, std::span<double> sums) const {
  sums[0] += *static_cast<const float*>(rows[0]);
  const auto* const pairs = static_cast<const int32_t*>(rows[1]);
  double* const counts = &sums[1];
  for (size_t i = 0; i < pixels(); ++i) {
    if (pairs[i] >= 0) ++counts[pairs[i]];
  }
  if (!options_.dice) return;
  const auto* const dice = static_cast<const float*>(rows[2]);
  const auto classes = static_cast<size_t>(options_.classes);
  for (size_t i = 0; i < 2 * classes; ++i) sums[1 + classes * classes + i] += dice[i];
}

std::vector<double> Segmentation::Metrics(std::span<const double> sums, int64_t /*count*/) const {
  const auto classes = static_cast<size_t>(options_.classes);
  const auto counts = sums.subspan(1, classes * classes);
  double loss = sums[0] / std::max(1.0, Total(counts));
  if (const auto& dice = options_.dice) {
    const SegmentationSums of_loss = {static_cast<int>(options_.classes), dice->sigmoid};
    std::vector<double> terms = {sums[0], Total(counts) * (dice->sigmoid ? static_cast<double>(classes) : 1)};
    terms.insert(terms.end(), sums.begin() + static_cast<ptrdiff_t>(1 + classes * classes), sums.end());
    loss = of_loss.Loss(terms, dice->entropy_weight, dice->dice_weight);
  }
  return {loss, MeanIoU(counts, classes), Accuracy(counts, classes), MeanDice(counts, classes)};
}

nlohmann::ordered_json Segmentation::ByClass(std::span<const double> sums) const {
  const auto classes = static_cast<size_t>(options_.classes);
  const auto counts = sums.subspan(1, classes * classes);
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json by_class = nlohmann::ordered_json::array();
  for (size_t c = 0; c < classes; ++c) {
    by_class.push_back({{"iou", number(IoU(counts, classes, c))},
                        {"recall", number(Recall(counts, classes, c))},
                        {"pixels", static_cast<int64_t>(Total(counts.subspan(c * classes, classes)))}});
  }
  return by_class;
}

Prediction Segmentation::Predict(const void* row) const {
  const auto* const logits = static_cast<const float*>(row);
  Prediction prediction;
  prediction.scores.assign(logits, logits + pixels() * static_cast<size_t>(options_.classes));
  return prediction;
}

std::optional<Example> Segmentation::Show(std::span<const void* const> rows, const Prediction& prediction,
                                          const std::vector<std::string>& /*names*/) const {
  Example example;
  example.image = PictureOf(options_, rows[0]);
  const auto colored = [&](auto class_of) {
    Raster mask{example.image.width, example.image.height, {}};
    for (size_t i = 0; i < pixels(); ++i) {
      const auto color = ClassColor(class_of(i));  // of 255, what counts nowhere, light grey
      mask.rgb.insert(mask.rgb.end(), color.begin(), color.end());
    }
    return mask;
  };
  const auto* const truth = static_cast<const int32_t*>(rows[1]);
  example.truth_mask = colored([&](size_t i) { return truth[i] < 0 ? kIgnoredClass : static_cast<uint8_t>(truth[i]); });
  const int height = example.image.height, width = example.image.width;
  const Image predicted = MaskOfScores(prediction.scores, height, width, height, width);
  example.predicted_mask = colored([&](size_t i) { return predicted.bytes[i]; });
  return example;
}

StatusOr<nlohmann::json> Segmentation::Record(const Dataset& train) const {
  SY_ASSIGN_OR_RETURN(const EvaluationTransform evaluation, EvaluationOf(config_, model_));
  return nlohmann::json{{"classes", train.class_names()}, {"evaluation", ToJson(evaluation)}};
}

Status Segmentation::CheckRecord(const nlohmann::json& record, const Dataset& train, const std::string& folder) const {
  return CheckClassNames(record, train, folder);
}

}  // namespace switchyard
