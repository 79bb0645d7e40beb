#include "core/runtime/processes/strangers.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "core/runtime/processes/handshake.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;

constexpr auto kHelloPatience = milliseconds(5000);  // for the first message
constexpr auto kUndisturbed = milliseconds(100);     // nobody is dropped for another one sooner
constexpr auto kPause = milliseconds(50);            // after descriptors had run out

// Few enough that the others who are expected, and the process itself, have descriptors left.
size_t MostStrangers() {
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  return static_cast<size_t>(std::clamp<rlim_t>(descriptors.rlim_cur / 4, 4, 256));
}

}  // namespace

Strangers::Strangers(int listener) : listener_(listener), most_(MostStrangers()) {}

bool Strangers::MayDropOldest(Clock::time_point now) const {
  return !strangers_.empty() && now - strangers_.front().came >= kUndisturbed;
}

bool Strangers::MayAccept(Clock::time_point now) const {
  return now >= pause_until_ && (strangers_.size() < most_ || MayDropOldest(now));
}

void Strangers::AddTo(std::vector<pollfd>* polled) const {
  if (MayAccept(Clock::now())) polled->push_back({listener_, POLLIN, 0});
  for (const Stranger& stranger : strangers_) polled->push_back({stranger.link->descriptor(), POLLIN, 0});
}

void Strangers::Accept(Clock::time_point now) {
  for (pollfd waiting{listener_, POLLIN, 0}; MayAccept(now) && poll(&waiting, 1, 0) == 1;) {
    while (strangers_.size() >= most_ && MayDropOldest(now)) strangers_.erase(strangers_.begin());
    if (strangers_.size() >= most_) return;
    const int descriptor = AcceptFrom(listener_);
    if (descriptor >= 0) {
      auto link = std::make_unique<MessageLink>(descriptor, kLargestFrameOfStrangers);
      auto nonce = NewNonce();
      if (!nonce.ok()) continue;  // nobody can be let in; a meeting without random bytes has failed at its token
      strangers_.push_back({std::move(link), *std::move(nonce), now});
      strangers_.back().link->Send(MessageType::kChallenge, {strangers_.back().nonce});
      strangers_.back().link->Flush();
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      // Fewer from now on, for the rest of the process needs descriptors as well.
      most_ = std::max<size_t>(1, strangers_.size() - strangers_.size() / 4);
      pause_until_ = now + kPause;
    }
  }
}

std::vector<Strangers::Arrival> Strangers::Serve() {
  const auto now = Clock::now();
  std::vector<Arrival> arrivals;
  for (Stranger& stranger : strangers_) {
    std::vector<Frame> messages;
    const bool alive = stranger.link->Receive(&messages, 1);
    // Who has spoken and gone again will come another time.
    if (alive && !messages.empty())
      arrivals.push_back({std::move(stranger.link), stranger.nonce, std::move(messages[0])});
    else if (!alive || now - stranger.came >= kHelloPatience)
      stranger.link.reset();
  }
  std::erase_if(strangers_, [](const Stranger& stranger) { return stranger.link == nullptr; });
  Accept(now);
  return arrivals;
}

}  // namespace switchyard
