// For plugins in C++ that choose among several ways to do an op by measuring them, as SY_TUNING_MEASURE asks: numbers
// to measure on, and a cache of the choices, a file in the user's cache folder. How to measure is the plugin's own.
#ifndef SWITCHYARD_ABI_TUNING_H_
#define SWITCHYARD_ABI_TUNING_H_

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

namespace switchyard {

// Random words of 16 bits with the sign free and the exponent of f16 between 1 and 2, which is one between 1/8 and 2 in
// bf16 and in f32: to fill operands with, since a product of zeros takes less power than one of numbers, so that the
// clock, and with it the choice, may be another.
inline const std::vector<uint16_t>& NumbersToMeasureOn() {
  static const std::vector<uint16_t> numbers = [] {
    std::vector<uint16_t> made(size_t{1} << 16);
    uint32_t state = 1;
    for (uint16_t& number : made) {
      state = state * 1664525 + 1013904223;  // Knuth, "The Art of Computer Programming", volume 2, 3.3.4
      number = static_cast<uint16_t>(state >> 16 & 0x81FF) | 0x3E00;
    }
    return made;
  }();
  return numbers;
}

// From keys, one word each, to a line of words. Thread-safe.
class TuningCache {
 public:
  // `name`: of the file, and so of all that the choices depend on (hardware, library, version); what no file name
  // should hold becomes _. "", or where the user has no cache folder: nothing is kept for later processes.
  explicit TuningCache(std::string name) {
    for (char& c : name)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
    std::string folder;
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) {
      folder = cache;
    } else if (const char* home = std::getenv("HOME"); home && *home) {
      folder = std::string(home) + "/.cache";
    }
    if (name.empty() || folder.empty()) return;
    path_ = folder + "/switchyard/" + name;
    Read();
  }
  std::optional<std::string> Find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  // `measured`: also for later processes. A file that cannot be written is no error.
  void Keep(const std::string& key, const std::string& value, bool measured) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    if (!measured || path_.empty()) return;
    const std::string line = key + " " + value + "\n";
    const int file = Open();
    // One short append is one write: ranks that share the file do not tear each other's lines.
    if (file >= 0) [[maybe_unused]]
      const ssize_t written = ::write(file, line.data(), line.size());
    if (file >= 0) ::close(file);
  }

  // For who is about to measure: while it lives, no other process that shares the file has one, and what they had kept
  // by then is found. So ranks neither disturb each other's measurements nor choose differently. Who has waited for ten
  // seconds goes on without, so that a stopped process holds up nobody.
  class Turn {
   public:
    explicit Turn(TuningCache& cache) : file_{cache.path_.empty() ? -1 : cache.Open()} {
      constexpr int kTries = 1000;
      for (int i = 0; file_.descriptor >= 0 && i < kTries && ::flock(file_.descriptor, LOCK_EX | LOCK_NB) != 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const std::lock_guard lock(cache.mutex_);
      cache.Read();
    }

   private:
    struct File {
      const int descriptor;
      ~File() {
        if (descriptor >= 0) ::close(descriptor);
      }
    };
    const File file_;
  };

 private:
  int Open() const {  // -1: it cannot be
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    return ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  }
  void Read() {  // what was appended since
    std::error_code missing;
    if (!std::filesystem::is_regular_file(path_, missing)) return;
    std::ifstream file(path_);
    file.seekg(read_);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      read_ += static_cast<std::streamoff>(line.size()) + 1;
      if (const size_t space = line.find(' '); space != std::string::npos)
        values_[line.substr(0, space)] = line.substr(space + 1);
    }
  }

  std::string path_;  // empty: there is none
  std::mutex mutex_;
  std::streamoff read_ = 0;                              // bytes of the file, guarded by mutex_
  std::unordered_map<std::string, std::string> values_;  // guarded by mutex_; a line is a key, a space, the value
};

}  // namespace switchyard

#endif  // SWITCHYARD_ABI_TUNING_H_
