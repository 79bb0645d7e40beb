#include "core/runtime/message_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace switchyard {
namespace {

constexpr uint32_t kMagic = 0x4B4C5953u;       // "SYLK"
constexpr uint32_t kLargestFrame = 16u << 20;  // bytes
struct FrameHeader {
  uint32_t magic, type, fields, bytes;  // fields: how many; bytes: of all of them with their lengths
};

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
  hints.ai_family = host.empty() ? AF_INET : AF_UNSPEC;
  const std::string service = std::to_string(port);
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &result->first);
  if (error == 0) return OkStatus();
  return NotFound("cannot find the address of host \"{}\": {}; check MASTER_ADDR", host, gai_strerror(error));
}

}  // namespace

void MessageLink::Send(MessageType type, const std::vector<std::string>& fields) {
  uint32_t bytes = 0;
  for (const std::string& field : fields) bytes += 4 + static_cast<uint32_t>(field.size());
  const FrameHeader header{kMagic, static_cast<uint32_t>(type), static_cast<uint32_t>(fields.size()), bytes};
  unsent_.append(reinterpret_cast<const char*>(&header), sizeof header);
  for (const std::string& field : fields) {
    Append(&unsent_, static_cast<uint32_t>(field.size()));
    unsent_ += field;
  }
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
  while (alive && unparsed_.size() < 2 * kLargestFrame) {
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
    if (header.magic != kMagic || header.bytes > kLargestFrame || header.fields > header.bytes / 4) return false;
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
  }
  unparsed_.erase(0, at);
  return true;
}

void MessageLink::Close() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

StatusOr<int> ListenOn(const std::string& address, int port) {
  Addresses addresses;
  SY_RETURN_IF_ERROR(Resolve(address, port, AI_PASSIVE, &addresses));
  int error = 0;
  for (const addrinfo* entry = addresses.first; entry != nullptr; entry = entry->ai_next) {
    const int listener = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    if (listener >= 0) {
      setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (bind(listener, entry->ai_addr, entry->ai_addrlen) == 0 && listen(listener, SOMAXCONN) == 0) return listener;
    }
    error = errno;
    if (listener >= 0) close(listener);
  }
  return Unavailable("rank 0 cannot listen on {} port {}: {}; choose another MASTER_PORT",
                     address.empty() ? "any address," : address, port, std::strerror(error));
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
  const int descriptor = accept(listener, nullptr, nullptr);
  if (descriptor >= 0) Prepare(descriptor);
  return descriptor;
}

StatusOr<int> ConnectTo(const std::string& host, int port, int timeout_ms) {
  Addresses addresses;
  SY_RETURN_IF_ERROR(Resolve(host, port, 0, &addresses));
  int error = 0;
  for (const addrinfo* entry = addresses.first; entry != nullptr; entry = entry->ai_next) {
    const int descriptor = socket(entry->ai_family, SOCK_STREAM, 0);
    if (descriptor < 0) continue;
    Prepare(descriptor);
    error = connect(descriptor, entry->ai_addr, entry->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd writable{descriptor, POLLOUT, 0};
      socklen_t length = sizeof error;
      if (poll(&writable, 1, timeout_ms) != 1)
        error = ETIMEDOUT;
      else
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length);
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
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    const in_addr& address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    char text[INET_ADDRSTRLEN];
    if ((ntohl(address.s_addr) >> 24) == 127 || inet_ntop(AF_INET, &address, text, sizeof text) == nullptr) continue;
    addresses.emplace_back(text);
  }
  freeifaddrs(list);
  return addresses;
}

}  // namespace switchyard
