#include "core/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>

#include "core/base/json.h"
#include "core/settings/sources.h"
#include "core/train/checkpoint.h"
#include "core/train/file_calls.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr char kConfig[] = "config.json";
constexpr size_t kLargestConfig = size_t{1} << 20;

std::string TimeStamp() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

}  // namespace

StatusOr<std::string> CreateRunFolder(const TrainConfig& config, const std::string& model) {
  const std::string& name = config.output_suffix;
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    return InvalidArgument("--output_suffix={}: expected the name of a folder, without '/'", name);
  const std::string stamp = config.suffix.value_or(TimeStamp());
  for (int attempt = 1;; ++attempt) {
    const std::string suffix = attempt == 1 ? stamp : fmt::format("{}-{}", stamp, attempt);
    const std::string above =
        fmt::format("{}/{}/{}/{}", config.output, model, config.tag.value_or(config.dataset), suffix);
    const std::string run_folder = above + "/" + config.output_suffix;
    const auto parent = Folder::Make(above);
    if (!parent.ok()) return Annotate(parent.status(), "making the run folder, for which --output names another place");
    const auto created = parent->CreateInside(config.output_suffix);
    if (created.ok()) {
      SY_RETURN_IF_ERROR(parent->Sync());
      SY_RETURN_IF_ERROR(WriteRunConfig(run_folder, config));
      return run_folder;
    }
    if (!parent->Has(config.output_suffix)) return created.status();
    if (config.suffix) {
      return FailedPrecondition(
          "the run folder {} is there already, and a run folder belongs to one run: choose another --suffix, or {}",
          run_folder,
          ResolveCheckpoint(run_folder).ok() ? "go on with that run by --resume=" + run_folder
                                             : "remove that one, which has no checkpoint to go on from");
    }
  }
}

std::string RunFolderOf(const std::string& checkpoint_folder) {
  const fs::path checkpoint(checkpoint_folder), run = checkpoint.parent_path().parent_path();
  if (checkpoint.parent_path().filename() != "checkpoints" || !checkpoint.filename().string().starts_with("step-"))
    return "";
  const auto text = ReadWholeFile(run.string() + "/" + kConfig, kLargestConfig);
  const auto settings = text.ok() ? ParseJson(*text) : text.status();
  return settings.ok() && IsRunConfig(*settings) ? run.string() : "";
}

StatusOr<RunFolderLock> RunFolderLock::Take(const std::string& run_folder) {
  const int descriptor = ::open(run_folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError("open the run folder", run_folder, errno);
  RunFolderLock lock(descriptor);
  if (::flock(descriptor, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
    return FailedPrecondition(
        "another process is training in the run folder {}; wait until it ends, or begin a new run from its weights "
        "with --pretrained={}",
        run_folder, run_folder);
  }
  return lock;
}

RunFolderLock::~RunFolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status WriteRunConfig(const std::string& run_folder, const TrainConfig& config) {
  SY_ASSIGN_OR_RETURN(const Folder folder, Folder::Open(run_folder));
  nlohmann::ordered_json settings = ToJson(config, {SettingKind::kProperty});
  nlohmann::ordered_json places = ToJson(config, {SettingKind::kPlace});
  nlohmann::ordered_json started;
  if (config.pretrained) {
    started["pretrained"] = *config.pretrained;
    if (config.reset_head) started["reset_head"] = true;
  }
  // A run that goes on elsewhere keeps how it began and the places where it began: what --config reads back.
  if (const auto text = ReadWholeFile(folder.PathOf(kConfig), kLargestConfig); text.ok()) {
    if (const auto begun = ParseJson<nlohmann::ordered_json>(*text); begun.ok() && begun->is_object()) {
      places.clear();
      for (const Setting& row : TrainSettings()) {
        if (row.kind == SettingKind::kPlace && begun->contains(row.name)) places[row.name] = (*begun)[row.name];
      }
      if (begun->contains(kStartedFrom)) started = (*begun)[kStartedFrom];
    }
  }
  settings.update(places);
  if (!started.is_null()) settings[kStartedFrom] = std::move(started);
  const std::string text = settings.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  return folder.Replace(kConfig, {BytesOf(text)});
}

}  // namespace switchyard
