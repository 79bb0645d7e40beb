#include "core/train/checkpoint.h"

#include <sys/resource.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/json.h"
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
constexpr char kAbandoned[] = "abandoned";
constexpr char kFormatFamily[] = "switchyard-checkpoint/", kFormat[] = "switchyard-checkpoint/2";
constexpr size_t kLargestJson = JsonRules{}.bytes;

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

// Creates the folder `name` in `root` with all files in it; only the name itself is not durable yet.
Status WriteFiles(const Folder& root, const std::string& name, const CheckpointContents& contents) {
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
    return InvalidArgument("{}: a record of {} bytes is too large", folder.PathOf(kRecord), text.size());
  }
  SY_RETURN_IF_ERROR(folder.Write(kRecord, {BytesOf(text)}));
  return folder.Sync();
}

std::string TemporaryName(const CheckpointName& name) { return "." + name.Text() + ".tmp"; }
std::string RemovedName(const CheckpointName& name) { return "." + name.Text() + ".removed"; }

// The checkpoint whose temporary or removed name this is.
bool IsLeftover(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (name.empty() || name[0] != '.' || dot == 0) return false;
  const auto parsed = ParseName(name.substr(1, dot - 1));
  return parsed && (name == TemporaryName(*parsed) || name == RemovedName(*parsed));
}

// Removes what earlier saves that were cut short left behind. What cannot be removed is in nobody's way.
Status RemoveLeftovers(const Folder& root) {
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, root.Names());
  for (const std::string& name : names) {
    if (!IsLeftover(name)) continue;
    const Status status = root.Remove(name);
    if (!status.ok()) LogWarning("what an earlier save left behind stays: {}", Message(status));
  }
  return OkStatus();
}

// The checkpoint beside it that a link names.
std::string LinkTarget(const Folder& root, const std::string& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(root.PathOf(link), error);
  return error || target.parent_path().filename() == kAbandoned ? "" : target.filename().string();
}

// Of the checkpoints up to `newest` removes all but the last `keep` and those that a link names.
Status Prune(const Folder& root, const CheckpointName& newest, int keep) {
  if (keep <= 0) return OkStatus();
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, root.Names());
  std::vector<CheckpointName> checkpoints;
  for (const std::string& name : names) {
    const auto parsed = ParseName(name);
    if (parsed && *parsed <= newest) checkpoints.push_back(*parsed);
  }
  std::sort(checkpoints.rbegin(), checkpoints.rend());
  const std::string latest = LinkTarget(root, "latest"), best = LinkTarget(root, "best");
  std::vector<std::string> removed;
  for (size_t i = static_cast<size_t>(keep); i < checkpoints.size(); ++i) {
    const std::string name = checkpoints[i].Text();
    if (name == latest || name == best || root.Has(RemovedName(checkpoints[i]))) continue;
    removed.push_back(RemovedName(checkpoints[i]));
    SY_RETURN_IF_ERROR(root.Rename(name, removed.back()));
  }
  if (removed.empty()) return OkStatus();
  SY_RETURN_IF_ERROR(root.Sync());  // so that, also after a crash, none is seen half removed under its own name
  for (const std::string& name : removed) SY_RETURN_IF_ERROR(root.Remove(name));
  return OkStatus();
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

StatusOr<std::string> SaveCheckpoint(const std::string& run_folder, const CheckpointContents& contents,
                                     const SaveOptions& options) {
  if (!contents.record.is_object()) {
    return InvalidArgument("a checkpoint's record must be a JSON object, found {}", contents.record.type_name());
  }
  if (contents.step < 0) return InvalidArgument("a checkpoint's step must be 0 or more, found {}", contents.step);
  SY_ASSIGN_OR_RETURN(const Folder run, Folder::Make(run_folder));
  SY_ASSIGN_OR_RETURN(const Folder root, run.MakeInside("checkpoints"));
  SY_RETURN_IF_ERROR(RemoveLeftovers(root));

  CheckpointName name{contents.step, 1};
  while (root.Has(name.Text()) || root.Has(TemporaryName(name))) ++name.version;
  const std::string folder = root.PathOf(name.Text()), temporary = TemporaryName(name);

  Status status = WriteFiles(root, temporary, contents);
  if (status.ok()) status = root.Rename(temporary, name.Text());
  if (!status.ok()) {
    root.Remove(temporary).IgnoreError();  // the first error is the one to tell
    return Annotate(status, fmt::format("saving {}", folder));
  }
  SY_RETURN_IF_ERROR(root.Sync());
  SY_RETURN_IF_ERROR(root.ReplaceLink(name.Text(), "latest"));
  if (options.best) SY_RETURN_IF_ERROR(root.ReplaceLink(name.Text(), "best"));
  SY_RETURN_IF_ERROR(root.Sync());
  SY_RETURN_IF_ERROR(Prune(root, name, options.keep));
  return folder;
}

