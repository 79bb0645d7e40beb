#include "core/data/location.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

#include "core/base/child_process.h"
#include "core/base/environment.h"
#include "core/base/file.h"
#include "core/base/logging.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr int kTooLarge = 63;  // exit status of curl at --max-filesize

bool PathExists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Status CheckSha256(const std::string& path, const std::string& expected) {
  SY_ASSIGN_OR_RETURN(const Descriptor file, OpenRegularFile(path));  // sha256sum would wait for a pipe
  int exit_status = 0;
  SY_ASSIGN_OR_RETURN(const std::string output, RunProgram({"sha256sum", "--", path}, &exit_status));
  if (exit_status != 0) return Unavailable("sha256sum failed on {}: {}", path, output);
  const std::string found = output.substr(output[0] == '\\' ? 1 : 0, 64);
  if (found != expected) return DataLoss("{}: expected SHA-256 {}, found {}", path, expected, found);
  return OkStatus();
}

Status FetchFile(const Download& download, const Download::File& file, const std::string& folder) {
  const std::string target = folder + "/" + file.name;
  const std::string part = fmt::format("{}.part.{}", target, getpid());
  Status last = Unavailable("{} has no site to be fetched from", file.name);
  std::error_code ignored;
  for (const std::string& site : download.sites) {
    const std::string url = site + file.name;
    LogInfo("fetching {}", url);
    int exit_status = 0;
    // curl ends itself where the site says the size, and is ended where it does not.
    const auto output = RunProgram(
        {"curl", "--fail", "--location", "--silent", "--show-error", "--connect-timeout", "4", "--speed-limit", "1000",
         "--speed-time", "15", "--max-filesize", fmt::format("{}", file.bytes), "--output", part, "--", url},
        &exit_status, file.bytes);
    if (!output.ok()) return output.status();
    if (exit_status == kTooLarge || exit_status == 128 + SIGXFSZ)
      last = DataLoss("{}: expected {} bytes, found more", url, file.bytes);
    else if (exit_status == 0)
      last = CheckSha256(part, file.sha256);
    else
      last = Unavailable("{}: {}", url, output->substr(0, output->find_last_not_of('\n') + 1));
    if (last.ok()) {
      if (rename(part.c_str(), target.c_str()) == 0) return OkStatus();
      last = ResourceExhausted("cannot rename {} to {}: {}", part, target, std::strerror(errno));
    }
    fs::remove(part, ignored);
  }
  return last;
}

// What is cached is hashed by each process that uses it (once: training and validation data lie in the same files). A
// disk, an interrupted copy or somebody else may have changed it, and a stamp beside it would be changed as easily.
Status CheckFiles(const Download& download, const std::string& folder) {
  static std::mutex mutex;
  static auto& checked = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  for (const Download::File& file : download.files) {
    const std::string path = folder + "/" + file.name;
    struct stat about = {};
    if (stat(path.c_str(), &about) != 0) return FileError("read", path, errno);
    const std::string identity = fmt::format("{} {} {} {} {}.{:09} {}.{:09} {}", path, about.st_dev, about.st_ino,
                                             about.st_size, about.st_mtim.tv_sec, about.st_mtim.tv_nsec,
                                             about.st_ctim.tv_sec, about.st_ctim.tv_nsec, file.sha256);
    if (checked.contains(identity)) continue;
    SY_RETURN_IF_ERROR(CheckSha256(path, file.sha256));
    checked.insert(identity);
  }
  return OkStatus();
}

}  // namespace

Download FashionMnistDownload() {
  return {
      {"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
       "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"},
      {{"train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26'421'880},
       {"train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29'515},
       {"t10k-images-idx3-ubyte.gz", "57052aa7bda29b32b042eb82c0efd330bd40d8da54871c3fa667536dd7c3eb2c", 4'422'102},
       {"t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5'148}}};
}

Download MnistDownload() {
  return {
      {"https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"},
      {{"train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9'912'422},
       {"train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28'881},
       {"t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1'648'877},
       {"t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4'542}}};
}

Download Cifar10Download() {
  return {
      {"https://www.cs.toronto.edu/~kriz/"},
      {{"cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170'052'171}}};
}

Status FetchFiles(const Download& download, const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return ResourceExhausted("cannot make the folder {}: {}", folder, error.message());
  const std::string lock_path = folder + "/.lock";
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (lock < 0) return ResourceExhausted("cannot write {}: {}", lock_path, std::strerror(errno));
  while (flock(lock, LOCK_EX) != 0 && errno == EINTR) {
  }
  Status status = OkStatus();
  for (const Download::File& file : download.files) {
    if (status.ok() && !CheckSha256(folder + "/" + file.name, file.sha256).ok()) {
      status = FetchFile(download, file, folder);
    }
  }
  close(lock);
  return status;
}

StatusOr<std::string> LocateData(const std::string& name, const std::optional<std::string>& data,
                                 const Download* download, bool fetch) {
  if (data) {
    if (PathExists(*data)) return *data;
    return NotFound("--data={}: no such file or folder; expected the data of {}", *data, name);
  }
  std::string tried;
  if (const auto shared = Environment("SWITCHYARD_DATA")) {
    const std::string folder = *shared + "/" + name;
    if (PathExists(folder)) return folder;
    tried += folder + ", ";
  }
  const std::string cache = UserCacheFolder();
  if (cache.empty()) {
    return NotFound(
        "the data of {} is in none of {}and there is no folder to cache it in; set HOME or XDG_CACHE_HOME, "
        "or say where the data is with --data=FOLDER",
        name, tried);
  }
  const std::string cached = cache + "/data/" + name;
  if (download == nullptr && PathExists(cached)) return cached;
  tried += cached;
  if (download == nullptr) {
    return NotFound("the data of {} is in none of {}; put it there, or say where it is with --data=FOLDER", name,
                    tried);
  }
  const Status found = CheckFiles(*download, cached);
  if (found.ok()) return cached;
  if (found.code() != absl::StatusCode::kNotFound) {
    tried += fmt::format(" ({})", Message(found));
    LogWarning("{}", Message(found));
  }
  Status fetched = Aborted("downloads are off");
  if (fetch) fetched = FetchFiles(*download, cached);
  if (fetched.ok()) return cached;
  std::string files;
  for (const Download::File& file : download->files) files += (files.empty() ? "" : ", ") + file.name;
  return NotFound(
      "the data of {} is in none of {}, and was not fetched ({}); put {} from {} into {}, or say where they "
      "are with --data=FOLDER",
      name, tried, Message(fetched), files, download->sites[0], cached);
}

}  // namespace switchyard
