#include "collectives/shm/communicator.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "core/abi/boundary.h"

namespace shm {
namespace {

constexpr int kSpins = 4000;  // tens of microseconds: what a barrier takes when nobody is late

uint64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

void ShmCommunicator::Describe(const sy_instance&, sy_collective_info& info) {
  static const char* const kKinds[] = {"host", nullptr};
  snprintf(info.name, sizeof info.name, "shm");
  info.completion = SY_COMPLETES_BY_POLL;
  info.flags = SY_COLLECTIVE_ONE_NODE | SY_COLLECTIVE_DETERMINISTIC;
  info.memory_kinds = kKinds;
  info.alignment = 4096;
}

sy_status ShmCommunicator::Create(const sy_instance&, const sy_init_request& request,
                                  std::unique_ptr<ShmCommunicator>* communicator, sy_error* error) {
  if (request.size < 1 || request.rank < 0 || request.rank >= request.size) {
    return SY_FAIL(error, SY_INVALID, "rank %d of %d ranks", request.rank, request.size);
  }
  for (int rank = 0; request.hosts != nullptr && rank < request.size; ++rank) {
    if (request.hosts[rank] != request.hosts[0]) {
      return SY_FAIL(
          error, SY_INVALID,
          "shm joins the ranks of one host, but ranks 0 and %d are on different ones; use --collective=tcp or mpi",
          rank);
    }
  }
  std::unique_ptr<ShmCommunicator> made(new ShmCommunicator(request.rank, request.size, request.timeout_ms));
  made->meeting_ = std::make_unique<Meeting>(request.rank, request.size);
  made->store_key_ = std::string("shm/") + request.name;
  if (request.rank == 0) {
    if (const sy_status called = made->meeting_->Call(made->layout_.total, error); called != SY_OK) return called;
    const std::string& name = made->meeting_->name();
    if (request.size > 1) {
      const sy_status put = request.store->put(request.store->context, made->store_key_.c_str(), name.data(),
                                               static_cast<uint32_t>(name.size()), error);
      if (put != SY_OK) return put;
    }
  } else {
    made->store_ = request.store;
  }
  *communicator = std::move(made);
  return SY_OK;
}

sy_status ShmCommunicator::Ready(sy_error* error) {
  if (ready_) return SY_OK;
  if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted while joining");
  if (store_ != nullptr) {
    char name[128];
    uint32_t bytes = 0;
    sy_error problem{SY_HEADER(sy_error)};
    const sy_status found = store_->get(store_->context, store_key_.c_str(), name, sizeof name, &bytes, 0, &problem);
    if (found == SY_TIMEOUT) return SY_IN_PROGRESS;
    if (found != SY_OK) {
      if (error != nullptr) FillStruct(error, problem);
      return found;
    }
    meeting_->Attend(std::string(name, bytes));
    store_ = nullptr;
  }
  if (joining_ == nullptr) {
    if (const sy_status met = meeting_->Poll(&control_, error); met != SY_OK) return met;
    if (control_.bytes() < layout_.total) {
      return SY_FAIL(error, SY_INVALID,
                     "rank 0 shares %zu bytes, rank %d expects %zu; are all ranks of the same version?",
                     control_.bytes(), rank_, layout_.total);
    }
    records_ = reinterpret_cast<RankRecord*>(control_.base() + layout_.ranks);
    rings_ = reinterpret_cast<RingHeader*>(control_.base() + layout_.rings);
    page_ = reinterpret_cast<ControlPage*>(control_.base());
    if (aborted_) Abort();  // which had no page to write it to
    destinations_.resize(size_);
    sources_.resize(size_);
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
      for (int core = 0; core < 1024 && core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &allowed)) record(rank_).cores[core / 64] |= uint64_t{1} << (core % 64);
      }
    }
    if (const sy_status queued = Submit(kBarrier, nullptr, nullptr, nullptr, 0, SY_U8, SY_SUM, 0, &joining_, error);
        queued != SY_OK)
      return queued;
  }
  if (const sy_status met = Poll(joining_, error); met != SY_OK) return met;
  Release(joining_);
  // Now that everybody has written where it may run: does each have a core of its own?
  int cores = 0;
  for (int word = 0; word < 16; ++word) {
    uint64_t together = 0;
    for (int rank = 0; rank < size_; ++rank) together |= record(rank).cores[word];
    cores += __builtin_popcountll(together);
  }
  spins_ = cores >= size_ ? kSpins : 0;
  ready_ = true;
  return SY_OK;
}

