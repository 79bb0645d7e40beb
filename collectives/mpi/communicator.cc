#include "collectives/mpi/communicator.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "collectives/mpi/datatypes.h"
#include "collectives/mpi/library.h"
#include "core/abi/boundary.h"

namespace mpi {
namespace {

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr char kQuit[] = "MPI was given up in this process, together with a call that it cannot cancel";

// FNV-1a over everything that ranks must agree on.
uint64_t Hash(const CallSignature& signature) {
  uint64_t hash = 0xCBF29CE484222325u;
  const auto mix = [&](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3u;
  };
  mix(&signature, sizeof signature);
  return hash;
}

}  // namespace

Settings Settings::Read(const sy_instance& instance) {
  Settings settings;
  constexpr int64_t kMost = int64_t{1} << 30;  // MPI counts in int
  settings.part_bytes = static_cast<uint64_t>(std::min(instance.NumberSetting("MPI_PART_BYTES", kMost, 8), kMost));
  settings.check = instance.NumberSetting("CHECK_COLLECTIVES", 1, 0) != 0;
  return settings;
}

void MpiCommunicator::Describe(const sy_instance&, sy_collective_info& info) {
  static const char* const kKinds[] = {"host", nullptr};
  snprintf(info.name, sizeof info.name, "mpi");
  info.completion = SY_COMPLETES_BY_POLL;
  if (CheckLauncher(2, nullptr) != SY_OK) info.flags = SY_COLLECTIVE_UNLAUNCHED;
  info.memory_kinds = kKinds;
  info.alignment = 64;
  info.libraries = LibraryVersion();
}

sy_status MpiCommunicator::Create(const sy_instance& instance, const sy_init_request& request,
                                  std::unique_ptr<MpiCommunicator>* result, sy_error* error) {
  if (const sy_status launched = CheckLauncher(request.size, error); launched != SY_OK) return launched;
  *result = std::make_unique<MpiCommunicator>(Settings::Read(instance), request.rank, request.size, request.timeout_ms);
  StartLibrary();
  return SY_OK;
}

MpiCommunicator::~MpiCommunicator() {
  const InLibrary inside;
  if (inside && comm_ != MPI_COMM_NULL && ready_ && !aborted_ && calls_.Failure(nullptr) == SY_OK) {
    MPI_Comm_free(&comm_);
    return;
  }
  // MPI goes on using what it has; whoever looks for leaks finds it here.
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  if (joining_ != nullptr) kept.push_back(std::move(joining_));
  for (auto& request : calls_.requests()) {
    if (request->pending()) kept.push_back(std::move(request));
  }
}

sy_status MpiCommunicator::Ready(sy_error* error) {
  if (ready_) return SY_OK;
  if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted while joining");
  const InLibrary inside;
  if (!inside) return SY_FAIL(error, SY_ABORTED, "%s", kQuit);
  if (joining_ == nullptr) {
    if (const sy_status library = LibraryReady(error); library != SY_OK) return library;
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != rank_ || size != size_) {
      return SY_FAIL(error, SY_INVALID,
                     "MPI says rank %d of %d, the run says rank %d of %d; start all ranks with one mpirun", rank, size,
                     rank_, size_);
    }
    joining_ = std::make_unique<Joining>();
    const int code = MPI_Comm_idup(MPI_COMM_WORLD, &joining_->made, &joining_->request);
    const sy_status started = CheckMpi(error, code, "MPI_Comm_idup");
    if (started != SY_OK) joining_.reset();
    return started == SY_OK ? SY_IN_PROGRESS : started;
  }
  int finished = 0;
  if (const sy_status tested =
          CheckMpi(error, MPI_Test(&joining_->request, &finished, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      tested != SY_OK)
    return tested;
  if (!finished) return SY_IN_PROGRESS;
  comm_ = joining_->made;
  joining_.reset();
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  ready_ = true;
  return SY_OK;
}

sy_request& MpiCommunicator::Queue(const CallSignature& call, const void* send, void* receive,
                                   std::span<const sy_transfer> transfers) {
  return calls_.Add(call, send, receive, [&](sy_request& request) {
    request.state = sy_request::kQueued;
    request.parts.clear();
    request.expected.clear();
    request.types.clear();
    request.transfers.assign(transfers.begin(), transfers.end());
  });
}

sy_status MpiCommunicator::Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count,
                                  sy_dtype dtype, int32_t reduction, int32_t root, sy_request** result,
                                  sy_error* error) {
  if (root < 0 || root >= size_) return SY_FAIL(error, SY_INVALID, "root %d of %d ranks", root, size_);
  *result = &Queue(switchyard::SignatureOf(kind, call, count, dtype, reduction, root), send, receive);
  return SY_OK;
}

sy_status MpiCommunicator::SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count,
                                          sy_request** request, sy_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    if (transfers[i].peer < 0 || transfers[i].peer >= size_)
      return SY_FAIL(error, SY_INVALID, "message %u: peer %d of %d ranks", i, transfers[i].peer, size_);
  }
  *request = &Queue(switchyard::SignatureOf(switchyard::kMessages, call, count, SY_U8, SY_SUM, 0), nullptr, nullptr,
                    {transfers, count});
  return SY_OK;
}

