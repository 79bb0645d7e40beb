#include "core/train/loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/logging.h"
#include "core/train/stopwatch.h"

namespace switchyard {
namespace {

constexpr int kExamples = 8;  // samples in the pictures of event files

}  // namespace

StatusOr<TrainingResult> TrainingLoop::Run() {
  SY_RETURN_IF_ERROR(Start());
  const World& world = parts_.engine.world();
  Stopping stopping(world.communicator.get());
  SY_RETURN_IF_ERROR(CatchUp());
  while (!result_.interrupted && parts_.position.data_step < parts_.timetable.updates) {
    // What beginning, evaluating and saving have waited for is not an update's.
    if (world.communicator) world.communicator->TakeWaitMilliseconds();
    const Stopwatch clock;
    const bool logged = Logged();
    std::vector<double> losses;
    const int64_t done = parts_.position.data_step;
    recording_.BeginUpdate(done + 1, parts_.timetable.updates - done);
    SY_ASSIGN_OR_RETURN(const bool made, Update(logged, &stopping, &losses));
    if (!made) {
      SY_RETURN_IF_ERROR(StopWithinUpdate());
      break;
    }
    SY_RETURN_IF_ERROR(recording_.EndUpdate(parts_.keeping.run_folder()));
    const int64_t left_out = parts_.gradients.skipped().count;
    if (logged || !parts_.engine.async()) SY_RETURN_IF_ERROR(parts_.gradients.Check(/*followed=*/false));
    SY_ASSIGN_OR_RETURN(const bool stop, stopping.After(parts_.position.data_step * parts_.config.accumulation));
    const double seconds = clock.Seconds();
    interval_.seconds += seconds;
    if (world.communicator) interval_.comm_wait_ms += world.communicator->TakeWaitMilliseconds();
    result_.seconds += seconds;
    if (logged) SY_RETURN_IF_ERROR(Log(losses, parts_.gradients.skipped().count > left_out));
    SY_RETURN_IF_ERROR(AfterUpdate(stop));
  }
  return Finish();
}

Status TrainingLoop::Start() {
  World& world = parts_.engine.world();
  RunPosition& at = parts_.position;
  SY_ASSIGN_OR_RETURN(most_memory_, world.Most("memory", parts_.engine.memory().allocated_bytes()));
  skipped_before_ = parts_.gradients.skipped().count;
  SY_RETURN_IF_ERROR(parts_.keeping.OpenRunFolder());
  if (world.rank() == 0) {
    SY_ASSIGN_OR_RETURN(watching_, Watching::Open(parts_.keeping.run_folder(), world.processes.node, at.data_step,
                                                  parts_.config, parts_.task));
    if (parts_.began) SY_RETURN_IF_ERROR(parts_.began(parts_.keeping.run_folder()));
  }
  const int64_t per_epoch = parts_.timetable.updates_per_epoch;
  if (StepOfEpoch() >= per_epoch) {
    at.batch = 0;
    ++at.epoch;
  }
  // Counted from here: a run whose global batch was changed has other epochs behind it than its updates say.
  const int64_t updates_of_epoch = StepOfEpoch() + parts_.timetable.updates - at.data_step;
  end_epoch_ = at.epoch + (updates_of_epoch + per_epoch - 1) / per_epoch;
  return at.data_step < parts_.timetable.updates ? parts_.loader.Start(at.epoch, at.batch, end_epoch_) : OkStatus();
}

Status TrainingLoop::CatchUp() {
  RunPosition& at = parts_.position;
  if (!std::exchange(at.evaluation_pending, false)) return OkStatus();
  const StatusOr<bool> best = Evaluate(at.epoch - (at.batch == 0 ? 1 : 0));
  if (absl::IsCancelled(best.status())) {
    at.evaluation_pending = true;
    Interrupt();
    return OkStatus();
  }
  SY_RETURN_IF_ERROR(best.status());
  return Save(*best);
}

bool TrainingLoop::Logged() const {
  const int64_t next = parts_.position.data_step + 1;
  return next == 1 || next % parts_.config.log_every == 0 || next == parts_.timetable.updates;
}

StatusOr<bool> TrainingLoop::Update(bool logged, Stopping* stopping, std::vector<double>* losses) {
  RunPosition& at = parts_.position;
  const int accumulation = parts_.config.accumulation;
  const int64_t epoch = at.epoch, batch = at.batch;
  SY_RETURN_IF_ERROR(parts_.engine.BeginUpdate());
  for (int a = 0; a < accumulation;) {
    Batch next;
    SY_ASSIGN_OR_RETURN(const bool more, parts_.loader.Next(&next));
    if (!more) return Internal("the loader ended after {} of {} updates", at.data_step, parts_.timetable.updates);
    interval_.data_wait += next.wait_seconds;
    recording_.WaitedForData(next.wait_seconds);
    if (next.index >= parts_.timetable.updates_per_epoch * accumulation)
      continue;  // the epoch's last batches do not fill a round
    SY_RETURN_IF_ERROR(parts_.engine.Upload(next.tensors, next.sample_ids, at.data_step, a));
    if (parts_.engine.RunsAfter(a)) {
      SY_RETURN_IF_ERROR(parts_.engine.RunMicroStep(a));
      SY_RETURN_IF_ERROR(parts_.gradients.Check(/*followed=*/true));
      if (logged) {
        SY_ASSIGN_OR_RETURN(const float loss, parts_.engine.Read(Engine::Scalar::kLoss));
        losses->push_back(loss);
      }
    }
    at.epoch = next.epoch;
    at.batch = next.index + 1;
    if (++a == accumulation) break;
    SY_ASSIGN_OR_RETURN(const bool stop, stopping->After(at.data_step * accumulation + a));
    if (!stop) continue;
    at.epoch = epoch;
    at.batch = batch;
    SY_RETURN_IF_ERROR(parts_.engine.TakeBack());
    return false;
  }
  ++at.data_step;
  parts_.gradients.Begun(at.data_step, at.epoch + 1);
  ++interval_.updates;
  ++trained_;
  return true;
}

// A resumed run makes the micro-steps of that update anew, with the same numbers.
Status TrainingLoop::StopWithinUpdate() {
  SY_RETURN_IF_ERROR(parts_.gradients.Check(/*followed=*/false));
  if (!parts_.keeping.Holds(parts_.position.data_step)) SY_RETURN_IF_ERROR(Save(/*best=*/false));
  Interrupt();
  return OkStatus();
}

// left_out: the update was, so that a loss that is not finite has been told already.
Status TrainingLoop::Log(const std::vector<double>& losses, bool left_out) {
  Engine& engine = parts_.engine;
  World& world = engine.world();
  const RunPosition& at = parts_.position;
  double loss = 0;
  for (const double l : losses) loss += l / static_cast<double>(losses.size());
  SY_ASSIGN_OR_RETURN(loss, world.Mean("loss", loss));
  SY_ASSIGN_OR_RETURN(const float lr, engine.Read(Engine::Scalar::kLearningRate));
  SY_ASSIGN_OR_RETURN(const float norm, engine.Read(Engine::Scalar::kGradNorm));
  std::optional<float> scale;
  if (engine.Has(Engine::Scalar::kLossScale)) {
    SY_ASSIGN_OR_RETURN(scale, engine.Read(Engine::Scalar::kLossScale));
  }
  result_.train_loss = loss;
  if (!std::isfinite(loss) && !left_out) {
    return absl::OutOfRangeError(fmt::format(
        "the loss is {} at update {} (epoch {}, lr {:.3g}): lower --lr, raise --warmup, or find the first bad "
        "value with --debug=nan",
        loss, at.data_step, at.epoch + 1, lr));
  }
  const Interval interval = std::exchange(interval_, {});
  if (!watching_) return OkStatus();
  const auto updates = static_cast<double>(interval.updates);
  const double rate = updates * static_cast<double>(PerUpdate()) / interval.seconds;
  const double comm = interval.comm_wait_ms / updates;
  const int64_t left = parts_.timetable.updates - at.data_step, step = StepOfEpoch();
  MetricsRecord record = {
      {"step", at.data_step}, {"epoch", at.epoch + 1}, {"loss", loss}, {"lr", lr}, {"grad_norm", norm}};
  if (scale) record["loss_scale"] = *scale;
  record.update({{"skipped_updates", parts_.gradients.skipped().count},
                 {"images_per_s", rate},
                 {"data_wait_ms", 1e3 * interval.data_wait / updates},
                 {"comm_wait_ms", comm},
                 {"memory_bytes", most_memory_}});
  return watching_->Trained(record, {.epoch = at.epoch + 1,
                                     .epochs = end_epoch_,
                                     .step = step,
                                     .steps = std::min(parts_.timetable.updates_per_epoch, step + left),
                                     // One rank waits for nobody.
                                     .comm_wait_ms = world.communicator ? std::optional(comm) : std::nullopt,
                                     .remaining_s = static_cast<double>(left * PerUpdate()) / rate});
}

Status TrainingLoop::AfterUpdate(bool stop) {
  const TrainConfig& config = parts_.config;
  RunPosition& at = parts_.position;
  const bool epoch_ends = StepOfEpoch() == parts_.timetable.updates_per_epoch;
  const bool run_ends = at.data_step == parts_.timetable.updates;
  const bool evaluate = run_ends || (epoch_ends && config.eval_every > 0 && (at.epoch + 1) % config.eval_every == 0);
  const bool due = config.save_every ? at.data_step % *config.save_every == 0 : epoch_ends;
  if (evaluate || due || stop) SY_RETURN_IF_ERROR(parts_.gradients.Check(/*followed=*/false));
  bool best = false;
  if (evaluate && !stop) {
    const StatusOr<bool> evaluated = Evaluate(at.epoch);
    stop = absl::IsCancelled(evaluated.status());
    if (!stop) {
      SY_RETURN_IF_ERROR(evaluated.status());
      best = *evaluated;
    }
  }
  at.evaluation_pending = evaluate && stop;  // who stops a run gives it little time: a resumed one catches up
  if (due || run_ends || best || stop) SY_RETURN_IF_ERROR(Save(best));
  if (stop) Interrupt();
  return OkStatus();
}

void TrainingLoop::Interrupt() {
  result_.interrupted = true;
  const TrainConfig& c = parts_.config;
  std::string how;  // its ranks share models and state, which a checkpoint does not say
  if (c.tp > 1) how += fmt::format(" --tp={}", c.tp);
  if (c.sp) how += " --sp";
  if (c.pp > 1) how += fmt::format(" --pp={}", c.pp);
  if (c.pp_interleave > 1) how += fmt::format(" --pp_interleave={}", c.pp_interleave);
  if (c.zero > 0) how += fmt::format(" --zero={}", c.zero);
  if (c.offload != "none") how += fmt::format(" --offload={}", c.offload);
  if (watching_)
    watching_->Line(fmt::format("stopped by a signal after update {}; go on with --resume={}{}",
                                parts_.position.data_step, parts_.keeping.run_folder(), how));
}

StatusOr<EvaluationResult> TrainingLoop::EvaluateUntilStopped() {
  Stopping stopping(parts_.engine.world().communicator.get());
  int64_t batches = 0;
  return parts_.evaluate([&] { return stopping.After(++batches); });
}

StatusOr<bool> TrainingLoop::Evaluate(int64_t epoch) {
  RunPosition& at = parts_.position;
  SY_ASSIGN_OR_RETURN(result_.evaluation, EvaluateUntilStopped());
  evaluated_at_ = at.data_step;
  const auto& decides = parts_.config.best_by == "ema" ? result_.evaluation.ema : result_.evaluation.metrics;
  const auto value = decides.find(parts_.task.best().name);
  const Status finite = CheckFinite(result_.evaluation);
  if (!finite.ok() && watching_) LogWarning("after update {}: {}", at.data_step, Message(finite));
  const bool best = finite.ok() && value != decides.end() && (!at.best || parts_.task.Better(value->second, *at.best));
  if (best) at.best = value->second;
  if (watching_) SY_RETURN_IF_ERROR(watching_->Evaluated(at.data_step, epoch + 1, result_.evaluation, best));
  // Ranks that share a model, or its parameters, compute its examples together.
  if (parts_.config.tensorboard && (watching_ || parts_.engine.plans().EvaluatesTogether())) {
    SY_ASSIGN_OR_RETURN(const auto examples, parts_.examples(kExamples));
    if (watching_) SY_RETURN_IF_ERROR(watching_->Examples(at.data_step, examples));
  }
  return best;
}

Status TrainingLoop::Save(bool best) {
  parts_.position.bad_samples = parts_.loader.bad_samples();
  parts_.position.skipped = parts_.gradients.skipped();
  const bool evaluated = evaluated_at_ == parts_.position.data_step;  // else the metrics are of older weights
  return parts_.keeping.Save(parts_.position, parts_.timetable.updates_per_epoch, best,
                             evaluated ? result_.evaluation : EvaluationResult{},
                             watching_ ? watching_->Syncing() : nullptr);
}

StatusOr<TrainingResult> TrainingLoop::Finish() {
  const RunPosition& at = parts_.position;
  if (result_.evaluation.count == 0 && !result_.interrupted) {  // resumed at its end: nothing was left to train
    StatusOr<EvaluationResult> evaluation = EvaluateUntilStopped();
    if (absl::IsCancelled(evaluation.status())) {
      Interrupt();
    } else {
      SY_RETURN_IF_ERROR(evaluation.status());
      result_.evaluation = *std::move(evaluation);
    }
  }
  SY_RETURN_IF_ERROR(parts_.keeping.Finish());
  if (watching_) {
    SY_ASSIGN_OR_RETURN(result_.picture, watching_->Finish(parts_.title));
  }
  result_.updates = at.data_step;
  result_.here = trained_;
  result_.trained_here = trained_ - (parts_.gradients.skipped().count - skipped_before_);
  result_.skipped_updates = parts_.gradients.skipped().count;
  result_.epochs = at.epoch + (StepOfEpoch() == parts_.timetable.updates_per_epoch ? 1 : 0);
  result_.best = at.best;
  result_.run_folder = parts_.keeping.run_folder();
  result_.images_per_s = static_cast<double>(trained_ * PerUpdate()) / std::max(1e-9, result_.seconds);
  return result_;
}

}  // namespace switchyard
