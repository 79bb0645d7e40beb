#include "core/train/checkpoint_files.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/host_memory.h"
#include "core/base/json.h"
#include "core/train/shards.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kWeights[] = "model.safetensors";
constexpr char kState[] = "state.safetensors";
constexpr char kConfig[] = "config.json";
constexpr char kPreprocessor[] = "preprocessor_config.json";
// kSharedFormat: with several files of state and their index.
constexpr char kFormatFamily[] = "switchyard-checkpoint/", kFormat[] = "switchyard-checkpoint/5",
               kSharedFormat[] = "switchyard-checkpoint/6";
constexpr size_t kLargestJson = JsonRules{}.bytes, kLargestIndex = size_t{256} << 20;

std::string Hex(uint32_t value) { return fmt::format("{:08x}", value); }

uint32_t TextChecksum(const std::string& text) { return Crc32(text.data(), text.size()); }

// The record as text. Its last member holds the checksum of every byte before it.
constexpr char kSealFormat[] = ",\n  \"state_crc32\": \"{}\"\n}}\n";

std::string Seal(const Json& record) {
  std::string text = record.dump(2, ' ', false, Json::error_handler_t::replace);
  text.resize(text.size() - 2);  // "\n}"
  return text + fmt::format(kSealFormat, Hex(TextChecksum(text)));
}

StatusOr<Json> Unseal(const std::string& path, const std::string& text) {
  const size_t seal_bytes = fmt::format(kSealFormat, Hex(0)).size();
  if (text.size() < seal_bytes) return DataLoss("{}: truncated: {} bytes", path, text.size());
  const std::string body = text.substr(0, text.size() - seal_bytes);
  if (text.substr(body.size()) != fmt::format(kSealFormat, Hex(TextChecksum(body)))) {
    return DataLoss("{}: state_crc32: the text does not have the checksum that its end records: damaged or edited",
                    path);
  }
  auto parsed = ParseJson(text, {.unique_keys = true});
  if (!parsed.ok()) return DataLoss("{}: {}", path, Message(parsed.status()));
  Json record = std::move(*parsed);
  if (!record.is_object() || !record.contains("files") || !record["files"].is_object()) {
    return DataLoss("{}: files: expected an object; this is not a checkpoint's state.json", path);
  }
  const Json format = record.value("format", Json());
  if (format == kFormat || format == kSharedFormat) return record;
  const bool ours = format.is_string() && format.get<std::string>().starts_with(kFormatFamily);
  const std::string weights = (fs::path(path).parent_path() / kWeights).string();
  return FailedPrecondition("{}: format: found {}, this program reads {} and {}{}", path, Excerpt(format), kFormat,
                            kSharedFormat,
                            ours ? fmt::format("; the run cannot go on here, but its weights serve as they are: "
                                               "--pretrained={0} for a new run, --checkpoint={0} to use them",
                                               weights)
                                 : "");
}

Status CheckBytes(const Json& files, const std::string& name, const std::string& path, int64_t bytes) {
  const Json entry = files.value(name, Json::object());
  if (entry.is_object() && entry.value("bytes", Json()) == bytes) return OkStatus();
  return DataLoss("{}: {} bytes, but state.json records {}", path, bytes, Excerpt(entry));
}

Status CheckRecorded(const Json& files, const std::string& name, const std::string& path, int64_t bytes,
                     const char* kind, uint32_t checksum) {
  SY_RETURN_IF_ERROR(CheckBytes(files, name, path, bytes));
  const Json entry = files.value(name, Json::object());
  if (entry.value(kind, Json()) != Hex(checksum)) {
    return DataLoss("{}: {}: {}, but state.json records {}: the file is damaged or belongs to another checkpoint", path,
                    kind, Hex(checksum), Excerpt(entry.value(kind, Json())));
  }
  return OkStatus();
}

StatusOr<TensorFile> OpenRecorded(const Json& files, const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  SY_ASSIGN_OR_RETURN(TensorFile file, TensorFile::Open(path));
  const TensorFileSummary summary = file.summary();
  SY_RETURN_IF_ERROR(CheckRecorded(files, name, path, summary.bytes, "header_crc32", summary.header_crc32));
  return file;
}