sy_status MpiCommunicator::Poll(sy_request* request, sy_error* error) {
  const sy_status status =
      calls_.Poll(*request, error, [this](sy_request& first) { return Advance(first, &first.error); });
  if (calls_.Failure(nullptr) != SY_OK) TakeBackMemory();
  return status;
}

void MpiCommunicator::Release(sy_request* request) {
  if (!request->done) {
    Abort();
    TakeBackMemory();
  }
  calls_.Release(*request, !request->pending());
}

// All calls have ended, or end now.
void MpiCommunicator::TakeBackMemory() {
  AbandonLibrary();
  for (const auto& request : calls_.requests()) TakeBackMemory(*request);
}

// On return MPI neither reads nor writes the memory of the caller: a message that nobody has begun to send is
// cancelled, and if anything else of the call is pending there is only one way. What ranks exchange to compare calls,
// and the barrier that ends a call of many parts, lie in the plugin's own memory.
void MpiCommunicator::TakeBackMemory(sy_request& request) {
  if (request.state != sy_request::kRunning || request.signature.kind == switchyard::kBarrier || !request.pending())
    return;
  {
    const InLibrary inside;
    if (!inside) return;
    for (size_t part = 0; part < request.expected.size() && part < request.parts.size(); ++part) {
      if (request.expected[part] >= 0 && request.parts[part] != MPI_REQUEST_NULL) MPI_Cancel(&request.parts[part]);
    }
    int finished = 0;
    request.statuses.resize(request.parts.size());
    MPI_Testall(static_cast<int>(request.parts.size()), request.parts.data(), &finished, request.statuses.data());
  }
  if (request.pending()) QuitLibrary();
}

// One look at the call at the front: compare, run, done.
sy_status MpiCommunicator::Advance(sy_request& request, sy_error* error) {
  if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted");
  const InLibrary inside;
  if (!inside) return SY_FAIL(error, SY_ABORTED, "%s", kQuit);
  if (request.state == sy_request::kQueued) {
    request.began_ms = NowMs();
    if (request.signature.kind == switchyard::kMessages || !settings_.check || size_ == 1) {
      request.state = sy_request::kRunning;
      if (const sy_status started = Start(request, error); started != SY_OK) return started;
    } else {
      request.state = sy_request::kChecking;
      request.check[0] = Hash(request.signature);
      request.check[1] = ~request.check[0];
      request.parts.assign(1, MPI_REQUEST_NULL);
      const int code =
          MPI_Iallreduce(request.check, request.agreed, 2, MPI_UINT64_T, MPI_MAX, comm_, request.parts.data());
      if (const sy_status started = CheckMpi(error, code, "comparing calls"); started != SY_OK) return started;
    }
  }
  for (;;) {
    int finished = 0;
    request.statuses.resize(request.parts.size());
    const int code =
        MPI_Testall(static_cast<int>(request.parts.size()), request.parts.data(), &finished, request.statuses.data());
    if (code != MPI_SUCCESS && request.signature.kind == switchyard::kMessages) {
      return SY_FAIL(error, SY_INVALID,
                     "send_recv_batch \"%.63s\": a message failed; does a rank send more than another expects?",
                     request.signature.tag);
    }
    if (const sy_status tested = CheckMpi(error, code, "MPI_Testall"); tested != SY_OK) return tested;
    if (!finished) {
      if (timeout_ms_ == 0 || NowMs() - request.began_ms < static_cast<int64_t>(timeout_ms_)) return SY_IN_PROGRESS;
      return SY_FAIL(error, SY_TIMEOUT, "rank %d waited %llu ms in %s", rank_,
                     static_cast<unsigned long long>(timeout_ms_), switchyard::Describe(request.signature).c_str());
    }
    if (request.state == sy_request::kRunning || request.state == sy_request::kClosing) {
      if (const sy_status finished_part = Finish(request, error); finished_part != SY_OK) return finished_part;
      if (request.state == sy_request::kClosing || request.parts.size() < 2 ||
          request.signature.kind == switchyard::kMessages)
        return SY_OK;
      // MPI may call a part finished whose last bytes leave only when this process calls MPI again. With many parts
      // that can hold the others up for long, so nobody returns before all have finished theirs.
      request.state = sy_request::kClosing;
      request.parts.assign(1, MPI_REQUEST_NULL);
      if (const sy_status started = CheckMpi(error, MPI_Ibarrier(comm_, request.parts.data()), "MPI_Ibarrier");
          started != SY_OK)
        return started;
      continue;
    }
    if (request.state == sy_request::kComparing) return Disagreement(request, error);
    if (const sy_status next = AfterCheck(request, error); next != SY_OK) return next;
  }
}

