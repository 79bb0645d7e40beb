#include "tools/conform/semaphore_checks.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "tools/conform/device_checks.h"
#include "tools/conform/failing_stream.h"
#include "tools/conform/timeline.h"

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;

// Copies inside the device that take a while, the last of which leaves `bytes` at `to`.
class SlowCopy {
 public:
  static StatusOr<std::unique_ptr<SlowCopy>> Make(Device& device, uint64_t seed) {
    std::unique_ptr<SlowCopy> made(new SlowCopy(device, RandomBytes(kBytes, seed)));
    for (Buffer* buffer : {&made->from_, &made->to_, &made->load_, &made->unload_}) {
      SY_ASSIGN_OR_RETURN(*buffer, device.Allocate(buffer == &made->from_ || buffer == &made->to_ ? kBytes : kLoad));
    }
    SY_RETURN_IF_ERROR(device.Upload(made->from_.at(0), made->data_.data(), kBytes));
    return made;
  }
  Status Clear() {
    const Bytes zeros(kBytes);
    return device_.Upload(to_.at(0), zeros.data(), kBytes);
  }
  Status Queue(const Stream& stream, int loads) {
    for (int i = 0; i < loads; ++i) SY_RETURN_IF_ERROR(device_.Copy(stream, unload_.at(0), load_.at(0), kLoad));
    return device_.Copy(stream, to_.at(0), from_.at(0), kBytes);
  }
  // By way of a stream of its own, which nobody holds up.
  StatusOr<bool> HasArrived() {
    Bytes found(kBytes);
    SY_ASSIGN_OR_RETURN(const Stream stream, device_.NewStream());
    SY_RETURN_IF_ERROR(device_.Copy(stream, HostPlace(found.data()), to_.at(0), kBytes));
    SY_RETURN_IF_ERROR(device_.Synchronize(stream));
    return found == data_;
  }

 private:
  static constexpr uint64_t kBytes = 65537, kLoad = 1 << 20;
  SlowCopy(Device& device, Bytes data) : device_(device), data_(std::move(data)) {}

  Device& device_;
  const Bytes data_;
  Buffer from_, to_, load_, unload_;
};

using Api = const sy_semaphore_v1&;

// What the host waits for has happened when a stream raises the count behind it.
Status CheckStreamToHost(Device& device, Api api, uint64_t seed) {
  SY_ASSIGN_OR_RETURN(const auto work, SlowCopy::Make(device, seed));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  for (uint64_t round = 1; round <= 5; ++round) {
    SY_RETURN_IF_ERROR(work->Clear());
    SY_RETURN_IF_ERROR(work->Queue(stream, 8));
    SY_RETURN_IF_ERROR(timeline->SignalOn(stream, 2 * round));
    SY_RETURN_IF_ERROR(timeline->Wait(2 * round - round % 2));
    SY_ASSIGN_OR_RETURN(const bool arrived, work->HasArrived());
    if (!arrived)
      return Internal("round {}: the count was raised before the work in front of the signal was done", round);
    SY_RETURN_IF_ERROR(timeline->ExpectCount(2 * round, "after a stream's signal"));
  }
  return OkStatus();
}

// A stream that waits goes on when the host has raised the count far enough, not before.
Status CheckHostToStream(Device& device, Api api, uint64_t seed) {
  SY_ASSIGN_OR_RETURN(const auto work, SlowCopy::Make(device, seed));
  SY_ASSIGN_OR_RETURN(Event event, device.NewEvent());
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  const auto held = [&](const char* when) -> Status {
    std::this_thread::sleep_for(kLongEnough);
    SY_ASSIGN_OR_RETURN(const bool done, event.Done());
    SY_ASSIGN_OR_RETURN(const bool arrived, work->HasArrived());
    return done || arrived ? Internal("{}: a stream did not wait", when) : OkStatus();
  };
  SY_RETURN_IF_ERROR(work->Clear());
  SY_RETURN_IF_ERROR(timeline->HoldUp(stream, 3));
  SY_RETURN_IF_ERROR(work->Queue(stream, 0));
  SY_RETURN_IF_ERROR(event.Record(stream));
  SY_RETURN_IF_ERROR(held("before anybody raised the count"));
  for (const uint64_t value : {1, 2}) {
    SY_RETURN_IF_ERROR(timeline->Signal(value));
    SY_RETURN_IF_ERROR(held("at a count of 1 or 2, where it waits for 3"));
  }
  SY_RETURN_IF_ERROR(timeline->Signal(5));  // more than it waits for
  SY_RETURN_IF_ERROR(event.Wait());
  SY_ASSIGN_OR_RETURN(const bool arrived, work->HasArrived());
  if (!arrived) return Internal("work behind a wait is not done though its event is");
  // What is there already holds nothing up.
  for (const uint64_t value : {0, 4, 5}) SY_RETURN_IF_ERROR(timeline->HoldUp(stream, value));
  return device.Synchronize(stream);
}

