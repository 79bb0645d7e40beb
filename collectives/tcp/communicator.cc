#include "collectives/tcp/communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "collectives/reduction/reduce.h"

namespace tcp {

using switchyard::BytesOf;
using Clock = std::chrono::steady_clock;

namespace {

constexpr uint64_t kMagic = 0x3250435459u;  // "YTCP2"

}  // namespace

void TcpCommunicator::Describe(const sy_instance&, sy_collective_info& info) {
  static const char* const kKinds[] = {"host", nullptr};
  std::snprintf(info.name, sizeof info.name, "tcp");
  info.completion = SY_COMPLETES_BY_POLL;
  info.flags = SY_COLLECTIVE_DETERMINISTIC;
  info.memory_kinds = kKinds;
  info.alignment = 64;
}

bool TcpCommunicator::Reduces(int32_t reduction, sy_dtype dtype) {
  return switchyard::FindReduction(dtype, reduction) != nullptr;
}

TcpCommunicator::TcpCommunicator(const sy_init_request& request, const Choices& choices, std::unique_ptr<Mesh> mesh)
    : rank_(request.rank),
      size_(request.size),
      timeout_ms_(request.timeout_ms),
      name_(request.name == nullptr ? "" : request.name),
      choices_(choices),
      store_(request.store),
      hosts_(static_cast<size_t>(request.size), 0),
      mesh_(std::move(mesh)),
      waits_for_(static_cast<size_t>(request.size), 0) {
  if (request.hosts != nullptr) hosts_.assign(request.hosts, request.hosts + request.size);
  saving_ = SavingOfNeighbours();
}

sy_status TcpCommunicator::Create(const sy_instance& instance, const sy_init_request& request,
                                  std::unique_ptr<TcpCommunicator>* result, sy_error* error) {
  Choices choices;
  if (const char* const interface = instance.Setting("TCP_INTERFACE")) choices.interface = interface;
  if (const char* const chain = instance.Setting("TCP_CHAIN")) choices.chain = chain;
  if (choices.chain != "" && choices.chain != "0" && choices.chain != "1")
    return SY_FAIL(error, SY_INVALID, "SWITCHYARD_TCP_CHAIN=%s: expected 0 or 1", choices.chain.c_str());
  return Open(request, choices, result, error);
}

sy_status TcpCommunicator::Open(const sy_init_request& request, const Choices& choices,
                                std::unique_ptr<TcpCommunicator>* result, sy_error* error) {
  if (request.size < 1 || request.rank < 0 || request.rank >= request.size)
    return SY_FAIL(error, SY_INVALID, "rank %d of %d ranks", request.rank, request.size);
  std::unique_ptr<Mesh> mesh;
  if (const sy_status opened = Mesh::Open(request, choices.interface, choices.chain, &mesh, error); opened != SY_OK)
    return opened;
  result->reset(new TcpCommunicator(request, choices, std::move(mesh)));
  return SY_OK;
}

sy_status TcpCommunicator::Ready(sy_error* error) {
  if (const sy_status failed = calls_.Failure(error); failed != SY_OK) return failed;
  if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted");
  sy_error problem{SY_HEADER(sy_error)};  // what was not there yet is no error
  const sy_status status = mesh_->Poll(&problem);
  if (status != SY_OK && status != SY_IN_PROGRESS && error != nullptr) switchyard::FillStruct(error, problem);
  return status;
}

sy_request& TcpCommunicator::Queue(const CallSignature& call, const void* send, void* receive,
                                   std::span<const sy_transfer> transfers) {
  return calls_.Add(call, send, receive, [&](sy_request& request) {
    request.round = -1;
    request.messages.clear();
    for (const sy_transfer& transfer : transfers) request.messages.push_back({transfer});
  });
}

sy_status TcpCommunicator::Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count,
                                  sy_dtype dtype, int32_t reduction, int32_t root, sy_request** request,
                                  sy_error* error) {
  if (root < 0 || root >= size_) return SY_FAIL(error, SY_INVALID, "root %d of %d ranks", root, size_);
  *request = &Queue(switchyard::SignatureOf(kind, call, count, dtype, reduction, root), send, receive);
  return SY_OK;
}

sy_status TcpCommunicator::SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count,
                                          sy_request** request, sy_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    if (transfers[i].peer < 0 || transfers[i].peer >= size_ || transfers[i].peer == rank_)
      return SY_FAIL(error, SY_INVALID, "message %u of rank %d: peer %d of %d ranks", i, rank_, transfers[i].peer,
                     size_);
  }
  *request = &Queue(switchyard::SignatureOf(switchyard::kMessages, call, count, SY_U8, SY_SUM, 0), nullptr, nullptr,
                    {transfers, count});
  return SY_OK;
}

