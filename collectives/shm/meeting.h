// How the ranks of a communicator come to share memory: rank 0 makes a segment and listens on an abstract socket; the
// others, once told its name, connect and are handed the descriptor. The sockets stay open for the segments that are
// made later. Never waits, except where it says so.
#pragma once

#include <string>
#include <vector>

#include "collectives/shm/segment.h"

namespace shm {

class Meeting {
 public:
  Meeting(int rank, int size) : rank_(rank), size_(size), sockets_(rank == 0 ? size : 1, -1) {}
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Rank 0 makes the segment and the socket; name() is then for the others, who give it to Attend.
  sy_status Call(size_t bytes, sy_error* error);
  const std::string& name() const { return name_; }
  void Attend(const std::string& name) { name_ = name; }
  // SY_OK once everybody has the segment, which then moves into *segment.
  sy_status Poll(Segment* segment, sy_error* error);

  // A further segment: rank 0 gives, the others take, waiting up to wait_ms for it (SY_IN_PROGRESS: not yet).
  sy_status Give(int descriptor, sy_error* error);
  sy_status Take(int wait_ms, int* descriptor, sy_error* error);

 private:
  sy_status Receive(sy_error* error);
  int rank_, size_, listener_ = -1, present_ = 1;
  std::string name_;
  Segment segment_;
  std::vector<int> sockets_;   // of rank 0: by rank; else: [0] to rank 0
  std::vector<int> visitors_;  // of rank 0: who has not said yet which rank he is
};

}  // namespace shm