// All ranks know the largest hash and the largest complement: both equal our own only if all are equal.
sy_status MpiCommunicator::AfterCheck(sy_request& request, sy_error* error) {
  request.parts.clear();
  if (request.agreed[0] == request.check[0] && request.agreed[1] == request.check[1]) {
    request.state = sy_request::kRunning;
    return Start(request, error);
  }
  request.state = sy_request::kComparing;
  request.signatures.resize(static_cast<size_t>(size_));
  request.parts.assign(1, MPI_REQUEST_NULL);
  return CheckMpi(error,
                  MPI_Iallgather(&request.signature, sizeof request.signature, MPI_BYTE, request.signatures.data(),
                                 sizeof request.signature, MPI_BYTE, comm_, request.parts.data()),
                  "comparing calls");
}

// Every rank finds the same: the first rank that differs from rank 0.
sy_status MpiCommunicator::Disagreement(const sy_request& request, sy_error* error) {
  int other = 1;
  while (other + 1 < size_ && request.signatures[other] == request.signatures[0]) ++other;
  return SY_FAIL(error, SY_INVALID, "ranks disagree: rank 0 calls %s, rank %d calls %s",
                 switchyard::Describe(request.signatures[0]).c_str(), other,
                 switchyard::Describe(request.signatures[other]).c_str());
}

sy_status MpiCommunicator::Finish(sy_request& request, sy_error* error) {
  for (MPI_Datatype& type : request.types) MPI_Type_free(&type);
  request.types.clear();
  for (size_t part = 0; part < request.expected.size(); ++part) {
    int got = 0;
    MPI_Get_count(&request.statuses[part], MPI_BYTE, &got);
    if (request.expected[part] >= 0 && got != request.expected[part]) {
      return SY_FAIL(error, SY_INVALID,
                     "ranks disagree: rank %d sends %d bytes, rank %d expects %d in send_recv_batch \"%.63s\"",
                     request.statuses[part].MPI_SOURCE, got, rank_, request.expected[part], request.signature.tag);
    }
  }
  return SY_OK;
}

sy_status MpiCommunicator::Split(int32_t color, int32_t key, const char*, std::unique_ptr<MpiCommunicator>* result,
                                 sy_error* error) {
  const auto made = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  const MPI_Comm from = comm_;
  const sy_status status = RunAbortable(
      aborted_,
      [made, from, color, key](sy_error* problem) {
        return CheckMpi(problem, MPI_Comm_split(from, color < 0 ? MPI_UNDEFINED : color, key, made.get()),
                        "MPI_Comm_split");
      },
      error);
  if (status != SY_OK) return status;
  result->reset();
  if (*made == MPI_COMM_NULL) return SY_OK;
  MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
  int rank = 0, size = 0;
  MPI_Comm_rank(*made, &rank);
  MPI_Comm_size(*made, &size);
  *result = std::make_unique<MpiCommunicator>(settings_, rank, size, timeout_ms_);
  (*result)->comm_ = *made;
  (*result)->ready_ = true;
  return SY_OK;
}

void MpiCommunicator::Abort() {
  aborted_ = true;
  AbandonLibrary();
}

}  // namespace mpi
