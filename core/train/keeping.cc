#include "core/train/keeping.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include "core/base/environment.h"
#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/base/secret.h"
#include "core/runtime/plugins/library.h"
#include "core/runtime/processes/launch_report.h"
#include "core/train/architecture.h"
#include "core/train/bad_samples.h"
#include "core/train/batch_division.h"
#include "core/train/mixed_precision.h"
#include "core/train/save_meeting.h"
#include "core/train/snapshot.h"
#include "core/train/told_by_another.h"

namespace switchyard {
namespace {

// A count in the checkpoint's record; DataLoss where it is none. key: "step", or "timetable/shift" for a field of an
// object. least: below which it is no count.
StatusOr<int64_t> CountIn(const LoadedCheckpoint& checkpoint, const std::string& key, int32_t least = 0) {
  const nlohmann::json::json_pointer place("/" + key);
  const nlohmann::json found = checkpoint.record.contains(place) ? checkpoint.record.at(place) : nlohmann::json();
  int32_t count = least;
  if (found.is_null() || !FromJson(found, &count) || count < least) {
    return DataLoss("{}/state.json: {}: expected a count, found {}", checkpoint.folder, key,
                    found.is_null() ? "nothing" : Excerpt(found));
  }
  return count;
}

nlohmann::json ToJson(const Course& course) {
  return {{"samples_per_update", course.samples_per_update},
          {"changed_at", course.changed_at},
          {"shift", course.shift},
          {"epoch_began", course.epoch_began},
          {"warm", course.warm}};
}

StatusOr<Course> CourseIn(const LoadedCheckpoint& checkpoint, int64_t data_step) {
  Course course;
  SY_ASSIGN_OR_RETURN(course.samples_per_update, CountIn(checkpoint, "timetable/samples_per_update", 1));
  SY_ASSIGN_OR_RETURN(course.changed_at, CountIn(checkpoint, "timetable/changed_at"));
  SY_ASSIGN_OR_RETURN(course.shift, CountIn(checkpoint, "timetable/shift", std::numeric_limits<int32_t>::min()));
  SY_ASSIGN_OR_RETURN(course.epoch_began, CountIn(checkpoint, "timetable/epoch_began"));
  course.warm = checkpoint.record.at("timetable").value("warm", nlohmann::json()) == true;
  if (course.changed_at > data_step || course.epoch_began > course.changed_at || course.shift > course.changed_at) {
    return DataLoss("{}/state.json: timetable: expected a change before update {}, found {}", checkpoint.folder,
                    data_step, ToJson(course).dump());
  }
  return course;
}

}  // namespace

StatusOr<nlohmann::json> Keeping::Record(const RunPosition& at, int64_t updates_per_epoch,
                                         const EvaluationResult& evaluation) {
  const int world = engine_.world().data_size();
  const bool epoch_is_over = at.batch >= updates_per_epoch * config_.accumulation;
  if (!data_checksum_) data_checksum_ = train_.Checksum();
  nlohmann::json record = {{"epoch", epoch_is_over ? at.epoch + 1 : at.epoch},
                           {"samples", epoch_is_over ? 0 : at.batch * config_.batch_size * world},  // of the epoch
                           {"step", at.data_step},
                           {"world", world},
                           {"evaluation_pending", at.evaluation_pending},
                           {"skipped_updates", {{"count", at.skipped.count}, {"in_a_row", at.skipped.in_a_row}}},
                           {"timetable", ToJson(at.course)},
                           {"optimizer", config_.optimizer},
                           {"arch", model_.architecture},
                           {"data_checksum", *data_checksum_},
                           {"config", ToJson(config_, {SettingKind::kProperty})}};
  const std::string metric = task_.best().name;
  if (at.best) record["best_" + metric] = *at.best;
  if (evaluation.metrics.contains(metric)) record[metric] = evaluation.metrics.at(metric);
  if (evaluation.ema.contains(metric)) record["ema_" + metric] = evaluation.ema.at(metric);
  SY_ASSIGN_OR_RETURN(const nlohmann::json of_task, task_.Record(train_));
  record.update(of_task);
  return record;
}

Status Keeping::Save(const RunPosition& position, int64_t updates_per_epoch, bool best,
                     const EvaluationResult& evaluation) {
  if (writer_) SY_RETURN_IF_ERROR(writer_->Finish());  // so that host memory holds one checkpoint at a time
  SY_ASSIGN_OR_RETURN(const nlohmann::json bad, GatherBadSamples(engine_.world(), position.bad_samples));
  CheckpointContents contents;
  contents.step = position.data_step;
  if (owner()) {
    SY_ASSIGN_OR_RETURN(contents.record, Record(position, updates_per_epoch, evaluation));
    if (!bad.empty()) contents.record["bad_samples"] = bad;
    SY_ASSIGN_OR_RETURN(ForeignConfig foreign, task_.ForOthers(train_));
    contents.config = std::move(foreign.config);
    contents.preprocessor = std::move(foreign.preprocessor);
  }
  const SaveOptions options = {.best = best, .keep = config_.keep};
  return writers_.empty() ? Begin(std::move(contents), options) : BeginShared(std::move(contents), options);
}

Status Keeping::Begin(CheckpointContents contents, const SaveOptions& options) {
  SY_ASSIGN_OR_RETURN(Gathered gathered, GatherTensors(engine_, !config_.broadcast_buffers));
  if (!owner()) return OkStatus();  // it holds all that is not gathered
  const auto make = [this, contents = std::move(contents),
                     gathered = std::move(gathered)]() mutable -> StatusOr<CheckpointContents> {
    SY_ASSIGN_OR_RETURN(Snapshot snapshot,
                        TakeSnapshot(copy_, std::move(gathered), engine_.layout(), model_, contents.step));
    contents.weights = std::move(snapshot.weights);
    contents.state = std::move(snapshot.state);
    contents.storage = std::move(snapshot.storage);
    return std::move(contents);
  };
  SY_RETURN_IF_ERROR(engine_.Synchronize());
  SY_RETURN_IF_ERROR(copy_.Begin());
  const Status begun = writer_->Save(make, options);
  if (!begun.ok()) copy_.Wait().IgnoreError();  // nobody else will
  return begun;
}

Status Keeping::BeginShared(CheckpointContents contents, const SaveOptions& options) {
  World& world = engine_.world();
  const auto meeting = std::make_shared<SaveMeeting>(*world.rendezvous, world.saves++, world.rank(), writers_);
  const auto end = [meeting](const Status& status) { return meeting->End(status); };
  const auto place = std::find(writers_.begin(), writers_.end(), world.rank());
  if (place == writers_.end()) return writer_->Begin([] { return OkStatus(); }, end);
  const auto take = [this, step = contents.step] {
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
        return JoinWeights(folder, name, saved, engine_.layout(), model_);
      };
    } else {
      SY_ASSIGN_OR_RETURN(contents.weights, TakeWeights(copy_, engine_.layout(), model_, contents.step));
    }
    return SaveCheckpoint(run_folder_, contents, options).status();
  };
  const auto add = [this, meeting, take, file = static_cast<int>(place - writers_.begin())]() -> Status {
    SY_ASSIGN_OR_RETURN(const std::vector<TensorPiece> pieces, take());
    SY_ASSIGN_OR_RETURN(const std::string draft, meeting->Draft());
    SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder_));
    SY_ASSIGN_OR_RETURN(const Folder checkpoints, run.OpenInside("checkpoints"));
    SY_ASSIGN_OR_RETURN(const Folder folder, checkpoints.OpenInside(draft));
    SY_ASSIGN_OR_RETURN(const TensorFileSummary summary,
                        WriteShard(folder, ShardName(file, static_cast<int>(writers_.size())), pieces));
    return meeting->Report(summary);
  };
  SY_RETURN_IF_ERROR(engine_.Synchronize());
  SY_RETURN_IF_ERROR(copy_.Begin());
  const Status begun = owner() ? writer_->Begin(publish, end) : writer_->Begin(add, end);
  if (!begun.ok()) copy_.Wait().IgnoreError();  // nobody else will
  return begun;
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