// Two streams that hand a buffer to and fro, each raising the count for the other.
Status CheckBetweenStreams(Device& device, Api api, uint64_t seed) {
  constexpr uint64_t kSize = 32771;
  constexpr size_t kRounds = 12;
  SY_ASSIGN_OR_RETURN(const Buffer shared, device.Allocate(kSize));
  std::vector<Buffer> sources, targets;
  std::vector<Bytes> sent;
  for (size_t round = 0; round < kRounds; ++round) {
    sent.push_back(RandomBytes(kSize, seed + round));
    for (auto* list : {&sources, &targets}) {
      SY_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(kSize));
      list->push_back(std::move(buffer));
    }
    SY_RETURN_IF_ERROR(device.Upload(sources.back().at(0), sent.back().data(), kSize));
  }
  SY_ASSIGN_OR_RETURN(const auto delay, SlowCopy::Make(device, seed));
  SY_ASSIGN_OR_RETURN(const Stream writer, device.NewStream());
  SY_ASSIGN_OR_RETURN(const Stream reader, device.NewStream());
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  for (size_t round = 0; round < kRounds; ++round) {
    SY_RETURN_IF_ERROR(timeline->HoldUp(writer, 2 * round));
    if (round % 2 == 0) SY_RETURN_IF_ERROR(delay->Queue(writer, 4));
    SY_RETURN_IF_ERROR(device.Copy(writer, shared.at(0), sources[round].at(0), kSize));
    SY_RETURN_IF_ERROR(timeline->SignalOn(writer, 2 * round + 1));
    SY_RETURN_IF_ERROR(timeline->HoldUp(reader, 2 * round + 1));
    if (round % 2 == 1) SY_RETURN_IF_ERROR(delay->Queue(reader, 4));
    SY_RETURN_IF_ERROR(device.Copy(reader, targets[round].at(0), shared.at(0), kSize));
    SY_RETURN_IF_ERROR(timeline->SignalOn(reader, 2 * round + 2));
  }
  SY_RETURN_IF_ERROR(timeline->Wait(2 * kRounds));
  for (size_t round = 0; round < kRounds; ++round) {
    Bytes found(kSize);
    SY_RETURN_IF_ERROR(device.Download(found.data(), targets[round].at(0), kSize));
    if (found != sent[round]) return Internal("round {}: two streams did not wait for each other", round);
  }
  return OkStatus();
}

// A stream that raises the count to less than it is: refused, an error of the stream, or nothing at all; but the count
// stays.
Status CheckNeverFalls(Device& device, Api api) {
  SY_ASSIGN_OR_RETURN(const Stream first, device.NewStream());
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  SY_RETURN_IF_ERROR(timeline->SignalOn(first, 5));
  SY_RETURN_IF_ERROR(device.Synchronize(first));
  SY_RETURN_IF_ERROR(timeline->ExpectCount(5, "after a stream's signal"));
  SY_RETURN_IF_ERROR(timeline->Signal(4, {SY_INVALID}));
  for (const uint64_t value : {3, 5}) {
    SY_ASSIGN_OR_RETURN(const Stream late, device.NewStream());
    SY_RETURN_IF_ERROR(timeline->SignalOn(late, value, {SY_OK, SY_INVALID}));
    const Status ended = device.Synchronize(late);
    if (!ended.ok() && ended.code() != absl::StatusCode::kInvalidArgument) return ended;
    SY_RETURN_IF_ERROR(timeline->ExpectCount(5, "after a stream's signal to what the count had already"));
  }
  SY_RETURN_IF_ERROR(timeline->SignalOn(first, 6));
  SY_RETURN_IF_ERROR(timeline->Wait(6));
  return timeline->ExpectCount(6, "after a later signal");
}