bool ShmCommunicator::Interrupted() const {
  return aborted_ || page_.load()->aborted_by.load(std::memory_order_relaxed) != 0;
}

sy_request& ShmCommunicator::Queue(const CallSignature& call, const void* send, void* receive,
                                   std::span<const sy_transfer> transfers) {
  return calls_.Add(call, send, receive, [&](sy_request& request) {
    request.header = {};
    static_cast<CallSignature&>(request.header) = call;
    request.step = 0;
    request.barriers = 1;
    request.began_ns = 0;
    request.arrived = request.slept = request.early = request.two_phase = request.direct = false;
    request.messages.clear();
    for (const sy_transfer& transfer : transfers) request.messages.push_back({transfer, 0, 0});
  });
}

sy_status ShmCommunicator::Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count,
                                  sy_dtype dtype, int32_t reduction, int32_t root, sy_request** result,
                                  sy_error* error) {
  if (root < 0 || root >= size_) return SY_FAIL(error, SY_INVALID, "root %d of %d ranks", root, size_);
  sy_request& request = Queue(SignatureOf(kind, call, count, dtype, reduction, root), send, receive);
  request.reduce = FindReduction(dtype, reduction);
  *result = &request;
  return SY_OK;
}

sy_status ShmCommunicator::Poll(sy_request* request, sy_error* error) {
  return calls_.Poll(*request, error, [this](sy_request& first) { return Advance(first); });
}

void ShmCommunicator::Release(sy_request* request) {
  if (!request->done) Abort();
  calls_.Release(*request);
}

sy_status ShmCommunicator::Advance(sy_request& request) {
  if (request.began_ns == 0) request.began_ns = Now();
  if (aborted_) return SY_FAIL(&request.error, SY_ABORTED, "aborted");
  return request.signature.kind == kMessages ? AdvanceMessages(request) : AdvanceCollective(request);
}

sy_status ShmCommunicator::AdvanceCollective(sy_request& request) {
  for (;;) {
    if (!request.arrived) {
      if (request.step == 0) Begin(request);
      Work(request);
      if (request.step == request.barriers) return SY_OK;
      Notify(record(rank_).arrived, ++generation_);
      request.arrived = true;
    }
    if (const sy_status all = AllArrived(request); all != SY_OK) return all;
    request.arrived = request.slept = false;
    if (++request.step > 1) continue;
    if (const sy_status agreed = CompareHeaders(request); agreed != SY_OK) return agreed;
  }
}

void ShmCommunicator::Begin(sy_request& request) {
  ++call_;
  if (request.header.kind < kMessages && request.header.kind != kBarrier) Plan(request);
  record(rank_).headers[call_ & 1] = request.header;
}

sy_status ShmCommunicator::AllArrived(sy_request& request) {
  for (int rank = 0; rank < size_; ++rank) {
    Bell& bell = record(rank).arrived;
    for (;;) {
      const uint32_t reached = bell.value.load(std::memory_order_acquire);
      if (static_cast<int32_t>(reached - generation_) >= 0) break;
      if (const sy_status interrupted = CheckInterrupted(request); interrupted != SY_OK) return interrupted;
      if (!WaitForChange(bell, reached, request.slept ? 0 : spins_)) {
        request.slept = true;
        return SY_IN_PROGRESS;
      }
    }
  }
  return SY_OK;
}

