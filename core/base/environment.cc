#include "core/base/environment.h"

#include <pwd.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>

namespace switchyard {

std::optional<std::string> Environment(const std::string& name) {
  const char* text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::optional<int> EnvironmentInt(const std::string& name) {
  const auto text = Environment(name);
  if (!text) return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return number;
}

std::string UserCacheFolder() {
  // A path that is not absolute would be another folder in every working directory.
  const auto absolute = [](const std::string& path) { return path.starts_with("/"); };
  if (const auto folder = Environment("XDG_CACHE_HOME"); folder && absolute(*folder)) return *folder + "/switchyard";
  std::string home = Environment("HOME").value_or("");
  if (!absolute(home)) {
    std::array<char, 4096> text;
    passwd entry = {};
    passwd* found = nullptr;
    if (getpwuid_r(getuid(), &entry, text.data(), text.size(), &found) == 0 && found != nullptr) home = entry.pw_dir;
  }
  return absolute(home) ? home + "/.cache/switchyard" : "";
}

std::string ProgramFolder() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : path.parent_path().string();
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  return cores;
}

}  // namespace switchyard
