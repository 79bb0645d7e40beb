#include "backends/null/stream.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "backends/null/device.h"
#include "backends/null/kernel.h"
#include "core/abi/boundary.h"

namespace switchyard {

sy_status Outcome::Tell(sy_error* to) const {
  if (status != SY_OK && to != nullptr) FillStruct(to, error);
  return status;
}

uint64_t Event::Record() {
  const std::lock_guard lock(mutex_);
  return ++recorded_;
}

void Event::Complete(uint64_t generation, const Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  completed_ = std::max(completed_, generation);
  if (first_error_.status == SY_OK) first_error_ = outcome;
  changed_.notify_all();
}

uint64_t Event::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

Outcome Event::Wait(uint64_t generation) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= generation; });
  return first_error_;
}

Outcome Event::Query() const {
  const std::lock_guard lock(mutex_);
  if (first_error_.status == SY_OK && completed_ < recorded_) return {SY_IN_PROGRESS};
  return first_error_;
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

sy_status Stream::Enqueue(Command command, sy_error* error) {
  if (capture_) {
    const auto kind = command.kind;
    if (kind != Command::Kind::kLaunch && kind != Command::Kind::kCopy && kind != Command::Kind::kFill) {
      capture_spoiled_ = true;
      return Refuse(error, SY_INVALID, "only launches, copies and fills can be captured");
    }
    capture_->commands.push_back(std::move(command));
    return SY_OK;
  }
  const std::lock_guard lock(mutex_);
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

sy_status Stream::BeginCapture(sy_error* error) {
  if (capture_) return Refuse(error, SY_INVALID, "the stream is being captured already");
  capture_ = std::make_shared<Graph>();
  capture_spoiled_ = false;
  return SY_OK;
}

sy_status Stream::EndCapture(std::shared_ptr<const Graph>* graph, sy_error* error) {
  const std::shared_ptr<Graph> captured = std::exchange(capture_, nullptr);
  if (captured == nullptr) return Refuse(error, SY_INVALID, "the stream is not being captured");
  if (capture_spoiled_) return Refuse(error, SY_INVALID, "something that cannot be captured was queued");
  *graph = captured;
  return SY_OK;
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
      Outcome outcome = first_error_;  // only this thread writes it
      const bool failed_before = outcome.status != SY_OK;
      if (command.kind == Command::Kind::kRecord) {
        command.event->Complete(command.generation, outcome);
      } else if (!failed_before) {
        outcome.status = Guarded(&outcome.error, [&] { return Execute(command, &outcome.error); });
      }
      const std::lock_guard lock(mutex_);
      if (!failed_before) first_error_ = outcome;
      ++executed_count_;
      executed_.notify_all();
    }
    batch.clear();
  }
}

sy_status Stream::Execute(const Command& command, sy_error* error) {
  using Kind = Command::Kind;
  if (command.kind == Kind::kWait) {
    const Outcome waited = command.event->Wait(command.generation);
    return waited.Tell(error);
  }
  std::this_thread::sleep_for(device_->delay);
  if (command.kind == Kind::kLaunch) return command.bound->Run(handle_, error);
  if (command.kind == Kind::kReplay) {
    for (const Command& recorded : command.graph->commands) {
      if (const sy_status status = Execute(recorded, error); status != SY_OK) return status;
    }
    return SY_OK;
  }
  char* to = device_->memory.Resolve(command.destination, command.bytes, error);
  if (to == nullptr) return SY_INVALID;
  if (command.kind == Kind::kFill) {
    std::memset(to, command.value, command.bytes);
    return SY_OK;
  }
  const char* from = device_->memory.Resolve(command.source, command.bytes, error);
  if (from == nullptr) return SY_INVALID;
  std::memmove(to, from, command.bytes);
  return SY_OK;
}

}  // namespace switchyard