sy_status ShmCommunicator::CheckInterrupted(sy_request& request) {
  const uint32_t by = page_.load()->aborted_by.load(std::memory_order_relaxed);
  if (aborted_) return SY_FAIL(&request.error, SY_ABORTED, "aborted");
  if (by != 0) return SY_FAIL(&request.error, SY_ABORTED, "rank %u gave up", by - 1);
  if (timeout_ms_ == 0 || Now() - request.began_ns < timeout_ms_ * 1000000u) return SY_OK;
  char missing[160];
  return SY_FAIL(&request.error, SY_TIMEOUT, "rank %d waited %llu ms in %s for %s", rank_,
                 static_cast<unsigned long long>(timeout_ms_), switchyard::Describe(request.header).c_str(),
                 Missing(request, missing, sizeof missing));
}

// "rank 1, rank 3": who has not reached the barrier, or with whom messages are not through.
const char* ShmCommunicator::Missing(const sy_request& request, char* text, size_t room) const {
  const auto is_waited_for = [&](int rank) {
    if (request.messages.empty()) return static_cast<int32_t>(record(rank).arrived.value.load() - generation_) < 0;
    return std::any_of(request.messages.begin(), request.messages.end(),
                       [rank](const auto& message) { return message.transfer.peer == rank && !message.IsThrough(); });
  };
  size_t used = 0;
  text[0] = '\0';
  for (int rank = 0; rank < size_ && used + 16 < room; ++rank) {
    if (!is_waited_for(rank)) continue;
    used += static_cast<size_t>(snprintf(text + used, room - used, "%srank %d", used > 0 ? ", " : "", rank));
  }
  return text;
}

// Every rank finds the same: the first rank that disagrees with rank 0.
sy_status ShmCommunicator::CompareHeaders(sy_request& request) {
  const CallHeader& first = header(0, call_);
  for (int rank = 1; rank < size_; ++rank) {
    const CallHeader& other = header(rank, call_);
    if (first == other) continue;
    return SY_FAIL(&request.error, SY_INVALID, "ranks disagree: rank 0 calls %s, rank %d calls %s",
                   switchyard::Describe(first).c_str(), rank, switchyard::Describe(other).c_str());
  }
  return SY_OK;
}

// A call of our own, waited for. `value` and `other` are for all ranks to read.
sy_status ShmCommunicator::RunNow(CollectiveKind kind, uint64_t count, int32_t value, int32_t other, sy_error* error) {
  sy_request* request = nullptr;
  if (const sy_status submitted = Submit(kind, nullptr, nullptr, nullptr, count, SY_U8, SY_SUM, 0, &request, error);
      submitted != SY_OK) {
    return submitted;
  }
  request->header.values[0] = value;
  request->header.values[1] = other;
  sy_status status;
  do status = Poll(request, error);
  while (status == SY_IN_PROGRESS);
  Release(request);
  return status;
}

// Waits for the segment that rank 0 shares.
sy_status ShmCommunicator::TakeSegment(Segment* segment, sy_error* error) {
  const uint64_t start = Now();
  for (int descriptor = -1;;) {
    const sy_status taken = meeting_->Take(10, &descriptor, error);
    if (taken == SY_OK) return segment->Map(descriptor, error);
    if (taken != SY_IN_PROGRESS) return taken;
    if (Interrupted()) return SY_FAIL(error, SY_ABORTED, "aborted in buffer_alloc");
    if (timeout_ms_ != 0 && Now() - start > timeout_ms_ * 1000000u)
      return SY_FAIL(error, SY_TIMEOUT, "rank 0 did not share its segment");
  }
}

