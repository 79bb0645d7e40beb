// A communicator over HCCL, one device per rank, whose memory is of the kind "npu". Rank 0 puts its root info into the
// store, the others fetch it, and HcclCommInitRootInfo joins them on a thread apart. Collectives are put on the
// caller's stream and are finished when the stream is; what fails there is found by Ready. Calls are not compared
// between ranks.
//
// HCCL documents no abort: Abort lets every waiting call return SY_ABORTED and stops the streams that were used, where
// the runtime can (aclrtStreamAbort); elsewhere what hangs on the device ends after HCCL_EXEC_TIMEOUT. A communicator
// that was aborted or has failed is never taken down, because that could wait for its work. Abort from any thread, the
// rest from one.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/hccl/joining.h"
#include "core/abi/collective_class.h"

namespace hccl {

class HcclCommunicator {
 public:
  // SY_UNSUPPORTED where HCCL is missing.
  static sy_status Query(sy_instance* instance, sy_collective_info* info, sy_error* error);
  static void Describe(const sy_instance& instance, sy_collective_info& info);
  static bool Reduces(int32_t reduction, sy_dtype dtype);
  static sy_status Create(const sy_instance& instance, const sy_init_request& request,
                          std::unique_ptr<HcclCommunicator>* result, sy_error* error);
  ~HcclCommunicator();

  sy_status Ready(sy_error* error);
  sy_status Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                   int32_t reduction, int32_t root, sy_request** request, sy_error* error);
  sy_status SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count, sy_request** request,
                           sy_error* error);
  sy_status Split(int32_t color, int32_t key, const char* name, std::unique_ptr<HcclCommunicator>* result,
                  sy_error* error);
  void Abort();

 private:
  using Clock = std::chrono::steady_clock;

  // `place` is the prefix of its keys in the store.
  HcclCommunicator(std::string name, std::string place, int rank, int size, int device, uint64_t timeout_ms,
                   const sy_store* store)
      : name_(std::move(name)),
        place_(std::move(place)),
        rank_(rank),
        size_(size),
        device_(device),
        timeout_ms_(timeout_ms),
        store_(store) {}

  sy_status Announce(sy_error* error);  // of rank 0: the root info
  sy_status Begin(sy_error* error);     // SY_IN_PROGRESS until the root info is there
  sy_status Late(sy_error* error) const;
  sy_status Put(const std::string& key, const void* value, uint32_t bytes, sy_error* error) const;
  sy_status Get(const std::string& key, void* value, uint32_t capacity, uint32_t* bytes, sy_error* error) const;
  sy_status Usable(sy_error* error) const;  // under mutex_
  sy_status Fail(sy_status status, sy_error* error);
  void StopStreams();  // ends what hangs on them; not under streams_mutex_
  // Under mutex_: the stream of the call, ready to be used.
  sy_status Enter(const sy_call* call, aclrtStream* stream, sy_error* error);
  sy_status Scratch(uint64_t bytes, void** address, sy_error* error);
  HcclResult Begin(int32_t kind, void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp op,
                   int32_t root, aclrtStream stream) const;

  const std::string name_, place_;
  const int rank_, size_, device_;
  const uint64_t timeout_ms_;
  const sy_store* const store_;
  const Clock::time_point began_ = Clock::now();

  mutable std::mutex mutex_;  // of what follows
  Joining joining_;
  HcclComm comm_ = nullptr;
  sy_status failed_ = SY_OK;
  sy_error failure_{SY_HEADER(sy_error)};
  std::vector<void*> scratch_;        // the last is the largest; the others may still be in use on a stream
  uint64_t scratch_bytes_ = 0;
  int splits_ = 0;

  std::mutex streams_mutex_;          // never held over a call of HCCL's, so that abort reaches the streams
  std::vector<aclrtStream> streams_;  // that were used
  std::atomic<bool> aborted_{false}, joined_{false};
};

}  // namespace hccl
