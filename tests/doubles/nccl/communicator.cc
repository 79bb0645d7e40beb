#include "tests/doubles/nccl/communicator.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/faults.h"
#include "tests/doubles/mesh/collectives.h"

namespace nccl_double {
namespace {

using doubles::Outcome;
using doubles::Transfer;

struct Registry {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> alive;
  std::string last_error;
};

Registry& TheRegistry() {
  static auto& registry = *new Registry;  // threads outlive static objects
  return registry;
}

// The current device is this one while it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

doubles::Type TypeOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return doubles::Type::kF32;
    case ncclBfloat16:
      return doubles::Type::kBF16;
    case ncclFloat16:
      return doubles::Type::kF16;
    case ncclFloat64:
      return doubles::Type::kF64;
    case ncclInt32:
      return doubles::Type::kI32;
    case ncclInt64:
      return doubles::Type::kI64;
    case ncclInt8:
      return doubles::Type::kI8;
    default:
      return doubles::Type::kU8;
  }
}

doubles::Reduction ReductionOf(ncclRedOp_t op) {
  return op == ncclSum   ? doubles::Reduction::kSum
         : op == ncclMax ? doubles::Reduction::kMax
         : op == ncclMin ? doubles::Reduction::kMin
                         : doubles::Reduction::kProduct;
}

}  // namespace

bool Strikes(const char* kind) {
  static auto& faults =
      *new doubles::Faults("NCCL_DOUBLE_FAULT", "call|remote|hang|id|join|memory|window|ruin|release");
  return faults.Strikes(kind);
}

void Die(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
}

int CountAlive() {
  std::lock_guard lock(TheRegistry().mutex);
  return static_cast<int>(TheRegistry().alive.size());
}

std::shared_ptr<ncclComm> Find(ncclComm_t handle) {
  std::lock_guard lock(TheRegistry().mutex);
  const auto found = TheRegistry().alive.find(handle);
  return found == TheRegistry().alive.end() ? nullptr : found->second;
}

ncclComm_t Add(std::shared_ptr<ncclComm> made) {
  std::lock_guard lock(TheRegistry().mutex);
  const ncclComm_t handle = made.get();
  TheRegistry().alive[handle] = std::move(made);
  return handle;
}

void Remove(ncclComm_t handle) {
  std::shared_ptr<ncclComm> last;  // ends outside of the lock
  std::lock_guard lock(TheRegistry().mutex);
  const auto found = TheRegistry().alive.find(handle);
  if (found == TheRegistry().alive.end()) return;
  last = std::move(found->second);
  TheRegistry().alive.erase(found);
}

ncclResult_t FailWithout(ncclResult_t code, const std::string& text) {
  std::lock_guard lock(TheRegistry().mutex);
  TheRegistry().last_error = text;
  return code;
}

}  // namespace nccl_double

using namespace nccl_double;

ncclComm::ncclComm(std::string given, int rank, int size, int device, bool blocking)
    : name(std::move(given)),
      rank(rank),
      size(size),
      device(device),
      blocking(blocking),
      control(name + "/control", rank, size),
      data(name + "/data", rank, size) {
  const OnDevice on(device);
  cudaEventCreateWithFlags(&order_, cudaEventDisableTiming);
}

ncclComm::~ncclComm() {
  if (order_ != nullptr) cudaEventDestroy(order_);
}

ncclResult_t ncclComm::Fail(ncclResult_t code, const std::string& text) {
  FailWithout(code, text);
  std::lock_guard lock(mutex_);
  last_error_ = text;
  return code;
}

std::string ncclComm::last_error() {
  std::lock_guard lock(mutex_);
  return last_error_;
}

ncclResult_t ncclComm::EnsureReady() {
  const ncclResult_t state = state_;
  if (state != ncclInProgress) return state;
  return Fail(ncclInvalidArgument, "Attempt to use communicator before the previous operation returned ncclSuccess");
}

void ncclComm::WaitForLooks() const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  while (looked_ < 2 && !control.aborted() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

ncclResult_t ncclComm::Apart(std::function<ncclResult_t()> body) {
  state_ = ncclInProgress;
  looked_ = 0;
  ++apart_;
  std::thread thread([self = shared_from_this(), body = std::move(body)] {
    if (!self->blocking) self->WaitForLooks();
    self->state_ = body();
    --self->apart_;
  });
  if (!blocking) {
    thread.detach();
    return ncclInProgress;
  }
  thread.join();
  return state_;
}

ncclResult_t ncclComm::Join() {
  if (Strikes("join")) {
    control.WaitForAbort();
    return ncclInternalError;
  }
  struct Greeting {
    char host[64];
    int device;
  } own{}, blank{};
  gethostname(own.host, sizeof own.host - 1);
  own.device = device;
  std::vector<Greeting> all(size, blank);
  if (control.Join() != doubles::Outcome::kDone || data.Join() != doubles::Outcome::kDone ||
      control.AllGather(&own, sizeof own, all.data(), 0) != doubles::Outcome::kDone)
    return Fail(ncclRemoteError, "a rank left while joining");
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank && std::memcmp(&all[peer], &own, sizeof own) == 0) {
      return Fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " +
                                        std::to_string(peer) + " both on CUDA device " + std::to_string(device));
    }
  }
  return ncclSuccess;
}

