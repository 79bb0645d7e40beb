// Keeping a run and taking it up again: what a checkpoint holds and how it is put back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/train/architecture.h"
#include "core/train/batch_division.h"
#include "core/train/trainer_impl.h"
#include "core/train/weight_files.h"

namespace switchyard {
namespace {

bool IsSaved(const Layout::Entry& entry, const std::string& name) {
  return entry.role == Role::kState && entry.arena == Arena::kState && !name.starts_with("persistent/");
}

const char* SavedType(const Layout::Entry& entry) {
  return entry.type.dtype == DType::kF32 ? "F32" : entry.type.dtype == DType::kI32 ? "I32" : "U8";
}

// A count of the checkpoint's record; DataLoss where it is none.
StatusOr<int64_t> CountIn(const LoadedCheckpoint& checkpoint, const char* key) {
  const auto found = checkpoint.record.find(key);
  int32_t count = -1;
  if (found == checkpoint.record.end() || !FromJson(*found, &count) || count < 0) {
    return DataLoss("{}/state.json: {}: expected a count, found {}", checkpoint.folder, key,
                    found == checkpoint.record.end() ? "nothing" : Excerpt(*found));
  }
  return count;
}

}  // namespace

StatusOr<HostTensors> Trainer::Impl::DownloadParameters() const {
  HostTensors tensors;
  for (const auto& [name, entry] : layout->entries()) {
    if (entry.role != Role::kParameter) continue;
    HostTensor tensor{entry.type.shape, std::vector<float>(static_cast<size_t>(entry.type.elements()))};
    SY_RETURN_IF_ERROR(memory->Download(name, tensor.values.data(), entry.bytes));
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

Status Trainer::Impl::UploadParameters(const HostTensors& values, bool partial) {
  std::string problems;
  for (const auto& [name, entry] : layout->entries()) {
    if (entry.role != Role::kParameter) continue;
    const auto found = values.find(name);
    if (found == values.end()) {
      if (!partial) problems += fmt::format("\n  {} {} is missing", name, ToString(entry.type.shape));
    } else if (found->second.shape != entry.type.shape) {
      problems +=
          fmt::format("\n  {}: expected {}, found {}", name, ToString(entry.type.shape), ToString(found->second.shape));
    }
  }
  for (const auto& [name, tensor] : values) {
    const Layout::Entry* entry = layout->Find(name);
    if (entry == nullptr || entry->role != Role::kParameter)
      problems += fmt::format("\n  {} {} is not a parameter of {}", name, ToString(tensor.shape), model.name);
  }
  if (!problems.empty()) return InvalidArgument("the weights do not fit the model {}:{}", model.name, problems);
  for (const auto& [name, tensor] : values)
    SY_RETURN_IF_ERROR(memory->Upload(name, tensor.values.data(), tensor.values.size() * sizeof(float)));
  return OkStatus();
}

Status Trainer::Impl::Save(bool best, double top1) {
  if (rank() != 0) return OkStatus();  // with plain data parallelism every rank holds the same
  SY_RETURN_IF_ERROR(world.Synchronize(stream));
  SY_ASSIGN_OR_RETURN(HostTensors parameters, DownloadParameters());
  for (const auto& [name, tensor] : parameters) {
    if (std::all_of(tensor.values.begin(), tensor.values.end(), [](float value) { return std::isfinite(value); }))
      continue;
    return FailedPrecondition(
        "the parameter {} holds values that are not finite after update {}, so it is not saved; what was saved before "
        "is whole. Lower --lr, or raise --warmup",
        name, data_step);
  }
  if (model.export_weights) {
    SY_ASSIGN_OR_RETURN(parameters, model.export_weights(parameters));
  }
  CheckpointContents contents;
  contents.step = data_step;
  for (const auto& [name, tensor] : parameters)
    contents.weights.push_back({name, "F32", {tensor.shape.begin(), tensor.shape.end()}, tensor.values.data()});
  std::map<std::string, std::vector<char>> state;
  for (const auto& [name, entry] : layout->entries()) {
    if (!IsSaved(entry, name)) continue;
    std::vector<char>& bytes = state[name];
    bytes.resize(entry.bytes);
    SY_RETURN_IF_ERROR(memory->Download(name, bytes.data(), bytes.size()));
    contents.state.push_back(
        {name, SavedType(entry), {entry.type.shape.begin(), entry.type.shape.end()}, bytes.data()});
  }
  // An epoch that is over is the next one's beginning, where any global batch can go on.
  const bool epoch_is_over = batch >= updates_per_epoch * config.accumulation;
  if (!data_checksum) data_checksum = train_data->Checksum();
  contents.record = {{"epoch", epoch_is_over ? epoch + 1 : epoch},
                     {"samples", epoch_is_over ? 0 : batch * config.batch_size * world_size()},  // of the epoch
                     {"step", data_step},
                     {"micro_step", 0},
                     {"world", world_size()},
                     {"best_top1", best_top1},
                     {"top1", top1},
                     {"evaluation_pending", evaluation_pending},
                     {"optimizer", config.optimizer},
                     {"arch", model.architecture},
                     {"classes", train_data->class_names()},
                     {"evaluation", ToJson(*model.evaluation)},
                     {"data_checksum", *data_checksum},
                     {"config", ToJson(config, {SettingKind::kProperty})}};
  if (model.config_json) {
    SY_ASSIGN_OR_RETURN(contents.config, model.config_json(train_data->class_names()));
  }
  if (model.preprocessor_json) contents.preprocessor = model.preprocessor_json(*model.evaluation);
  SaveOptions options;
  options.best = best;
  options.keep = config.keep;
  return writer->Save(contents, options);
}

Status Trainer::Impl::LoadWeights(const std::string& path, bool reset_head) {
  SY_ASSIGN_OR_RETURN(const WeightSource source, WeightSource::Open(path));
  SY_ASSIGN_OR_RETURN(HostTensors weights, source.Read());
  if (model.import_weights) {
    SY_ASSIGN_OR_RETURN(weights, model.import_weights(std::move(weights), reset_head));
  }
  return UploadParameters(weights, reset_head);
}

Status Trainer::Impl::OpenResumed() {
  const std::string& path = *config.resume;
  if (path.ends_with(".safetensors"))
    return InvalidArgument("--resume={}: a bare weight file has no optimizer state; use --pretrained={}", path, path);
  auto loaded = LoadCheckpoint(path);
  if (!loaded.ok()) return loaded.status();
  resumed.emplace(std::move(*loaded));
  const std::string& folder = resumed->folder;
  const nlohmann::json& record = resumed->record;
  const auto field = [&record](const char* key) { return record.value(key, nlohmann::json()); };
  if (!SameArchitecture(field("arch"), model.architecture)) {
    return InvalidArgument("{} is a checkpoint of another model: it holds {}, this run trains {}", folder,
                           Excerpt(field("arch")), model.architecture.dump());
  }
  if (field("optimizer") != config.optimizer) {
    return InvalidArgument(
        "{} was saved with --optimizer={}, this run has {}, for which that state means something else; leave "
        "--optimizer out, or start a new run from the weights with --pretrained={}",
        folder, Excerpt(field("optimizer")), config.optimizer, path);
  }
  evaluation_pending = field("evaluation_pending") == true;
  if (field("classes") != nlohmann::json(train_data->class_names())) {
    return InvalidArgument("{} was trained on the classes {}, the data has {}; give the run's own data with --data",
                           folder, Excerpt(field("classes")), Excerpt(nlohmann::json(train_data->class_names())));
  }
  if (rank() == 0) {
    data_checksum = train_data->Checksum();
    if (field("data_checksum") != *data_checksum) {
      LogWarning("the training data are not those that {} was trained on; if that is not meant, give those with --data",
                 folder);
    }
  }

  SY_ASSIGN_OR_RETURN(epoch, CountIn(*resumed, "epoch"));
  SY_ASSIGN_OR_RETURN(data_step, CountIn(*resumed, "step"));
  SY_ASSIGN_OR_RETURN(const int64_t samples, CountIn(*resumed, "samples"));
  SY_RETURN_IF_ERROR(Annotate(ReadField(record, "best_top1", &best_top1), folder + "/state.json"));
  if (samples % samples_per_update() != 0) {
    const std::string others = GlobalBatchesThatFit(samples, world_size(), samples_per_update());
    return InvalidArgument(
        "{} stands {} images into epoch {}, which a global batch of {} does not reach; go on {}from a checkpoint at "
        "the "
        "end of an epoch, or leave --global_batch_size out",
        folder, samples, epoch + 1, samples_per_update(),
        others.empty() ? "" : fmt::format("with --global_batch_size={}, ", others));
  }
  batch = samples / (int64_t{config.batch_size} * world_size());
  run_folder = RunFolderOf(folder);
  resumed_from = folder;
  return OkStatus();
}

Status Trainer::Impl::RestoreState() {
  const std::string& folder = resumed->folder;
  SY_ASSIGN_OR_RETURN(HostTensors weights, ReadWeights(resumed->weights));
  if (model.import_weights) {
    SY_ASSIGN_OR_RETURN(weights, model.import_weights(std::move(weights), false));
  }
  SY_RETURN_IF_ERROR(UploadParameters(weights, false));
  const auto refused = [&](const std::string& name, const std::string& what) {
    return InvalidArgument(
        "{}: state {} {}; it was saved with other settings of the optimizer: leave those out that you changed, or "
        "start a new run from the weights with --pretrained={}",
        folder, name, what, *config.resume);
  };
  for (const TensorFile::Entry& saved : resumed->state.entries()) {
    const Layout::Entry* entry = layout->Find(saved.name);
    if (entry == nullptr || !IsSaved(*entry, saved.name)) return refused(saved.name, "is none of this run's");
  }
  for (const auto& [name, entry] : layout->entries()) {
    if (!IsSaved(entry, name)) continue;
    const TensorFile::Entry* saved = resumed->state.Find(name);
    if (saved == nullptr) return refused(name, "is missing");
    const Shape shape(saved->shape.begin(), saved->shape.end());
    if (saved->dtype != SavedType(entry) || shape != entry.type.shape ||
        saved->bytes != static_cast<int64_t>(entry.bytes)) {
      return refused(name, fmt::format("is {} {}, expected {} {}", saved->dtype, ToString(shape), SavedType(entry),
                                       ToString(entry.type.shape)));
    }
    std::vector<char> bytes(entry.bytes);
    SY_RETURN_IF_ERROR(resumed->state.Read(*saved, bytes.data()));
    SY_RETURN_IF_ERROR(memory->Upload(name, bytes.data(), bytes.size()));
  }
  resumed.reset();
  return OkStatus();
}

}  // namespace switchyard
