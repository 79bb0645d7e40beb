#include "core/runtime/processes/message_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace switchyard {
namespace {

constexpr uint32_t kMagic = 0x4B4C5953u;  // "SYLK"
struct FrameHeader {
  uint32_t magic, type, fields, bytes;  // fields: how many; bytes: of all of them with their lengths
};

std::atomic<uint64_t> messages_of_process{0}, bytes_of_process{0};

void Count(size_t frame_bytes) {
  messages_of_process.fetch_add(1, std::memory_order_relaxed);
  bytes_of_process.fetch_add(frame_bytes, std::memory_order_relaxed);
}

void Append(std::string* out, uint32_t number) { out->append(reinterpret_cast<const char*>(&number), sizeof number); }

void Prepare(int descriptor) {
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

Status Resolve(const std::string& host, int port, int flags, Addresses* result) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  hints.ai_family = AF_UNSPEC;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &result->first);
  if (error == 0) return OkStatus();
  return NotFound("cannot find the address of host \"{}\": {}", host, gai_strerror(error));
}

}  // namespace

bool MessageLink::Fits(const std::vector<std::string>& fields) {
  size_t bytes = 0;
  for (const std::string& field : fields) bytes += 4 + field.size();
  return bytes <= kLargestFrame;
}

bool MessageLink::Send(MessageType type, const std::vector<std::string>& fields) {
  if (!Fits(fields)) return false;
  uint32_t bytes = 0;
  for (const std::string& field : fields) bytes += 4 + static_cast<uint32_t>(field.size());
  const FrameHeader header{kMagic, static_cast<uint32_t>(type), static_cast<uint32_t>(fields.size()), bytes};
  unsent_.append(reinterpret_cast<const char*>(&header), sizeof header);
  for (const std::string& field : fields) {
    Append(&unsent_, static_cast<uint32_t>(field.size()));
    unsent_ += field;
  }
  Count(sizeof header + bytes);
  return true;
}

