#include "core/train/checkpoint_record.h"

#include <limits>
#include <utility>

#include "core/base/logging.h"
#include "core/train/architecture.h"
#include "core/train/bad_samples.h"
#include "core/train/batch_division.h"

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
          {"samples", course.samples},
          {"changed_at", course.changed_at},
          {"shift", course.shift},
          {"epoch_began", course.epoch_began},
          {"warm", course.warm}};
}

StatusOr<Course> CourseIn(const LoadedCheckpoint& checkpoint, int64_t data_step) {
  Course course;
  SY_ASSIGN_OR_RETURN(course.samples_per_update, CountIn(checkpoint, "timetable/samples_per_update", 1));
  SY_ASSIGN_OR_RETURN(course.samples, CountIn(checkpoint, "timetable/samples", 1));
  SY_ASSIGN_OR_RETURN(course.changed_at, CountIn(checkpoint, "timetable/changed_at"));
  SY_ASSIGN_OR_RETURN(course.shift, CountIn(checkpoint, "timetable/shift", std::numeric_limits<int32_t>::min()));
  SY_ASSIGN_OR_RETURN(course.epoch_began, CountIn(checkpoint, "timetable/epoch_began"));
  course.warm = checkpoint.record.at("timetable").value("warm", nlohmann::json()) == true;
  if (course.samples < course.samples_per_update) {
    return DataLoss("{}/state.json: timetable: expected data for an update at least, found {}", checkpoint.folder,
                    ToJson(course).dump());
  }
  if (course.changed_at > data_step || course.epoch_began > course.changed_at || course.shift > course.changed_at) {
    return DataLoss("{}/state.json: timetable: expected a change before update {}, found {}", checkpoint.folder,
                    data_step, ToJson(course).dump());
  }
  return course;
}

}  // namespace

StatusOr<nlohmann::json> CheckpointRecord::Of(const RunPosition& at, int64_t updates_per_epoch,
                                              const EvaluationResult& evaluation) {
  const int world = world_.data_size();
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

Status CheckpointRecord::CheckSameRun(const LoadedCheckpoint& checkpoint) {
  const std::string& folder = checkpoint.folder;
  const nlohmann::json& record = checkpoint.record;
  const auto field = [&record](const char* key) { return record.value(key, nlohmann::json()); };
  if (!field("arch").is_object())
    return DataLoss("{}/state.json: arch: expected an object, found {}", folder, Excerpt(field("arch")));
  if (const std::string differences = ArchitectureDifferences(field("arch"), model_.architecture);
      !differences.empty()) {
    return InvalidArgument("{} is a checkpoint of another model: {}; leave out what the run says itself", folder,
                           differences);
  }
  if (field("optimizer") != config_.optimizer) {
    return InvalidArgument(
        "{} was saved with --optimizer={}, this run has {}, for which that state means something else; leave "
        "--optimizer out, or start a new run from the weights with --pretrained={}",
        folder, Excerpt(field("optimizer")), config_.optimizer, *config_.resume);
  }
  SY_RETURN_IF_ERROR(task_.CheckRecord(record, train_, folder));
  if (world_.rank() != 0) return OkStatus();
  data_checksum_ = train_.Checksum();
  if (field("data_checksum") != *data_checksum_) {
    LogWarning(
        "the training data are not those that {} was trained on, and an epoch is one of them from here on; if that is "
        "not meant, give those with --data",
        folder);
  }
  return OkStatus();
}

StatusOr<RunPosition> CheckpointRecord::PositionIn(const LoadedCheckpoint& checkpoint) {
  SY_RETURN_IF_ERROR(CheckSameRun(checkpoint));
  const std::string& folder = checkpoint.folder;
  const nlohmann::json& record = checkpoint.record;
  const auto field = [&record](const char* key) { return record.value(key, nlohmann::json()); };
  RunPosition at;
  if (record.contains("evaluation_pending"))
    SY_RETURN_IF_ERROR(
        Annotate(ReadField(record, "evaluation_pending", &at.evaluation_pending), folder + "/state.json"));
  SY_ASSIGN_OR_RETURN(at.epoch, CountIn(checkpoint, "epoch"));
  SY_ASSIGN_OR_RETURN(at.data_step, CountIn(checkpoint, "step"));
  SY_ASSIGN_OR_RETURN(const int64_t samples, CountIn(checkpoint, "samples"));
  SY_ASSIGN_OR_RETURN(at.skipped.count, CountIn(checkpoint, "skipped_updates/count"));
  SY_ASSIGN_OR_RETURN(at.skipped.in_a_row, CountIn(checkpoint, "skipped_updates/in_a_row"));
  SY_ASSIGN_OR_RETURN(at.course, CourseIn(checkpoint, at.data_step));
  SY_ASSIGN_OR_RETURN(at.best, BestIn(checkpoint));
  const int world = world_.data_size();
  auto bad = ShareOfBadSamples(field("bad_samples"), world_.data_rank(), world);
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
  return at;
}

// The best metric so far, where the weights that it is of decide in this run too.
StatusOr<std::optional<double>> CheckpointRecord::BestIn(const LoadedCheckpoint& checkpoint) const {
  const nlohmann::json& record = checkpoint.record;
  const std::string key = "best_" + task_.best().name;
  if (!record.contains(key)) return std::optional<double>();
  std::optional<double> best;
  SY_RETURN_IF_ERROR(Annotate(ReadField(record, key.c_str(), &best.emplace()), checkpoint.folder + "/state.json"));
  if (task_.best().is_share && !(*best >= 0 && *best <= 1))
    return DataLoss("{}/state.json: {}: expected a share, 0 to 1, found {}", checkpoint.folder, key, *best);
  const nlohmann::json::json_pointer place("/config/best_by");
  const nlohmann::json by = record.contains(place) ? record.at(place) : nlohmann::json("weights");
  if (by == config_.best_by) return best;
  if (world_.rank() == 0) {
    LogWarning(
        "the best checkpoint so far, {} {:.4g}, was chosen with --best_by={}; with --best_by={} the comparison "
        "starts anew",
        task_.best().name, *best, by.is_string() ? by.get<std::string>() : Excerpt(by), config_.best_by);
  }
  return std::optional<double>();
}

}  // namespace switchyard
