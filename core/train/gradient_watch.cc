#include "core/train/gradient_watch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "core/base/logging.h"

namespace switchyard {
namespace {

constexpr int64_t kMostSkipped = 100;  // updates in a row, with --on_nonfinite=skip

// The index of the first value that is not finite; `count` where there is none.
size_t FirstBad(const float* values, size_t count) {
  const auto bad = [](float value) { return !std::isfinite(value); };
  return static_cast<size_t>(std::find_if(values, values + count, bad) - values);
}

}  // namespace

Status GradientWatch::Check(bool followed) {
  if (!unread_) return OkStatus();
  const Unread update = *std::exchange(unread_, std::nullopt);
  SY_RETURN_IF_ERROR(engine_.WaitForSlot(update.slot));
  SY_ASSIGN_OR_RETURN(float norm, engine_.ReadIn(Engine::Scalar::kGradNorm, update.slot));
  norm = std::abs(norm);  // a NaN may come with a sign
  if (std::isfinite(norm)) {
    skipped_.in_a_row = 0;
    return OkStatus();
  }
  ++skipped_.count;
  ++skipped_.in_a_row;
  const bool told = (skipped_.count & (skipped_.count - 1)) == 0;  // the 1st, 2nd, 4th, 8th …
  if (engine_.Has(Engine::Scalar::kLossScaleAtFloor)) {
    SY_ASSIGN_OR_RETURN(const float at_floor, engine_.ReadIn(Engine::Scalar::kLossScaleAtFloor, update.slot));
    if (at_floor != 0) return Refuse(update, norm, followed);
    SY_ASSIGN_OR_RETURN(const float scale, engine_.ReadIn(Engine::Scalar::kLossScale, update.slot));
    if (engine_.world().rank() == 0 && told) {
      LogInfo("update {} is left out: its gradients overflow at the loss scale {:g} ({} so far)", update.update, scale,
              skipped_.count);
    }
    return OkStatus();
  }
  if (!skip_ || skipped_.in_a_row >= kMostSkipped) return Refuse(update, norm, followed);
  if (engine_.world().rank() == 0 && told) {
    LogWarning("update {} is left out: the norm of its gradients is {} ({} so far)", update.update, norm,
               skipped_.count);
  }
  return OkStatus();
}

Status GradientWatch::Refuse(const Unread& update, float norm, bool followed) {
  World& world = engine_.world();
  double loss = 0;
  SY_ASSIGN_OR_RETURN(loss, engine_.ReadIn(Engine::Scalar::kLoss, update.slot));
  SY_ASSIGN_OR_RETURN(loss, world.Mean("loss", loss));
  SY_ASSIGN_OR_RETURN(const float lr, engine_.ReadIn(Engine::Scalar::kLearningRate, update.slot));
  SY_ASSIGN_OR_RETURN(const std::string tensor, FirstNonFinite(followed));
  if (engine_.Has(Engine::Scalar::kLossScaleAtFloor)) {
    SY_ASSIGN_OR_RETURN(const float scale, engine_.ReadIn(Engine::Scalar::kLossScale, update.slot));
    return absl::OutOfRangeError(fmt::format(
        "the norm of the gradients is {} at update {} (epoch {}, loss {:.4g}, lr {:.3g}), and the loss scale has come "
        "down to its floor of {:g}, {} updates in a row without success; {}. Compute in --precision=bf16, lower "
        "--lr, set --clip, give a lower --min_scale, or find the first bad value with --debug=nan; what was saved "
        "before is whole",
        norm, update.update, update.epoch, loss, lr, scale, skipped_.in_a_row, tensor));
  }
  std::string scaled;
  if (engine_.Has(Engine::Scalar::kLossScale)) {
    SY_ASSIGN_OR_RETURN(const float scale, engine_.ReadIn(Engine::Scalar::kLossScale, update.slot));
    if (scale != 1) scaled = fmt::format(" The loss is scaled by {:g}: try --loss_scale=dynamic.", scale);
  }
  if (fp16_wire_)
    scaled += " They travel in fp16, which ends at 65504: --allreduce_dtype=bf16 or fp32 holds larger ones.";
  const std::string row =
      skip_ ? fmt::format(", the {}th in a row, and --on_nonfinite=skip leaves out no more", kMostSkipped) : "";
  return absl::OutOfRangeError(fmt::format(
      "the norm of the gradients is {} at update {} (epoch {}, loss {:.4g}, lr {:.3g}){}; {}.{} Lower --lr, raise "
      "--warmup, set --clip, {}find the first bad value with --debug=nan{}; what was saved before is whole",
      norm, update.update, update.epoch, loss, lr, row, tensor, scaled, skip_ ? "or " : "",
      skip_ ? "" : ", or leave such updates out with --on_nonfinite=skip"));
}

// Parameters, then gradients as the backward pass finishes them, so that the first bad one is nearest to where it
// began. Where the next update has begun, the gradients are that one's.
StatusOr<std::string> GradientWatch::FirstNonFinite(bool followed) {
  SY_RETURN_IF_ERROR(engine_.Synchronize());
  const Layout& layout = engine_.layout();
  const std::vector<GradientPlace>& places = engine_.plans().program.gradient_places;
  std::vector<float> values;
  for (const GradientPlace& place : places) {
    const Layout::Entry* entry = layout.Find(place.parameter);
    values.resize(entry->bytes / sizeof(float));
    SY_RETURN_IF_ERROR(engine_.memory().Download(place.parameter, values.data(), entry->bytes));
    const size_t at = FirstBad(values.data(), values.size());
    if (at < values.size())
      return fmt::format("the parameter {} {} holds {} at element {}, from an update before", place.parameter,
                         ToString(entry->type.shape), values[at], at);
  }
  std::map<std::string, std::vector<float>> buckets;
  std::pair<float, std::string> largest;
  for (const GradientPlace& place : places) {
    if (place.bucket.empty())
      return std::string("which gradient it was is not known, as ranks share their sums: --zero=1 names it");
    std::vector<float>& bucket = buckets[place.bucket];
    if (bucket.empty()) {
      const Layout::Entry* entry = layout.Find(place.bucket);
      bucket.resize(entry->bytes / sizeof(float));
      SY_RETURN_IF_ERROR(engine_.memory().Download(place.bucket, bucket.data(), entry->bytes));
    }
    const auto count = static_cast<size_t>(place.elements);
    const float* const gradient = bucket.data() + place.start;
    const size_t at = FirstBad(gradient, count);
    if (at < count)
      return fmt::format("the first from the loss backwards that is not finite{} is that of {} {}: {} at element {}",
                         followed ? ", in the update that followed," : "", place.parameter,
                         ToString(layout.Find(place.parameter)->type.shape), gradient[at], at);
    for (size_t i = 0; i < count; ++i) {
      if (std::abs(gradient[i]) > largest.first) largest = {std::abs(gradient[i]), place.parameter};
    }
  }
  if (followed) return std::string("which gradient it was is not known any more");
  if (const World& world = engine_.world(); world.mesh.pipeline > 1) {
    return fmt::format("every gradient of stage {} is finite: a rank of the stage where one is not names it",
                       world.mesh.StageOf(world.rank()));
  }
  return fmt::format("every gradient is finite, but the sum of their squares is not; the largest is that of {}: {:.3g}",
                     largest.second, largest.first);
}

}  // namespace switchyard
