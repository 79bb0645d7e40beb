#include "core/train/checkpoint_files.h"

#include <filesystem>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/json.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kWeights[] = "model.safetensors";
constexpr char kState[] = "state.safetensors";
constexpr char kConfig[] = "config.json";
constexpr char kPreprocessor[] = "preprocessor_config.json";
constexpr char kFormatFamily[] = "switchyard-checkpoint/", kFormat[] = "switchyard-checkpoint/3";
constexpr size_t kLargestJson = JsonRules{}.bytes;

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
  auto parsed = ParseJson(text);
  if (!parsed.ok()) return DataLoss("{}: {}", path, Message(parsed.status()));
  Json record = std::move(*parsed);
  if (!record.is_object() || !record.contains("files") || !record["files"].is_object()) {
    return DataLoss("{}: files: expected an object; this is not a checkpoint's state.json", path);
  }
  const Json format = record.value("format", Json());
  if (format == kFormat) return record;
  const bool ours = format.is_string() && format.get<std::string>().starts_with(kFormatFamily);
  const std::string weights = (fs::path(path).parent_path() / kWeights).string();
  return FailedPrecondition("{}: format: found {}, this program reads {}{}", path, Excerpt(format), kFormat,
                            ours ? fmt::format("; the run cannot go on here, but its weights serve as they are: "
                                               "--pretrained={0} for a new run, --checkpoint={0} to use them",
                                               weights)
                                 : "");
}

Status CheckRecorded(const Json& files, const std::string& name, const std::string& path, int64_t bytes,
                     const char* kind, uint32_t checksum) {
  const Json entry = files.value(name, Json::object());
  if (!entry.is_object() || entry.value("bytes", Json()) != bytes) {
    return DataLoss("{}: {} bytes, but state.json records {}", path, bytes, Excerpt(entry));
  }
  if (entry.value(kind, Json()) != Hex(checksum)) {
    return DataLoss("{}: {}: {}, but state.json records {}: the file is damaged or belongs to another checkpoint", path,
                    kind, Hex(checksum), Excerpt(entry.value(kind, Json())));
  }
  return OkStatus();
}

StatusOr<TensorFile> OpenRecorded(const Json& files, const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name;
  SY_ASSIGN_OR_RETURN(TensorFile file, TensorFile::Open(path));
  const TensorFileSummary summary = file.summary();
  SY_RETURN_IF_ERROR(CheckRecorded(files, name, path, summary.bytes, "header_crc32", summary.header_crc32));
  return file;
}

// Null where none is recorded.
StatusOr<Json> ReadRecordedJson(const Json& files, const std::string& folder, const char* name) {
  if (!files.contains(name)) return Json();
  const std::string path = folder + "/" + name;
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kLargestJson));
  SY_RETURN_IF_ERROR(CheckRecorded(files, name, path, static_cast<int64_t>(text.size()), "crc32", TextChecksum(text)));
  auto json = ParseJson(text);
  if (!json.ok()) return DataLoss("{}: {}", path, Message(json.status()));
  return json;
}

}  // namespace

Status WriteCheckpointFiles(const Folder& root, const std::string& name, const CheckpointContents& contents) {
  SY_ASSIGN_OR_RETURN(const Folder folder, root.CreateInside(name));
  Json files = Json::object();
  const auto write_tensors = [&](const char* file, const std::vector<NamedTensor>& tensors) -> Status {
    SY_ASSIGN_OR_RETURN(const TensorFileSummary summary, WriteTensorFile(folder, file, tensors));
    files[file] = {{"bytes", summary.bytes}, {"header_crc32", Hex(summary.header_crc32)}};
    return OkStatus();
  };
  SY_RETURN_IF_ERROR(write_tensors(kWeights, contents.weights));
  SY_RETURN_IF_ERROR(write_tensors(kState, contents.state));
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
  record["format"] = kFormat;
  record["files"] = files;
  const std::string text = Seal(record);
  if (text.size() > kLargestJson) {
    return InvalidArgument("{}: a record of {} bytes is too large", folder.PathOf(kCheckpointRecord), text.size());
  }
  SY_RETURN_IF_ERROR(folder.Write(kCheckpointRecord, {BytesOf(text)}));
  return folder.Sync();
}

StatusOr<LoadedCheckpoint> ReadCheckpointFiles(const std::string& folder) {
  const std::string record_path = folder + "/" + kCheckpointRecord;
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(record_path, kLargestJson));
  SY_ASSIGN_OR_RETURN(Json record, Unseal(record_path, text));
  const Json files = record["files"];
  SY_ASSIGN_OR_RETURN(TensorFile weights, OpenRecorded(files, folder, kWeights));
  SY_ASSIGN_OR_RETURN(TensorFile state, OpenRecorded(files, folder, kState));
  SY_ASSIGN_OR_RETURN(Json config, ReadRecordedJson(files, folder, kConfig));
  SY_ASSIGN_OR_RETURN(Json preprocessor, ReadRecordedJson(files, folder, kPreprocessor));
  for (const char* ours : {"files", "format", "state_crc32"}) record.erase(ours);
  return LoadedCheckpoint{
      folder, std::move(record), std::move(config), std::move(preprocessor), std::move(weights), std::move(state)};
}

}  // namespace switchyard
