#include "core/train/weight_files.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/base/json.h"
#include "core/optim/optimizer.h"
#include "core/train/file_calls.h"
#include "core/train/shards.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kLargestCompanion = size_t{8} << 20;
constexpr char kWholeModel[] = "model.safetensors";
constexpr char kIndexEnd[] = ".safetensors.index.json";

StatusOr<Json> ReadJsonObject(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kLargestCompanion));
  auto json = ParseJson(text, {.bytes = kLargestCompanion, .unique_keys = true});
  if (!json.ok()) return DataLoss("{}: {}", path, Message(json.status()));
  if (!json->is_object()) return DataLoss("{}: expected a JSON object, found {}", path, json->type_name());
  return json;
}

bool IsPickle(const std::string& path) {
  constexpr std::array kEnds = {".pth", ".pt", ".bin", ".ckpt", ".pkl"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return path.ends_with(end); });
}

Status RefusePickle(const std::string& path) {
  return InvalidArgument(
      "{0}: pickled weights of PyTorch are not read, because reading them can run code; convert them once: python -c "
      "\"import torch, safetensors.torch as s; s.save_file({{k: v.contiguous() for k, v in torch.load('{0}', "
      "map_location='cpu', weights_only=True).items()}}, 'model.safetensors')\"",
      path);
}

float FromHalf(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

float FromBfloat(uint16_t half) {
  const uint32_t word = static_cast<uint32_t>(half) << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

template <typename Stored, typename Convert>
void ConvertAll(const std::vector<char>& bytes, const Convert& convert, std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    values[i] = convert(stored);
  }
}

// file: a TensorFile, or SavedTensors.
template <typename File>
StatusOr<HostTensor> ReadAsFloats(const File& file, const TensorFile::Entry& entry) {
  HostTensor tensor;
  tensor.shape.assign(entry.shape.begin(), entry.shape.end());
  std::vector<char> bytes(static_cast<size_t>(entry.bytes));
  SY_RETURN_IF_ERROR(file.Read(entry, bytes.data()));
  tensor.values.resize(static_cast<size_t>(Elements(tensor.shape)));
  if (entry.dtype == "F32") {
    if (!bytes.empty()) std::memcpy(tensor.values.data(), bytes.data(), bytes.size());
  } else if (entry.dtype == "F16") {
    ConvertAll<uint16_t>(bytes, FromHalf, tensor.values);
  } else if (entry.dtype == "BF16") {
    ConvertAll<uint16_t>(bytes, FromBfloat, tensor.values);
  } else if (entry.dtype == "F64") {
    ConvertAll<double>(
        bytes, [](double value) { return static_cast<float>(value); }, tensor.values);
  } else if (entry.dtype == "I64") {  // buffers beside weights: a norm's count of batches, an index of positions
    ConvertAll<int64_t>(
        bytes, [](int64_t value) { return static_cast<float>(value); }, tensor.values);
  } else {
    return DataLoss("{}: tensor {} has dtype {}; expected weights of F32, F16, BF16 or F64", file.path(),
                    Printable(entry.name), entry.dtype);
  }
  return tensor;
}

}  // namespace

StatusOr<HostTensors> ReadWeights(const TensorFile& file) {
  HostTensors tensors;
  for (const TensorFile::Entry& entry : file.entries()) {
    SY_ASSIGN_OR_RETURN(tensors[entry.name], ReadAsFloats(file, entry));
  }
  return tensors;
}

StatusOr<WeightSource> WeightSource::Open(const std::string& path) {
  WeightSource source;
  source.path_ = path;
  std::error_code error;
  if (path.ends_with(".safetensors")) {
    SY_RETURN_IF_ERROR(source.OpenFile(path));
    SY_RETURN_IF_ERROR(source.OpenCompanions(fs::path(path).parent_path().string()));
    return source;
  }
  if (path.ends_with(kIndexEnd)) {
    SY_RETURN_IF_ERROR(source.OpenIndex(path));
    SY_RETURN_IF_ERROR(source.OpenCompanions(fs::path(path).parent_path().string()));
    return source;
  }
  if (fs::exists(path, error) && !fs::is_directory(path, error)) {
    if (IsPickle(path)) return RefusePickle(path);
    return InvalidArgument("{}: expected a run, a checkpoint, a .safetensors file or a folder with one", path);
  }
  const auto folder = ResolveCheckpoint(path);
  if (folder.ok()) {
    SY_ASSIGN_OR_RETURN(LoadedCheckpoint checkpoint, LoadCheckpoint(*folder));
    source.path_ = checkpoint.folder;
    source.config_ = checkpoint.config;
    source.preprocessor_ = checkpoint.preprocessor;
    for (const TensorFile::Entry& entry : checkpoint.weights.entries()) source.places_[entry.name] = {0, entry};
    source.checkpoint_.emplace(std::move(checkpoint));
    return source;
  }
  if (!fs::is_directory(path, error)) return folder.status();
  std::vector<std::string> weights, pickles;
  std::string index;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.ends_with(".safetensors")) weights.push_back(at->path().string());
    if (name.ends_with(kIndexEnd)) index = at->path().string();
    if (IsPickle(name)) pickles.push_back(at->path().string());
  }
  if (error) return FileError("list the folder", path, error.value());
  std::sort(weights.begin(), weights.end());
  std::sort(pickles.begin(), pickles.end());
  const auto whole = std::find_if(weights.begin(), weights.end(),
                                  [](const std::string& file) { return fs::path(file).filename() == kWholeModel; });
  if (whole != weights.end()) {
    SY_RETURN_IF_ERROR(source.OpenFile(*whole));
  } else if (!index.empty()) {
    SY_RETURN_IF_ERROR(source.OpenIndex(index));
  } else if (weights.size() == 1) {
    SY_RETURN_IF_ERROR(source.OpenFile(weights[0]));
  } else if (weights.size() > 1) {
    return InvalidArgument("{}: {} .safetensors files and no model.safetensors among them; name the one", path,
                           weights.size());
  } else if (!pickles.empty()) {
    return RefusePickle(pickles[0]);
  } else {
    return NotFound("{}, nor weights: expected model.safetensors or model.safetensors.index.json in it",
                    Message(folder.status()));
  }
  SY_RETURN_IF_ERROR(source.OpenCompanions(path));
  return source;
}

