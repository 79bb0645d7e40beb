#include "tools/conform/device_checks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/random.h"
#include "tools/conform/failing_stream.h"
#include "tools/conform/given_struct.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/op_data.h"
#include "tools/conform/op_run.h"
#include "tools/conform/own_process.h"

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;

Status CheckInfo(const Device& device) {
  const DeviceInfo& info = device.info();
  if (info.name.empty()) return Internal("the device has no name");
  if (info.memory_bytes == 0) return Internal("memory_bytes is 0");
  if (info.free_bytes > info.memory_bytes) {
    return Internal("{} bytes are free of {}", info.free_bytes, info.memory_bytes);
  }
  if (device.has_kernels() && info.dtypes == 0) return Internal("it has kernels, but for no dtype");
  return OkStatus();
}

// A line that stays as it is, whoever asks again and whatever is opened and closed.
Status CheckLibraries(const Plugin& plugin, const Device& device) {
  const auto query = [&](sy_device_info* info) -> Status {
    *info = {SY_HEADER(sy_device_info)};
    return ExpectStatus(device.api()->query(plugin.table().instance, device.info().index, info, nullptr), {SY_OK},
                        "query");
  };
  sy_device_info first{}, second{};
  SY_RETURN_IF_ERROR(query(&first));
  if (first.libraries == nullptr) return Unimplemented("it says nothing of the libraries under it");
  SY_RETURN_IF_ERROR(ExpectLibraries(first.libraries));
  const std::string said = first.libraries;
  if (const auto opened = Device::Open(plugin, device.info().index, {}); !opened.ok()) return opened.status();
  SY_RETURN_IF_ERROR(query(&second));
  if (second.libraries == nullptr || said != first.libraries || said != second.libraries)
    return Internal("libraries was \"{}\" and has become \"{}\"", said, Printable(first.libraries));
  return OkStatus();
}

// Devices that are opened and closed again keep neither descriptors nor threads; the first few rounds may.
Status CheckReopening(const Plugin& plugin, int index) {
  constexpr int kRounds = 12, kSettled = 4;
  uint64_t descriptors = 0, threads = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kSettled) {
      descriptors = OpenDescriptors();
      threads = Threads();
    }
    auto device = Device::Open(plugin, index, {});
    if (!device.ok()) return device.status();
    SY_ASSIGN_OR_RETURN(const Buffer buffer, (*device)->Allocate(100));
    SY_ASSIGN_OR_RETURN(const Stream stream, (*device)->NewStream());
  }
  if (OpenDescriptors() >= descriptors + kRounds - kSettled) {
    return Internal("{} rounds of open and close kept {} file descriptors", kRounds - kSettled,
                    OpenDescriptors() - descriptors);
  }
  if (Threads() >= threads + kRounds - kSettled) {
    return Internal("{} rounds of open and close kept {} threads", kRounds - kSettled, Threads() - threads);
  }
  return OkStatus();
}

// Host → device at an odd offset, device → device to another, device → host; what lies around stays as it was.
Status CheckCopies(Device& device, uint64_t seed) {
  constexpr uint64_t kRoom = 16;
  for (const uint64_t bytes : {0, 1, 3, 7, 63, 64, 65, 255, 4095, 4097, 65536, (1 << 20) + 3}) {
    for (const uint64_t offset : {0, 1, 5, 16}) {
      const Bytes data = RandomBytes(bytes, Key(seed, bytes, offset));
      const Bytes background(bytes + 2 * kRoom, 0x3C);
      SY_ASSIGN_OR_RETURN(const Buffer first, device.Allocate(background.size()));
      SY_ASSIGN_OR_RETURN(const Buffer second, device.Allocate(background.size()));
      SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
      SY_RETURN_IF_ERROR(device.Copy(stream, second.at(0), HostPlace(background.data()), background.size()));
      SY_RETURN_IF_ERROR(device.Copy(stream, first.at(offset), HostPlace(data.data()), bytes));
      SY_RETURN_IF_ERROR(device.Copy(stream, second.at(kRoom - offset), first.at(offset), bytes));
      Bytes found(background.size());
      SY_RETURN_IF_ERROR(device.Copy(stream, HostPlace(found.data()), second.at(0), found.size()));
      SY_RETURN_IF_ERROR(device.Synchronize(stream));
      Bytes expected = background;
      std::copy(data.begin(), data.end(), expected.begin() + static_cast<ptrdiff_t>(kRoom - offset));
      if (found == Bytes(found.size()))
        return Internal("a copy of {} bytes from the device wrote nothing: it, or the copies before it, did not happen",
                        found.size());
      if (found != expected) return Internal("a copy of {} bytes at offset {} arrived changed", bytes, offset);
    }
  }
  return OkStatus();
}