// What rank 0 says to all, or its error to all.
static Status TellAll(World& world, const Status& status, std::string* text) {
  std::string verdict = status.ok() ? "+" + *text : "-" + Message(status);
  SY_RETURN_IF_ERROR(world.BroadcastText(verdict, 0));
  if (world.rank() == 0) return status;
  if (verdict[0] == '-') return ToldByAnother(FailedPrecondition("{}", verdict.substr(1)));
  *text = verdict.substr(1);
  return OkStatus();
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

// Each writes a file there, which rank 0 reads: who cannot would fail the run at its first checkpoint.
StatusOr<bool> Keeping::EveryRankSharesRunFolder() {
  constexpr char kMeeting[] = ".ranks";
  World& world = engine_.world();
  std::string mark;  // what no other folder has
  const auto prepare = [&]() -> Status {
    SY_ASSIGN_OR_RETURN(const std::string random, RandomBytes(8));
    mark = Hexadecimal(random);
    SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder_));
    SY_RETURN_IF_ERROR(run.Remove(kMeeting));  // of a start that was cut short
    return run.CreateInside(kMeeting).status();
  };
  SY_RETURN_IF_ERROR(TellAll(world, owner() ? prepare() : OkStatus(), &mark));
  const auto name = [&](int rank) { return fmt::format("{}-{}", mark, rank); };
  const auto write = [&]() -> Status {
    SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder_));
    SY_ASSIGN_OR_RETURN(const Folder meeting, run.OpenInside(kMeeting));
    return meeting.Write(name(world.rank()), {BytesOf(mark)});
  };
  const auto comes_to_rank_0 = [&](int rank) {
    const auto read = ReadWholeFile(fmt::format("{}/{}/{}", run_folder_, kMeeting, name(rank)), mark.size());
    return read.ok() && *read == mark;
  };
  const auto agree = [&world](int32_t* first) {
    return world.communicator->AllReduce("shares_run_folder", first, first, 1, SY_I32, SY_MIN);
  };
  const Status written = write();
  int32_t first = written.ok() ? world.size() : world.rank();
  SY_RETURN_IF_ERROR(agree(&first));
  std::string why = written.ok() ? "what it writes there does not come to rank 0" : Message(written);
  if (first < world.size()) {
    SY_RETURN_IF_ERROR(world.BroadcastText(why, first));
  } else if (owner()) {
    for (first = 0; first < world.size() && comes_to_rank_0(first);) ++first;
  }
  SY_RETURN_IF_ERROR(agree(&first));
  if (owner()) {
    const auto run = Folder::Open(run_folder_);
    const Status removed = run.ok() ? run->Remove(kMeeting) : run.status();
    if (!removed.ok()) LogWarning("{}/{} can be deleted: {}", run_folder_, kMeeting, Message(removed));
  }
  if (first == 0) return FailedPrecondition("rank 0 cannot write into the run folder {}: {}", run_folder_, why);
  if (owner() && first < world.size())
    LogWarning(
        "rank {} on {} does not share the run folder {} with rank 0 ({}): each checkpoint is gathered on rank 0, for "
        "which steps wait; with --output on a file system to which all hosts write, each rank writes its part",
        first, world.processes.host_names[static_cast<size_t>(first)], run_folder_, why);
  return first == world.size();
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
  SY_ASSIGN_OR_RETURN(const bool shared, EveryRankSharesRunFolder());
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
  RunPosition at;
  const std::string& path = *config_.resume;
  if (path.ends_with(".safetensors"))
    return InvalidArgument("--resume={}: a bare weight file has no optimizer state; use --pretrained={}", path, path);
  auto loaded = LoadCheckpoint(path);
  if (!loaded.ok()) return loaded.status();
  resumed_.emplace(std::move(*loaded));
  const std::string& folder = resumed_->folder;
  const nlohmann::json& record = resumed_->record;
  const auto field = [&record](const char* key) { return record.value(key, nlohmann::json()); };
  if (!SameArchitecture(field("arch"), model_.architecture)) {
    return InvalidArgument("{} is a checkpoint of another model: it holds {}, this run trains {}", folder,
                           Excerpt(field("arch")), model_.architecture.dump());
  }
  if (field("optimizer") != config_.optimizer) {
    return InvalidArgument(
        "{} was saved with --optimizer={}, this run has {}, for which that state means something else; leave "
        "--optimizer out, or start a new run from the weights with --pretrained={}",
        folder, Excerpt(field("optimizer")), config_.optimizer, path);
  }
  at.evaluation_pending = field("evaluation_pending") == true;
  SY_RETURN_IF_ERROR(task_.CheckRecord(record, train_, folder));
  if (owner()) {
    data_checksum_ = train_.Checksum();
    if (field("data_checksum") != *data_checksum_) {
      LogWarning("the training data are not those that {} was trained on; if that is not meant, give those with --data",
                 folder);
    }
  }

  SY_ASSIGN_OR_RETURN(at.epoch, CountIn(*resumed_, "epoch"));
  SY_ASSIGN_OR_RETURN(at.data_step, CountIn(*resumed_, "step"));
  SY_ASSIGN_OR_RETURN(const int64_t samples, CountIn(*resumed_, "samples"));
  SY_ASSIGN_OR_RETURN(at.skipped.count, CountIn(*resumed_, "skipped_updates/count"));
  SY_ASSIGN_OR_RETURN(at.skipped.in_a_row, CountIn(*resumed_, "skipped_updates/in_a_row"));
  SY_ASSIGN_OR_RETURN(at.course, CourseIn(*resumed_, at.data_step));
  SY_ASSIGN_OR_RETURN(at.best, BestIn(record, folder));
  const int world = engine_.world().data_size();
  auto bad = ShareOfBadSamples(field("bad_samples"), engine_.world().data_rank(), world);
  if (!bad.ok()) return Annotate(bad.status(), folder + "/state.json");
  at.bad_samples = std::move(*bad);
  const int64_t per_update = SamplesPerUpdate(config_, world);
  if (samples % per_update != 0) {
    const std::string others = GlobalBatchesThatFit(samples, world, per_update);
    return InvalidArgument(
        "{} stands {} images into epoch {}, which a global batch of {} does not reach; go on {}from a checkpoint at "
        "the end of an epoch, or leave --global_batch_size out",
        folder, samples, at.epoch + 1, per_update,
        others.empty() ? "" : fmt::format("with --global_batch_size={}, ", others));
  }
  at.batch = samples / (int64_t{config_.batch_size} * world);
  run_folder_ = RunFolderOf(folder);
  resumed_from_ = folder;
  return at;
}

// The best metric so far, where the weights that it is of decide in this run too.
StatusOr<std::optional<double>> Keeping::BestIn(const nlohmann::json& record, const std::string& folder) const {
  const std::string key = "best_" + task_.best().name;
  if (!record.contains(key)) return std::optional<double>();
  std::optional<double> best;
  SY_RETURN_IF_ERROR(Annotate(ReadField(record, key.c_str(), &best.emplace()), folder + "/state.json"));
  const nlohmann::json::json_pointer place("/config/best_by");
  const nlohmann::json by = record.contains(place) ? record.at(place) : nlohmann::json("weights");
  if (by == config_.best_by) return best;
  if (owner()) {
    LogWarning(
        "the best checkpoint so far, {} {:.4g}, was chosen with --best_by={}; with --best_by={} the comparison "
        "starts anew",
        task_.best().name, *best, by.is_string() ? by.get<std::string>() : Excerpt(by), config_.best_by);
  }
  return std::optional<double>();
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
