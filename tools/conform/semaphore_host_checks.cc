#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "tools/conform/own_process.h"
#include "tools/conform/semaphore_checks.h"
#include "tools/conform/timeline.h"

namespace switchyard::conform {
Status CheckHostCount(Device& device, const sy_semaphore_v1& api) {
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  SY_RETURN_IF_ERROR(timeline->ExpectCount(0, "a new semaphore"));
  SY_RETURN_IF_ERROR(timeline->Wait(0, 0));
  SY_RETURN_IF_ERROR(timeline->Signal(0, {SY_INVALID}));
  uint64_t last = 0;
  for (const uint64_t value : {uint64_t{1}, uint64_t{2}, uint64_t{7}, uint64_t{1} << 33, kHighestCount - 1}) {
    SY_RETURN_IF_ERROR(timeline->Signal(value));
    SY_RETURN_IF_ERROR(timeline->ExpectCount(value, "after a signal"));
    for (const uint64_t reached : {uint64_t{0}, last, value}) SY_RETURN_IF_ERROR(timeline->Wait(reached, 0));
    for (const uint64_t refused : {value, last, value - 1}) {
      SY_RETURN_IF_ERROR(timeline->Signal(refused, {SY_INVALID}));
    }
    SY_RETURN_IF_ERROR(timeline->ExpectCount(value, "after a signal that was refused"));
    last = value;
  }
  return OkStatus();
}

Status CheckNoStreams(Device& device, const sy_semaphore_v1& api) {
  if (device.async()) return Unimplemented("it has streams");
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  SY_RETURN_IF_ERROR(timeline->SignalOn(Stream(), 1, {SY_UNSUPPORTED}));
  SY_RETURN_IF_ERROR(timeline->HoldUp(Stream(), 1, {SY_UNSUPPORTED}));
  return timeline->ExpectCount(0, "after calls that were refused");
}

Status CheckTimeout(Device& device, const sy_semaphore_v1& api) {
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  SY_RETURN_IF_ERROR(timeline->Signal(3));
  for (const uint64_t limit_ms : {0, 30}) {
    const auto start = std::chrono::steady_clock::now();
    SY_RETURN_IF_ERROR(timeline->Wait(4, limit_ms, {SY_TIMEOUT}));
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    if (taken.count() < static_cast<double>(limit_ms) - 1 || taken.count() > kPatienceMs / 2.0) {
      return Internal("a wait of at most {} ms took {:.1f} ms", limit_ms, taken.count());
    }
  }
  return timeline->ExpectCount(3, "after waits that timed out");
}

// Threads and streams that wait for several values: each goes on at its own.
Status CheckSeveralWaiters(Device& device, const sy_semaphore_v1& api) {
  constexpr size_t kEach = 3;
  std::array<Event, kEach> events;
  std::array<Stream, kEach> streams;
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  for (size_t i = 0; i < kEach && device.async(); ++i) {
    SY_ASSIGN_OR_RETURN(events[i], device.NewEvent());
    SY_ASSIGN_OR_RETURN(streams[i], device.NewStream());
    SY_RETURN_IF_ERROR(timeline->HoldUp(streams[i], i + 1));
    SY_RETURN_IF_ERROR(events[i].Record(streams[i]));
  }
  std::array<Status, kEach> results;
  std::array<std::atomic<bool>, kEach> gone{};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kEach; ++i) {
    threads.emplace_back([&, i] {
      results[i] = Caught([&] { return timeline->Wait(i + 1); });
      gone[i] = true;
    });
  }
  const auto left_waiting = [&](size_t first) -> Status {
    std::this_thread::sleep_for(kLongEnough);
    for (size_t i = first; i < kEach; ++i) {
      if (gone[i]) return Internal("a thread that waits for {} went on at {}", i + 1, first);
      if (!device.async()) continue;
      SY_ASSIGN_OR_RETURN(const bool done, events[i].Done());
      if (done) return Internal("a stream that waits for {} went on at {}", i + 1, first);
    }
    return OkStatus();
  };
  Status status = left_waiting(0);
  if (status.ok()) status = timeline->Signal(1);
  if (status.ok()) status = left_waiting(1);
  const auto raised = std::chrono::steady_clock::now();
  if (status.ok()) status = timeline->Signal(kEach);
  if (!status.ok()) (void)timeline->Raise(kHighestCount, nullptr);
  for (std::thread& thread : threads) thread.join();
  SY_RETURN_IF_ERROR(status);
  for (const Status& result : results) SY_RETURN_IF_ERROR(result);
  for (size_t i = 0; i < kEach && device.async(); ++i) SY_RETURN_IF_ERROR(events[i].Wait());
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - raised;
  if (taken.count() < kPatienceMs / 2.0) return OkStatus();
  return Internal("those who waited went on {:.0f} ms after the count was there", taken.count());
}