Status CheckFill(Device& device) {
  if (device.api()->fill == nullptr) return Unimplemented("no fill: the core copies a pattern instead");
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(4099));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_RETURN_IF_ERROR(device.Fill(stream, buffer.at(0), 0x11, 4099));
  SY_RETURN_IF_ERROR(device.Fill(stream, buffer.at(3), 0xEE, 4093));
  SY_RETURN_IF_ERROR(device.Fill(stream, buffer.at(7), 0x22, 0));
  Bytes found(4099), expected(4099, 0xEE);
  std::fill(expected.begin(), expected.begin() + 3, 0x11);
  std::fill(expected.end() - 3, expected.end(), 0x11);
  SY_RETURN_IF_ERROR(device.Copy(stream, HostPlace(found.data()), buffer.at(0), found.size()));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  return found == expected ? OkStatus() : Internal("fill did not write exactly its 4093 bytes at offset 3");
}

Status CheckAlignment(Device& device) {
  std::vector<Buffer> buffers;
  std::vector<uint64_t> addresses;
  for (const uint64_t bytes : {1, 3, 64, 100, 4097, 1}) {
    SY_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(bytes));
    SY_ASSIGN_OR_RETURN(void* const native, device.AddressOf(buffer));
    const auto address = reinterpret_cast<uint64_t>(native);
    if (address % device.info().alignment != 0) {
      return Internal("an allocation of {} bytes lies at {:#x}; the device promises alignment {}", bytes, address,
                      device.info().alignment);
    }
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end()) {
      return Internal("two live allocations have one address");
    }
    addresses.push_back(address);
    buffers.push_back(std::move(buffer));
  }
  return OkStatus();
}

Status CheckOutOfMemory(Device& device) {
  for (const uint64_t bytes :
       {device.info().memory_bytes + (uint64_t{1} << 30), uint64_t{1} << 62, UINT64_MAX - 4096}) {
    sy_error error = EmptyError();
    sy_buffer* buffer = nullptr;  // not by Device::Allocate, which keeps too large ones from the plugin
    const sy_status status = device.api()->alloc(device.handle(), bytes, nullptr, &buffer, &error);
    if (status == SY_OK) device.api()->free(device.handle(), buffer);
    if (status != SY_OUT_OF_MEMORY) {
      return Internal("an allocation of {} bytes on a device of {}: expected out of memory, found: {}", bytes,
                      device.info().memory_bytes,
                      status == SY_OK ? "success" : Message(FromAbi(status, error, "alloc")));
    }
  }
  SY_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(1 << 20));
  const Bytes data = RandomBytes(1 << 20, 5);
  Bytes found(data.size());
  SY_RETURN_IF_ERROR(device.Upload(buffer.at(0), data.data(), data.size()));
  SY_RETURN_IF_ERROR(device.Download(found.data(), buffer.at(0), found.size()));
  return found == data ? OkStatus() : Internal("after out of memory a copy arrived changed");
}

// Together more than the device has: memory that is not given back runs out.
Status CheckFreeing(Device& device) {
  const DeviceInfo& info = device.info();
  const uint64_t room = info.free_bytes > 0 ? info.free_bytes : info.memory_bytes;
  const uint64_t bytes = std::max<uint64_t>(1, std::min(info.largest_allocation, room) / 3);
  for (int round = 0; round < 8; ++round) {
    auto buffer = device.Allocate(bytes);
    if (!buffer.ok())
      return Annotate(buffer.status(), fmt::format("allocation {} of {} bytes, each freed", round, bytes));
  }
  for (int round = 0; round < 2000; ++round) {
    auto buffer = device.Allocate(1 + 97 * static_cast<uint64_t>(round) % 10000);
    if (!buffer.ok()) return buffer.status();
  }
  return OkStatus();
}