bool MessageLink::Flush() {
  while (open() && !unsent_.empty()) {
    const ssize_t sent = send(descriptor_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      unsent_.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return open();
}

bool MessageLink::Receive(std::vector<Frame>* messages, size_t most) {
  char piece[16384];
  bool alive = open();
  while (alive && unparsed_.size() < 2 * largest_frame_) {
    const ssize_t received = recv(descriptor_, piece, sizeof piece, 0);
    if (received > 0)
      unparsed_.append(piece, static_cast<size_t>(received));
    else if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      break;
    else if (received == 0 || errno != EINTR)
      alive = false;
  }
  return TakeFrames(messages, most) && alive;
}

bool MessageLink::TakeFrames(std::vector<Frame>* messages, size_t most) {
  size_t at = 0;
  for (size_t taken = 0; taken < most && unparsed_.size() - at >= sizeof(FrameHeader); ++taken) {
    FrameHeader header;
    std::memcpy(&header, unparsed_.data() + at, sizeof header);
    if (header.magic != kMagic || header.bytes > largest_frame_ || header.fields > header.bytes / 4) return false;
    if (unparsed_.size() - at - sizeof header < header.bytes) break;
    const char* next = unparsed_.data() + at + sizeof header;
    uint32_t left = header.bytes;
    Frame message{static_cast<MessageType>(header.type), {}};
    for (uint32_t field = 0; field < header.fields; ++field) {
      uint32_t length = 0;
      if (left < sizeof length) return false;
      std::memcpy(&length, next, sizeof length);
      if (length > left - sizeof length) return false;
      message.fields.emplace_back(next + sizeof length, length);
      next += sizeof length + length;
      left -= static_cast<uint32_t>(sizeof length) + length;
    }
    if (left != 0) return false;
    messages->push_back(std::move(message));
    at += sizeof header + header.bytes;
    Count(sizeof header + header.bytes);
  }
  unparsed_.erase(0, at);
  return true;
}

// A host is asked after 10 s of silence and then every 5 s; what it has not acknowledged after 30 s ends the link
// (tcp(7)).
void MessageLink::WatchHost() {
  const int on = 1, idle_s = 10, pause_s = 5, tries = 4;
  const unsigned int limit_ms = 30000;
  setsockopt(descriptor_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, &pause_s, sizeof pause_s);
  setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
  setsockopt(descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

MessageLink::Traffic MessageLink::OfThisProcess() { return {messages_of_process, bytes_of_process}; }

void MessageLink::Close() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

const std::string& EngineVersion() {
  static const std::string version = SWITCHYARD_VERSION "/7";
  return version;
}

int MillisecondsUntil(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

StatusOr<int> ListenOn(const std::string& address, int port) {
  Addresses addresses;
  SY_RETURN_IF_ERROR(Resolve(address.empty() ? "::" : address, port, AI_PASSIVE, &addresses));
  // "::" takes IPv4 as well; a machine without IPv6 has only that.
  Addresses of_ipv4;
  if (address.empty()) SY_RETURN_IF_ERROR(Resolve("0.0.0.0", port, AI_PASSIVE, &of_ipv4));
  int error = 0;
  for (const addrinfo* first : {addresses.first, of_ipv4.first}) {
    for (const addrinfo* entry = first; entry != nullptr && error != EADDRINUSE; entry = entry->ai_next) {
      const int listener = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const int on = 1, off = 0;
      if (listener >= 0) {
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (entry->ai_family == AF_INET6) setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (bind(listener, entry->ai_addr, entry->ai_addrlen) == 0 && listen(listener, SOMAXCONN) == 0) return listener;
      }
      error = errno;
      if (listener >= 0) close(listener);
    }
  }
  return Unavailable("cannot listen on {} port {}: {}", address.empty() ? "any address," : address, port,
                     std::strerror(error));
}

StatusOr<int> PortOf(int listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Internal("getsockname: {}", std::strerror(errno));
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

int AcceptFrom(int listener) {
  const int descriptor = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (descriptor >= 0) Prepare(descriptor);
  return descriptor;
}

StatusOr<int> ConnectTo(const std::string& host, int port, int timeout_ms) {
  Addresses addresses;
  SY_RETURN_IF_ERROR(Resolve(host, port, 0, &addresses));
  int error = 0;
  for (const addrinfo* entry = addresses.first; entry != nullptr; entry = entry->ai_next) {
    const int descriptor = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) {
      error = errno;
      continue;
    }
    Prepare(descriptor);
    error = connect(descriptor, entry->ai_addr, entry->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd writable{descriptor, POLLOUT, 0};
      socklen_t length = sizeof error;
      int ready;
      do ready = poll(&writable, 1, timeout_ms);
      while (ready < 0 && errno == EINTR);
      if (ready == 1)
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length);
      else
        error = ready == 0 ? ETIMEDOUT : errno;
    }
    if (error == 0) return descriptor;
    close(descriptor);
  }
  return Unavailable("{} port {}: {}", host, port, std::strerror(error));
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
      const void* address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
      const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      if (family == AF_INET6) address = &six;
      char text[INET6_ADDRSTRLEN];
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six)) continue;
      if (inet_ntop(family, address, text, sizeof text) != nullptr) addresses.emplace_back(text);
    }
  }
  freeifaddrs(list);
  return addresses;
}

bool IsLoopback(const std::string& host) { return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0; }

StatusOr<bool> IsOwnAddress(const std::string& host) {
  Addresses addresses;
  SY_RETURN_IF_ERROR(Resolve(host, 0, 0, &addresses));
  // Only an own address can be bound to.
  for (const addrinfo* entry = addresses.first; entry != nullptr; entry = entry->ai_next) {
    const int probe = socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe < 0) continue;
    const bool bound = bind(probe, entry->ai_addr, entry->ai_addrlen) == 0;
    close(probe);
    if (bound) return true;
  }
  return false;
}

}  // namespace switchyard
