// One TCP connection between two ranks, carrying small framed messages. Sockets are non-blocking: Send queues, Flush
// and Receive move what the socket takes or has. What arrives is not trusted: a frame with a wrong magic number, an
// unknown shape or above the size limit closes the link; the limit is small until the other side has proved who it is.
// Also the few socket calls around it. Not thread-safe: one thread, or one lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

enum class MessageType : uint32_t {
  kHello = 1,  // who comes, with a proof that it belongs here: meeting.cc
  kWelcome,    // all who came: greeting.h
  kPut,        // key, value
  kGet,        // key; answered by kValue once it was put
  kValue,      // key, value
  kHeartbeat,  // nothing
  kFailure,    // text: the run is over for everybody
  kGoodbye,    // nothing: the sender leaves cleanly
  kDeparture,  // ranks: the goodbyes of others are passed on
  kChallenge,  // nonce: the first word to whoever connects
  kProof,      // proof: the answer to a hello
  kJoin,       // who has come to a relay, as a hello says it
  kArrive,     // barrier, ranks: they have come
  kRelease,    // barrier: all have come
  kMissing,    // barrier, rank: it waits there in vain; of rank 0 barrier: who has come so far? answered by kArrive
  kAgain,      // run: of node 0, whether the ranks are started again ("1" or "0"), and for which run
};

constexpr size_t kLargestFrame = 16 << 20;            // bytes of all fields with their lengths
constexpr size_t kLargestFrameOfStrangers = 4 << 10;  // the same for whom we do not know yet

struct Frame {
  MessageType type;
  std::vector<std::string> fields;
};

class MessageLink {
 public:
  explicit MessageLink(int descriptor, size_t largest_frame = kLargestFrame)
      : descriptor_(descriptor), largest_frame_(largest_frame) {}
  ~MessageLink() { Close(); }
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  int descriptor() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }
  bool wants_to_write() const { return !unsent_.empty(); }
  void Trust() { largest_frame_ = kLargestFrame; }  // a stranger has proved who it is
  // From now on the link ends within half a minute where the other side's host has lost its power or its network.
  void WatchHost();
  // Whether the fields fit a frame that the other side takes.
  static bool Fits(const std::vector<std::string>& fields);
  // False, and nothing is sent, where they do not.
  bool Send(MessageType type, const std::vector<std::string>& fields = {});
  // Both answer false once the other side is gone or talks nonsense; what was received before is still in *messages.
  bool Flush();
  bool Receive(std::vector<Frame>* messages, size_t most = ~size_t{0});  // further messages wait for the next call
  void Close();

  struct Traffic {  // both ways: messages, and the bytes of their frames
    uint64_t messages = 0, bytes = 0;
  };
  static Traffic OfThisProcess();  // since it began, for measurements

 private:
  bool TakeFrames(std::vector<Frame>* messages, size_t most);
  int descriptor_;
  size_t largest_frame_;  // that is received
  std::string unsent_, unparsed_;
};

// The version of the program and of these messages: processes that talk to each other must agree on it.
const std::string& EngineVersion();

// What is left until then, 0 once it has passed: a time for poll(2).
int MillisecondsUntil(std::chrono::steady_clock::time_point deadline);

// A listening socket at `address` ("" = every address of this machine, IPv4 and IPv6), port 0 = any free one.
StatusOr<int> ListenOn(const std::string& address, int port);
StatusOr<int> PortOf(int listener);
// A new connection, non-blocking; -1 with errno when none is waiting or none can be had.
int AcceptFrom(int listener);
// Tries every address of `host` once, each for at most timeout_ms.
StatusOr<int> ConnectTo(const std::string& host, int port, int timeout_ms);
// The addresses of this machine, IPv4 first, without loopback and link-local ones.
std::vector<std::string> OwnAddresses();
bool IsLoopback(const std::string& host);  // "localhost" or an address of the loopback, without asking a name server
// Whether `host` is an address of this machine; an error where it cannot be resolved.
StatusOr<bool> IsOwnAddress(const std::string& host);

}  // namespace switchyard
