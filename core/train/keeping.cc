#include "core/train/keeping.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/plugins/library.h"
#include "core/runtime/processes/launch_report.h"
#include "core/train/bad_samples.h"
#include "core/train/mixed_precision.h"
#include "core/train/run_folder_sharing.h"
#include "core/train/save_meeting.h"
#include "core/train/snapshot.h"

namespace switchyard {
Status Keeping::Save(const RunPosition& position, int64_t updates_per_epoch, bool best,
                     const EvaluationResult& evaluation, std::function<Status()> sync_log) {
  if (writer_) SY_RETURN_IF_ERROR(writer_->Finish());  // so that host memory holds one checkpoint at a time
  held_ = position.data_step;
  SY_ASSIGN_OR_RETURN(const nlohmann::json bad, GatherBadSamples(engine_.world(), position.bad_samples));
  CheckpointContents contents;
  contents.step = position.data_step;
  if (owner()) {
    SY_ASSIGN_OR_RETURN(contents.record, record_.Of(position, updates_per_epoch, evaluation));
    if (!bad.empty()) contents.record["bad_samples"] = bad;
    SY_ASSIGN_OR_RETURN(ForeignConfig foreign, task_.ForOthers(train_));
    contents.config = std::move(foreign.config);
    contents.preprocessor = std::move(foreign.preprocessor);
  }
  const SaveOptions options = {.best = best, .keep = config_.keep, .sync_log = std::move(sync_log)};
  return writers_.empty() ? Begin(std::move(contents), options) : BeginShared(std::move(contents), options);
}

Status Keeping::Begin(CheckpointContents contents, const SaveOptions& options) {
  SY_ASSIGN_OR_RETURN(Gathered gathered, GatherTensors(engine_, !config_.broadcast_buffers));
  if (!owner()) return OkStatus();  // it holds all that is not gathered
  SY_RETURN_IF_ERROR(engine_.Synchronize());
  SY_ASSIGN_OR_RETURN(std::shared_ptr<const void> reading, copy_.Begin());
  auto make = [this, contents = std::move(contents), gathered = std::move(gathered),
               reading = std::move(reading)]() mutable -> StatusOr<CheckpointContents> {
    SY_ASSIGN_OR_RETURN(Snapshot snapshot,
                        TakeSnapshot(copy_, std::move(gathered), engine_.layout(), file_layout_, contents.step));
    copy_.AllAnnounced();
    contents.weights = std::move(snapshot.weights);
    contents.state = std::move(snapshot.state);
    contents.storage = std::make_shared<const std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
        std::move(snapshot.storage), reading);
    return std::move(contents);
  };
  return writer_->Save(std::move(make), options);
}

Status Keeping::BeginShared(CheckpointContents contents, const SaveOptions& options) {
  World& world = engine_.world();
  const auto meeting = std::make_shared<SaveMeeting>(*world.rendezvous, world.saves++, world.rank(), writers_);
  const auto end = [meeting](const Status& status) { return meeting->End(status); };
  const auto place = std::find(writers_.begin(), writers_.end(), world.rank());
  if (place == writers_.end()) return writer_->Begin([] { return OkStatus(); }, end);
  SY_RETURN_IF_ERROR(engine_.Synchronize());
  SY_ASSIGN_OR_RETURN(const std::shared_ptr<const void> reading, copy_.Begin());
  // With `reading`, the tensors can be read as long as the function is there that writes them.
  const auto take = [this, reading, step = contents.step] {
    const World& of_rank = engine_.world();
    return TakePieces(&copy_, engine_.layout(), of_rank.mesh, of_rank.rank(), !config_.broadcast_buffers, step);
  };
  const auto publish = [this, meeting, take, options, contents = std::move(contents)]() mutable -> Status {
    SharedWriting& shared = contents.shared.emplace();
    shared.files = static_cast<int>(writers_.size());
    SY_ASSIGN_OR_RETURN(shared.own, take());
    shared.begin = [meeting](const std::string& draft) { return meeting->Begin(draft); };
    shared.wait = [meeting] { return meeting->Wait(); };
    if (WeightsAreDivided(engine_.layout())) {
      shared.join_weights = [this](const Folder& folder, const std::string& name, const SavedTensors& saved) {
        return JoinWeights(folder, name, saved, engine_.layout(), file_layout_);
      };
    } else {
      SY_ASSIGN_OR_RETURN(contents.weights, TakeWeights(copy_, engine_.layout(), file_layout_, contents.step));
    }
    copy_.AllAnnounced();
    return SaveCheckpoint(run_folder_, contents, options).status();
  };
  const auto add = [this, meeting, take, file = static_cast<int>(place - writers_.begin())]() -> Status {
    SY_ASSIGN_OR_RETURN(const std::vector<TensorPiece> pieces, take());
    copy_.AllAnnounced();
    SY_ASSIGN_OR_RETURN(const std::string draft, meeting->Draft());
    SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder_));
    SY_ASSIGN_OR_RETURN(const Folder checkpoints, run.OpenInside("checkpoints"));
    SY_ASSIGN_OR_RETURN(const Folder folder, checkpoints.OpenInside(draft));
    SY_ASSIGN_OR_RETURN(const TensorFileSummary summary,
                        WriteShard(folder, ShardName(file, static_cast<int>(writers_.size())), pieces));
    return meeting->Report(summary);
  };
  return owner() ? writer_->Begin(publish, end) : writer_->Begin(add, end);
}

Status Keeping::Finish() {
  if (writer_) SY_RETURN_IF_ERROR(writer_->Finish());
  lock_.reset();
  return OkStatus();
}

