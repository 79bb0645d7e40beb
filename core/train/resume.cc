// Keeping a run and taking it up again: what a checkpoint holds and how it is put back.
#include <cstring>
#include <filesystem>

#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/train/trainer_impl.h"

namespace switchyard {
namespace {

// The file's tensors of a floating type as f32.
StatusOr<HostTensors> ReadAll(const TensorFile& file) {
  HostTensors tensors;
  for (const TensorFile::Entry& entry : file.entries()) {
    HostTensor tensor;
    tensor.shape.assign(entry.shape.begin(), entry.shape.end());
    const auto count = static_cast<size_t>(Elements(tensor.shape));
    std::vector<char> bytes(static_cast<size_t>(entry.bytes));
    SY_RETURN_IF_ERROR(file.Read(entry, bytes.data()));
    tensor.values.resize(count);
    if (entry.dtype == "F32") {
      std::memcpy(tensor.values.data(), bytes.data(), bytes.size());
    } else if (entry.dtype == "BF16") {
      for (size_t i = 0; i < count; ++i) {
        uint16_t half = 0;
        std::memcpy(&half, bytes.data() + 2 * i, 2);
        const uint32_t word = static_cast<uint32_t>(half) << 16;
        std::memcpy(&tensor.values[i], &word, 4);
      }
    } else {
      return DataLoss("{}: tensor {} has dtype {}; expected F32 or BF16 weights", file.path(), Printable(entry.name),
                      entry.dtype);
    }
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

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
                     {"config", ToJson(config)}};
  if (model.config_json) {
    SY_ASSIGN_OR_RETURN(contents.config, model.config_json(train_data->class_names()));
  }
  SaveOptions options;
  options.best = best;
  options.keep = config.keep;
  return writer->Save(contents, options);
}

Status Trainer::Impl::Load(const std::string& path, bool weights_only) {
  const bool bare = path.ends_with(".safetensors");
  HostTensors weights;
  std::optional<LoadedCheckpoint> checkpoint;
  if (bare) {
    if (!weights_only)
      return InvalidArgument("--resume={}: a bare weight file has no optimizer state; use --pretrained={}", path, path);
    SY_ASSIGN_OR_RETURN(const TensorFile file, TensorFile::Open(path));
    SY_ASSIGN_OR_RETURN(weights, ReadAll(file));
  } else {
    auto loaded = LoadCheckpoint(path);
    if (!loaded.ok()) return loaded.status();
    checkpoint.emplace(std::move(*loaded));
    const nlohmann::json arch = checkpoint->record.value("arch", nlohmann::json());
    if (!weights_only && arch != model.architecture) {
      return InvalidArgument("{} is a checkpoint of another model: it holds {}, this run trains {}", checkpoint->folder,
                             Excerpt(arch), model.architecture.dump());
    }
    SY_ASSIGN_OR_RETURN(weights, ReadAll(checkpoint->weights));
  }
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
  struct {
    int64_t epoch = 0, batch = 0, step = 0;
    int batch_size = 0, world = 1;
    double best_top1 = -1;
  } saved;
  const auto read = [&](const char* key, auto* field) {
    const Status status = ReadField(checkpoint->record, key, field);
    return status.ok() ? status : DataLoss("{}/state.json: {}", checkpoint->folder, Message(status));
  };
  SY_RETURN_IF_ERROR(read("epoch", &saved.epoch));
  SY_RETURN_IF_ERROR(read("batch", &saved.batch));
  SY_RETURN_IF_ERROR(read("step", &saved.step));
  SY_RETURN_IF_ERROR(read("batch_size", &saved.batch_size));
  SY_RETURN_IF_ERROR(read("world", &saved.world));
  SY_RETURN_IF_ERROR(read("best_top1", &saved.best_top1));
  int64_t samples = 0;
  if (saved.epoch < 0 || saved.batch < 0 || saved.step < 0 || saved.batch_size < 0 || saved.world < 1 ||
      __builtin_mul_overflow(saved.batch, int64_t{saved.batch_size} * saved.world, &samples)) {
    return DataLoss("{}/state.json: epoch {}, batch {} of {} samples on {} ranks, step {}: no run stands there",
                    checkpoint->folder, saved.epoch, saved.batch, saved.batch_size, saved.world, saved.step);
  }
  const int64_t per_batch = int64_t{config.batch_size} * world_size();
  if (samples % per_batch != 0) {
    return InvalidArgument(
        "{} stands {} samples into its epoch, which is no multiple of batch_size {} x {} ranks; resume with batch_size "
        "{} on {} ranks",
        checkpoint->folder, samples, config.batch_size, world_size(), saved.batch_size, saved.world);
  }
  epoch = saved.epoch;
  batch = samples / per_batch;
  data_step = saved.step;
  best_top1 = saved.best_top1;
  run_folder = std::filesystem::path(checkpoint->folder).parent_path().parent_path().string();
  return OkStatus();
}

}  // namespace switchyard
