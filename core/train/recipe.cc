#include "core/train/recipe.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "core/optim/optimizer.h"
#include "core/train/mixed_precision.h"

namespace switchyard {
namespace {

constexpr double kMostUpdates = 1e15;

// A place in the run as users tell it: "1000" updates, "30e" epochs, "0.3" of the run.
struct When {
  enum Unit { kUpdates, kEpochs, kShare } unit = kUpdates;
  double number = 0;
};

const char* WordsOf(When::Unit unit) {
  return unit == When::kUpdates ? "numbers of updates" : unit == When::kEpochs ? "epochs" : "shares of the run";
}

StatusOr<When> ParseWhen(const std::string& flag, const std::string& word) {
  When when;
  const bool epochs = word.ends_with('e');
  const std::string number = epochs ? word.substr(0, word.size() - 1) : word;
  when.unit = epochs ? When::kEpochs : word.find('.') != std::string::npos ? When::kShare : When::kUpdates;
  const bool digits = !number.empty() && number.find_first_not_of("0123456789.") == std::string::npos;
  const auto fits = [&] {
    if (when.unit == When::kUpdates) return when.number >= 1 && when.number <= kMostUpdates;
    return when.number > 0 && when.number < (epochs ? kMostUpdates : 1);
  };
  if (!digits || !absl::SimpleAtod(number, &when.number) || !fits()) {
    return InvalidArgument(
        "--{}: expected numbers of updates (1000), whole and at least 1, of epochs (30e), or shares of the run (0.3), "
        "found \"{}\"",
        flag, word);
  }
  return when;
}

// In updates, at least one.
int64_t UpdatesOf(const When& when, int64_t updates, int64_t updates_per_epoch) {
  const int64_t unit = when.unit == When::kUpdates ? 1 : when.unit == When::kEpochs ? updates_per_epoch : updates;
  return std::llround(std::clamp(when.number * static_cast<double>(unit), 1.0, kMostUpdates));
}

// Where the rate falls: ascending, all in the unit of the first.
StatusOr<std::vector<When>> Milestones(const TrainConfig& c) {
  std::vector<When> milestones;
  for (const std::string& word : c.milestones) {
    SY_ASSIGN_OR_RETURN(const When when, ParseWhen("milestones", word));
    if (!milestones.empty() && when.unit != milestones[0].unit) {
      return InvalidArgument(
          "--milestones: expected {} throughout, found {} beside {}; a share has a point, epochs an e",
          WordsOf(milestones[0].unit), word, c.milestones[0]);
    }
    if (!milestones.empty() && when.number <= milestones.back().number) {
      return InvalidArgument("--milestones: expected ascending {}, found {} behind {:g}", WordsOf(when.unit), word,
                             milestones.back().number);
    }
    milestones.push_back(when);
  }
  return milestones;
}

// Where a schedule that falls does so, in the order of the run: all milestones, or one step.
StatusOr<std::vector<When>> FallsOf(const TrainConfig& c) {
  if (c.schedule != "step" || !c.step_size) return Milestones(c);
  SY_ASSIGN_OR_RETURN(const When step, ParseWhen("step_size", *c.step_size));
  return std::vector<When>{step};
}

bool EndsAtMinimum(Schedule kind) { return kind == Schedule::kLinear || kind == Schedule::kCosine; }

}  // namespace

bool HasWarmup(const TrainConfig& c) { return std::strtod(c.warmup.c_str(), nullptr) > 0; }

Status CheckRecipe(const TrainConfig& c) {
  SY_ASSIGN_OR_RETURN(const int optimizer, ParseOptimizer(c.optimizer));
  SY_ASSIGN_OR_RETURN(const Schedule schedule, ParseSchedule(c.schedule));
  SY_RETURN_IF_ERROR(ParseRateScaling(c.scale_lr).status());
  SY_RETURN_IF_ERROR(Milestones(c).status());
  SY_RETURN_IF_ERROR(FallsOf(c).status());

  const std::pair<const char*, float> memories[] = {{"momentum", c.momentum}, {"beta1", c.beta1}, {"beta2", c.beta2}};
  for (const auto& [flag, value] : memories) {
    if (!(value >= 0 && value < 1)) {
      return InvalidArgument(
          "--{}: expected at least 0 and below 1, found {:g}: a mean with a memory of 1 takes in no gradient", flag,
          value);
    }
  }
  SY_RETURN_IF_ERROR(MixedPrecisionOf(c).status());
  const bool has_momentum = optimizer == SY_OPTIMIZER_SGD || optimizer == SY_OPTIMIZER_LARS;
  if (c.nesterov && !has_momentum) {
    return InvalidArgument(
        "--nesterov is a momentum of sgd and lars, and --optimizer={}; give --optimizer=sgd or --nonesterov",
        c.optimizer);
  }
  if (c.nesterov && optimizer == SY_OPTIMIZER_SGD && c.dampening != 0) {
    return InvalidArgument(
        "--nesterov looks ahead along whole gradients, and --dampening={:g} takes a part of them; give --dampening=0 "
        "or --nonesterov",
        c.dampening);
  }
  if (!(c.layer_decay > 0)) {
    return InvalidArgument("--layer_decay: expected above 0 and at most 1, found {:g}: layers below would not train",
                           c.layer_decay);
  }
  if (c.ema_decay == 1)
    return InvalidArgument("--ema_decay: expected below 1: an average with a memory of 1 takes in no weights");
  if (c.best_by == "ema" && c.ema_decay == 0)
    return InvalidArgument("--best_by=ema needs averaged weights: give their memory, as --ema_decay=0.9999");
  if (c.nesterov && c.momentum == 0)
    return InvalidArgument(
        "--nesterov (timm's --opt=sgd asks for it, too) looks ahead along the momentum, and --momentum=0; give a "
        "momentum, as --momentum=0.9, or --nonesterov");

  if (schedule == Schedule::kMultistep && c.milestones.empty()) {
    return InvalidArgument(
        "--schedule=multistep needs --milestones, where the rate falls, as --milestones=30e,60e or 1000,2000");
  }
  if (schedule == Schedule::kStep && !c.step_size)
    return InvalidArgument(
        "--schedule=step needs --step_size, the distance between two falls, as --step_size=30e or 1000");
  if (!(c.gamma > 0 && c.gamma <= 1)) {
    return InvalidArgument(
        "--gamma: expected above 0 and at most 1, found {:g}: it is the factor by which a rate falls", c.gamma);
  }
  if (c.min_lr > c.lr && EndsAtMinimum(schedule)) {
    return InvalidArgument(
        "--lr={:g} would rise to --min_lr={:g} at the end (the recipe's, where you gave none); give a lower --min_lr",
        c.lr, c.min_lr);
  }
  if (c.warmup_lr > c.lr && HasWarmup(c) && schedule != Schedule::kCosineAnnealing) {
    return InvalidArgument(
        "the warm-up would fall from --warmup_lr={:g} (the recipe's, where you gave none) to --lr={:g}; give a lower "
        "--warmup_lr",
        c.warmup_lr, c.lr);
  }
  return OkStatus();
}

StatusOr<ScheduleOptions> ScheduleOptionsOf(const TrainConfig& c, int64_t updates, int64_t updates_per_epoch,
                                            int world) {
  ScheduleOptions o;
  SY_ASSIGN_OR_RETURN(o.kind, ParseSchedule(c.schedule));
  o.lr = c.lr;
  o.warmup_lr = c.warmup_lr;
  o.min_lr = c.min_lr;
  o.gamma = c.gamma;
  SY_ASSIGN_OR_RETURN(o.warmup, ParseWarmup(c.warmup, updates, updates_per_epoch));
  SY_ASSIGN_OR_RETURN(const std::vector<When> falls, FallsOf(c));
  for (const When& fall : falls) {
    const int64_t at = UpdatesOf(fall, updates, updates_per_epoch);
    if (o.kind == Schedule::kStep) {
      o.step_size = at;
    } else {
      o.milestones.push_back(at);
    }
    // Shares are of the epochs where these decide about the run's length.
    o.falls_by_epochs = fall.unit == When::kEpochs || (fall.unit == When::kShare && !c.steps);
  }
  if (c.per_epoch) o.interval = updates_per_epoch;
  SY_ASSIGN_OR_RETURN(const RateScaling scaling, ParseRateScaling(c.scale_lr));
  return ScaleRates(o, scaling, int64_t{c.batch_size} * world * c.accumulation, c.base_batch_size, c.scale_lr_factor);
}

std::optional<int64_t> FirstFall(const TrainConfig& c, int64_t updates, int64_t updates_per_epoch) {
  if (c.schedule != "multistep" && c.schedule != "step") return std::nullopt;
  const auto falls = FallsOf(c);
  if (!falls.ok() || falls->empty()) return std::nullopt;
  return UpdatesOf((*falls)[0], updates, updates_per_epoch);
}

std::vector<int64_t> FallsOfMilestones(const TrainConfig& c, int64_t updates, int64_t updates_per_epoch) {
  std::vector<int64_t> falls;
  const auto milestones = Milestones(c);
  if (c.schedule != "multistep" || !milestones.ok()) return falls;
  for (const When& when : *milestones) falls.push_back(UpdatesOf(when, updates, updates_per_epoch));
  return falls;
}

}  // namespace switchyard