sy_status TcpCommunicator::Poll(sy_request* request, sy_error* error) {
  return calls_.Poll(*request, error, [this](sy_request& first) { return Advance(first); });
}

void TcpCommunicator::Release(sy_request* request) {
  if (!request->done) Abort();
  calls_.Release(*request);
}

// SY_IN_PROGRESS where nothing can go on now.
sy_status TcpCommunicator::Advance(sy_request& request) {
  if (request.round < 0) {
    request.began = Clock::now();
    request.round = 0;
    if (!BeginRound(request)) return SY_OK;
  }
  for (bool waited = false;;) {
    if (aborted_) return SY_FAIL(&request.error, SY_ABORTED, "aborted");
    bool moved = false, finished = true;
    if (const sy_status status = MoveAll(request, &moved, &finished); status != SY_OK) return status;
    if (finished) {
      ++request.round;
      if (!BeginRound(request)) return SY_OK;
      waited = false;
    } else if (!moved) {
      if (waited) return CheckTime(request, &request.error);
      WaitForSockets();
      waited = true;
    }
  }
}

// Moves what the sockets take and have. Between one pair of ranks and in one direction, messages go in order.
sy_status TcpCommunicator::MoveAll(sy_request& request, bool* moved, bool* finished) {
  std::fill(waits_for_.begin(), waits_for_.end(), short{0});
  for (sy_request::Message& message : request.messages) {
    if (message.done == message.size()) continue;
    short& waits = waits_for_[static_cast<size_t>(message.transfer.peer)];
    const short event = message.transfer.is_send != 0 ? POLLOUT : POLLIN;
    if ((waits & event) == 0) {
      if (const sy_status status = Move(request, message, moved); status != SY_OK) return status;
    }
    if (message.done == message.size()) continue;
    waits = static_cast<short>(waits | event);
    *finished = false;
  }
  return SY_OK;
}

sy_status TcpCommunicator::Move(sy_request& request, sy_request::Message& message, bool* moved) {
  const sy_transfer& transfer = message.transfer;
  const bool sends = transfer.is_send != 0;
  if (message.done == 0 && sends) message.frame = {kMagic, transfer.bytes, request.signature};
  while (message.done < message.size()) {
    const uint64_t in_frame = std::min<uint64_t>(message.done, sizeof(Frame)), in_data = message.done - in_frame;
    iovec parts[2] = {{reinterpret_cast<char*>(&message.frame) + in_frame, sizeof(Frame) - in_frame},
                      {static_cast<char*>(transfer.address) + in_data, transfer.bytes - in_data}};
    msghdr header{};
    header.msg_iov = parts;
    // The receiver looks at the frame before it lets data into the caller's memory.
    header.msg_iovlen = !sends && in_frame < sizeof(Frame) ? 1 : 2;
    const int socket = mesh_->socket(transfer.peer);
    const ssize_t bytes = sends ? sendmsg(socket, &header, MSG_NOSIGNAL) : recvmsg(socket, &header, 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return SY_OK;
    if (bytes <= 0) {
      const int code = bytes == 0 ? 0 : errno;
      SY_FAIL(&request.error, SY_ABORTED, "rank %d has closed its connection%s%s", transfer.peer, code != 0 ? ": " : "",
              code != 0 ? strerror(code) : "");
      request.error.native_code = code;
      return SY_ABORTED;
    }
    *moved = true;
    message.done += static_cast<uint64_t>(bytes);
    if (!sends && in_frame < sizeof(Frame) && message.done >= sizeof(Frame)) {
      if (const sy_status checked = CheckFrame(request, message, &request.error); checked != SY_OK) return checked;
    }
  }
  return SY_OK;
}

sy_status TcpCommunicator::CheckFrame(const sy_request& request, const sy_request::Message& message,
                                      sy_error* error) const {
  const Frame& frame = message.frame;
  CallSignature theirs = frame.call;
  theirs.tag[sizeof theirs.tag - 1] = '\0';
  if (frame.magic != kMagic || theirs.kind < 0 || theirs.kind > switchyard::kSplit || BytesOf(theirs.dtype) == 0 ||
      theirs.reduction < 0 || theirs.reduction >= SY_REDUCTION_COUNT)
    return SY_FAIL(error, SY_INVALID, "rank %d sends what is no message; are all ranks of the same version?",
                   message.transfer.peer);
  const bool messages = request.signature.kind == switchyard::kMessages && theirs.kind == switchyard::kMessages;
  if (!messages && !(theirs == request.signature)) {
    const bool first = rank_ < message.transfer.peer;
    return SY_FAIL(
        error, SY_INVALID, "ranks disagree: rank %d calls %s, rank %d calls %s", first ? rank_ : message.transfer.peer,
        switchyard::Describe(first ? request.signature : theirs).c_str(), first ? message.transfer.peer : rank_,
        switchyard::Describe(first ? theirs : request.signature).c_str());
  }
  if (frame.bytes == message.transfer.bytes) return SY_OK;
  return SY_FAIL(error, SY_INVALID, "ranks disagree: rank %d sends %llu bytes in %s, rank %d expects %llu in %s",
                 message.transfer.peer, static_cast<unsigned long long>(frame.bytes),
                 switchyard::Describe(theirs).c_str(), rank_, static_cast<unsigned long long>(message.transfer.bytes),
                 switchyard::Describe(request.signature).c_str());
}

sy_status TcpCommunicator::CheckTime(const sy_request& request, sy_error* error) const {
  // Who has come to the first round may be waiting for another rank later on: that one's neighbours name it first.
  const uint64_t limit_ms = request.round == 0 ? timeout_ms_ : timeout_ms_ + timeout_ms_ / 4 + 100;
  if (timeout_ms_ == 0 || Clock::now() - request.began < std::chrono::milliseconds(limit_ms)) return SY_IN_PROGRESS;
  std::string late;
  for (int peer = 0; peer < size_; ++peer) {
    if (waits_for_[static_cast<size_t>(peer)] != 0)
      late += switchyard::Format("%srank %d", late.empty() ? "" : ", ", peer);
  }
  return SY_FAIL(error, SY_TIMEOUT, "rank %d waited %llu ms in %s for %s", rank_,
                 static_cast<unsigned long long>(limit_ms), switchyard::Describe(request.signature).c_str(),
                 late.c_str());
}

void TcpCommunicator::WaitForSockets() {
  polled_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    const short events = waits_for_[static_cast<size_t>(peer)];
    if (events != 0) polled_.push_back({mesh_->socket(peer), events, 0});
  }
  poll(polled_.data(), polled_.size(), 1);
}