ncclResult_t ncclComm::Start(std::vector<Bundle> bundles) {
  if (const ncclResult_t ready = EnsureReady(); ready != ncclSuccess) return state_ = ready;
  for (const Bundle& bundle : bundles) {
    for (size_t i = 0; i < bundle.size(); ++i) {
      if (Strikes("call")) return Fail(state_ = ncclUnhandledCudaError, "Cuda failure 'fault asked for by the test'");
    }
  }
  static const int looks = static_cast<int>(doubles::NumberFrom("NCCL_DOUBLE_LOOKS", 2, 0, 1000000));
  if (!blocking && looks > 0) {
    std::lock_guard lock(mutex_);
    for (Bundle& bundle : bundles) waiting_.push_back(std::move(bundle));
    looks_ = looks;
    return state_ = ncclInProgress;
  }
  for (Bundle& bundle : bundles) {
    if (const ncclResult_t launched = Launch(std::move(bundle)); launched != ncclSuccess) return state_ = launched;
  }
  return ncclSuccess;
}

ncclResult_t ncclComm::Look(ncclResult_t* state) {
  ++looked_;
  std::vector<Bundle> due;
  {
    std::lock_guard lock(mutex_);
    if (!waiting_.empty() && --looks_ <= 0) due.swap(waiting_);
  }
  if (!due.empty()) {
    ncclResult_t code = ncclSuccess;
    for (Bundle& bundle : due) {
      if (code == ncclSuccess) code = Launch(std::move(bundle));
    }
    ncclResult_t expected = ncclInProgress;  // a stream may have found an error meanwhile
    state_.compare_exchange_strong(expected, code);
  }
  *state = state_;
  return ncclSuccess;
}

void ncclComm::AbortMeshes() {
  control.Abort();
  data.Abort();
}

void ncclComm::Raise(const std::shared_ptr<ncclComm>& child) {
  {
    std::lock_guard lock(mutex_);
    child_ = child;
  }
  if (child != nullptr && control.aborted()) child->AbortMeshes();
}

void ncclComm::Abort() {
  AbortMeshes();
  {
    std::lock_guard lock(mutex_);
    waiting_.clear();
    if (child_ != nullptr) child_->AbortMeshes();
  }
  while (apart_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  { std::lock_guard lock(running_); }  // nothing touches a buffer any more when it returns
  WaitForGraphs();
}

void ncclComm::WaitForGraphs() const {
  while (captured_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Work of one communicator runs in the order of its calls and of the launches of graphs that hold some, on whichever
// streams (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/cudagraph.html).
ncclResult_t ncclComm::Launch(Bundle bundle) {
  const OnDevice on(device);
  const cudaStream_t stream = bundle.front().stream;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaError_t code = cudaStreamIsCapturing(stream, &capturing);
  const bool captured = capturing != cudaStreamCaptureStatusNone;
  if (code == cudaSuccess)
    code = cudaStreamWaitEvent(stream, order_, captured ? cudaEventWaitExternal : cudaEventWaitDefault);
  // It ends with its run on the stream, or with the graph that holds it.
  struct Job {
    Job(std::shared_ptr<ncclComm> given, Bundle operations, std::atomic<int>& counter)
        : comm(std::move(given)), bundle(std::move(operations)), count(counter) {
      ++count;
    }
    ~Job() { --count; }

    const std::shared_ptr<ncclComm> comm;
    const Bundle bundle;
    std::atomic<int>& count;
  };
  if (code == cudaSuccess) {
    code = cudaDoubleEnqueue(
        stream,
        [](void* data) {
          const Job& job = *static_cast<Job*>(data);
          job.comm->Run(job.bundle);
        },
        new Job(shared_from_this(), std::move(bundle), captured ? captured_ : unfinished_),
        [](void* data) { delete static_cast<Job*>(data); });
  }
  if (code == cudaSuccess)
    code = cudaEventRecordWithFlags(order_, stream, captured ? cudaEventRecordExternal : cudaEventRecordDefault);
  if (code == cudaSuccess) return ncclSuccess;
  return Fail(ncclUnhandledCudaError, std::string("Cuda failure '") + cudaGetErrorString(code) + "'");
}

void ncclComm::Run(const Bundle& bundle) {
  std::lock_guard lock(running_);
  if (data.aborted()) return;
  doubles::Outcome outcome = doubles::Outcome::kDone;
  if (Strikes("hang")) {
    data.WaitForAbort();
    return;
  }
  if (Strikes("remote")) {
    outcome = doubles::Outcome::kPeerGone;
  } else if (bundle.front().is_message) {
    std::vector<Transfer> transfers;
    for (const Operation& o : bundle) {
      const bool sends = o.receive == nullptr;
      transfers.push_back({o.peer, sends, sends ? const_cast<void*>(o.send) : o.receive,
                           o.count * doubles::BytesOf(TypeOf(o.type)), 1});
    }
    outcome = data.Exchange(transfers);
  } else {
    const Operation& o = bundle.front();
    outcome = doubles::RunCollective(
        data, {o.kind, o.send, o.receive, o.count, TypeOf(o.type), ReductionOf(o.reduction), o.peer});
  }
  if (outcome != doubles::Outcome::kPeerGone) return;
  state_ =
      Fail(ncclRemoteError, "socketProgress: Connection closed by remote peer rank " + std::to_string(data.gone()));
  data.WaitForAbort();  // a kernel whose peer is gone spins until the communicator is aborted
}

extern "C" const char* ncclGetLastError(ncclComm_t handle) {
  thread_local std::string text;
  const std::shared_ptr<ncclComm> comm = Find(handle);
  if (comm != nullptr) {
    text = comm->last_error();
  } else {
    std::lock_guard lock(TheRegistry().mutex);
    text = TheRegistry().last_error;
  }
  return text.c_str();
}