const sy_semaphore_v1* SemaphoresOf(const Plugin& plugin) { return plugin.Interface<sy_semaphore_v1>("semaphore/1"); }

}  // namespace

void CheckSemaphores(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed) {
  const sy_semaphore_v1* const api = SemaphoresOf(plugin);
  const auto run = [&](const char* name, bool streams, auto check) {
    recorder.Run(std::string("semaphore/") + name, [&]() -> Status {
      if (api == nullptr) return Unimplemented("no semaphore/1: host work is waited for by the host");
      if (streams && !device.async()) return Unimplemented(kSynchronous);
      // A driver may lack what it takes: then create says so.
      sy_semaphore* handle = nullptr;
      sy_error error = EmptyError();
      const sy_status status = api->create(device.handle(), nullptr, &handle, &error);
      if (status == SY_OK) api->destroy(device.handle(), handle);
      SY_RETURN_IF_ERROR(status == SY_OK ? OkStatus() : FromAbi(status, error, "create"));
      return check();
    });
  };
  run("host", false, [&] { return CheckHostCount(device, *api); });
  run("no_streams", false, [&] { return CheckNoStreams(device, *api); });
  run("timeout", false, [&] { return CheckTimeout(device, *api); });
  run("stream_to_host", true, [&] { return CheckStreamToHost(device, *api, seed); });
  run("host_to_stream", true, [&] { return CheckHostToStream(device, *api, seed); });
  run("between_streams", true, [&] { return CheckBetweenStreams(device, *api, seed); });
  run("several_waiters", false, [&] { return CheckSeveralWaiters(device, *api); });
  run("never_falls", true, [&] { return CheckNeverFalls(device, *api); });
  run("threads", false, [&] { return CheckSemaphoreThreads(device, *api); });
  run("destroy", false, [&] { return CheckDestroy(device, *api); });
}

Status RunFailedSignal(const Plugin& plugin, const nlohmann::json& task) {
  const sy_semaphore_v1* const api = SemaphoresOf(plugin);
  if (api == nullptr) return Unimplemented("no semaphore/1: host work is waited for by the host");
  SY_ASSIGN_OR_RETURN(const auto device, Device::Open(plugin, task.value("device", 0), {}));
  if (!device->async()) return Unimplemented(kSynchronous);
  SY_ASSIGN_OR_RETURN(const Stream waiting, device->NewStream());
  SY_ASSIGN_OR_RETURN(const auto failing, FailingStream::Make(*device));
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(*device, *api));
  SY_RETURN_IF_ERROR(timeline->HoldUp(waiting, 1));
  SY_RETURN_IF_ERROR(failing->Fail());
  // Whoever has seen the failure already refuses, and then nobody was promised anything.
  sy_error error = EmptyError();
  const sy_status promised =
      api->stream_signal(device->handle(), failing->stream().handle(), timeline->handle(), 1, &error);
  if (promised != SY_OK) return OkStatus();
  const auto start = Clock::now();
  error = EmptyError();
  const sy_status waited = api->wait(device->handle(), timeline->handle(), 1, kPatienceMs, &error);
  const std::chrono::duration<double, std::milli> taken = Clock::now() - start;
  if (waited == SY_OK && device->Synchronize(failing->stream()).ok())
    return Unimplemented("neither a copy beyond the end of a buffer nor memory that was freed is noticed");
  if (waited == SY_OK) return Internal("a wait for what a failed stream was to raise ended well");
  if (waited == SY_TIMEOUT || taken.count() > kPatienceMs / 2.0) {
    return Internal("nobody lets go of who waits for what a failed stream was to raise: status {} after {:.0f} ms",
                    waited, taken.count());
  }
  const Status first = device->Synchronize(failing->stream()), second = device->Synchronize(waiting);
  if (FromAbi(waited, error, "").code() != first.code()) {
    return Internal("the stream failed with \"{}\", and who waited for its signal was told status {}, {}",
                    Message(first), waited, error.message);
  }
  return second.ok() ? Internal("a stream that waits for what a failed stream was to raise has not failed")
                     : OkStatus();
}

}  // namespace switchyard::conform
