// One TCP connection between any two ranks. Every rank listens at a port of its own and tells the others through the
// store where; a rank then connects to all ranks below it. Both sides prove with the listener's random token that they
// belong to this communicator, so that neither a port scanner nor another program behind an address that several hosts
// share (a container bridge) is taken for a peer. Nothing here waits: Poll goes on where something has happened.
// SWITCHYARD_TCP_INTERFACE=eth1 limits the addresses that are told to those of one interface. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/abi/collective.h"

namespace tcp {

class Mesh {
 public:
  // Listens and tells the others. `interface`: "" for all.
  static sy_status Open(const sy_init_request& request, const std::string& interface, std::unique_ptr<Mesh>* mesh,
                        sy_error* error);
  ~Mesh();
  // SY_IN_PROGRESS until there is a connection with every other rank; SY_TIMEOUT names a rank that cannot be reached.
  sy_status Poll(sy_error* error);
  int socket(int peer) const { return sockets_[static_cast<size_t>(peer)]; }  // non-blocking; -1: this rank itself

 private:
  struct Meeting {  // where a rank listens
    uint64_t token = 0;
    int port = 0;
    std::vector<std::string> addresses;
  };
  struct Visit {  // to a rank below
    int peer = 0;
    Meeting meeting;
    size_t next_address = 0;
    int socket = -1;
    bool connected = false;
    size_t answered = 0;  // bytes of its answer
    char answer[16] = {};
    std::chrono::steady_clock::time_point give_up, not_before;
    std::string problem = "it has not told its address";
  };
  struct Visitor {
    int socket = -1;
    size_t received = 0;  // bytes of its hello
    char hello[16] = {};
  };
  Mesh(const sy_init_request& request, uint64_t token);
  std::string Key(int rank) const;
  sy_status LookUp(Visit& visit, sy_error* error);
  sy_status Advance(Visit& visit, sy_error* error);
  void StartConnecting(Visit& visit);
  void TryNextAddress(Visit& visit, const std::string& problem);
  bool Listen(Visitor& visitor);

  int rank_, size_;
  std::string name_;
  const sy_store* store_;
  std::vector<int32_t> hosts_;
  uint64_t token_;
  std::chrono::steady_clock::time_point started_;
  uint64_t timeout_ms_;
  int listener_ = -1;
  bool complete_ = false;
  std::vector<int> sockets_;
  std::vector<Visit> visits_;
  std::vector<Visitor> visitors_;
};

}  // namespace tcp
