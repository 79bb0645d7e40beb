// One TCP connection between any two ranks. Every rank listens at a port of its own (of the loopback where all ranks
// are on one host, or of that and the interface that is named) until all have come, and tells the others through the
// store where; a rank then connects to all ranks below it. Both sides prove that they belong to this communicator
// (greeting.h), so that neither a stranger nor another program behind an address that several hosts share (a container
// bridge) is taken for a peer. Visitors that have not proved it yet are bounded in bytes, in time and in number.
// Nothing here waits: Poll goes on where something has happened. SWITCHYARD_TCP_INTERFACE=eth1 limits the addresses at
// which it listens, and which are told, to those of one interface. With its addresses a rank tells its
// SWITCHYARD_TCP_CHAIN, by which all ranks must cut their calls alike. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/tcp/greeting.h"
#include "core/abi/collective.h"

namespace tcp {

class Mesh {
 public:
  // Listens and tells the others. `interface`: "" for all; `chain`: as it was set, "" where it was not.
  static sy_status Open(const sy_init_request& request, const std::string& interface, const std::string& chain,
                        std::unique_ptr<Mesh>* mesh, sy_error* error);
  ~Mesh();
  // SY_IN_PROGRESS until there is a connection with every other rank; SY_TIMEOUT names a rank that cannot be reached,
  // SY_INVALID one that was set up otherwise.
  sy_status Poll(sy_error* error);
  int socket(int peer) const { return sockets_[static_cast<size_t>(peer)]; }  // non-blocking; -1: this rank itself

 private:
  using Clock = std::chrono::steady_clock;
  struct Meeting {  // where a rank listens
    int port = 0;
    std::vector<std::string> addresses;
  };
  struct Visit {  // to a rank below
    int peer = 0;
    Meeting meeting;
    size_t next_address = 0;
    int socket = -1;
    bool connected = false;
    size_t answered = 0;                          // bytes of what it says:
    char answer[kNonceBytes + kProofBytes] = {};  // its nonce, and after our hello its proof
    Hello hello{};
    Clock::time_point give_up, not_before;
    std::string problem = "it has not told its address";
  };
  struct Visitor {
    int socket = -1;
    Clock::time_point came;
    char nonce[kNonceBytes] = {};  // with which it was challenged
    size_t received = 0;           // bytes of its hello
    char hello[sizeof(Hello)] = {};
  };
  Mesh(const sy_init_request& request, const std::string& chain);
  std::string Key(int rank) const;
  sy_status LookUp(Visit& visit, sy_error* error);
  Acquaintance With(int listener, int visitor, const char* listener_nonce, const char* visitor_nonce) const;
  sy_status Advance(Visit& visit, sy_error* error);
  bool Listen(Visit& visit, bool* is_peer);
  void StartConnecting(Visit& visit);
  void TryNextAddress(Visit& visit, const std::string& problem);
  void Accept();
  void Accept(int listener);
  bool DropOldestVisitor();
  bool Listen(Visitor& visitor);

  int rank_, size_;
  std::string name_, chain_;
  const sy_store* store_;
  std::vector<int32_t> hosts_;
  Clock::time_point started_;
  uint64_t timeout_ms_;
  std::vector<int> listeners_;
  bool complete_ = false;
  std::vector<int> sockets_;
  std::vector<Visit> visits_;
  std::vector<Visitor> visitors_;  // the oldest first
  size_t most_visitors_;
  Clock::time_point accept_again_;  // descriptors had run out
};

}  // namespace tcp
