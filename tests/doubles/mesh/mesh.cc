#include "tests/doubles/mesh/mesh.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <thread>

namespace doubles {
namespace {

constexpr int kLookMs = 2;  // how often a wait looks for Abort

// In the abstract namespace of Linux: gone with the last process that has it open.
socklen_t AddressOf(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address->sun_path - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

// 1: moved everything, 0: would block, -1: the peer is gone.
int Move(int socket, bool is_send, char* data, size_t bytes, size_t* moved) {
  while (*moved < bytes) {
    const ssize_t n = is_send ? send(socket, data + *moved, bytes - *moved, MSG_DONTWAIT | MSG_NOSIGNAL)
                              : recv(socket, data + *moved, bytes - *moved, MSG_DONTWAIT);
    if (n > 0) {
      *moved += static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return 0;
    } else if (n == 0 || errno != EINTR) {
      return -1;
    }
  }
  return 1;
}

}  // namespace

// The messages of one direction between this rank and one peer.
struct Mesh::Lane {
  struct Frame {
    uint64_t bytes, tag;
  };
  int peer;
  bool is_send;
  std::deque<Transfer> left;
  Frame frame{};
  size_t frame_moved = 0, data_moved = 0;

  // 1: all done, 0: would block, -1: the peer is gone, -2: the peer sends something else.
  int Advance(int socket) {
    while (!left.empty()) {
      const Transfer& now = left.front();
      if (is_send) frame = {now.bytes, now.tag};
      if (const int moved = Move(socket, is_send, reinterpret_cast<char*>(&frame), sizeof frame, &frame_moved);
          moved <= 0)
        return moved;
      if (frame.bytes != now.bytes || frame.tag != now.tag) return -2;
      if (const int moved = Move(socket, is_send, static_cast<char*>(now.data), now.bytes, &data_moved); moved <= 0)
        return moved;
      frame_moved = data_moved = 0;
      left.pop_front();
    }
    return 1;
  }
};

Mesh::~Mesh() {
  for (const int socket : sockets_) {
    if (socket >= 0) close(socket);
  }
}

bool Mesh::Connect(int peer) {
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = AddressOf(name_ + "/" + std::to_string(peer), &address);
  if (made < 0 || connect(made, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (made >= 0) close(made);
    return false;
  }
  size_t moved = 0;
  int own = rank_;
  Move(made, true, reinterpret_cast<char*>(&own), sizeof own, &moved);
  sockets_[peer] = made;
  return true;
}

bool Mesh::Accept(int listener) {
  pollfd waiting{listener, POLLIN, 0};
  if (poll(&waiting, 1, kLookMs) <= 0) return false;
  const int visitor = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  int peer = -1;
  if (visitor < 0 || recv(visitor, &peer, sizeof peer, MSG_WAITALL) != sizeof peer || peer <= rank_ || peer >= size_) {
    if (visitor >= 0) close(visitor);
    return false;
  }
  sockets_[peer] = visitor;
  return true;
}

// Ranks connect to those below them and are called by those above.
Outcome Mesh::Join(int limit_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = AddressOf(name_ + "/" + std::to_string(rank_), &address);
  bool open = listener >= 0 && bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
              listen(listener, size_) == 0;
  int missing = size_ - 1;
  while (open && missing > 0 && !aborted_) {
    for (int peer = 0; peer < rank_; ++peer) {
      if (sockets_[peer] < 0 && Connect(peer)) --missing;
    }
    if (missing == 0) break;
    if (limit_ms > 0 && std::chrono::steady_clock::now() > deadline) Abort();
    if (Accept(listener)) --missing;
  }
  if (listener >= 0) close(listener);
  if (!open) WaitForAbort();
  return aborted_ ? Outcome::kAborted : Outcome::kDone;
}

void Mesh::WaitForAbort() const {
  while (!aborted_) std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
}

Outcome Mesh::Exchange(const std::vector<Transfer>& transfers) {
  std::vector<Lane> lanes;
  std::deque<Transfer> own_sends;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == rank_) {
      if (transfer.is_send) own_sends.push_back(transfer);
      continue;
    }
    auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& one) {
      return one.peer == transfer.peer && one.is_send == transfer.is_send;
    });
    // What arrives is written before what is sent is read, if it can be: one buffer for both shows.
    if (lane == lanes.end())
      lane = lanes.insert(transfer.is_send ? lanes.end() : lanes.begin(), Lane{transfer.peer, transfer.is_send, {}});
    lane->left.push_back(transfer);
  }
  for (const Transfer& transfer : transfers) {
    if (transfer.peer != rank_ || transfer.is_send) continue;
    if (own_sends.empty() || own_sends.front().bytes != transfer.bytes) {
      WaitForAbort();
      return Outcome::kAborted;
    }
    std::memmove(transfer.data, own_sends.front().data, transfer.bytes);
    own_sends.pop_front();
  }
  return Progress(lanes);
}

Outcome Mesh::Progress(std::vector<Lane>& lanes) {
  while (!lanes.empty()) {
    if (aborted_) return Outcome::kAborted;
    std::vector<pollfd> waiting;
    for (size_t i = 0; i < lanes.size();) {
      const int advanced = lanes[i].Advance(sockets_[lanes[i].peer]);
      if (advanced == -1) {
        gone_ = lanes[i].peer;
        return Outcome::kPeerGone;
      }
      if (advanced == -2) {
        WaitForAbort();
        return Outcome::kAborted;
      }
      if (advanced == 1) {
        lanes.erase(lanes.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      waiting.push_back({sockets_[lanes[i].peer], static_cast<short>(lanes[i].is_send ? POLLOUT : POLLIN), 0});
      ++i;
    }
    if (!waiting.empty()) poll(waiting.data(), waiting.size(), kLookMs);
  }
  return Outcome::kDone;
}

Outcome Mesh::AllGather(const void* own, size_t bytes, void* all, uint64_t tag) {
  std::vector<Transfer> transfers;
  char* const to = static_cast<char*>(all);
  std::memmove(to + static_cast<size_t>(rank_) * bytes, own, bytes);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transfers.push_back({peer, true, to + static_cast<size_t>(rank_) * bytes, bytes, tag});
    transfers.push_back({peer, false, to + static_cast<size_t>(peer) * bytes, bytes, tag});
  }
  return Exchange(transfers);
}

}  // namespace doubles
