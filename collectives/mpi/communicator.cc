#include "collectives/mpi/communicator.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <chrono>

#include "collectives/mpi/datatypes.h"
#include "collectives/mpi/library.h"
#include "core/abi/boundary.h"
#include "core/abi/device.h"

namespace mpi {
namespace {

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// FNV-1a over everything that ranks must agree on.
uint64_t Hash(const CallSignature& header) {
  uint64_t hash = 0xCBF29CE484222325u;
  const auto mix = [&](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3u;
  };
  mix(&header, sizeof header);
  return hash;
}

}  // namespace

Settings Settings::Read() {
  Settings settings;
  settings.part_bytes = static_cast<uint64_t>(switchyard::NumberSetting("MPI_PART_BYTES", int64_t{1} << 30, 8));
  settings.check = switchyard::NumberSetting("CHECK_COLLECTIVES", 1, 0) != 0;
  return settings;
}

void MpiCommunicator::Describe(sy_collective_info& info) {
  snprintf(info.name, sizeof info.name, "mpi");
  info.completion = SY_COMPLETES_BY_POLL;
  if (CheckLauncher(2, nullptr) != SY_OK) info.flags = SY_COLLECTIVE_UNLAUNCHED;
  info.memory_kinds = 1u << SY_MEMORY_HOST;
  for (uint32_t& dtypes : info.reductions) dtypes = (1u << SY_DTYPE_COUNT) - 1;
  info.alignment = 64;
}

sy_status MpiCommunicator::Create(const sy_init_request& request, std::unique_ptr<MpiCommunicator>* result,
                                  sy_error* error) {
  if (const sy_status launched = CheckLauncher(request.size, error); launched != SY_OK) return launched;
  *result = std::make_unique<MpiCommunicator>(Settings::Read(), request.rank, request.size, request.timeout_ms);
  StartLibrary();
  return SY_OK;
}

MpiCommunicator::~MpiCommunicator() {
  // With requests pending or after an error, freeing could touch what MPI still uses: the process is about to end then.
  if (comm_ != MPI_COMM_NULL && ready_ && !aborted_ && queue_.empty() && failed_ == SY_OK) {
    MPI_Comm_free(&comm_);
  } else {
    for (auto& request : requests_) static_cast<void>(request.release());
  }
}

sy_status MpiCommunicator::Ready(sy_error* error) {
  if (ready_) return SY_OK;
  if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted while joining");
  if (joining_ == MPI_REQUEST_NULL) {
    if (const sy_status library = LibraryReady(error); library != SY_OK) return library;
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != rank_ || size != size_) {
      return SY_FAIL(error, SY_INVALID,
                     "MPI says rank %d of %d, the run says rank %d of %d; start all ranks with one mpirun", rank, size,
                     rank_, size_);
    }
    return CheckMpi(error, MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &joining_), "MPI_Comm_idup") == SY_OK ? SY_IN_PROGRESS
                                                                                                       : SY_INTERNAL;
  }
  int finished = 0;
  if (const sy_status tested = CheckMpi(error, MPI_Test(&joining_, &finished, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      tested != SY_OK)
    return tested;
  if (!finished) return SY_IN_PROGRESS;
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  ready_ = true;
  return SY_OK;
}

sy_request* MpiCommunicator::FreeRequest() {
  auto unused = std::find_if(requests_.begin(), requests_.end(), [](const auto& request) { return !request->used; });
  if (unused == requests_.end()) unused = requests_.insert(requests_.end(), std::make_unique<sy_request>());
  sy_request& request = **unused;
  request.owner = this;
  request.used = true;
  request.state = sy_request::kQueued;
  request.header = {};
  request.parts.clear();
  request.expected.clear();
  request.types.clear();
  request.transfers.clear();
  return &request;
}

sy_status MpiCommunicator::Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count,
                                  sy_dtype dtype, int32_t reduction, int32_t root, sy_request** result,
                                  sy_error* error) {
  if (switchyard::BytesOf(dtype) == 0 || reduction < 0 || reduction >= SY_REDUCTION_COUNT)
    return SY_FAIL(error, SY_UNSUPPORTED, "dtype %d with reduction %d", dtype, reduction);
  if (root < 0 || root >= size_) return SY_FAIL(error, SY_INVALID, "root %d of %d ranks", root, size_);
  sy_request* const request = FreeRequest();
  request->header = switchyard::SignatureOf(kind, call, count, dtype, reduction, root);
  request->send = static_cast<const char*>(send);
  request->receive = static_cast<char*>(receive);
  queue_.push_back(request);
  *result = request;
  return SY_OK;
}