Status WeightSource::OpenFile(const std::string& path) {
  SY_ASSIGN_OR_RETURN(TensorFile file, TensorFile::Open(path));
  if (IsShard(file)) {
    return InvalidArgument(
        "{}: this is what one rank holds of a checkpoint's state; give the checkpoint, the folder {}", path,
        fs::path(path).parent_path().string());
  }
  for (const TensorFile::Entry& entry : file.entries()) places_[entry.name] = {files_.size(), entry};
  files_.push_back(std::move(file));
  return OkStatus();
}

Status WeightSource::OpenIndex(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const Json index, ReadJsonObject(path));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty())
    return DataLoss("{}: weight_map: expected an object that says in which file each tensor is", path);
  std::map<std::string, size_t> opened;
  for (const auto& [name, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    // No part of another folder: the index may be anybody's.
    if (!file.ends_with(".safetensors") || file.find('/') != std::string::npos || file[0] == '.')
      return DataLoss("{}: weight_map: {}: expected the name of a .safetensors file beside the index, found {}", path,
                      Printable(name), Excerpt(value));
    if (!opened.contains(file)) {
      SY_ASSIGN_OR_RETURN(TensorFile shard, TensorFile::Open((fs::path(path).parent_path() / file).string()));
      opened[file] = files_.size();
      files_.push_back(std::move(shard));
    }
    const size_t at = opened[file];
    const TensorFile::Entry* const entry = files_[at].Find(name);
    if (entry == nullptr)
      return DataLoss("{}: weight_map: {} should be in {}, which does not have it", path, Printable(name),
                      Printable(file));
    places_[name] = {at, *entry};
  }
  return OkStatus();
}

Status WeightSource::OpenCompanions(const std::string& folder) {
  for (const auto& [name, json] : {std::pair{"config.json", &config_}, {"preprocessor_config.json", &preprocessor_}}) {
    const std::string path = (fs::path(folder) / name).string();
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    SY_ASSIGN_OR_RETURN(*json, ReadJsonObject(path));
  }
  return OkStatus();
}

const TensorFile::Entry* WeightSource::Find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second.entry;
}

std::vector<std::string> WeightSource::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

StatusOr<HostTensors> WeightSource::Read() const {
  HostTensors tensors;
  for (const auto& [name, place] : places_) {
    SY_ASSIGN_OR_RETURN(tensors[name], ReadAsFloats(file(place.file), place.entry));
  }
  return tensors;
}

StatusOr<HostTensors> WeightSource::ReadAverages(const Renaming& from_file, const Renaming& to_file) const {
  const std::string prefix = AverageOf("");
  HostTensors averages;
  if (checkpoint_) {
    const SavedTensors& state = checkpoint_->state;
    for (const TensorFile::Entry& entry : state.entries()) {
      if (!entry.name.starts_with(prefix)) continue;
      SY_ASSIGN_OR_RETURN(averages[entry.name.substr(prefix.size())], ReadAsFloats(state, entry));
    }
  }
  if (averages.empty()) {
    return NotFound("{}: there are no averaged weights; a run keeps them with --ema_decay, as --ema_decay=0.9999",
                    path_);
  }
  SY_ASSIGN_OR_RETURN(HostTensors tensors, Read());  // running statistics, of which there are no averages
  const bool of_graph = checkpoint_->state.in_pieces();
  if (of_graph && from_file) tensors = from_file(std::move(tensors));
  for (auto& [name, tensor] : averages) tensors[name] = std::move(tensor);
  return of_graph && to_file ? to_file(std::move(tensors)) : tensors;
}

Status WriteWeightFolder(const std::string& path, const std::vector<NamedTensor>& tensors, const Json& config,
                         const Json& preprocessor) {
  SY_ASSIGN_OR_RETURN(const Folder folder, Folder::Make(path));
  SY_RETURN_IF_ERROR(WriteTensorFile(folder, kWholeModel, tensors).status());
  const auto write = [&](const char* name, const Json& json) {
    if (json.is_null()) return OkStatus();
    const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    return folder.Write(name, {BytesOf(text)});
  };
  SY_RETURN_IF_ERROR(write("config.json", config));
  SY_RETURN_IF_ERROR(write("preprocessor_config.json", preprocessor));
  return folder.Sync();
}

}  // namespace switchyard