Status SetLaterCheckpointsAside(const std::string& folder) {
  const fs::path given(folder);
  const auto resumed = ParseName(given.filename().string());
  if (!resumed) return InvalidArgument("{}: expected a checkpoint of a run, checkpoints/step-…", folder);
  SY_ASSIGN_OR_RETURN(const Folder root, Folder::Open(given.parent_path().string()));
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, root.Names());
  std::vector<CheckpointName> later;
  for (const std::string& name : names) {
    const auto parsed = ParseName(name);
    if (parsed && *parsed > *resumed) later.push_back(*parsed);
  }
  if (later.empty()) return OkStatus();
  SY_ASSIGN_OR_RETURN(const Folder aside, root.MakeInside(kAbandoned));
  SY_RETURN_IF_ERROR(root.ReplaceLink(resumed->Text(), "latest"));
  const auto best = ParseName(LinkTarget(root, "best"));
  const bool best_moves = best && *best > *resumed;
  if (best_moves) SY_RETURN_IF_ERROR(root.ReplaceLink(resumed->Text(), "best"));  // never a link to nothing
  SY_RETURN_IF_ERROR(root.Sync());
  std::string best_aside;
  for (const CheckpointName& from : later) {
    CheckpointName to{from.step, 1};
    while (aside.Has(to.Text())) ++to.version;
    SY_RETURN_IF_ERROR(root.MoveInto(from.Text(), aside, to.Text()));
    if (best_moves && from == *best) best_aside = to.Text();
  }
  SY_RETURN_IF_ERROR(aside.Sync());
  if (!best_aside.empty()) SY_RETURN_IF_ERROR(root.ReplaceLink(std::string(kAbandoned) + "/" + best_aside, "best"));
  return root.Sync();
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

// What the thread does, and where it leaves its result.
struct CheckpointWriter::Job {
  MakeContents make;
  Status status;
  std::thread thread;

  Status Run(const std::string& run_folder, const SaveOptions& options) {
    // Of this thread alone, on Linux: where steps are computed on host cores, they go first.
    constexpr int kBehind = 10, kLast = 19;
    (void)setpriority(PRIO_PROCESS, 0, std::min(kLast, getpriority(PRIO_PROCESS, 0) + kBehind));
    auto contents = std::exchange(make, nullptr)();
    SY_RETURN_IF_ERROR(contents.status());
    return SaveCheckpoint(run_folder, *contents, options).status();
  }
};

CheckpointWriter::CheckpointWriter(std::string run_folder) : run_folder_(std::move(run_folder)) {}

CheckpointWriter::~CheckpointWriter() {
  const Status status = Finish();
  if (!status.ok()) LogError("{}", Message(status));
}

Status CheckpointWriter::Save(CheckpointContents contents, const SaveOptions& options) {
  const auto held = std::make_shared<CheckpointContents>(std::move(contents));
  return Save([held]() -> StatusOr<CheckpointContents> { return std::move(*held); }, options);
}

Status CheckpointWriter::Save(MakeContents make, const SaveOptions& options) {
  SY_RETURN_IF_ERROR(Finish());
  const auto out_of_memory = [](const std::string& run_folder) {
    return ResourceExhausted("out of memory while saving a checkpoint in {}; what was saved before is whole",
                             run_folder);
  };
  try {
    auto job = std::make_unique<Job>();
    job->make = std::move(make);
    job->thread = std::thread([job = job.get(), options, run_folder = run_folder_, out_of_memory] {
      try {
        job->status = job->Run(run_folder, options);
      } catch (const std::bad_alloc&) {
        job->status = out_of_memory(run_folder);
      } catch (const std::exception& error) {
        job->status =
            Internal("saving a checkpoint in {}: {}; what was saved before is whole", run_folder, error.what());
      }
    });
    job_ = std::move(job);
  } catch (const std::bad_alloc&) {
    return out_of_memory(run_folder_);
  } catch (const std::system_error& error) {
    return ResourceExhausted("cannot start the thread that saves a checkpoint in {}: {}", run_folder_, error.what());
  }
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
