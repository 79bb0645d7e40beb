#include "collectives/shm/meeting.h"

#include <unistd.h>

#include <utility>

#include "core/abi/boundary.h"

namespace shm {

constexpr size_t kSilentVisitors = 16;

Meeting::~Meeting() {
  if (listener_ >= 0) close(listener_);
  for (const int visitor : visitors_) close(visitor);
  for (const int socket : sockets_) {
    if (socket >= 0) close(socket);
  }
}

sy_status Meeting::Call(size_t bytes, sy_error* error) {
  const sy_status created = segment_.Create(bytes, error);
  return created == SY_OK ? ListenOnNewName(&listener_, &name_, error) : created;
}

sy_status Meeting::Poll(Segment* segment, sy_error* error) {
  if (rank_ != 0) {
    if (const sy_status received = Receive(error); received != SY_OK) return received;
    *segment = std::move(segment_);
    return SY_OK;
  }
  // Whoever comes and says nothing keeps no rank waiting, but goes when there are too many of his kind.
  const size_t most = static_cast<size_t>(size_) + kSilentVisitors;
  for (int visitor; visitors_.size() < most && (visitor = AcceptFromOwnUser(listener_)) >= 0;)
    visitors_.push_back(visitor);
  for (size_t i = visitors_.size(); i-- > 0;) {
    const int visitor = visitors_[i];
    int rank = 0;
    const sy_status received = ReceiveNumber(visitor, &rank);
    if (received == SY_IN_PROGRESS) continue;
    visitors_.erase(visitors_.begin() + static_cast<ptrdiff_t>(i));
    if (received != SY_OK || rank < 1 || rank >= size_ || sockets_[rank] >= 0) {
      close(visitor);
      continue;
    }
    sockets_[rank] = visitor;
    ++present_;
    if (!SendDescriptor(visitor, segment_.descriptor()))
      return SY_FAIL(error, SY_ABORTED, "rank %d left while joining", rank);
  }
  if (visitors_.size() == most) {
    close(visitors_.front());
    visitors_.erase(visitors_.begin());
  }
  if (present_ < size_) return SY_IN_PROGRESS;
  for (const int visitor : visitors_) close(visitor);
  visitors_.clear();
  close(std::exchange(listener_, -1));
  *segment = std::move(segment_);
  return SY_OK;
}

sy_status Meeting::Receive(sy_error* error) {
  if (name_.empty()) return SY_IN_PROGRESS;
  if (sockets_[0] < 0) {
    if (const sy_status connected = ConnectToName(name_, &sockets_[0], error); connected != SY_OK) return connected;
    if (!SendNumber(sockets_[0], rank_)) return SY_FAIL(error, SY_ABORTED, "rank 0 left while joining");
  }
  int descriptor = -1;
  const sy_status taken = Take(0, &descriptor, error);
  return taken == SY_OK ? segment_.Map(descriptor, error) : taken;
}

sy_status Meeting::Give(int descriptor, sy_error* error) {
  for (int rank = 1; rank < size_; ++rank) {
    if (!SendDescriptor(sockets_[rank], descriptor)) return SY_FAIL(error, SY_ABORTED, "rank %d is gone", rank);
  }
  return SY_OK;
}

sy_status Meeting::Take(int wait_ms, int* descriptor, sy_error* error) {
  return ReceiveDescriptor(sockets_[0], wait_ms, descriptor, error);
}

}  // namespace shm