// Host memory that buffers, streams, events and prepared kernels keep.
Status CheckHostLeaks(Device& device, uint64_t seed) {
  constexpr uint64_t kRounds = 4000, kAllowedBytesPerRound = 64;
  const OpCase& one = OpCases().front();
  const Problem problem = MakeProblem(one, SY_F32, seed);
  uint64_t before = 0;
  for (uint64_t round = 0; round < 2 * kRounds; ++round) {
    if (round == kRounds) before = ResidentBytes();
    SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
    SY_ASSIGN_OR_RETURN(const Event event, device.NewEvent());
    const auto buffer = device.Allocate(256);
    if (!buffer.ok()) return buffer.status();
    auto kernel = PrepareOp(device, problem);
    if (kernel.status().code() == absl::StatusCode::kUnimplemented) continue;
    if (!kernel.ok()) return kernel.status();
  }
  const uint64_t after = ResidentBytes();
  const uint64_t allowed = kRounds * kAllowedBytesPerRound + (1 << 19);
  if (after > before + allowed) {
    return Internal("{} rounds of allocation, preparation, streams and events, all released, kept {} bytes", kRounds,
                    after - before);
  }
  return OkStatus();
}

Status CheckThreads(Device& device, uint64_t seed) {
  constexpr int kThreads = 4, kRounds = 40;
  std::vector<Status> results(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      results[t] = [&]() -> Status {
        SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
        for (int round = 0; round < kRounds; ++round) {
          const Bytes data = RandomBytes(1000 + 37 * static_cast<uint64_t>(round), Key(seed, t, round));
          SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(data.size()));
          SY_RETURN_IF_ERROR(device.Copy(stream, buffer.at(0), HostPlace(data.data()), data.size()));
          Bytes found(data.size());
          SY_RETURN_IF_ERROR(device.Copy(stream, HostPlace(found.data()), buffer.at(0), found.size()));
          SY_RETURN_IF_ERROR(device.Synchronize(stream));
          if (found != data) return Internal("thread {} round {}: a copy arrived changed", t, round);
        }
        return OkStatus();
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) SY_RETURN_IF_ERROR(status);
  return OkStatus();
}

// A chain of copies through several buffers without any wait but the last.
Status CheckStreamOrder(Device& device, uint64_t seed) {
  constexpr uint64_t kBytes = 100003;
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream(1));
  std::vector<Buffer> buffers;
  for (int i = 0; i < 9; ++i) {
    SY_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(kBytes));
    buffers.push_back(std::move(buffer));
  }
  const Bytes data = RandomBytes(kBytes, seed);
  Bytes found(kBytes);
  SY_RETURN_IF_ERROR(device.Copy(stream, buffers[0].at(0), HostPlace(data.data()), kBytes));
  for (size_t i = 1; i < buffers.size(); ++i) {
    SY_RETURN_IF_ERROR(device.Copy(stream, buffers[i].at(0), buffers[i - 1].at(0), kBytes));
  }
  SY_RETURN_IF_ERROR(device.Copy(stream, HostPlace(found.data()), buffers.back().at(0), kBytes));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  return found == data ? OkStatus() : Internal("work on one stream did not run in order");
}

