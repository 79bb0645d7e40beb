#include "tests/ranks/processes.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/abi/plugin.h"

namespace switchyard::ranks {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLimitMs = 60000;  // a rank that runs longer is killed
constexpr int kGraceMs = 3000;   // what the others get after a rank has complained
constexpr int kMostEntries = 256;

// What the ranks of one test share: a store and their complaints.
struct Shared {
  struct Entry {
    std::atomic<bool> ready;
    char key[96];
    char value[4200];
    uint32_t bytes;
  };
  std::atomic<int> entries;
  Entry entry[kMostEntries];
  std::atomic<bool> dies[8];
  char complaint[8][1024];
};
Shared* shared = nullptr;

sy_status StorePut(void*, const char* key, const void* value, uint32_t bytes, sy_error*) {
  const int index = shared->entries++;
  if (index >= kMostEntries || bytes > sizeof Shared::Entry::value) return SY_INTERNAL;
  Shared::Entry& entry = shared->entry[index];
  std::snprintf(entry.key, sizeof entry.key, "%s", key);
  std::memcpy(entry.value, value, bytes);
  entry.bytes = bytes;
  entry.ready = true;
  return SY_OK;
}

sy_status StoreGet(void*, const char* key, void* value, uint32_t capacity, uint32_t* bytes, uint64_t timeout_ms,
                   sy_error*) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  do {
    for (int i = 0; i < std::min(kMostEntries, shared->entries.load()); ++i) {
      const Shared::Entry& entry = shared->entry[i];
      if (!entry.ready || std::strcmp(entry.key, key) != 0) continue;
      if (entry.bytes > capacity) return SY_INVALID;
      std::memcpy(value, entry.value, entry.bytes);
      *bytes = entry.bytes;
      return SY_OK;
    }
    if (timeout_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (Clock::now() < deadline);
  return SY_TIMEOUT;
}

const char* HostSetting(void*, const char* name) { return std::getenv((std::string("SWITCHYARD_") + name).c_str()); }

int ChildMain(int rank, const Processes& processes, const std::function<void(int)>& body) {
  for (const auto& [name, value] : processes.environment) setenv(name.c_str(), value.c_str(), 1);
  if (const auto own = processes.environment_of.find(rank); own != processes.environment_of.end()) {
    for (const auto& [name, value] : own->second) setenv(name.c_str(), value.c_str(), 1);
  }
  try {
    body(rank);
    return 0;
  } catch (const std::exception& wrong) {
    std::snprintf(shared->complaint[rank], sizeof shared->complaint[rank], "%s", wrong.what());
    return 1;
  }
}

}  // namespace

std::string RunProcesses(const Processes& processes, const std::function<void(int)>& body) {
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || processes.size > 8) return "the test could not start";
  shared = new (memory) Shared{};
  std::map<int, pid_t> running;
  for (int rank = 0; rank < processes.size; ++rank) {
    if (std::count(processes.absent.begin(), processes.absent.end(), rank)) continue;
    const pid_t pid = fork();
    if (pid == 0) _exit(ChildMain(rank, processes, body));
    running[rank] = pid;
  }
  std::string complaints;
  auto deadline = Clock::now() + std::chrono::milliseconds(kLimitMs);
  while (!running.empty()) {
    for (auto one = running.begin(); one != running.end();) {
      const auto [rank, pid] = *one;
      int status = 0;
      const bool late = Clock::now() > deadline;
      if (late) kill(pid, SIGKILL);
      if (waitpid(pid, &status, late ? 0 : WNOHANG) == 0) {
        ++one;
        continue;
      }
      const bool agreed = shared->dies[rank] && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      if (late && complaints.empty()) {
        complaints = fmt::format("rank {} did not end within {} ms\n", rank, kLimitMs);
      } else if (WIFSIGNALED(status) && !agreed && !late) {
        complaints += fmt::format("rank {} ended by signal {}\n", rank, WTERMSIG(status));
      } else if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
        complaints += fmt::format("rank {}: {}\n", rank, shared->complaint[rank]);
      }
      if (!complaints.empty()) deadline = std::min(deadline, Clock::now() + std::chrono::milliseconds(kGraceMs));
      one = running.erase(one);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  munmap(memory, sizeof(Shared));
  return complaints;
}

const sy_store* SharedStore() {
  static const sy_store store{SY_HEADER(sy_store), nullptr, StorePut, StoreGet};
  return &store;
}

void Put(const std::string& key, const std::string& value) {
  StorePut(nullptr, key.c_str(), value.data(), static_cast<uint32_t>(value.size()), nullptr);
}

bool Wait(const std::string& key, int ms) {
  char value[sizeof Shared::Entry::value];
  uint32_t bytes = 0;
  return StoreGet(nullptr, key.c_str(), value, sizeof value, &bytes, static_cast<uint64_t>(ms), nullptr) == SY_OK;
}

void Die(int rank) {
  shared->dies[rank] = true;
  kill(getpid(), SIGKILL);
  std::abort();
}

const sy_plugin* LoadPlugin(const char* path) {
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  Require(handle != nullptr, "{}", handle == nullptr ? dlerror() : "");
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(handle, "sy_plugin_create"));
  static const sy_host host{SY_HEADER(sy_host), nullptr, nullptr, HostSetting};
  auto& plugin = *new sy_plugin{SY_HEADER(sy_plugin)};
  sy_error error{SY_HEADER(sy_error)};
  Require(create(&host, &plugin, &error) == SY_OK, "sy_plugin_create: {}", error.message);
  return &plugin;
}

}  // namespace switchyard::ranks
