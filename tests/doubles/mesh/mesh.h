// Sockets between the processes of a doubled collective library, all on one host: every rank is connected to every
// other, by names that only this group uses. What two ranks exchange must agree in size and tag; where it does not,
// both hang until Abort, as the real libraries do. One Exchange at a time; Abort from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace doubles {

struct Transfer {
  int peer;
  bool is_send;
  void* data;
  size_t bytes;
  uint64_t tag;
};

enum class Outcome { kDone, kAborted, kPeerGone };

class Mesh {
 public:
  Mesh(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size), sockets_(size, -1) {}
  Mesh(const Mesh&) = delete;
  ~Mesh();

  // Waits for all ranks, without end where limit_ms is 0; kAborted at the limit.
  Outcome Join(int limit_ms = 0);
  // All transfers proceed together; those between one pair in the order of the list. A transfer to oneself pairs the
  // n-th send with the n-th receive. After kPeerGone, `gone()` is who.
  Outcome Exchange(const std::vector<Transfer>& transfers);
  // Every rank's `bytes` bytes, in rank order.
  Outcome AllGather(const void* own, size_t bytes, void* all, uint64_t tag);
  void Abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }
  void WaitForAbort() const;
  int gone() const { return gone_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  struct Lane;
  Outcome Progress(std::vector<Lane>& lanes);
  bool Connect(int peer);
  bool Accept(int listener);

  const std::string name_;
  const int rank_, size_;
  std::vector<int> sockets_;  // by peer
  std::atomic<bool> aborted_{false};
  std::atomic<int> gone_{-1};
};

}  // namespace doubles
