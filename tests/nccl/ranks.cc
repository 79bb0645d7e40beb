#include "tests/nccl/ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace switchyard::nccl_testing {
namespace {

// A backend that is not the cuda plugin: all that nccl asks of one is the kind of a device's memory.
sy_plugin BackendOf(const std::string& memory_kind) {
  static std::string kind;
  kind = memory_kind;
  sy_plugin backend{SY_HEADER(sy_plugin)};
  backend.magic = SY_PLUGIN_MAGIC;
  backend.name = "cuda-like";
  backend.get_interface = [](sy_instance*, const char* name) -> const void* {
    static const sy_device_v2 table = [] {
      sy_device_v2 made{SY_HEADER(sy_device_v2)};
      made.query = [](sy_instance*, int32_t, sy_device_info* info, sy_error*) {
        std::snprintf(info->memory_kind, sizeof info->memory_kind, "%s", kind.c_str());
        return sy_status{SY_OK};
      };
      return made;
    }();
    return std::string(name) == "device/2" ? &table : nullptr;
  };
  return backend;
}

}  // namespace

void RequireOk(cudaError_t code, const char* what) {
  Require(code == cudaSuccess, "{}: {}", what, cudaGetErrorString(code));
}

int CountInDouble(const char* what) {
  void* const library = dlopen(NCCL_LIBRARY, RTLD_NOW | RTLD_NOLOAD);  // the plugin's own
  Require(library != nullptr, "the double is not loaded");
  const auto count = reinterpret_cast<int (*)(const char*)>(dlsym(library, "ncclDoubleCount"));
  Require(count != nullptr, "the double does not count");
  return count(what);
}

std::string RunRanks(const Ranks& ranks, const std::function<void(Rank&)>& body) {
  ranks::Processes processes{ranks.size, ranks.environment, ranks.environment_of, ranks.absent};
  processes.environment.emplace("CUDA_DOUBLE_DEVICES", std::to_string(std::max(ranks.size, 2)));
  processes.environment.emplace("CUDA_DOUBLE_DELAY_US", "200");  // what is not waited for must not have happened yet
  processes.environment.emplace("SWITCHYARD_NCCL_LIBRARY", NCCL_LIBRARY);
  return ranks::RunProcesses(processes, [&](int rank) {
    Rank self(rank, ranks);
    body(self);
  });
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

Rank::Rank(int rank, const Ranks& given) : rank(rank), size(given.size), ranks_(given) {
  RequireOk(cudaSetDevice(given.devices.empty() ? rank : given.devices[rank]), "cudaSetDevice");
  RequireOk(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -5), "cudaStreamCreateWithPriority");
  const sy_plugin* const plugin = ranks::LoadPlugin(NCCL_PLUGIN);
  instance = plugin->instance;
  api = static_cast<const sy_collective_v2*>(plugin->get_interface(instance, "collective/2"));
}

Rank::~Rank() {
  if (communicator != nullptr) api->destroy(communicator);
}

sy_status Rank::TryJoin(sy_error* error) {
  if (const sy_status status = api->query(instance, &info, error); status != SY_OK) return status;
  const std::vector<int32_t> hosts(size, 0);
  sy_init_request request{SY_HEADER(sy_init_request)};
  request.rank = rank;
  request.size = size;
  request.hosts = hosts.data();
  request.name = "world";
  request.store = ranks::SharedStore();
  request.timeout_ms = static_cast<uint64_t>(ranks_.timeout_ms);
  const sy_plugin backend = BackendOf(ranks_.memory_kind);
  request.backend = &backend;
  request.device = reinterpret_cast<sy_device*>(this);  // nobody looks into it
  request.device_index = ranks_.devices.empty() ? rank : ranks_.devices[rank];
  const auto call = [&](const std::function<sy_status()>& body) {
    if (!ranks_.fresh_threads) return body();
    sy_status status = SY_OK;
    std::thread([&] { status = body(); }).join();
    return status;
  };
  if (const sy_status status = call([&] { return api->init(instance, &request, &communicator, error); });
      status != SY_OK)
    return status;
  for (;;) {
    const sy_status status = call([&] { return api->poll(communicator, error); });
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

}  // namespace switchyard::nccl_testing
