// Ranks of the nccl plugin, each a process with a device of its own, on the doubles of NCCL and the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "tests/ranks/processes.h"
#include "tools/conform/values.h"

namespace switchyard::nccl_testing {

using conform::Bytes;

using ranks::Require;

void RequireOk(cudaError_t code, const char* what);

struct Ranks {
  int size = 2;
  std::map<std::string, std::string> environment;  // of every rank
  std::map<int, std::map<std::string, std::string>> environment_of;
  std::vector<int> devices;          // by rank; empty: one each
  std::vector<int> absent;           // ranks that never start
  std::string memory_kind = "cuda";  // of the backend that the devices belong to
  int timeout_ms = 20000;            // of the communicator
  bool fresh_threads = false;        // joining begins on one and is polled on others, which have no device yet
};

// How many "communicators", "windows" or "registrations" of the double are alive in this process.
int CountInDouble(const char* what);

class Rank;
// As ranks::RunProcesses.
std::string RunRanks(const Ranks& ranks, const std::function<void(Rank&)>& body);

// Bytes in device memory, between bytes that must not change.
class DeviceBytes {
 public:
  explicit DeviceBytes(const Bytes& content);
  explicit DeviceBytes(uint64_t bytes) : DeviceBytes(Bytes(bytes, 0xFF)) {}
  DeviceBytes(const DeviceBytes&) = delete;
  ~DeviceBytes();
  char* data() const { return base_ + kGuard; }
  Bytes Content() const;  // waits for the device; throws where the guards have changed

 private:
  static constexpr uint64_t kGuard = 64;
  char* base_ = nullptr;
  uint64_t bytes_;
};

class Rank {
 public:
  Rank(int rank, const Ranks& ranks);
  ~Rank();

  // Begins joining; polls until the answer is final.
  sy_status TryJoin(sy_error* error);
  void Join();
  sy_call Call(const char* tag = "test");
  void Ok(sy_status status, const char* what, const sy_error& error) const;
  // Enqueues a call, start(call, request, error), and waits for the stream.
  template <typename Start>
  void Do(const char* what, Start start) {
    Enqueue(what, start);
    RequireOk(cudaStreamSynchronize(stream), what);
  }
  template <typename Start>
  void Enqueue(const char* what, Start start) {
    sy_error error{SY_HEADER(sy_error)};
    sy_request* request = nullptr;
    const sy_call call = Call(what);
    Ok(start(&call, &request, &error), what, error);
    Require(request == nullptr, "{}: completes on the stream, yet answered with a request", what);
  }
  void AllReduce(sy_communicator* on, void* send, void* receive, uint64_t count, sy_dtype dtype = SY_F32,
                 int reduction = SY_SUM);

  const int rank, size;
  const sy_collective_v2* api = nullptr;
  sy_instance* instance = nullptr;
  sy_collective_info info{SY_HEADER(sy_collective_info)};
  sy_communicator* communicator = nullptr;
  cudaStream_t stream = nullptr;

 private:
  const Ranks& ranks_;
  uint64_t sequence_ = 0;
};

}  // namespace switchyard::nccl_testing
