// Whoever connects to a port of a run, and says what a test wants: a member with its token, or a stranger.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/runtime/processes/handshake.h"
#include "core/runtime/processes/message_link.h"

namespace switchyard {

inline int FreePort() {
  const int listener = *ListenOn("127.0.0.1", 0);
  const int port = *PortOf(listener);
  close(listener);
  return port;
}

class Visitor {
 public:
  // Connects; waits until somebody listens there.
  explicit Visitor(int port, int limit_ms = 20000) : link_(Connect(port, limit_ms)) {}
  // The same at an abstract socket.
  explicit Visitor(const std::string& abstract_name, int limit_ms = 20000)
      : link_(ConnectToName(abstract_name, limit_ms)) {}

  bool connected() const { return link_.open(); }
  void Say(const std::string& bytes) const {
    [[maybe_unused]] const ssize_t sent =
        send(link_.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void Say(MessageType type, const std::vector<std::string>& fields) {
    link_.Send(type, fields);
    link_.Flush();
  }
  // The next message; nothing where the other side closes first, or is silent.
  std::optional<Frame> Hear(int limit_ms = 5000) {
    std::vector<Frame> messages;
    for (int waited = 0; link_.Receive(&messages, 1) && messages.empty() && waited < limit_ms; ++waited)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (messages.empty()) return std::nullopt;
    return messages[0];
  }
  // Milliseconds until the other side closes the connection; -1 where it does not.
  int64_t WaitUntilClosed(int limit_ms) {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      std::vector<Frame> ignored;
      const bool open = link_.Receive(&ignored);
      const auto passed =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
      if (!open) return passed;
      if (passed > limit_ms) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // What a hello proves: who comes.
  static std::vector<std::string> Hello(const std::string& noun, int number, int count, const std::string& about,
                                        const std::string& version = EngineVersion()) {
    return {noun, version, std::to_string(number), std::to_string(count), "old-host", "4711", about};
  }
  // Answers the challenge by the rules with a token. Returns all that was said, for a replay.
  std::vector<std::string> Greet(const std::string& token, const std::vector<std::string>& hello) {
    const auto challenge = Hear();
    if (!challenge || challenge->fields.empty()) return {};
    const std::string nonce = *NewNonce();
    std::vector<std::string> fields = {nonce, Proof(Side::kVisitor, token, challenge->fields[0], nonce, hello)};
    fields.insert(fields.end(), hello.begin(), hello.end());
    Say(MessageType::kHello, fields);
    return fields;
  }

 private:
  static int Connect(int port, int limit_ms) {
    for (int waited = 0; waited < limit_ms; waited += 10) {
      if (const auto socket = ConnectTo("127.0.0.1", port, 1000); socket.ok()) return *socket;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return -1;
  }
  static int ConnectToName(const std::string& name, int limit_ms) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    for (int waited = 0; waited < limit_ms; waited += 10) {
      const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (connect(made, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return made;
      close(made);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return -1;
  }
  MessageLink link_;
};

}  // namespace switchyard
