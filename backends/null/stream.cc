#include "backends/null/stream.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "backends/null/device.h"
#include "backends/null/kernel.h"
#include "backends/null/recording.h"
#include "backends/null/semaphore.h"
#include "core/abi/boundary.h"

namespace switchyard {

sy_status Outcome::Tell(sy_error* to) const {
  if (status != SY_OK && status != SY_IN_PROGRESS && to != nullptr) FillStruct(to, error);
  return status;
}

void Point::Complete(const Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  outcome_ = outcome;
  completed_.notify_all();
}

Outcome Point::Wait() const {
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [&] { return outcome_.status != SY_IN_PROGRESS; });
  return outcome_;
}

Outcome Point::Query() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

std::shared_ptr<Point> Event::Record() {
  auto point = std::make_shared<Point>();
  const std::lock_guard lock(mutex_);
  place_ = {};
  return latest_ = std::move(point);
}

void Event::RecordIn(RecordedPlace place) {
  const std::lock_guard lock(mutex_);
  place_ = std::move(place);
}

RecordedPlace Event::recorded_in() const {
  const std::lock_guard lock(mutex_);
  return place_;
}

std::shared_ptr<Point> Event::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

Outcome Event::Wait() const {
  const std::shared_ptr<Point> point = latest();
  return point ? point->Wait() : Outcome{};
}

Outcome Event::Query() const {
  const std::shared_ptr<Point> point = latest();
  return point ? point->Query() : Outcome{};
}

Stream::Stream(sy_device* device, const sy_stream* handle)
    : device_(device), handle_(handle), worker_([this] { Work(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    queued_.notify_one();
  }
  worker_.join();
}

sy_status Stream::SpoilCapture(const char* what, sy_error* error) {
  capture_->Spoil();
  return Refuse(error, SY_UNSUPPORTED, Text(what, " cannot be captured"));
}

// While the stream is a branch of a capture.
sy_status Stream::Record(Command command, sy_error* error) {
  using Kind = Command::Kind;
  const Kind kind = command.kind;
  if (kind == Kind::kWait) {
    const RecordedPlace place = command.event->recorded_in();
    if (place.recording.lock() != capture_) return SpoilCapture("a wait for what is not captured", error);
    capture_->Wait(branch_, place.command);
    return SY_OK;
  }
  if (kind == Kind::kCopy && (!command.destination.buffer || !command.source.buffer))
    return SpoilCapture("a copy from or to host memory that is not pinned", error);
  if (kind != Kind::kLaunch && kind != Kind::kCopy && kind != Kind::kFill && kind != Kind::kRecord &&
      kind != Kind::kCall)
    return SpoilCapture("what is neither a launch, a copy, a fill nor the record of an event", error);
  const std::shared_ptr<Event> event = command.event;
  const size_t place = capture_->Add(branch_, std::move(command));
  if (kind == Kind::kRecord) event->RecordIn({capture_, place});
  return SY_OK;
}

sy_status Stream::Enqueue(Command command, sy_error* error) {
  using Kind = Command::Kind;
  const std::lock_guard lock(mutex_);
  if (capture_ == nullptr && command.kind == Kind::kWait) {
    capture_ = command.event->recorded_in().recording.lock();
    if (capture_ != nullptr) branch_ = capture_->Join(weak_from_this());
  }
  if (capture_) return Record(std::move(command), error);
  if (command.kind == Kind::kRecord) command.point = command.event->Record();
  if (command.kind == Kind::kReplay) {
    for (const Command& recorded : command.graph->commands)
      if (recorded.kind == Kind::kRecord) command.points.push_back(recorded.event->Record());
  }
  queue_.push_back(std::move(command));
  ++queued_count_;
  queued_.notify_one();
  return SY_OK;
}

sy_status Stream::Drain(sy_error* error) {
  std::unique_lock lock(mutex_);
  executed_.wait(lock, [this, until = queued_count_] { return executed_count_ >= until; });
  return first_error_.Tell(error);
}

sy_status Stream::Synchronize(sy_error* error) {
  {
    const std::lock_guard lock(mutex_);
    if (capture_) return SpoilCapture("synchronize", error);
  }
  return Drain(error);
}

sy_status Stream::BeginCapture(sy_error* error) {
  const std::lock_guard lock(mutex_);
  if (capture_) return Refuse(error, SY_INVALID, "the stream is being captured already");
  capture_ = std::make_shared<Recording>(weak_from_this());
  branch_ = 0;
  return SY_OK;
}

void Stream::LeaveCapture() {
  const std::lock_guard lock(mutex_);
  capture_ = nullptr;
}

sy_status Stream::EndCapture(std::shared_ptr<const Graph>* graph, sy_error* error) {
  std::shared_ptr<Recording> captured;
  {
    const std::lock_guard lock(mutex_);
    if (capture_ == nullptr || branch_ != 0) return Refuse(error, SY_INVALID, "no capture was begun on this stream");
    captured = std::exchange(capture_, nullptr);
  }
  for (const auto& stream : captured->Streams()) stream->LeaveCapture();
  return captured->Finish(device_->last_branch_first, graph, error);
}

void Stream::Work() {
  std::vector<Command> batch;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::swap(batch, queue_);
    }
    for (const Command& command : batch) {
      const Outcome outcome = Finish(command, first_error_);  // only this thread writes it
      const std::lock_guard lock(mutex_);
      first_error_ = outcome;
      ++executed_count_;
      executed_.notify_all();
    }
    batch.clear();
  }
}

