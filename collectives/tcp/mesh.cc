#include "collectives/tcp/mesh.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/abi/boundary.h"

namespace tcp {
namespace {

using std::chrono::milliseconds;

constexpr auto kTryOneAddress = milliseconds(3000);  // a packet that nobody answers gets no sooner end
constexpr auto kAnswer = milliseconds(30000);        // of whoever has accepted the connection: it may be starved
constexpr auto kPause = milliseconds(50);            // after all addresses of a rank were tried
constexpr auto kHello = milliseconds(5000);          // for a visitor's hello
constexpr auto kUndisturbed = milliseconds(100);     // no visitor is dropped for another one sooner
constexpr rlim_t kOtherDescriptors = 32, kFewestOthers = 8;  // files of data and checkpoints, devices, libraries
constexpr auto kNoDescriptor = milliseconds(50);             // before the next try after descriptors had run out
// Bytes in which a rank tells its port, its way of reducing and its addresses.
constexpr uint32_t kLargestPlace = 16 << 10;

sy_status FromErrno(sy_error* error, const char* what, std::source_location where = std::source_location::current()) {
  const int code = errno;
  const sy_status status =
      switchyard::Refuse(error, SY_INTERNAL, switchyard::Format("%s: %s", what, strerror(code)), where);
  if (error != nullptr) error->native_code = code;
  return status;
}

// A socket that listens at the address ("::": of both families) and the port, which becomes the one that it got where
// it is 0. -1 and errno where there is none.
int ListenAt(const std::string& address, int* port) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<uint16_t>(*port));
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  const bool is_four = inet_pton(AF_INET, address.c_str(), &four.sin_addr) == 1;
  if (!is_four && inet_pton(AF_INET6, address.c_str(), &six.sin6_addr) != 1) return errno = EADDRNOTAVAIL, -1;
  const int listener = socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int six_alone = address != "::";
  sockaddr_in6 bound{};
  socklen_t length = sizeof bound;
  if (listener >= 0 &&
      ((!is_four && setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &six_alone, sizeof six_alone) != 0) ||
       bind(listener, is_four ? reinterpret_cast<sockaddr*>(&four) : reinterpret_cast<sockaddr*>(&six),
            is_four ? sizeof four : sizeof six) != 0 ||
       listen(listener, SOMAXCONN) != 0 || getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &length) != 0)) {
    const int code = errno;
    close(listener);
    return errno = code, -1;
  }
  if (listener >= 0) *port = ntohs(bound.sin6_port);  // at the same place in both families
  return listener;
}

// One for each address, all at one port. Those behind the first may lack one that the machine does not give yet. Empty,
// and errno, where there are none.
std::vector<int> OpenListeners(const std::vector<std::string>& addresses, int* port) {
  constexpr int kTries = 16;  // the port that the first one got may be taken at another
  for (int tries = 0;; ++tries) {
    std::vector<int> listeners;
    bool all = true;
    *port = 0;
    for (const std::string& address : addresses) {
      const int listener = ListenAt(address, port);
      if (listener >= 0) listeners.push_back(listener);
      all = listener >= 0 || (errno == EADDRNOTAVAIL && !listeners.empty());
      if (!all) break;
    }
    if (all) return listeners;
    const int code = errno;
    for (const int listener : listeners) close(listener);
    errno = code;
    if (code != EADDRINUSE || tries == kTries) return {};
  }
}

// Addresses at which other hosts may reach this one: IPv4 first, no loopback, no link-local IPv6.
std::vector<std::string> OwnAddresses(const std::string& interface) {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0 || (!interface.empty() && interface != entry->ifa_name)) continue;
      if ((entry->ifa_flags & IFF_LOOPBACK) != 0 && interface.empty()) continue;
      char text[INET6_ADDRSTRLEN];
      const void* address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
      if (family == AF_INET6) {
        const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&six)) continue;
        address = &six;
      }
      if (inet_ntop(family, address, text, sizeof text) != nullptr) addresses.emplace_back(text);
    }
  }
  freeifaddrs(list);
  return addresses;
}

bool Ready(int socket, short events) {
  pollfd polled{socket, events, 0};
  return poll(&polled, 1, 0) == 1;
}

