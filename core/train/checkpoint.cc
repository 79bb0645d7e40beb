#include "core/train/checkpoint.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/logging.h"
#include "core/train/file_calls.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kWeights[] = "model.safetensors";
constexpr char kState[] = "state.safetensors";
constexpr char kRecord[] = "state.json";
constexpr char kConfig[] = "config.json";
constexpr char kPreprocessor[] = "preprocessor_config.json";
constexpr char kFormat[] = "switchyard-checkpoint/1";
constexpr size_t kLargestJson = size_t{256} << 20;

std::string Hex(uint32_t value) { return fmt::format("{:08x}", value); }

uint32_t TextChecksum(const std::string& text) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

// What `step-00000120-2` says: step 120, second version.
struct CheckpointName {
  int64_t step = 0;
  int64_t version = 1;
  friend auto operator<=>(const CheckpointName&, const CheckpointName&) = default;
  std::string Text() const {
    return version == 1 ? fmt::format("step-{:08}", step) : fmt::format("step-{:08}-{}", step, version);
  }
};

std::optional<CheckpointName> ParseName(const std::string& text) {
  constexpr char kPrefix[] = "step-";
  if (text.compare(0, sizeof kPrefix - 1, kPrefix) != 0) return std::nullopt;
  CheckpointName name;
  const char* end = text.data() + text.size();
  auto parsed = std::from_chars(text.data() + sizeof kPrefix - 1, end, name.step);
  if (parsed.ec != std::errc()) return std::nullopt;
  if (parsed.ptr != end) {
    if (*parsed.ptr != '-') return std::nullopt;
    parsed = std::from_chars(parsed.ptr + 1, end, name.version);
  }
  if (parsed.ec != std::errc() || parsed.ptr != end || name.Text() != text) return std::nullopt;
  return name;
}

StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return FileError("list the folder", folder, error.value());
  return names;
}

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
  Json record = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("files") || !record["files"].is_object()) {
    return DataLoss("{}: files: expected an object; this is not a checkpoint's state.json", path);
  }
  if (record.value("format", Json()) != kFormat) {
    return FailedPrecondition("{}: format: found {}, this program reads {}", path,
                              record.value("format", Json()).dump(), kFormat);
  }
  return record;
}

Status WriteFiles(const std::string& folder, const CheckpointContents& contents) {
  SY_RETURN_IF_ERROR(MakeFolders(folder));
  Json files = Json::object();
  const auto write_tensors = [&](const char* name, const std::vector<NamedTensor>& tensors) -> Status {
    SY_ASSIGN_OR_RETURN(const TensorFileSummary summary, WriteTensorFile(folder + "/" + name, tensors));
    files[name] = {{"bytes", summary.bytes}, {"header_crc32", Hex(summary.header_crc32)}};
    return OkStatus();
  };
  SY_RETURN_IF_ERROR(write_tensors(kWeights, contents.weights));
  SY_RETURN_IF_ERROR(write_tensors(kState, contents.state));
  const auto write_json = [&](const char* name, const Json& json) -> Status {
    if (json.is_null()) return OkStatus();
    const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    SY_RETURN_IF_ERROR(WriteDurably(folder + "/" + name, {BytesOf(text)}));
    files[name] = {{"bytes", text.size()}, {"crc32", Hex(TextChecksum(text))}};
    return OkStatus();
  };
  SY_RETURN_IF_ERROR(write_json(kConfig, contents.config));
  SY_RETURN_IF_ERROR(write_json(kPreprocessor, contents.preprocessor));
  Json record = contents.record;
  record["format"] = kFormat;
  record["files"] = files;
  const std::string text = Seal(record);
  SY_RETURN_IF_ERROR(WriteDurably(folder + "/" + kRecord, {BytesOf(text)}));
  return SyncFolder(folder);
}

// Removes what earlier saves that were cut short left behind.
Status RemoveLeftovers(const std::string& root) {
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(root));
  for (const std::string& name : names) {
    if (name.compare(0, 6, ".step-") == 0) SY_RETURN_IF_ERROR(RemoveFolder(root + "/" + name));
  }
  return OkStatus();
}

std::string LinkTarget(const std::string& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  return error ? "" : target.filename().string();
}

// Removes all but the `keep` newest and those that a link names.
Status Prune(const std::string& root, int keep) {
  if (keep <= 0) return OkStatus();
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(root));
  std::vector<CheckpointName> checkpoints;
  for (const std::string& name : names) {
    if (const auto parsed = ParseName(name)) checkpoints.push_back(*parsed);
  }
  std::sort(checkpoints.rbegin(), checkpoints.rend());
  const std::string latest = LinkTarget(root + "/latest"), best = LinkTarget(root + "/best");
  for (size_t i = static_cast<size_t>(keep); i < checkpoints.size(); ++i) {
    const std::string name = checkpoints[i].Text();
    if (name == latest || name == best) continue;
    const std::string removed = root + "/." + name + ".removed";  // never seen half removed under its own name
    SY_RETURN_IF_ERROR(RenamePath(root + "/" + name, removed));
    SY_RETURN_IF_ERROR(RemoveFolder(removed));
  }
  return OkStatus();
}