sy_status MpiCommunicator::SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count,
                                          sy_request** result, sy_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    if (transfers[i].peer < 0 || transfers[i].peer >= size_)
      return SY_FAIL(error, SY_INVALID, "message %u: peer %d of %d ranks", i, transfers[i].peer, size_);
  }
  if (const sy_status queued =
          Submit(switchyard::kMessages, call, nullptr, nullptr, count, SY_U8, SY_SUM, 0, result, error);
      queued != SY_OK)
    return queued;
  (*result)->transfers.assign(transfers, transfers + count);
  return SY_OK;
}

sy_status MpiCommunicator::Poll(sy_request* request, sy_error* error) {
  while (!queue_.empty()) {
    sy_request& first = *queue_.front();
    sy_status status = failed_;
    if (failed_ != SY_OK)
      first.error = failure_;
    else
      status = Advance(first, &first.error);
    if (status == SY_IN_PROGRESS) break;
    if (status != SY_OK && failed_ == SY_OK) {
      failed_ = status;
      failure_ = first.error;
      AbandonLibrary();
    }
    first.outcome = status;
    first.state = sy_request::kDone;
    queue_.erase(queue_.begin());
  }
  if (request->state != sy_request::kDone) return SY_IN_PROGRESS;
  request->used = failed_ != SY_OK;  // MPI may still write to the buffers of a call that failed
  if (request->outcome != SY_OK && error != nullptr) *error = request->error;
  return request->outcome;
}

// One look at the call at the front: compare, run, done.
sy_status MpiCommunicator::Advance(sy_request& request, sy_error* error) {
  if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted");
  if (request.state == sy_request::kQueued) {
    request.began_ms = NowMs();
    if (request.header.kind == switchyard::kMessages || !settings_.check || size_ == 1) {
      request.state = sy_request::kRunning;
      if (const sy_status started = Start(request, error); started != SY_OK) return started;
    } else {
      request.state = sy_request::kChecking;
      request.check[0] = Hash(request.header);
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
    if (code != MPI_SUCCESS && request.header.kind == switchyard::kMessages) {
      return SY_FAIL(error, SY_INVALID,
                     "send_recv_batch \"%.63s\": a message failed; does a rank send more than another expects?",
                     request.header.tag);
    }
    if (const sy_status tested = CheckMpi(error, code, "MPI_Testall"); tested != SY_OK) return tested;
    if (!finished) {
      if (timeout_ms_ == 0 || NowMs() - request.began_ms < static_cast<int64_t>(timeout_ms_)) return SY_IN_PROGRESS;
      return SY_FAIL(error, SY_TIMEOUT, "rank %d waited %llu ms in %s", rank_,
                     static_cast<unsigned long long>(timeout_ms_), switchyard::Describe(request.header).c_str());
    }
    if (request.state == sy_request::kRunning || request.state == sy_request::kClosing) {
      if (const sy_status finished_part = Finish(request, error); finished_part != SY_OK) return finished_part;
      if (request.state == sy_request::kClosing || request.parts.size() < 2 ||
          request.header.kind == switchyard::kMessages)
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
  request.headers.resize(static_cast<size_t>(size_));
  request.parts.assign(1, MPI_REQUEST_NULL);
  return CheckMpi(error,
                  MPI_Iallgather(&request.header, sizeof request.header, MPI_BYTE, request.headers.data(),
                                 sizeof request.header, MPI_BYTE, comm_, request.parts.data()),
                  "comparing calls");
}

// Every rank finds the same: the first rank that differs from rank 0.
sy_status MpiCommunicator::Disagreement(const sy_request& request, sy_error* error) {
  int other = 1;
  while (other + 1 < size_ && request.headers[other] == request.headers[0]) ++other;
  return SY_FAIL(error, SY_INVALID, "ranks disagree: rank 0 calls %s, rank %d calls %s",
                 switchyard::Describe(request.headers[0]).c_str(), other,
                 switchyard::Describe(request.headers[other]).c_str());
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
                     request.statuses[part].MPI_SOURCE, got, rank_, request.expected[part], request.header.tag);
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
