// Keeping a run and taking it up again: what a checkpoint holds and how it is put back.
#include <cstring>
#include <filesystem>

#include "core/base/logging.h"
#include "core/train/trainer_impl.h"
#include "core/train/weight_files.h"

namespace switchyard {
namespace {

bool IsSaved(const Layout::Entry& entry, const std::string& name) {
  return entry.role == Role::kState && entry.arena == Arena::kState && !name.starts_with("persistent/");
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
    const char* dtype = entry.type.dtype == DType::kF32 ? "F32" : entry.type.dtype == DType::kI32 ? "I32" : "U8";
    contents.state.push_back({name, dtype, {entry.type.shape.begin(), entry.type.shape.end()}, bytes.data()});
  }
  contents.record = {{"epoch", epoch},
                     {"batch", batch},
                     {"step", data_step},
                     {"micro_step", 0},
                     {"world", world_size()},
                     {"batch_size", config.batch_size},
                     {"accumulation", config.accumulation},
                     {"best_top1", best_top1},
                     {"top1", top1},
                     {"seed", config.seed},
                     {"arch", model.architecture},
                     {"classes", train_data->class_names()},
                     {"evaluation", ToJson(*model.evaluation)},
                     {"config", ToJson(config)}};
  if (model.config_json) {
    SY_ASSIGN_OR_RETURN(contents.config, model.config_json(train_data->class_names()));
  }
  if (model.preprocessor_json) contents.preprocessor = model.preprocessor_json(*model.evaluation);
  SaveOptions options;
  options.best = best;
  options.keep = config.keep;
  return writer->Save(contents, options);
}

Status Trainer::Impl::Load(const std::string& path, bool weights_only) {
  SY_ASSIGN_OR_RETURN(const WeightSource source, WeightSource::Open(path));
  const LoadedCheckpoint* const checkpoint = source.checkpoint();
  if (!weights_only && checkpoint == nullptr)
    return InvalidArgument("--resume={0}: bare weights have no optimizer state; use --pretrained={0}", path);
  if (!weights_only) {
    const nlohmann::json arch = checkpoint->record.value("arch", nlohmann::json());
    if (arch != model.architecture) {
      return InvalidArgument("{} is a checkpoint of another model: it holds {}, this run trains {}", checkpoint->folder,
                             arch.dump(), model.architecture.dump());
    }
  }
  SY_ASSIGN_OR_RETURN(HostTensors weights, source.Read());
  if (model.import_weights) {
    SY_ASSIGN_OR_RETURN(weights, model.import_weights(std::move(weights), config.reset_head));
  }
  SY_RETURN_IF_ERROR(UploadParameters(weights, weights_only && config.reset_head));
  if (weights_only) return OkStatus();

  for (const auto& [name, entry] : layout->entries()) {
    if (!IsSaved(entry, name)) continue;
    const TensorFile::Entry* saved = checkpoint->state.Find(name);
    if (saved == nullptr || saved->bytes != static_cast<int64_t>(entry.bytes)) {
      return InvalidArgument(
          "{}: state {} {}; was it saved with another --optimizer?", checkpoint->folder, name,
          saved == nullptr ? "is missing" : fmt::format("has {} bytes, expected {}", saved->bytes, entry.bytes));
    }
    std::vector<char> bytes(entry.bytes);
    SY_RETURN_IF_ERROR(checkpoint->state.Read(*saved, bytes.data()));
    SY_RETURN_IF_ERROR(memory->Upload(name, bytes.data(), bytes.size()));
  }
  const nlohmann::json& record = checkpoint->record;
  const int64_t samples =
      int64_t{record.value("batch", int64_t{0})} * record.value("batch_size", 0) * record.value("world", 1);
  const int64_t per_batch = int64_t{config.batch_size} * world_size();
  if (samples % per_batch != 0) {
    return InvalidArgument(
        "{} stands {} samples into its epoch, which is no multiple of batch_size {} x {} ranks; resume with batch_size "
        "{} on {} ranks",
        checkpoint->folder, samples, config.batch_size, world_size(), record.value("batch_size", 0),
        record.value("world", 1));
  }
  epoch = record.value("epoch", int64_t{0});
  batch = samples / per_batch;
  data_step = record.value("step", int64_t{0});
  best_top1 = record.value("best_top1", -1.0);
  run_folder = std::filesystem::path(checkpoint->folder).parent_path().parent_path().string();
  return OkStatus();
}

}  // namespace switchyard