Status CheckRecorded(const Json& files, const std::string& name, const std::string& path, int64_t bytes,
                     const char* kind, uint32_t checksum) {
  const Json entry = files.value(name, Json::object());
  if (!entry.is_object() || entry.value("bytes", Json()) != bytes) {
    return DataLoss("{}: {} bytes, but state.json records {}", path, bytes, entry.dump());
  }
  if (entry.value(kind, Json()) != Hex(checksum)) {
    return DataLoss("{}: {}: {}, but state.json records {}: the file is damaged or belongs to another checkpoint", path,
                    kind, Hex(checksum), entry.value(kind, Json()).dump());
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
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return DataLoss("{}: not JSON", path);
  return json;
}

}  // namespace

StatusOr<std::string> SaveCheckpoint(const std::string& run_folder, const CheckpointContents& contents,
                                     const SaveOptions& options) {
  if (!contents.record.is_object()) {
    return InvalidArgument("a checkpoint's record must be a JSON object, found {}", contents.record.type_name());
  }
  if (contents.step < 0) return InvalidArgument("a checkpoint's step must be 0 or more, found {}", contents.step);
  const std::string root = run_folder + "/checkpoints";
  SY_RETURN_IF_ERROR(MakeFolders(root));
  SY_RETURN_IF_ERROR(RemoveLeftovers(root));

  CheckpointName name{contents.step, 1};
  std::error_code error;
  while (fs::exists(fs::symlink_status(root + "/" + name.Text(), error))) ++name.version;
  const std::string folder = root + "/" + name.Text(), temporary = root + "/." + name.Text() + ".tmp";

  Status status = WriteFiles(temporary, contents);
  if (status.ok()) status = RenamePath(temporary, folder);
  if (!status.ok()) {
    if (fs::exists(temporary, error)) RemoveFolder(temporary).IgnoreError();  // the first error is the one to tell
    return Annotate(status, fmt::format("saving {}", folder));
  }
  SY_RETURN_IF_ERROR(SyncFolder(root));
  SY_RETURN_IF_ERROR(ReplaceLink(name.Text(), root + "/latest"));
  if (options.best) SY_RETURN_IF_ERROR(ReplaceLink(name.Text(), root + "/best"));
  SY_RETURN_IF_ERROR(SyncFolder(root));
  SY_RETURN_IF_ERROR(Prune(root, options.keep));
  return folder;
}

StatusOr<std::string> ResolveCheckpoint(const std::string& path) {
  fs::path given(path);
  if (!given.has_filename()) given = given.parent_path();  // "run/" is "run"
  std::vector<fs::path> candidates = {given, given / "latest", given / "checkpoints" / "latest"};
  if (given.filename() == "latest" || given.filename() == "best") {
    candidates.push_back(given.parent_path() / "checkpoints" / given.filename());
  }
  std::error_code error;
  for (const fs::path& candidate : candidates) {
    if (!fs::exists(candidate / kRecord, error)) continue;
    const fs::path folder = fs::canonical(candidate, error);
    if (!error) return folder.string();
  }
  return NotFound(
      "no checkpoint at {}: expected a folder with state.json, a run folder with checkpoints/latest, or <run>/best",
      path);
}

StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const std::string folder, ResolveCheckpoint(path));
  const std::string record_path = folder + "/" + kRecord;
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

// The copies that the thread writes, and where it leaves its result.
struct CheckpointWriter::Job {
  CheckpointContents contents;
  std::vector<std::vector<char>> buffers;
  Status status;
  std::thread thread;

  void CopyTensors(std::vector<NamedTensor>& tensors) {
    for (NamedTensor& tensor : tensors) {
      size_t bytes = static_cast<size_t>(ElementBytes(tensor.dtype));
      for (const int64_t dimension : tensor.shape) bytes *= static_cast<size_t>(std::max<int64_t>(dimension, 0));
      if (bytes == 0 || tensor.data == nullptr) continue;
      const char* data = static_cast<const char*>(tensor.data);
      tensor.data = buffers.emplace_back(data, data + bytes).data();
    }
  }
};

CheckpointWriter::CheckpointWriter(std::string run_folder) : run_folder_(std::move(run_folder)) {}

CheckpointWriter::~CheckpointWriter() {
  const Status status = Finish();
  if (!status.ok()) LogError("{}", Message(status));
}

Status CheckpointWriter::Save(const CheckpointContents& contents, const SaveOptions& options) {
  SY_RETURN_IF_ERROR(Finish());
  job_ = std::make_unique<Job>();
  job_->contents = contents;
  job_->CopyTensors(job_->contents.weights);
  job_->CopyTensors(job_->contents.state);
  job_->thread = std::thread([job = job_.get(), options, run_folder = run_folder_] {
    job->status = SaveCheckpoint(run_folder, job->contents, options).status();
  });
  return OkStatus();
}

Status CheckpointWriter::Finish() {
  if (job_ == nullptr) return OkStatus();
  job_->thread.join();
  const Status status = job_->status;
  job_.reset();
  return status;
}

}  // namespace switchyard
