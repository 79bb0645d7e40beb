#include "core/train/classification.h"

#include <algorithm>
#include <cmath>

#include "core/data/labelled_images.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace {

Value AddLabels(nn::Context& context, const ClassificationOptions& o) {
  return context.graph.Input("labels", {DType::kI32, {o.batch}}, {Role::kBatch, {}, false});
}

// λ·loss + (1 − λ)·(the loss of the partner's label), per sample.
Value Mixed(nn::Context& context, const ClassificationOptions& o, const Value& logits, const Value& loss) {
  Graph& graph = context.graph;
  const Value partners = graph.Input("partner_labels", {DType::kI32, {o.batch}}, {Role::kBatch, {}, false});
  const Value share = graph.Input("own_share", {DType::kF32, {o.batch}}, {Role::kBatch, {}, false});
  const Value other = ops::CrossEntropy(logits, partners, o.label_smoothing);
  return ops::Add(other, ops::Mul(share, ops::Sub(loss, other)));
}

StatusOr<MixingOptions> MixingOf(const TrainConfig& c) {
  MixingOptions o;
  o.mixup = c.mixup;
  o.cutmix = c.cutmix;
  o.probability = c.mixup_prob;
  o.switch_probability = c.mixup_switch_prob;
  o.on_device = c.mix_on == "device";
  o.seed = c.seed;
  SY_ASSIGN_OR_RETURN(o.mode, ParseMixingMode(c.mixup_mode));
  if (!c.cutmix_minmax.empty()) {
    SY_ASSIGN_OR_RETURN(const std::vector<float> shares, NumbersOf("cutmix_minmax", c.cutmix_minmax));
    if (shares.size() != 2)
      return InvalidArgument("--cutmix_minmax: expected two numbers, as 0.2,0.8, found {}", shares.size());
    o.cutmix_minmax = {shares[0], shares[1]};
  }
  SY_RETURN_IF_ERROR(Check(o, c.batch_size));
  return o;
}

StatusOr<Transform> TransformOf(const TrainConfig& c, const EvaluationTransform& evaluation, const Dataset& data,
                                bool train) {
  TransformOptions o;
  o.evaluation = evaluation;
  o.train = train;
  o.augmentation = data.augmentation();
  if (c.augmentation) {
    SY_ASSIGN_OR_RETURN(o.augmentation, ParseAugmentation(*c.augmentation));
  }
  if (!c.auto_augment) o.brightness = o.contrast = o.saturation = c.color_jitter;
  if (c.train_interpolation == "random") {
    o.filters = {Interpolation::kBilinear, Interpolation::kBicubic};
  } else if (c.train_interpolation) {
    SY_ASSIGN_OR_RETURN(const Interpolation filter, ParseInterpolation(*c.train_interpolation));
    o.filters = {filter};
  }
  SY_ASSIGN_OR_RETURN(o.rand_augment, RandAugmentOf(c));
  SY_ASSIGN_OR_RETURN(o.erasing, ErasingOf(c));
  o.seed = c.seed;
  return Transform::Create(o);
}

}  // namespace

Workload ClassificationWorkload(const std::string& name, const ModelFunction& model, const ClassificationOptions& o) {
  Workload workload;
  workload.name = name;
  workload.loss = [=](nn::Context& context) {
    const bool mixed = o.mixing.enabled();
    const Value flips = AddFlips(context, o);
    const Value images = mixed && o.mixing.on_device ? AddMixedImages(context, o, flips) : AddImages(context, o, flips);
    const Value logits = model(context, images);
    const Value loss = ops::CrossEntropy(logits, AddLabels(context, o), o.label_smoothing);
    return ops::Mean(mixed ? Mixed(context, o, logits, loss) : loss);
  };
  workload.evaluate = [=](nn::Context& context) {
    Graph& graph = context.graph;
    const Value logits = model(context, AddImages(context, o)), labels = AddLabels(context, o);
    graph.Output("eval_loss", ops::CrossEntropy(logits, labels));
    graph.Output("eval_rank", ops::LabelRank(logits, labels));
    graph.Output("eval_logits", ops::Cast(logits, DType::kF32));
  };
  return workload;
}

StatusOr<std::unique_ptr<Task>> MakeClassification(const TrainConfig& config, const TrainableModel& model,
                                                   const CanPrepare& can_prepare) {
  SY_ASSIGN_OR_RETURN(ClassificationOptions options, Classification::OptionsOf(config, model));
  if (options.mixing.enabled() && options.mixing.on_device && !MixesBytes(options, can_prepare))
    return InvalidArgument(
        "--mix_on=device: device {} has no kernels that mix images as they are stored, in bytes; leave it out, and the "
        "loader mixes them",
        config.device);
  if (!TakesBytes(options, can_prepare)) options.dtype = DType::kF32;
  options.flips = options.flips && options.dtype == DType::kU8 && FlipsBytes(options, can_prepare);
  return std::make_unique<Classification>(config, model, options);
}