Status Keeping::MakeOrTakeUpRunFolder() {
  const bool goes_on = !run_folder_.empty();
  if (!goes_on) {
    SY_ASSIGN_OR_RETURN(run_folder_, CreateRunFolder(config_, model_.name));
    const bool aside = std::filesystem::path(resumed_from_).parent_path().filename() == "abandoned";
    if (!resumed_from_.empty())
      LogWarning("{} {}; the run goes on in a new one, {}", resumed_from_,
                 aside ? "was set aside when its run went back" : "lies in no run folder of ours", run_folder_);
  }
  SY_ASSIGN_OR_RETURN(RunFolderLock lock, RunFolderLock::Take(run_folder_));
  lock_.emplace(std::move(lock));
  writer_ = std::make_unique<CheckpointWriter>(run_folder_);
  if (!goes_on) return OkStatus();
  SY_RETURN_IF_ERROR(SetLaterCheckpointsAside(resumed_from_));
  return WriteRunConfig(run_folder_, config_);
}

Status Keeping::OpenRunFolder() {
  World& world = engine_.world();
  Status status;
  if (owner()) {
    status = copy_.Reserve();
    if (status.ok()) status = MakeOrTakeUpRunFolder();
  }
  SY_RETURN_IF_ERROR(world.size() > 1 ? TellAll(world, status, &run_folder_) : status);
  SY_RETURN_IF_ERROR(ChooseWriters());
  if (owner()) TellLauncherOfRun(run_folder_);
  // Where --interpose=trace writes, unless the user chose.
  if (!config_.interpose.empty() && !Environment("SWITCHYARD_TRACE"))
    ProvideSetting("TRACE", run_folder_ + "/trace.json");
  return OkStatus();
}

Status Keeping::ChooseWriters() {
  World& world = engine_.world();
  const Layout& layout = engine_.layout();
  const bool each_rank = !config_.broadcast_buffers;
  const bool divided = world.size() > 1 && GatheredBytes(layout, each_rank, world.data_size()) > 0;
  if (!divided) return OkStatus();  // rank 0 has all of it
  SY_ASSIGN_OR_RETURN(const auto pieces, TakePieces(nullptr, layout, world.mesh, world.rank(), each_rank, 0));
  const int32_t own[] = {config_.sharded_checkpoints, !pieces.empty()};
  std::vector<int32_t> all(2 * static_cast<size_t>(world.size()));
  SY_RETURN_IF_ERROR(world.communicator->AllGather("checkpoint_writers", own, all.data(), 2, SY_I32));
  for (size_t i = 0; i < all.size(); i += 2) {
    if (all[i] != 0) continue;
    if (config_.sharded_checkpoints && owner())
      LogWarning("rank {} was started with --sharded_checkpoints=0: rank 0 gathers and writes all", i / 2);
    return OkStatus();
  }
  SY_ASSIGN_OR_RETURN(const bool shared, EveryRankShares(world, run_folder_));
  if (!shared) return OkStatus();
  // Rank 0 publishes, whatever it owns.
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == 0 || all[2 * static_cast<size_t>(rank) + 1] != 0) writers_.push_back(rank);
  }
  if (!owner()) writer_ = std::make_unique<CheckpointWriter>(run_folder_);
  const Status reserved = pieces.empty() || owner() ? OkStatus() : copy_.Reserve();
  int32_t first = reserved.ok() ? world.size() : world.rank();
  SY_RETURN_IF_ERROR(world.communicator->AllReduce("checkpoint_copy", &first, &first, 1, SY_I32, SY_MIN));
  SY_RETURN_IF_ERROR(reserved);
  if (first == world.size()) return OkStatus();
  return FailedPrecondition("rank {} has too little memory for a copy of its state, from which it would write", first);
}

StatusOr<RunPosition> Keeping::Open() {
  const std::string& path = *config_.resume;
  if (path.ends_with(".safetensors"))
    return InvalidArgument("--resume={}: a bare weight file has no optimizer state; use --pretrained={}", path, path);
  SY_ASSIGN_OR_RETURN(LoadedCheckpoint loaded, LoadCheckpoint(path));
  SY_ASSIGN_OR_RETURN(const RunPosition at, record_.PositionIn(loaded));
  run_folder_ = RunFolderOf(loaded.folder);
  if (!run_folder_.empty()) held_ = at.data_step;
  resumed_from_ = loaded.folder;
  resumed_.emplace(std::move(loaded));
  return at;
}

Status Keeping::Restore() {
  SY_RETURN_IF_ERROR(RestoreSnapshot(engine_, model_, *resumed_, *config_.resume, !config_.broadcast_buffers));
  resumed_.reset();
  return LimitLossScale();
}

// The run that was saved may have had other limits.
Status Keeping::LimitLossScale() {
  constexpr char kName[] = "loss_scale";
  if (engine_.layout().Find(kName) == nullptr) return OkStatus();
  SY_ASSIGN_OR_RETURN(const MixedPrecision mixed,
                      MixedPrecisionOf(config_, engine_.world().device->info().static_loss_scale));
  float saved = 0;
  SY_RETURN_IF_ERROR(engine_.memory().Download(kName, &saved, sizeof saved));
  const float limited = std::clamp(saved, mixed.loss_scale.minimum, mixed.loss_scale.maximum);
  if (limited == saved) return OkStatus();
  if (owner())
    LogWarning("the loss scale was {:g}; from here on it is {:g}, by --min_scale and --max_scale", saved, limited);
  return engine_.memory().Upload(kName, &limited, sizeof limited);
}

}  // namespace switchyard