// Two streams that pass one buffer to and fro by events.
Status CheckEvents(Device& device, uint64_t seed) {
  constexpr uint64_t kBytes = 65537, kLoad = 1 << 20;
  SY_ASSIGN_OR_RETURN(const Stream first, device.NewStream());
  SY_ASSIGN_OR_RETURN(const Stream second, device.NewStream());
  SY_ASSIGN_OR_RETURN(const Buffer shared, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(Event written, device.NewEvent());
  SY_ASSIGN_OR_RETURN(Event read, device.NewEvent());
  constexpr int kRounds = 20;
  std::vector<Bytes> sent, found(kRounds, Bytes(kBytes));
  for (int round = 0; round < kRounds; ++round) sent.push_back(RandomBytes(kBytes, Key(seed, round)));
  // Work that makes now the writer late, now the reader, so that one that does not wait for it is seen.
  SY_ASSIGN_OR_RETURN(const Buffer load, device.Allocate(kLoad));
  SY_ASSIGN_OR_RETURN(const Buffer unload, device.Allocate(kLoad));
  const auto delay = [&](const Stream& stream) -> Status {
    for (int i = 0; i < 4; ++i) SY_RETURN_IF_ERROR(device.Copy(stream, unload.at(0), load.at(0), kLoad));
    return OkStatus();
  };
  for (int round = 0; round < kRounds; ++round) {
    // In the first round it was never recorded, and holds nothing up.
    SY_RETURN_IF_ERROR(Annotate(read.Before(first), fmt::format("stream_wait of round {}", round)));
    if (round % 2 == 0) SY_RETURN_IF_ERROR(delay(first));
    SY_RETURN_IF_ERROR(device.Copy(first, shared.at(0), HostPlace(sent[round].data()), kBytes));
    SY_RETURN_IF_ERROR(written.Record(first));
    SY_RETURN_IF_ERROR(written.Before(second));
    if (round % 2 == 1) SY_RETURN_IF_ERROR(delay(second));
    SY_RETURN_IF_ERROR(device.Copy(second, HostPlace(found[round].data()), shared.at(0), kBytes));
    SY_RETURN_IF_ERROR(read.Record(second));
  }
  SY_RETURN_IF_ERROR(read.Wait());
  SY_ASSIGN_OR_RETURN(const bool done, read.Done());
  if (!done) return Internal("event_query says in progress after event_synchronize");
  for (int round = 0; round < kRounds; ++round) {
    if (found[round] != sent[round]) return Internal("round {}: stream_wait did not wait", round);
  }
  return OkStatus();
}

// An event recorded on a busy stream and on an idle one, in either order: each record is a point of its own stream. Who
// was made to wait before the second record waits for the first, who was made to after it, and who asks, for the
// second. Copies are within the device: those of host memory may wait for the stream.
Status CheckEventsRecordedAnew(Device& device, uint64_t seed) {
  constexpr uint64_t kBytes = 65537, kLoad = 4 << 20;
  constexpr int kRounds = 4, kCopiesOfLoad = 32;
  struct Side {
    Stream writer, reader;
    Buffer source, shared, destination;
  } busy, idle;
  for (Side* side : {&busy, &idle}) {
    SY_ASSIGN_OR_RETURN(side->writer, device.NewStream());
    SY_ASSIGN_OR_RETURN(side->reader, device.NewStream());
    for (Buffer* buffer : {&side->source, &side->shared, &side->destination}) {
      SY_ASSIGN_OR_RETURN(*buffer, device.Allocate(kBytes));
    }
  }
  SY_ASSIGN_OR_RETURN(const Buffer load, device.Allocate(kLoad));
  SY_ASSIGN_OR_RETURN(const Buffer unload, device.Allocate(kLoad));
  SY_ASSIGN_OR_RETURN(Event event, device.NewEvent());
  for (int round = 0; round < kRounds; ++round) {
    const bool busy_first = round % 2 == 0, polls = round >= kRounds / 2;
    const Side& first = busy_first ? busy : idle;
    const Side& second = busy_first ? idle : busy;
    const Bytes sent = RandomBytes(kBytes, Key(seed, round));
    for (const Side* side : {&first, &second})
      SY_RETURN_IF_ERROR(device.Upload(side->source.at(0), sent.data(), kBytes));
    for (int i = 0; i < kCopiesOfLoad; ++i)
      SY_RETURN_IF_ERROR(device.Copy(busy.writer, unload.at(0), load.at(0), kLoad));
    for (const Side* side : {&first, &second}) {
      SY_RETURN_IF_ERROR(device.Copy(side->writer, side->shared.at(0), side->source.at(0), kBytes));
      SY_RETURN_IF_ERROR(event.Record(side->writer));
      SY_RETURN_IF_ERROR(event.Before(side->reader));
      SY_RETURN_IF_ERROR(device.Copy(side->reader, side->destination.at(0), side->shared.at(0), kBytes));
    }
    if (polls) {
      for (bool done = false; !done;) {
        SY_ASSIGN_OR_RETURN(done, event.Done());
      }
    } else {
      SY_RETURN_IF_ERROR(event.Wait());
    }
    Bytes asked(kBytes), before(kBytes), after(kBytes);
    SY_RETURN_IF_ERROR(device.Download(asked.data(), second.shared.at(0), kBytes));
    for (const Side* side : {&busy, &idle}) {
      SY_RETURN_IF_ERROR(device.Synchronize(side->writer));
      SY_RETURN_IF_ERROR(device.Synchronize(side->reader));
    }
    SY_RETURN_IF_ERROR(device.Download(before.data(), first.destination.at(0), kBytes));
    SY_RETURN_IF_ERROR(device.Download(after.data(), second.destination.at(0), kBytes));
    const auto when = fmt::format("round {}, recorded on a busy stream {}", round, busy_first ? "first" : "last");
    if (before != sent)
      return Internal("{}: stream_wait did not wait for the record that was the latest when it was called", when);
    if (after != sent) return Internal("{}: stream_wait did not wait for the latest record", when);
    if (asked != sent) {
      return Internal("{}: {} does not speak of the latest record", when, polls ? "event_query" : "event_synchronize");
    }
    SY_ASSIGN_OR_RETURN(const bool done, event.Done());
    if (!done) return Internal("{}: event_query says in progress after both streams have finished", when);
  }
  return OkStatus();
}

// So many copies that they take a while, and the calls for them a small part of it.
Status CheckNonBlocking(Device& device) {
  constexpr uint64_t kBytes = 4 << 20;
  constexpr double kAWhile = 30;  // ms
  SY_ASSIGN_OR_RETURN(const Buffer first, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(const Buffer second, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_ASSIGN_OR_RETURN(Event event, device.NewEvent());
  for (int copies = 40; copies < 10000; copies *= 4) {
    const auto start = Clock::now();
    for (int i = 0; i < copies; ++i) SY_RETURN_IF_ERROR(device.Copy(stream, second.at(0), first.at(0), kBytes));
    SY_RETURN_IF_ERROR(event.Record(stream));
    const std::chrono::duration<double, std::milli> enqueued = Clock::now() - start;
    SY_RETURN_IF_ERROR(event.Wait());
    const std::chrono::duration<double, std::milli> finished = Clock::now() - start;
    if (finished.count() < kAWhile) continue;
    if (enqueued.count() <= 0.8 * finished.count()) return OkStatus();
    return Internal("{} copies took {:.1f} ms, and the calls blocked the host for {:.1f} ms of them", copies,
                    finished.count(), enqueued.count());
  }
  return OkStatus();
}

// Without a stream a copy has finished on return.
Status CheckCopyWithoutStream(Device& device, uint64_t seed) {
  constexpr uint64_t kBytes = 1 << 20;
  SY_ASSIGN_OR_RETURN(const Buffer first, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(const Buffer second, device.Allocate(kBytes));
  for (int round = 0; round < 3; ++round) {
    const Bytes data = RandomBytes(kBytes, Key(seed, round));
    Bytes gone = data, found(kBytes);
    SY_RETURN_IF_ERROR(device.Copy(Stream(), first.at(0), HostPlace(gone.data()), kBytes));
    std::fill(gone.begin(), gone.end(), 0);
    SY_RETURN_IF_ERROR(device.Copy(Stream(), second.at(0), first.at(0), kBytes));
    SY_RETURN_IF_ERROR(device.Copy(Stream(), HostPlace(found.data()), second.at(0), kBytes));
    if (found != data) return Internal("a copy without a stream had not finished when it returned");
  }
  return OkStatus();
}

// alloc, free and event_query of one thread while another is blocked in synchronize.
Status CheckCallsDuringAWait(Device& device) {
  constexpr uint64_t kBytes = 8 << 20;
  SY_ASSIGN_OR_RETURN(const Buffer first, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(const Buffer second, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_ASSIGN_OR_RETURN(Event event, device.NewEvent());
  for (int i = 0; i < 30; ++i) SY_RETURN_IF_ERROR(device.Copy(stream, second.at(0), first.at(0), kBytes));
  SY_RETURN_IF_ERROR(event.Record(stream));
  std::atomic<bool> waited{false};
  Status result;
  std::thread waiter([&] {
    result = device.Synchronize(stream);
    waited = true;
  });
  Status meanwhile;
  do {
    const auto buffer = device.Allocate(4096);
    meanwhile = buffer.status();
    if (const auto done = event.Done(); meanwhile.ok()) meanwhile = done.status();
  } while (meanwhile.ok() && !waited);
  waiter.join();
  SY_RETURN_IF_ERROR(Annotate(meanwhile, "alloc or event_query while another thread waits"));
  SY_RETURN_IF_ERROR(result);
  SY_ASSIGN_OR_RETURN(const bool done, event.Done());
  return done ? OkStatus() : Internal("an event is not done though its stream was waited for");
}

}  // namespace

void CheckDevice(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed) {
  recorder.Run("device/info", [&] { return CheckInfo(device); });
  recorder.Run("device/libraries", [&] { return CheckLibraries(plugin, device); });
  recorder.Run("device/reopening", [&] { return CheckReopening(plugin, device.info().index); });
  recorder.Run("device/copies", [&] { return CheckCopies(device, seed); });
  recorder.Run("device/fill", [&] { return CheckFill(device); });
  recorder.Run("device/alignment", [&] { return CheckAlignment(device); });
  recorder.Run("device/out_of_memory", [&] { return CheckOutOfMemory(device); });
  recorder.Run("device/freeing", [&] { return CheckFreeing(device); });
  recorder.Run("device/host_leaks", [&] { return CheckHostLeaks(device, seed); });
  recorder.Run("device/threads", [&] { return CheckThreads(device, seed); });
}

void CheckAsync(Recorder& recorder, Device& device, uint64_t seed) {
  const auto async = [&](const char* name, auto check) {
    recorder.Run(std::string("async/") + name,
                 [&]() -> Status { return device.async() ? check() : Unimplemented(kSynchronous); });
  };
  async("stream_order", [&] { return CheckStreamOrder(device, seed); });
  async("events", [&] { return CheckEvents(device, seed); });
  async("events_recorded_anew", [&] { return CheckEventsRecordedAnew(device, seed); });
  async("non_blocking", [&] { return CheckNonBlocking(device); });
  async("copy_without_stream", [&] { return CheckCopyWithoutStream(device, seed); });
  async("calls_during_a_wait", [&] { return CheckCallsDuringAWait(device); });
}

Status RunStickyError(const Plugin& plugin, const nlohmann::json& task) {
  SY_ASSIGN_OR_RETURN(const auto opened, Device::Open(plugin, task.value("device", 0), {}));
  Device& device = *opened;
  SY_ASSIGN_OR_RETURN(const auto failing, FailingStream::Make(device));
  const Stream& stream = failing->stream();
  if (const Status planted = failing->Fail(); !planted.ok()) {
    const bool noticed_at_the_call = planted.code() == absl::StatusCode::kUnimplemented;
    return noticed_at_the_call ? OkStatus() : planted;
  }
  const Status first = device.Synchronize(stream), second = device.Synchronize(stream);
  if (first.ok())
    return Unimplemented("neither a copy beyond the end of a buffer nor memory that was freed is noticed");
  if (second.ok()) return Internal("a failed stream forgot its error: {}", Message(first));
  if (Message(second) != Message(first)) {
    return Internal("the first error did not stay: \"{}\", then \"{}\"", Message(first), Message(second));
  }
  // What stays failed may be the whole device; then it says so, and makes nothing new.
  auto event = device.NewEvent();
  if (first.code() == absl::StatusCode::kUnavailable && event.status().code() == first.code()) return OkStatus();
  if (!event.ok()) return event.status();
  if (event->Record(stream).ok() && event->Wait().ok()) return Internal("an event of a failed stream has no error");
  SY_ASSIGN_OR_RETURN(const Stream other, device.NewStream());
  const Bytes data(64);
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(data.size()));
  // Recorded anew where nothing failed, the event is as good as new.
  Status unharmed = event->Record(other);
  if (unharmed.ok()) unharmed = event->Before(other);
  if (unharmed.ok()) unharmed = event->Wait();
  if (unharmed.ok()) unharmed = device.Copy(other, buffer.at(0), HostPlace(data.data()), data.size());
  if (unharmed.ok()) unharmed = device.Synchronize(other);
  const bool lost = first.code() == absl::StatusCode::kUnavailable && unharmed.code() == absl::StatusCode::kUnavailable;
  return lost ? OkStatus() : Annotate(unharmed, "another stream");
}

}  // namespace switchyard::conform
