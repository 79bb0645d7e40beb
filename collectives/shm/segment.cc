#include "collectives/shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "core/abi/boundary.h"

namespace shm {
namespace {

// An abstract address starts with a zero byte and is as long as its length says.
socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address->sun_path - 1);
  memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool OfOwnUser(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

bool Readable(int socket, int wait_ms) {
  pollfd polled{socket, POLLIN, 0};
  return poll(&polled, 1, wait_ms) == 1;
}

}  // namespace

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    Reset();
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void Segment::Reset() {
  if (base_ != nullptr) munmap(base_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
  base_ = nullptr;
  descriptor_ = -1;
}

sy_status Segment::Create(size_t bytes, sy_error* error) {
  const int descriptor = memfd_create("switchyard", MFD_CLOEXEC);
  if (descriptor < 0) return SY_FAIL(error, SY_INTERNAL, "memfd_create: %s", strerror(errno));
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    const int problem = errno;
    close(descriptor);
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "shared segment of %zu bytes: %s", bytes, strerror(problem));
  }
  return Map(descriptor, error);
}

sy_status Segment::Map(int descriptor, sy_error* error) {
  Reset();
  struct stat about {};
  void* address = MAP_FAILED;
  if (fstat(descriptor, &about) == 0 && about.st_size > 0) {
    address = mmap(nullptr, static_cast<size_t>(about.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  if (address == MAP_FAILED) {
    const int problem = errno;
    close(descriptor);
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "mapping a shared segment of %lld bytes: %s",
                   static_cast<long long>(about.st_size), strerror(problem));
  }
  descriptor_ = descriptor;
  base_ = static_cast<char*>(address);
  bytes_ = static_cast<size_t>(about.st_size);
  madvise(base_, bytes_, MADV_HUGEPAGE);  // where the kernel allows it for shared memory
  return SY_OK;
}

sy_status Segment::Reserve(size_t offset, size_t bytes, sy_error* error) {
  int problem;
  do problem = posix_fallocate(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  while (problem == EINTR);
  if (problem != 0) return SY_FAIL(error, SY_OUT_OF_MEMORY, "%zu bytes of shared memory: %s", bytes, strerror(problem));
  return SY_OK;
}

sy_status ListenOnNewName(int* listener, std::string* name, sy_error* error) {
  static std::atomic<unsigned> count{0};
  std::random_device random;
  char text[80];
  snprintf(text, sizeof text, "switchyard-%d-%u-%08x%08x", static_cast<int>(getpid()), count++, random(), random());
  *name = text;
  sockaddr_un address;
  const socklen_t length = AbstractAddress(*name, &address);
  *listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*listener < 0 || bind(*listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(*listener, 1024) != 0) {
    return SY_FAIL(error, SY_INTERNAL, "abstract socket %s: %s", text, strerror(errno));
  }
  return SY_OK;
}

int AcceptFromOwnUser(int listener) {
  const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket >= 0 && !OfOwnUser(socket)) {
    close(socket);
    return -1;
  }
  return socket;
}

sy_status ConnectToName(const std::string& name, int* connection, sy_error* error) {
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  *connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*connection < 0) return SY_FAIL(error, SY_INTERNAL, "socket: %s", strerror(errno));
  int problem = connect(*connection, reinterpret_cast<sockaddr*>(&address), length) == 0 ? 0 : errno;
  if (problem == 0 && !OfOwnUser(*connection)) problem = EPERM;
  if (problem == 0) return SY_OK;
  close(std::exchange(*connection, -1));
  if (problem == EINTR || problem == EAGAIN) return SY_IN_PROGRESS;
  return SY_FAIL(error, problem == ECONNREFUSED ? SY_ABORTED : SY_INTERNAL, "abstract socket %s: %s", name.c_str(),
                 strerror(problem));
}

bool SendNumber(int socket, int number) { return send(socket, &number, sizeof number, MSG_NOSIGNAL) == sizeof number; }

sy_status ReceiveNumber(int socket, int* number) {
  const ssize_t got = recv(socket, number, sizeof *number, MSG_DONTWAIT);
  if (got == sizeof *number) return SY_OK;
  return got < 0 && (errno == EAGAIN || errno == EINTR) ? SY_IN_PROGRESS : SY_ABORTED;
}

bool SendDescriptor(int socket, int descriptor) {
  char byte = 1;
  iovec payload{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof descriptor);
  memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

sy_status ReceiveDescriptor(int socket, int wait_ms, int* descriptor, sy_error* error) {
  if (!Readable(socket, wait_ms)) return SY_IN_PROGRESS;
  char byte;
  iovec payload{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof *descriptor)];
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return SY_IN_PROGRESS;
  const cmsghdr* const rights = got == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(sizeof *descriptor)) {
    return SY_FAIL(error, SY_ABORTED, "the rank that made the shared segment is gone");
  }
  memcpy(descriptor, CMSG_DATA(rights), sizeof *descriptor);
  return SY_OK;
}

}  // namespace shm