StatusOr<ClassificationOptions> Classification::OptionsOf(const TrainConfig& config, const TrainableModel& model) {
  SY_ASSIGN_OR_RETURN(const EvaluationTransform evaluation, EvaluationOf(config, model));
  ClassificationOptions o;
  o.batch = config.batch_size;
  o.height = o.width = model.image_size;
  o.channels = model.channels;
  o.dtype = DType::kU8;
  o.mean = evaluation.mean;
  o.std = evaluation.std;
  o.label_smoothing = config.label_smoothing;
  SY_ASSIGN_OR_RETURN(o.mixing, MixingOf(config));
  SY_ASSIGN_OR_RETURN(const bool mirrors, MirrorsInTraining(config));
  o.flips = mirrors && (!o.mixing.enabled() || o.mixing.on_device);
  return o;
}

StatusOr<std::unique_ptr<SampleSource>> Classification::Samples(const Dataset& dataset, bool train) const {
  SY_ASSIGN_OR_RETURN(const EvaluationTransform evaluation, EvaluationOf(config_, model_, dataset.crop_ratio()));
  SY_ASSIGN_OR_RETURN(const Transform transform, TransformOf(config_, evaluation, dataset, train));
  return std::make_unique<LabelledImages>(dataset, transform, options_.dtype, options_.mixing, options_.flips);
}

std::vector<SampleTensor> Classification::tensors() const {
  return LabelledImages::Tensors(options_.dtype, options_.height, options_.width, options_.channels, options_.mixing,
                                 options_.flips);
}

std::vector<Metric> Classification::metrics() const {
  return {{"loss", "loss", "loss", "val_loss", "Loss/validation/val_loss"},
          {"top1", "top-1", "accuracy", "top1", "Metrics/validation/top1", true},
          {"top5", "top-5", "accuracy", "top5", "Metrics/validation/top5", true}};
}

void Classification::Count(std::span<const void* const> rows, std::span<double> sums) const {
  const int32_t above = *static_cast<const int32_t*>(rows[1]);  // classes that score above the true one
  sums[0] += *static_cast<const float*>(rows[0]);
  sums[1] += above < 1;
  sums[2] += above < 5;
}

std::vector<double> Classification::Metrics(std::span<const double> sums, int64_t count) const {
  std::vector<double> means(sums.begin(), sums.end());
  for (double& mean : means) mean /= static_cast<double>(count);
  return means;
}

Prediction Classification::Predict(const void* row) const {
  const auto* const logits = static_cast<const float*>(row);
  std::vector<double> p(static_cast<size_t>(model_.classes));
  const float largest = *std::max_element(logits, logits + p.size());
  double sum = 0;
  for (size_t c = 0; c < p.size(); ++c) sum += p[c] = std::exp(static_cast<double>(logits[c]) - largest);
  for (double& value : p) value /= sum;
  return {p, {}};
}

std::optional<Example> Classification::Show(std::span<const void* const> rows, const Prediction& prediction,
                                            const std::vector<std::string>& names) const {
  const std::vector<double>& p = prediction.probabilities;
  const auto name = [&](int64_t c) {
    return c >= 0 && c < static_cast<int64_t>(names.size()) ? names[static_cast<size_t>(c)]
                                                            : fmt::format("class {}", c);
  };
  const int64_t likeliest = std::max_element(p.begin(), p.end()) - p.begin();
  Example example;
  example.image = PictureOf(options_, rows[0]);
  example.truth = name(*static_cast<const int32_t*>(rows[1]));
  example.predicted = name(likeliest);
  example.probability = p[static_cast<size_t>(likeliest)];
  return example;
}

StatusOr<nlohmann::json> Classification::Record(const Dataset& train) const {
  SY_ASSIGN_OR_RETURN(const EvaluationTransform evaluation, EvaluationOf(config_, model_, train.crop_ratio()));
  return nlohmann::json{{"classes", train.class_names()}, {"evaluation", ToJson(evaluation)}};
}

StatusOr<ForeignConfig> Classification::ForOthers(const Dataset& train) const {
  if (!model_.for_others) return ForeignConfig{};
  SY_ASSIGN_OR_RETURN(const EvaluationTransform evaluation, EvaluationOf(config_, model_, train.crop_ratio()));
  return model_.for_others(evaluation, train.class_names());
}

Status Classification::CheckRecord(const nlohmann::json& record, const Dataset& train,
                                   const std::string& folder) const {
  return CheckClassNames(record, train, folder);
}

}  // namespace switchyard