// Threads that raise the count to every number, of which the first succeeds, while others watch and wait.
Status CheckSemaphoreThreads(Device& device, const sy_semaphore_v1& api) {
  constexpr uint64_t kLast = 300;
  constexpr int kRaisers = 3, kWatchers = 2;
  SY_ASSIGN_OR_RETURN(const auto timeline, Timeline::Make(device, api));
  std::atomic<uint64_t> raised{0};
  std::vector<Status> results(kRaisers + kWatchers);
  std::vector<std::thread> threads;
  for (int t = 0; t < kRaisers; ++t) {
    threads.emplace_back([&, t] {
      results[t] = Caught([&]() -> Status {
        for (uint64_t value = 1; value <= kLast; ++value) {
          const sy_status status = timeline->Raise(value, nullptr);
          SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK, SY_INVALID}, "signal"));
          raised += status == SY_OK;
        }
        return OkStatus();
      });
    });
  }
  for (int t = 0; t < kWatchers; ++t) {
    threads.emplace_back([&, t] {
      results[kRaisers + t] = Caught([&]() -> Status {
        uint64_t last = 0;
        while (last < kLast) {
          SY_RETURN_IF_ERROR(timeline->Wait(last + 1));
          SY_ASSIGN_OR_RETURN(const uint64_t count, timeline->Count());
          if (count <= last) return Internal("the count is {} after a wait for {}", count, last + 1);
          last = count;
        }
        return OkStatus();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) SY_RETURN_IF_ERROR(result);
  if (raised != kLast) return Internal("threads raised a count to each of {} numbers {} times", kLast, raised.load());
  return timeline->ExpectCount(kLast, "after signals of several threads");
}

// What is destroyed leaves nothing behind, and harms no other.
Status CheckDestroy(Device& device, const sy_semaphore_v1& api) {
  constexpr int kRounds = 200, kSettled = 20;
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_ASSIGN_OR_RETURN(const auto survivor, Timeline::Make(device, api));
  uint64_t descriptors = 0, threads = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kSettled) {
      descriptors = OpenDescriptors();
      threads = Threads();
    }
    sy_semaphore* handle = nullptr;
    SY_RETURN_IF_ERROR(ExpectStatus(api.create(device.handle(), nullptr, &handle, nullptr), {SY_OK}, "create"));
    if (round % 2 == 1 && device.async()) {
      (void)api.stream_signal(device.handle(), stream.handle(), handle, 1, nullptr);
      (void)api.stream_wait(device.handle(), stream.handle(), handle, 1, nullptr);
      SY_RETURN_IF_ERROR(device.Synchronize(stream));
    }
    api.destroy(device.handle(), handle);
  }
  if (OpenDescriptors() >= descriptors + kRounds - kSettled) {
    return Internal("{} semaphores, all destroyed, kept {} file descriptors", kRounds - kSettled,
                    OpenDescriptors() - descriptors);
  }
  if (Threads() >= threads + kRounds - kSettled) {
    return Internal("{} semaphores, all destroyed, kept {} threads", kRounds - kSettled, Threads() - threads);
  }
  SY_RETURN_IF_ERROR(survivor->Signal(1));
  return survivor->ExpectCount(1, "after others were destroyed");
}

}  // namespace switchyard::conform