// Null where none is recorded.
StatusOr<Json> ReadRecordedJson(const Json& files, const std::string& folder, const char* name,
                                size_t largest = kLargestJson) {
  if (!files.contains(name)) return Json();
  const std::string path = folder + "/" + name;
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, largest));
  SY_RETURN_IF_ERROR(CheckRecorded(files, name, path, static_cast<int64_t>(text.size()), "crc32", TextChecksum(text)));
  constexpr uint64_t kTimesItsText = 21;
  const auto available = text.size() > kLargestJson ? AvailableHostBytes() : std::nullopt;
  if (available && text.size() * kTimesItsText > *available / 2)
    return ResourceExhausted(
        "{}: takes {} MB to read, half of what is left of the memory is {} MB; read it where there "
        "is more",
        path, text.size() * kTimesItsText / 1'000'000, *available / 2'000'000);
  auto json = ParseJson(text, {.bytes = largest, .unique_keys = true});
  if (!json.ok()) return DataLoss("{}: {}", path, Message(json.status()));
  return json;
}

// The state in files of several ranks; each is opened when something is read of it.
StatusOr<SavedTensors> OpenShards(const Json& files, const std::string& folder, const Json& index) {
  int64_t bytes = 0;  // as recorded; what is there is compared with it
  for (const auto& [name, recorded] : files.items()) {
    int64_t of_file = 0;
    if (recorded.is_object() && FromJson(recorded.value("bytes", Json()), &of_file) && of_file > 0)
      bytes += std::min(of_file, std::numeric_limits<int64_t>::max() - bytes);
  }
  const auto open = [files, folder](const std::string& name) { return OpenRecorded(files, folder, name); };
  SY_ASSIGN_OR_RETURN(SavedTensors saved, SavedTensors::Of(index, folder + "/" + kShardIndex, bytes, open));
  for (const std::string& name : saved.files()) {
    const std::string path = folder + "/" + name;
    SY_ASSIGN_OR_RETURN(const Descriptor file, OpenRegularFile(path));
    SY_ASSIGN_OR_RETURN(const size_t found, FileBytes(file, path));
    SY_RETURN_IF_ERROR(CheckBytes(files, name, path, static_cast<int64_t>(found)));
  }
  return saved;
}

// The state that several ranks write: this rank's file, those of the others, their index.
class SharedState {
 public:
  SharedState(const Folder& folder, const SharedWriting& shared) : folder_(folder), shared_(shared) {
    for (int i = 0; i < shared.files; ++i) names_.push_back(ShardName(i, shared.files));
  }

  Status WriteOwn() {
    SY_ASSIGN_OR_RETURN(const TensorFileSummary summary, WriteShard(folder_, names_[0], shared_.own));
    summaries_.push_back(summary);
    return OkStatus();
  }

  // Opens what the others have written: it has to be seen from here. Records all files in `files`.
  StatusOr<SavedTensors> WriteIndex(Json* files, bool* waited) {
    *waited = true;
    SY_ASSIGN_OR_RETURN(const std::vector<TensorFileSummary> of_others, shared_.wait());
    summaries_.insert(summaries_.end(), of_others.begin(), of_others.end());
    if (summaries_.size() != names_.size())
      return Internal("{}: {} files instead of {}", folder_.path(), summaries_.size(), names_.size());
    std::vector<TensorFile> opened;
    for (size_t i = 0; i < names_.size(); ++i) {
      (*files)[names_[i]] = {{"bytes", summaries_[i].bytes}, {"header_crc32", Hex(summaries_[i].header_crc32)}};
      SY_ASSIGN_OR_RETURN(TensorFile file, OpenRecorded(*files, folder_.path(), names_[i]));
      opened.push_back(std::move(file));
    }
    SY_ASSIGN_OR_RETURN(const Json index, IndexOf(names_, opened));
    const std::string text = index.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    if (text.size() > kLargestIndex)
      return InvalidArgument("{}: an index of {} bytes is too large", folder_.PathOf(kShardIndex), text.size());
    SY_RETURN_IF_ERROR(folder_.Write(kShardIndex, {BytesOf(text)}));
    (*files)[kShardIndex] = {{"bytes", text.size()}, {"crc32", Hex(TextChecksum(text))}};
    return OpenShards(*files, folder_.path(), index);
  }

 private:
  const Folder& folder_;
  const SharedWriting& shared_;
  std::vector<std::string> names_;
  std::vector<TensorFileSummary> summaries_;
};

