#include "tests/nccl/ranks.h"

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

namespace switchyard::nccl_testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLimitMs = 60000;  // a rank that runs longer is killed

// What the ranks of one test share: a store and their complaints.
struct Shared {
  struct Entry {
    std::atomic<bool> ready;
    char key[96];
    char value[256];
    uint32_t bytes;
  };
  std::atomic<int> entries;
  Entry entry[256];
  std::atomic<bool> dies[8];
  char complaint[8][1024];
};
Shared* shared = nullptr;

sy_status StorePut(void*, const char* key, const void* value, uint32_t bytes, sy_error*) {
  const int index = shared->entries++;
  if (index >= 256 || bytes > sizeof Shared::Entry::value) return SY_INTERNAL;
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
    for (int i = 0; i < std::min(256, shared->entries.load()); ++i) {
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

const char* HostSetting(const char* name) { return std::getenv((std::string("SWITCHYARD_") + name).c_str()); }

const sy_collective_v1* LoadPlugin() {
  void* const handle = dlopen(NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  Require(handle != nullptr, "{}", handle == nullptr ? dlerror() : "");
  const auto query = reinterpret_cast<sy_plugin_query_fn>(dlsym(handle, "sy_plugin_query"));
  static const sy_host host{SY_HEADER(sy_host), nullptr, HostSetting};
  sy_plugin plugin{SY_HEADER(sy_plugin)};
  sy_error error{SY_HEADER(sy_error)};
  Require(query(&host, &plugin, &error) == SY_OK, "query: {}", error.message);
  return static_cast<const sy_collective_v1*>(plugin.interface("collective/1"));
}

int ChildMain(int rank, const Ranks& ranks, const std::function<void(Rank&)>& body) {
  setenv("CUDA_DOUBLE_DEVICES", std::to_string(std::max(ranks.size, 2)).c_str(), 1);
  setenv("CUDA_DOUBLE_DELAY_US", "200", 0);  // what is not waited for must not have happened yet
  setenv("SWITCHYARD_NCCL_LIBRARY", NCCL_LIBRARY, 0);
  for (const auto& [name, value] : ranks.environment) setenv(name.c_str(), value.c_str(), 1);
  if (const auto own = ranks.environment_of.find(rank); own != ranks.environment_of.end()) {
    for (const auto& [name, value] : own->second) setenv(name.c_str(), value.c_str(), 1);
  }
  try {
    Rank self(rank, ranks);
    body(self);
    return 0;
  } catch (const std::exception& wrong) {
    std::snprintf(shared->complaint[rank], sizeof shared->complaint[rank], "%s", wrong.what());
    return 1;
  }
}

}  // namespace

void RequireOk(cudaError_t code, const char* what) {
  Require(code == cudaSuccess, "{}: {}", what, cudaGetErrorString(code));
}

std::string RunRanks(const Ranks& ranks, const std::function<void(Rank&)>& body) {
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || ranks.size > 8) return "the test could not start";
  shared = new (memory) Shared{};
  std::map<int, pid_t> running;
  for (int rank = 0; rank < ranks.size; ++rank) {
    if (std::count(ranks.absent.begin(), ranks.absent.end(), rank)) continue;
    const pid_t pid = fork();
    if (pid == 0) _exit(ChildMain(rank, ranks, body));
    running[rank] = pid;
  }
  std::string complaints;
  const auto deadline = Clock::now() + std::chrono::milliseconds(kLimitMs);
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
      if (late) {
        complaints += fmt::format("rank {} did not end within {} ms\n", rank, kLimitMs);
      } else if (WIFSIGNALED(status) && !agreed) {
        complaints += fmt::format("rank {} ended by signal {}\n", rank, WTERMSIG(status));
      } else if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
        complaints += fmt::format("rank {}: {}\n", rank, shared->complaint[rank]);
      }
      one = running.erase(one);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  munmap(memory, sizeof(Shared));
  return complaints;
}

DeviceBytes::DeviceBytes(const Bytes& content) : bytes_(content.size()) {
  void* memory = nullptr;
  RequireOk(cudaMalloc(&memory, bytes_ + 2 * kGuard), "cudaMalloc");
  base_ = static_cast<char*>(memory);
  RequireOk(cudaMemset(base_, 0xA5, bytes_ + 2 * kGuard), "cudaMemset");
  if (bytes_ > 0) RequireOk(cudaMemcpy(data(), content.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
}

DeviceBytes::~DeviceBytes() { cudaFree(base_); }

Bytes DeviceBytes::Content() const {
  Bytes all(bytes_ + 2 * kGuard);
  RequireOk(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  RequireOk(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (uint64_t i = 0; i < kGuard; ++i) {
    Require(all[i] == 0xA5 && all[all.size() - 1 - i] == 0xA5, "wrote outside of the buffer");
  }
  return Bytes(all.begin() + kGuard, all.end() - kGuard);
}

Rank::Rank(int rank, const Ranks& ranks)
    : rank(rank), size(ranks.size), ranks_(ranks), store_{SY_HEADER(sy_store), nullptr, StorePut, StoreGet} {
  RequireOk(cudaSetDevice(ranks.devices.empty() ? rank : ranks.devices[rank]), "cudaSetDevice");
  RequireOk(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -5), "cudaStreamCreateWithPriority");
  api = LoadPlugin();
}

Rank::~Rank() {
  if (communicator != nullptr) api->destroy(communicator);
}

sy_status Rank::TryJoin(sy_error* error) {
  if (const sy_status status = api->query(&info, error); status != SY_OK) return status;
  const std::vector<int32_t> hosts(size, 0);
  sy_init_request request{SY_HEADER(sy_init_request)};
  request.rank = rank;
  request.size = size;
  request.hosts = hosts.data();
  request.name = "world";
  request.store = &store_;
  request.timeout_ms = static_cast<uint64_t>(ranks_.timeout_ms);
  request.device_plugin = "cuda";
  request.device_index = ranks_.devices.empty() ? rank : ranks_.devices[rank];
  if (const sy_status status = api->init(&request, &communicator, error); status != SY_OK) return status;
  for (;;) {
    const sy_status status = api->poll(communicator, error);
    if (status != SY_IN_PROGRESS) return status;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Rank::Join() {
  sy_error error{SY_HEADER(sy_error)};
  Ok(TryJoin(&error), "join", error);
}

sy_call Rank::Call(const char* tag) { return {SY_HEADER(sy_call), tag, sequence_++, nullptr, stream}; }

void Rank::Ok(sy_status status, const char* what, const sy_error& error) const {
  Require(status == SY_OK, "{} answered {}: {} ({})", what, status, error.message, error.location);
}

void Rank::AllReduce(sy_communicator* on, void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction) {
  Enqueue("all_reduce", [&](auto* call, auto** request, auto* error) {
    return api->all_reduce(on, call, send, receive, count, dtype, reduction, request, error);
  });
}

void Rank::Put(const std::string& key, const std::string& value) const {
  StorePut(nullptr, key.c_str(), value.data(), static_cast<uint32_t>(value.size()), nullptr);
}

bool Rank::Wait(const std::string& key, int ms) const {
  char value[256];
  uint32_t bytes = 0;
  return StoreGet(nullptr, key.c_str(), value, sizeof value, &bytes, static_cast<uint64_t>(ms), nullptr) == SY_OK;
}

void Rank::Die() const {
  shared->dies[rank] = true;
  kill(getpid(), SIGKILL);
  std::abort();
}

}  // namespace switchyard::nccl_testing
