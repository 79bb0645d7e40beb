// For collective plugins in C++ whose calls advance only while somebody polls: calls wait in the order in which they
// were made, and whoever polls runs them one after another. The first error ends all. One call at a time, of whichever
// thread. The ABI itself is C and does not need this header.
#ifndef SWITCHYARD_ABI_CALL_QUEUE_H_
#define SWITCHYARD_ABI_CALL_QUEUE_H_

#include <memory>
#include <vector>

#include "core/abi/boundary.h"
#include "core/abi/collective_class.h"

namespace switchyard {

// What the sy_request of such a plugin derives from.
struct QueuedCall {
  CallSignature signature{};
  const char* send = nullptr;
  char* receive = nullptr;
  bool done = false;
  sy_status outcome = SY_OK;
  sy_error error{SY_HEADER(sy_error)};  // of an outcome other than SY_OK
};

template <typename Request>
class CallQueue {
 public:
  // A request at the end of the queue. It may have served an earlier call: `prepare(request)` sets what Request adds.
  // What that throws leaves the queue as it was.
  template <typename Prepare>
  Request& Add(const CallSignature& signature, const void* send, void* receive, Prepare prepare) {
    if (unused_.empty()) {
      requests_.push_back(std::make_unique<Request>());
      unused_.reserve(requests_.size());  // Release must not fail
      unused_.push_back(requests_.back().get());
    }
    Request& request = *unused_.back();
    request.signature = signature;
    request.send = static_cast<const char*>(send);
    request.receive = static_cast<char*>(receive);
    request.done = false;
    request.outcome = SY_OK;
    prepare(request);
    queue_.push_back(&request);
    unused_.pop_back();
    return request;
  }

  // How `request` has ended; may be asked again. Until then all calls go on as far as they can: the one at the front is
  // run by `advance(call)`, which answers SY_IN_PROGRESS where nothing can go on, or how the call has ended; what went
  // wrong it puts in call.error, or throws. Once a call has failed or was given up, the others end without `advance`,
  // also one that it has begun.
  template <typename Advance>
  sy_status Poll(const Request& request, sy_error* error, Advance advance) {
    if (!request.done) Progress(advance);
    if (!request.done) return SY_IN_PROGRESS;
    if (request.outcome != SY_OK && error != nullptr) FillStruct(error, request.error);
    return request.outcome;
  }

  // A call that has not ended is given up, and all others with it. With `reuse` false, where something outside still
  // uses the request itself, it serves no other call.
  void Release(Request& request, bool reuse = true) {
    if (!request.done) {
      if (failed_ == SY_OK)
        failed_ = SY_FAIL(&failure_, SY_ABORTED, "%s was given up", Describe(request.signature).c_str());
      std::erase(queue_, &request);
    }
    if (reuse) unused_.push_back(&request);
  }

  // SY_OK, or how the first call ended that failed.
  sy_status Failure(sy_error* error) const {
    if (failed_ != SY_OK && error != nullptr) FillStruct(error, failure_);
    return failed_;
  }

  // All that were ever made: as many as were open at once, and those that are not used again.
  std::vector<std::unique_ptr<Request>>& requests() { return requests_; }

 private:
  template <typename Advance>
  void Progress(Advance advance) {
    while (!queue_.empty()) {
      Request& first = *queue_.front();
      const sy_status status = failed_ != SY_OK ? failed_ : Guarded(&first.error, [&] { return advance(first); });
      if (status == SY_IN_PROGRESS) return;
      if (failed_ != SY_OK) {
        first.error = failure_;
      } else if (status != SY_OK) {
        failed_ = status;
        failure_ = first.error;
      }
      first.outcome = status;
      first.done = true;
      queue_.erase(queue_.begin());
    }
  }

  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> unused_, queue_;  // queue_: in the order of the calls; the first is in progress
  sy_status failed_ = SY_OK;
  sy_error failure_{SY_HEADER(sy_error)};
};

}  // namespace switchyard

#endif  // SWITCHYARD_ABI_CALL_QUEUE_H_