// *waited: the others have reported.
Status WriteFilesInto(const Folder& folder, const std::string& name, const CheckpointContents& contents, bool* waited) {
  Json files = Json::object();
  const auto record_tensors = [&](const char* file, const StatusOr<TensorFileSummary>& written) -> Status {
    SY_RETURN_IF_ERROR(written.status());
    files[file] = {{"bytes", written->bytes}, {"header_crc32", Hex(written->header_crc32)}};
    return OkStatus();
  };
  const bool joins_weights = contents.shared && contents.shared->join_weights;
  if (contents.shared) SY_RETURN_IF_ERROR(contents.shared->begin(name));
  if (!joins_weights) SY_RETURN_IF_ERROR(record_tensors(kWeights, WriteTensorFile(folder, kWeights, contents.weights)));
  if (contents.shared) {
    SharedState state(folder, *contents.shared);
    SY_RETURN_IF_ERROR(state.WriteOwn());
    SY_ASSIGN_OR_RETURN(const SavedTensors saved, state.WriteIndex(&files, waited));
    if (joins_weights)
      SY_RETURN_IF_ERROR(record_tensors(kWeights, contents.shared->join_weights(folder, kWeights, saved)));
  } else {
    SY_RETURN_IF_ERROR(record_tensors(kState, WriteTensorFile(folder, kState, contents.state)));
  }
  const auto write_json = [&](const char* file, const Json& json) -> Status {
    if (json.is_null()) return OkStatus();
    const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    SY_RETURN_IF_ERROR(folder.Write(file, {BytesOf(text)}));
    files[file] = {{"bytes", text.size()}, {"crc32", Hex(TextChecksum(text))}};
    return OkStatus();
  };
  SY_RETURN_IF_ERROR(write_json(kConfig, contents.config));
  SY_RETURN_IF_ERROR(write_json(kPreprocessor, contents.preprocessor));
  Json record = contents.record;
  record["format"] = contents.shared ? kSharedFormat : kFormat;
  record["files"] = files;
  const std::string text = Seal(record);
  if (text.size() > kLargestJson) {
    return InvalidArgument("{}: a record of {} bytes is too large", folder.PathOf(kCheckpointRecord), text.size());
  }
  SY_RETURN_IF_ERROR(folder.Write(kCheckpointRecord, {BytesOf(text)}));
  return folder.Sync();
}

}  // namespace

Status WriteCheckpointFiles(const Folder& root, const std::string& name, const CheckpointContents& contents) {
  SY_ASSIGN_OR_RETURN(const Folder folder, root.CreateInside(name));
  bool waited = false;
  const Status status = WriteFilesInto(folder, name, contents, &waited);
  // The caller removes what there is of it: not before the others have ended too.
  if (!status.ok() && contents.shared && !waited) contents.shared->wait().status().IgnoreError();
  return status;
}

StatusOr<LoadedCheckpoint> ReadCheckpointFiles(const std::string& folder) {
  const std::string record_path = folder + "/" + kCheckpointRecord;
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(record_path, kLargestJson));
  SY_ASSIGN_OR_RETURN(Json record, Unseal(record_path, text));
  const Json files = record["files"];
  SY_ASSIGN_OR_RETURN(TensorFile weights, OpenRecorded(files, folder, kWeights));
  SY_ASSIGN_OR_RETURN(const Json index, ReadRecordedJson(files, folder, kShardIndex, kLargestIndex));
  const auto open_state = [&]() -> StatusOr<SavedTensors> {
    if (!index.is_null()) return OpenShards(files, folder, index);
    SY_ASSIGN_OR_RETURN(TensorFile file, OpenRecorded(files, folder, kState));
    return SavedTensors(std::move(file));
  };
  SY_ASSIGN_OR_RETURN(SavedTensors state, open_state());
  SY_ASSIGN_OR_RETURN(Json config, ReadRecordedJson(files, folder, kConfig));
  SY_ASSIGN_OR_RETURN(Json preprocessor, ReadRecordedJson(files, folder, kPreprocessor));
  for (const char* ours : {"files", "format", "state_crc32"}) record.erase(ours);
  return LoadedCheckpoint{.folder = folder,
                          .record = std::move(record),
                          .config = std::move(config),
                          .preprocessor = std::move(preprocessor),
                          .seal = Hex(TextChecksum(text)),
                          .weights = std::move(weights),
                          .state = std::move(state)};
}

}  // namespace switchyard