sy_status TcpCommunicator::Split(int32_t color, int32_t key, const char* name, std::unique_ptr<TcpCommunicator>* result,
                                 sy_error* error) {
  // Everybody learns everybody's color and key.
  const size_t size = static_cast<size_t>(size_), own = static_cast<size_t>(rank_);
  std::vector<int32_t> all(2 * size);
  all[2 * own] = color;
  all[2 * own + 1] = key;
  const CallSignature call =  // without the name, which may be each group's own
      switchyard::SignatureOf(switchyard::kSplit, nullptr, 2 * sizeof(int32_t), SY_U8, SY_SUM, 0);
  sy_request* const request = &Queue(call, &all[2 * own], all.data());
  sy_status status;
  do status = Poll(request, error);
  while (status == SY_IN_PROGRESS);
  Release(request);
  if (status != SY_OK || color < 0) return status;

  std::vector<int> group;
  for (size_t rank = 0; rank < size; ++rank) {
    if (all[2 * rank] == color) group.push_back(static_cast<int>(rank));
  }
  const auto key_of = [&](int rank) { return all[2 * static_cast<size_t>(rank) + 1]; };
  std::stable_sort(group.begin(), group.end(), [&](int a, int b) { return key_of(a) < key_of(b); });
  std::vector<int32_t> hosts;
  for (const int rank : group) hosts.push_back(hosts_[static_cast<size_t>(rank)]);
  const std::string full_name = name_ + "/" + name + "/" + std::to_string(color);
  sy_init_request part{};
  part.header = SY_HEADER(sy_init_request);
  part.rank = static_cast<int32_t>(std::find(group.begin(), group.end(), rank_) - group.begin());
  part.size = static_cast<int32_t>(group.size());
  part.hosts = hosts.data();
  part.name = full_name.c_str();
  part.store = store_;
  part.timeout_ms = timeout_ms_;
  std::unique_ptr<TcpCommunicator> made;
  status = Open(part, choices_, &made, error);
  while (status == SY_OK && (status = made->Ready(error)) == SY_IN_PROGRESS) {
    if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted in split");
    poll(nullptr, 0, 1);
    status = SY_OK;
  }
  if (status == SY_OK) *result = std::move(made);
  return status;
}

}  // namespace tcp