sy_status ShmCommunicator::Allocate(uint64_t bytes, void** address, sy_error* error) {
  if (bytes == 0) return SY_FAIL(error, SY_INVALID, "buffer_alloc of 0 bytes");
  if (const sy_status agreed = RunNow(kBufferAlloc, bytes, 0, 0, error); agreed != SY_OK) return agreed;
  auto made = std::make_unique<OwnedSegment>();
  made->bytes = bytes;
  made->stride = (bytes + (2u << 20) - 1) / (2u << 20) * (2u << 20);  // each part may lie in huge pages of its own
  sy_status status = SY_OK;
  sy_error problem{SY_HEADER(sy_error)};
  if (rank_ == 0) {
    status = made->memory.Create(made->stride * size_, &problem);
    // The others wait for a descriptor: without a segment they get the control segment and find it out below.
    const sy_status given =
        meeting_->Give(status == SY_OK ? made->memory.descriptor() : control_.descriptor(), &problem);
    if (status == SY_OK) status = given;
  } else {
    status = TakeSegment(&made->memory, &problem);
    if (status == SY_OK && made->memory.bytes() != made->stride * size_)
      status = SY_FAIL(&problem, SY_OUT_OF_MEMORY, "rank 0 has no memory for it");
  }
  if (status == SY_OK) status = made->memory.Reserve(made->stride * rank_, bytes, &problem);
  if (const sy_status met = RunNow(kBufferAlloc, bytes, status, 0, error); met != SY_OK) return met;
  for (int rank = 0; rank < size_ && status == SY_OK; ++rank) {
    const sy_status theirs = header(rank, call_).values[0];
    if (theirs != SY_OK)
      status = SY_FAIL(&problem, theirs, "rank %d could not take its part of %llu bytes", rank,
                       static_cast<unsigned long long>(bytes));
  }
  if (status != SY_OK) {
    if (error != nullptr) FillStruct(error, problem);
    return status;
  }
  *address = made->memory.base() + made->stride * rank_;
  owned_.push_back(std::move(made));
  return SY_OK;
}

void ShmCommunicator::Free(void* address) {
  for (auto& segment : owned_) {
    if (segment != nullptr && segment->memory.base() + segment->stride * rank_ == address) segment.reset();
  }
}

sy_status ShmCommunicator::Split(int32_t color, int32_t key, const char*, std::unique_ptr<ShmCommunicator>* result,
                                 sy_error* error) {
  if (const sy_status met = RunNow(kSplit, 0, color, key, error); met != SY_OK) return met;
  std::vector<int> group;
  for (int rank = 0; rank < size_; ++rank) {
    if (header(rank, call_).values[0] == color) group.push_back(rank);
  }
  std::stable_sort(group.begin(), group.end(),
                   [&](int a, int b) { return header(a, call_).values[1] < header(b, call_).values[1]; });
  const int size = static_cast<int>(group.size());
  const int rank = static_cast<int>(std::find(group.begin(), group.end(), rank_) - group.begin());
  std::unique_ptr<ShmCommunicator> made;
  sy_status status = SY_OK;
  if (color >= 0) {
    made.reset(new ShmCommunicator(rank, size, timeout_ms_));
    made->meeting_ = std::make_unique<Meeting>(rank, size);
    if (rank == 0) status = made->meeting_->Call(made->layout_.total, error);
    snprintf(record(rank_).socket_name, sizeof record(rank_).socket_name, "%s",
             status == SY_OK ? made->meeting_->name().c_str() : "");
  }
  if (const sy_status met = RunNow(kSplit, 0, 0, 0, error); met != SY_OK) return met;
  if (color >= 0 && rank > 0) made->meeting_->Attend(record(group[0]).socket_name);
  const uint64_t start = Now();
  while (color >= 0 && status == SY_OK && (status = made->Ready(error)) == SY_IN_PROGRESS) {
    status = SY_OK;
    usleep(50);
    if (Interrupted())
      status = SY_FAIL(error, SY_ABORTED, "aborted in split");
    else if (timeout_ms_ != 0 && Now() - start > timeout_ms_ * 1000000u)
      status = SY_FAIL(error, SY_TIMEOUT, "split: the group did not meet");
  }
  if (status == SY_OK) *result = std::move(made);
  return status;
}

void ShmCommunicator::Abort() {
  aborted_ = true;
  // Others stop waiting for us.
  if (ControlPage* const page = page_) {
    uint32_t nobody = 0;
    page->aborted_by.compare_exchange_strong(nobody, static_cast<uint32_t>(rank_) + 1);
  }
}

}  // namespace shm
