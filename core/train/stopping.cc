#include "core/train/stopping.h"

#include <algorithm>

namespace switchyard {
namespace {

constexpr double kAgreeEverySeconds = 0.5;
constexpr double kMostUpdates = 10000;  // between two agreements

volatile std::sig_atomic_t stop_signal = 0;
void RememberSignal(int signal) { stop_signal = signal; }

}  // namespace

Stopping::Stopping(Communicator* communicator) : communicator_(communicator), agreed_(Clock::now()) {
  stop_signal = 0;
  struct sigaction action {};
  action.sa_handler = RememberSignal;
  sigaction(SIGTERM, &action, &old_term_);
  sigaction(SIGUSR1, &action, &old_user_);
}

Stopping::~Stopping() {
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGUSR1, &old_user_, nullptr);
}

StatusOr<bool> Stopping::After(int64_t step) {
  if (communicator_ == nullptr) return stop_signal != 0;
  if (step < next_) return false;
  const double seconds = std::chrono::duration<double>(Clock::now() - agreed_).count();
  const double per_update = seconds / static_cast<double>(std::max<int64_t>(1, step - agreed_at_));
  const double updates = next_ == 0 ? 1 : std::clamp(kAgreeEverySeconds / per_update, 1.0, kMostUpdates);
  // Each rank's wish to stop, and how many updates it would let pass until they talk again: the fewest of all.
  int32_t votes[2] = {stop_signal != 0, -static_cast<int32_t>(updates)};
  SY_RETURN_IF_ERROR(communicator_->AllReduce("stop", votes, votes, 2, SY_I32, SY_MAX));
  next_ = step - votes[1];
  agreed_at_ = step;
  agreed_ = Clock::now();
  return votes[0] != 0;
}

}  // namespace switchyard
