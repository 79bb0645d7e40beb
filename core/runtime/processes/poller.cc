#include "core/runtime/processes/poller.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace switchyard {

StatusOr<std::unique_ptr<Poller>> Poller::Make() {
  const int descriptor = epoll_create1(EPOLL_CLOEXEC);
  if (descriptor < 0) return Internal("epoll_create1: {}", std::strerror(errno));
  return std::unique_ptr<Poller>(new Poller(descriptor));
}

Poller::~Poller() { close(descriptor_); }

bool Poller::Watch(int descriptor, int id, bool writes) {
  epoll_event event{};
  event.events = EPOLLIN | (writes ? EPOLLOUT : 0u);
  event.data.fd = id;
  return epoll_ctl(descriptor_, EPOLL_CTL_MOD, descriptor, &event) == 0 ||
         (errno == ENOENT && epoll_ctl(descriptor_, EPOLL_CTL_ADD, descriptor, &event) == 0);
}

void Poller::Forget(int descriptor) { epoll_ctl(descriptor_, EPOLL_CTL_DEL, descriptor, nullptr); }

const std::vector<int>& Poller::Wait(int wait_ms) {
  constexpr int kMost = 4096;  // of one call; the others come with the next
  epoll_event events[kMost];
  int count = epoll_wait(descriptor_, events, kMost, wait_ms);
  // Whoever was stopped and goes on has been interrupted, and what came meanwhile is there.
  if (count < 0 && errno == EINTR) count = epoll_wait(descriptor_, events, kMost, 0);
  ready_.clear();
  for (int i = 0; i < count; ++i) ready_.push_back(events[i].data.fd);
  return ready_;
}

}  // namespace switchyard
