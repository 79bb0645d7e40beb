#include "core/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>

#include "core/train/file_calls.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr char kConfig[] = "/config.json";
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
  const std::string stamp = config.suffix.empty() ? TimeStamp() : config.suffix;
  for (int attempt = 1;; ++attempt) {
    const std::string suffix = attempt == 1 ? stamp : fmt::format("{}-{}", stamp, attempt);
    const std::string folder =
        fmt::format("{}/{}/{}/{}/{}", config.output, model, config.tag.empty() ? config.dataset : config.tag, suffix,
                    config.output_suffix);
    SY_RETURN_IF_ERROR(Annotate(MakeFolders(fs::path(folder).parent_path().string()),
                                "making the run folder, for which --output names another place"));
    if (::mkdir(folder.c_str(), 0777) == 0) {
      SY_RETURN_IF_ERROR(WriteRunConfig(folder, config));
      return folder;
    }
    if (errno != EEXIST) return FileError("create the run folder", folder, errno);
    if (!config.suffix.empty()) {
      return FailedPrecondition(
          "the run folder {} is there already, and a run folder belongs to one run: choose another --suffix, or go on "
          "with that run by --resume={}",
          folder, folder);
    }
  }
}

std::string RunFolderOf(const std::string& checkpoint_folder) {
  const fs::path checkpoint(checkpoint_folder), run = checkpoint.parent_path().parent_path();
  if (checkpoint.parent_path().filename() != "checkpoints" || !checkpoint.filename().string().starts_with("step-"))
    return "";
  const auto text = ReadWholeFile(run.string() + kConfig, kLargestConfig);
  if (!text.ok()) return "";
  return PropertiesFromJson(nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)).ok() ? run.string() : "";
}

StatusOr<RunFolderLock> RunFolderLock::Take(const std::string& run_folder) {
  const int descriptor = ::open(run_folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError("open the run folder", run_folder, errno);
  RunFolderLock lock(descriptor);
  if (::flock(descriptor, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
    return FailedPrecondition(
        "another process is training in the run folder {}; wait until it ends, or begin a new run from its weights "
        "with "
        "--pretrained={}",
        run_folder, run_folder);
  }
  return lock;
}

RunFolderLock::~RunFolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status WriteRunConfig(const std::string& run_folder, const TrainConfig& config) {
  const std::string path = run_folder + kConfig, temporary = path + ".tmp";
  std::error_code ignored;
  fs::remove(temporary, ignored);
  const nlohmann::ordered_json settings = ToJson(config, {SettingKind::kProperty, SettingKind::kPlace});
  const std::string text = settings.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  SY_RETURN_IF_ERROR(WriteDurably(temporary, {BytesOf(text)}));
  SY_RETURN_IF_ERROR(RenamePath(temporary, path));
  return SyncFolder(run_folder);
}

}  // namespace switchyard