// The next bytes of `size` into `to`; false once the other side is gone.
bool ReceiveSome(int socket, char* to, size_t size, size_t* received) {
  while (*received < size) {
    const ssize_t got = recv(socket, to + *received, size - *received, MSG_DONTWAIT);
    if (got > 0)
      *received += static_cast<size_t>(got);
    else if (got < 0 && errno == EINTR)
      continue;
    else
      return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  return true;
}

// A fresh connection has room for these few bytes.
bool SendAll(int socket, const void* bytes, size_t size) {
  return send(socket, bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

// Few enough that the ranks which are expected, and the process itself, have descriptors left.
size_t MostVisitors() {
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  return static_cast<size_t>(std::clamp<rlim_t>(descriptors.rlim_cur / 4, 4, 256));
}

// Raises the soft limit of descriptors as far as a connection with each of `ranks` asks for, beside those that are
// open, a few for the rest of the process, and a quarter of the limit for visitors.
sy_status MakeRoom(int ranks, sy_error* error) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return FromErrno(error, "getrlimit");
  std::error_code problem;
  const std::filesystem::directory_iterator open("/proc/self/fd", problem);
  const auto is_open = problem ? 0 : std::distance(begin(open), end(open));
  const rlim_t used = static_cast<rlim_t>(is_open) + static_cast<rlim_t>(ranks);
  const rlim_t needed = (used + kOtherDescriptors) * 4 / 3 + 1;
  if (limit.rlim_cur >= needed) return SY_OK;
  if (limit.rlim_max < used + kFewestOthers)
    return SY_FAIL(error, SY_INVALID,
                   "the connections of tcp between %d ranks need %llu file descriptors in each process, which may have "
                   "%llu; raise the hard limit of open files (`ulimit -Hn %llu` as root), or take another --collective",
                   ranks, static_cast<unsigned long long>(needed), static_cast<unsigned long long>(limit.rlim_max),
                   static_cast<unsigned long long>(needed));
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? SY_OK : FromErrno(error, "raising the limit of open files");
}

}  // namespace

Mesh::Mesh(const sy_init_request& request, const std::string& chain)
    : rank_(request.rank),
      size_(request.size),
      name_(request.name == nullptr ? "" : request.name),
      chain_(chain.empty() ? "unset" : chain),
      store_(request.store),
      hosts_(static_cast<size_t>(request.size), 0),
      started_(Clock::now()),
      timeout_ms_(request.timeout_ms),
      sockets_(static_cast<size_t>(request.size), -1),
      most_visitors_(MostVisitors()) {
  if (request.hosts != nullptr) hosts_.assign(request.hosts, request.hosts + request.size);
  for (int peer = 0; peer < rank_; ++peer) {
    visits_.emplace_back();
    visits_.back().peer = peer;
  }
}

Mesh::~Mesh() {
  for (const int listener : listeners_) close(listener);
  for (const int socket : sockets_) {
    if (socket >= 0) close(socket);
  }
  for (const Visit& visit : visits_) {
    if (visit.socket >= 0) close(visit.socket);
  }
  for (const Visitor& visitor : visitors_) close(visitor.socket);
}

std::string Mesh::Key(int rank) const { return "tcp/" + name_ + "/" + std::to_string(rank); }

sy_status Mesh::Open(const sy_init_request& request, const std::string& interface, const std::string& chain,
                     std::unique_ptr<Mesh>* mesh, sy_error* error) {
  if (request.size > 1) {
    if (const sy_status made_room = MakeRoom(request.size, error); made_room != SY_OK) return made_room;
  }
  std::unique_ptr<Mesh> made(new Mesh(request, chain));
  if (request.size > 1) {
    if (!SY_HAS(sy_store, request.store, digest) || request.store->digest == nullptr)
      return SY_FAIL(error, SY_INVALID,
                     "the store has no key by which ranks could prove who they are (sy_store.digest)");
    const std::vector<int32_t>& hosts = made->hosts_;
    const bool one_host = std::all_of(hosts.begin(), hosts.end(), [&](int32_t host) { return host == hosts[0]; });
    const std::vector<std::string> addresses = OwnAddresses(interface);
    if (addresses.empty() && !interface.empty())
      return SY_FAIL(error, SY_INVALID, "SWITCHYARD_TCP_INTERFACE=%s: no interface of this name has an address",
                     interface.c_str());
    // Ranks of one host meet on its loopback, also where others come from elsewhere.
    std::vector<std::string> at = {"127.0.0.1"};
    if (!one_host && interface.empty()) at = {"::"};
    if (!one_host && !interface.empty()) {
      for (const std::string& address : addresses) {
        if (address != at[0]) at.push_back(address);
      }
    }
    int port = 0;
    made->listeners_ = OpenListeners(at, &port);
    if (made->listeners_.empty() && at[0] == "::") made->listeners_ = OpenListeners({"0.0.0.0"}, &port);
    if (made->listeners_.empty()) return FromErrno(error, "cannot listen for the other ranks");
    std::string text = std::to_string(port) + " " + made->chain_;
    for (const std::string& address : addresses) {  // a host with more is reached at the first ones
      if (text.size() + 1 + address.size() <= kLargestPlace) text += " " + address;
    }
    const sy_status told = request.store->put(request.store->context, made->Key(request.rank).c_str(), text.data(),
                                              static_cast<uint32_t>(text.size()), error);
    if (told != SY_OK) return told;
  }
  *mesh = std::move(made);
  return SY_OK;
}

sy_status Mesh::LookUp(Visit& visit, sy_error* error) {
  std::vector<char> text(kLargestPlace);
  uint32_t bytes = 0;
  const sy_status found =
      store_->get(store_->context, Key(visit.peer).c_str(), text.data(), kLargestPlace, &bytes, 0, error);
  if (found == SY_TIMEOUT) return SY_IN_PROGRESS;
  if (found != SY_OK) return found;
  std::istringstream words(std::string(text.data(), bytes));
  std::string chain;
  words >> visit.meeting.port >> chain;
  if (!words || visit.meeting.port < 1 || visit.meeting.port > 65535)
    return SY_FAIL(error, SY_INVALID, "rank %d told no address; are all ranks of the same version?", visit.peer);
  if (chain != chain_)
    return SY_FAIL(error, SY_INVALID,
                   "SWITCHYARD_TCP_CHAIN is %s on rank %d and %s on rank %d; set it to the same on all nodes",
                   chain.c_str(), visit.peer, chain_.c_str(), rank_);
  for (std::string address; words >> address;) visit.meeting.addresses.push_back(address);
  // On one node the loopback does, and it is there even where no network is.
  const size_t peer = static_cast<size_t>(visit.peer), own = static_cast<size_t>(rank_);
  if (hosts_[peer] == hosts_[own]) visit.meeting.addresses = {"127.0.0.1"};
  if (visit.meeting.addresses.empty())
    return SY_FAIL(error, SY_INVALID, "rank %d is on another host and has no address but the loopback", visit.peer);
  return SY_OK;
}

void Mesh::TryNextAddress(Visit& visit, const std::string& problem) {
  visit.problem = switchyard::Format("%s port %d: %s", visit.meeting.addresses[visit.next_address].c_str(),
                                     visit.meeting.port, problem.c_str());
  if (visit.socket >= 0) close(visit.socket);
  visit.socket = -1;
  visit.connected = false;
  visit.answered = 0;
  if (++visit.next_address < visit.meeting.addresses.size()) return;
  visit.next_address = 0;
  visit.not_before = Clock::now() + kPause;
}

void Mesh::StartConnecting(Visit& visit) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  const std::string& address = visit.meeting.addresses[visit.next_address];
  if (const int code = getaddrinfo(address.c_str(), std::to_string(visit.meeting.port).c_str(), &hints, &found);
      code != 0)
    return TryNextAddress(visit, gai_strerror(code));
  visit.socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const bool failed =
      visit.socket < 0 || (connect(visit.socket, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS);
  const int code = errno;
  freeaddrinfo(found);
  visit.give_up = Clock::now() + kTryOneAddress;
  if (failed) TryNextAddress(visit, strerror(code));
}

// SY_OK once the connection stands.
sy_status Mesh::Advance(Visit& visit, sy_error* error) {
  if (visit.meeting.addresses.empty()) {
    if (const sy_status found = LookUp(visit, error); found != SY_OK) return found;
    visit.problem = "it has not answered";
  }
  if (visit.socket < 0 && Clock::now() >= visit.not_before) StartConnecting(visit);
  if (visit.socket < 0) return SY_IN_PROGRESS;
  if (!visit.connected && Ready(visit.socket, POLLOUT)) {
    int code = 0;
    socklen_t length = sizeof code;
    if (getsockopt(visit.socket, SOL_SOCKET, SO_ERROR, &code, &length) != 0) code = errno;
    if (code != 0) {
      TryNextAddress(visit, strerror(code));
      return SY_IN_PROGRESS;
    }
    visit.connected = true;
    visit.give_up = Clock::now() + kAnswer;
  }
  if (visit.connected) {
    bool is_peer = false;
    const bool alive = Listen(visit, &is_peer);
    if (is_peer) return SY_OK;
    if (!alive) {
      TryNextAddress(visit, "another program answers there, or the rank has gone");
      return SY_IN_PROGRESS;
    }
  }
  if (Clock::now() >= visit.give_up) TryNextAddress(visit, "no answer");
  return SY_IN_PROGRESS;
}

Acquaintance Mesh::With(int listener, int visitor, const char* listener_nonce, const char* visitor_nonce) const {
  return {store_, name_, listener, visitor, size_, listener_nonce, visitor_nonce};
}

// What the listener says to a visit of ours: its nonce, which we answer, and its proof. False where it is no peer.
bool Mesh::Listen(Visit& visit, bool* is_peer) {
  const Acquaintance peer = With(visit.peer, rank_, visit.answer, visit.hello.nonce);
  if (visit.answered < kNonceBytes) {
    if (!ReceiveSome(visit.socket, visit.answer, kNonceBytes, &visit.answered)) return false;
    if (visit.answered < kNonceBytes) return true;
    visit.hello.rank = static_cast<uint32_t>(rank_);
    visit.hello.size = static_cast<uint32_t>(size_);
    if (!FillNonce(visit.hello.nonce)) return false;
    peer.ProveVisitor(visit.hello.proof);
    if (!SendAll(visit.socket, &visit.hello, sizeof visit.hello)) return false;
  }
  const bool alive = ReceiveSome(visit.socket, visit.answer, sizeof visit.answer, &visit.answered);
  if (visit.answered < sizeof visit.answer) return alive;
  char expected[kProofBytes];
  peer.ProveListener(expected);
  return *is_peer = Same(visit.answer + kNonceBytes, expected);
}

bool Mesh::DropOldestVisitor() {
  if (visitors_.empty() || Clock::now() - visitors_.front().came < kUndisturbed) return false;
  close(visitors_.front().socket);
  visitors_.erase(visitors_.begin());
  return true;
}

void Mesh::Accept() {
  for (const int listener : listeners_) {
    if (Clock::now() >= accept_again_) Accept(listener);
  }
}

void Mesh::Accept(int listener) {
  while (Ready(listener, POLLIN)) {
    while (visitors_.size() >= most_visitors_) {
      if (!DropOldestVisitor()) return;
    }
    Visitor visitor;
    visitor.socket = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    visitor.came = Clock::now();
    if (visitor.socket >= 0) {
      if (FillNonce(visitor.nonce) && SendAll(visitor.socket, visitor.nonce, sizeof visitor.nonce))
        visitors_.push_back(visitor);
      else
        close(visitor.socket);
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      // Fewer from now on, for the rest of the process needs descriptors as well.
      most_visitors_ = std::max<size_t>(1, visitors_.size() - visitors_.size() / 4);
      accept_again_ = Clock::now() + kNoDescriptor;
      return;
    }
  }
}

// False once the visitor has become a peer, or has been sent away.
bool Mesh::Listen(Visitor& visitor) {
  const bool alive = ReceiveSome(visitor.socket, visitor.hello, sizeof visitor.hello, &visitor.received);
  if (alive && visitor.received < sizeof visitor.hello && Clock::now() - visitor.came < kHello) return true;
  Hello hello{};
  if (visitor.received == sizeof visitor.hello) memcpy(&hello, visitor.hello, sizeof hello);
  const Acquaintance peer = With(rank_, static_cast<int>(hello.rank), visitor.nonce, hello.nonce);
  char proof[kProofBytes];
  peer.ProveVisitor(proof);
  const bool known = hello.size == static_cast<uint32_t>(size_) && hello.rank > static_cast<uint32_t>(rank_) &&
                     hello.rank < static_cast<uint32_t>(size_) && Same(hello.proof, proof);
  peer.ProveListener(proof);
  if (known && SendAll(visitor.socket, proof, sizeof proof)) {
    // Where a rank has come before, it has given that connection up.
    int& socket = sockets_[hello.rank];
    if (socket >= 0) close(socket);
    socket = visitor.socket;
  } else {
    close(visitor.socket);
  }
  return false;
}

sy_status Mesh::Poll(sy_error* error) {
  if (complete_) return SY_OK;
  for (Visit& visit : visits_) {
    int& socket = sockets_[static_cast<size_t>(visit.peer)];
    if (socket >= 0) continue;
    const sy_status status = Advance(visit, error);
    if (status == SY_OK)
      socket = std::exchange(visit.socket, -1);
    else if (status != SY_IN_PROGRESS)
      return status;
  }
  Accept();
  std::erase_if(visitors_, [this](Visitor& visitor) { return !Listen(visitor); });

  int missing = -1;
  for (int peer = size_ - 1; peer >= 0; --peer) {
    if (peer != rank_ && sockets_[static_cast<size_t>(peer)] < 0) missing = peer;
  }
  if (missing < 0) {
    const int on = 1;
    for (const int socket : sockets_) {
      if (socket >= 0 && setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
        return FromErrno(error, "TCP_NODELAY");
    }
    complete_ = true;
    for (const int listener : std::exchange(listeners_, {})) close(listener);
    for (const Visitor& visitor : visitors_) close(visitor.socket);
    visitors_.clear();
    return SY_OK;
  }
  if (timeout_ms_ == 0 || Clock::now() - started_ < milliseconds(timeout_ms_)) return SY_IN_PROGRESS;
  const std::string problem =
      missing < rank_ ? visits_[static_cast<size_t>(missing)].problem : "it has not connected to this rank";
  return SY_FAIL(error, SY_TIMEOUT,
                 "no connection between rank %d and rank %d within %llu ms (%s); can the hosts reach each other? "
                 "SWITCHYARD_TCP_INTERFACE chooses the network interface",
                 rank_, missing, static_cast<unsigned long long>(timeout_ms_), problem.c_str());
}

}  // namespace tcp