// Runs a command unless the stream failed before; events are recorded and semaphores raised all the same. The first
// error so far.
Outcome Stream::Finish(const Command& command, Outcome outcome) {
  using Kind = Command::Kind;
  if (command.kind == Kind::kRecord) {
    command.point->Complete(outcome);
  } else if (command.kind == Kind::kSignal) {
    std::this_thread::sleep_for(device_->delay);
    outcome = command.semaphore->Raise(command.count, outcome);
  } else if (command.kind == Kind::kReplay) {
    auto point = command.points.begin();
    for (const Command& recorded : command.graph->commands) {
      if (recorded.kind == Kind::kRecord) {
        (*point++)->Complete(outcome);
      } else {
        outcome = Finish(recorded, outcome);
      }
    }
  } else if (outcome.status == SY_OK) {
    outcome.status = Guarded(&outcome.error, [&] { return Execute(command, &outcome.error); });
  }
  return outcome;
}

sy_status Stream::Execute(const Command& command, sy_error* error) {
  using Kind = Command::Kind;
  if (command.kind == Kind::kWait) {
    return command.point ? command.point->Wait().Tell(error) : SY_OK;
  }
  if (command.kind == Kind::kAwait) return command.semaphore->Wait(command.count).Tell(error);
  std::this_thread::sleep_for(device_->delay);
  if (command.kind == Kind::kCall) return command.call->function(command.call->context, error);
  if (command.kind == Kind::kLaunch) return command.bound->Run(handle_, error);
  if (command.kind == Kind::kConstants) return command.kernel->WriteConstants(command.destination, error);
  char* to = device_->memory.Resolve(command.destination, command.bytes, error);
  if (to == nullptr) return SY_INVALID;
  if (command.kind == Kind::kFill) {
    std::memset(to, command.value, command.bytes);
    return SY_OK;
  }
  const char* from = device_->memory.Resolve(command.source, command.bytes, error);
  if (from == nullptr) return SY_INVALID;
  const bool on_device = command.destination.buffer != nullptr && command.source.buffer != nullptr;
  if (on_device && device_->copy_mb_s > 0)  // a byte in a microsecond is 1 MB in a second
    std::this_thread::sleep_for(std::chrono::microseconds(command.bytes / device_->copy_mb_s));
  std::memmove(to, from, command.bytes);
  return SY_OK;
}

}  // namespace switchyard
