// The npu plugin on the simulator: what device/2 promises of an asynchronous, opaque device, and what kernels say when
// the runtime refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/backends/backend.h"
#include "tests/npu/simulator_path.h"

namespace switchyard::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NpuDevice : public testing::Test {
 protected:
  NpuDevice() { setenv("SWITCHYARD_NPU_RUNTIME", SimulatorPath().c_str(), 1); }
  // Settings of the simulator, which reads them when a stream is made.
  void Open(const char* delay_us = "0", const char* fail_at = "0") {
    setenv("SWITCHYARD_NPU_SIMULATOR_DELAY_US", delay_us, 1);
    setenv("SWITCHYARD_NPU_SIMULATOR_FAIL_AT", fail_at, 1);
    backend_ = std::make_unique<Backend>("npu");
  }
  sy_instance* instance() { return backend_->instance(); }
  const sy_device_v2& api() { return backend_->api(); }
  sy_device* device() { return backend_->device(); }
  sy_stream* stream() { return backend_->stream(); }
  sy_error* error() { return backend_->error(); }
  const sy_memory_ext_v2& memory() { return *backend_->Interface<sy_memory_ext_v2>("memory_ext/2"); }

  sy_buffer* Allocate(uint64_t bytes) {
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(api().alloc(device(), bytes, nullptr, &buffer, error()), SY_OK) << backend_->message();
    return buffer;
  }
  sy_status Copy(sy_stream* stream, sy_place to, sy_place from, uint64_t bytes) {
    return api().copy(device(), stream, to, from, bytes, nullptr, error());
  }
  sy_device_info Info(int32_t index) {
    sy_device_info info{SY_HEADER(sy_device_info)};
    EXPECT_EQ(api().query(instance(), index, &info, error()), SY_OK) << backend_->message();
    return info;
  }
  // Host memory that queued copies do not wait for; from other memory they block, as the runtime documents.
  struct Pinned {
    Pinned(NpuDevice& test, int32_t value) : of(test) {
      void* address = nullptr;
      EXPECT_EQ(of.memory().host_alloc(of.device(), sizeof value, &address, of.error()), SY_OK);
      number = new (address) int32_t(value);
    }
    ~Pinned() { of.memory().host_free(of.device(), number); }
    NpuDevice& of;
    int32_t* number;
  };
  static sy_place At(sy_buffer* buffer, uint64_t offset = 0) { return {buffer, nullptr, offset}; }
  static sy_place Host(void* address) { return {nullptr, address, 0}; }

  std::unique_ptr<Backend> backend_;
};

// Faults of the simulator are counted over a process: each has a test, and so a process, of its own.
class NpuFaults : public NpuDevice {
 protected:
  // The runtime may tell of a failure once or every time: what is seen through the plugin is the same.
  void ExpectThatAFailureStays(const char* stays) {
    setenv("SWITCHYARD_NPU_SIMULATOR_STAYS", stays, 1);
    Open("0", "1");
    sy_buffer* buffer = Allocate(4);
    ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, nullptr, error()), SY_OK);
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_INTERNAL);
      EXPECT_THAT(backend_->message(), HasSubstr("fails as it was told to"));
    }
    api().free(device(), buffer);
  }
};

TEST_F(NpuFaults, AFailureThatIsToldOnceStays) { ExpectThatAFailureStays("0"); }
TEST_F(NpuFaults, AFailureThatIsToldAlwaysStays) { ExpectThatAFailureStays("1"); }

TEST_F(NpuFaults, ALostDeviceIsSaidToBeLostAndCanBeClosed) {
  setenv("SWITCHYARD_NPU_SIMULATOR_LOST_AT", "1", 1);
  Open();
  sy_buffer *buffer = Allocate(4), *more = nullptr;
  ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, nullptr, error()), SY_OK);
  for (int again = 0; again < 2; ++again)
    EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_DEVICE_LOST) << backend_->message();
  EXPECT_EQ(api().alloc(device(), 4, nullptr, &more, error()), SY_DEVICE_LOST);
  EXPECT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, nullptr, error()), SY_DEVICE_LOST);
  api().free(device(), buffer);
}

TEST_F(NpuFaults, ADeviceThatWasOutOfMemoryGoesOn) {
  Open();
  setenv("SWITCHYARD_NPU_SIMULATOR_OUT_OF_MEMORY_AT", "1", 1);
  sy_buffer* none = nullptr;
  EXPECT_EQ(api().alloc(device(), 4, nullptr, &none, error()), SY_OUT_OF_MEMORY);
  sy_buffer* buffer = Allocate(4);
  EXPECT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, nullptr, error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_OK);
  api().free(device(), buffer);
}

TEST_F(NpuDevice, ItsRulesAreData) {
  Open();
  int32_t count = 0;
  ASSERT_EQ(api().count(instance(), &count, error()), SY_OK);
  EXPECT_EQ(count, 8);
  const sy_device_info info = Info(7);
  EXPECT_EQ(info.flags, SY_DEVICE_ASYNC | SY_DEVICE_ADJACENT_IDS);
  EXPECT_EQ(info.static_loss_scale, 1024);
  EXPECT_EQ(info.address_kind, static_cast<uint32_t>(SY_ADDRESS_OPAQUE));
  EXPECT_STREQ(info.memory_kind, "npu");
  EXPECT_NE(std::memcmp(info.uuid, Info(6).uuid, sizeof info.uuid), 0) << "two devices, two names";
}

// The runtime is bound once in a process, so each case is one of its own.
using NpuDeviceDeathTest = NpuDevice;
TEST_F(NpuDeviceDeathTest, TheToolkitIsShownInTheVersionThatItAnswers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto say = [&](const char* toolkit) {
    setenv("SWITCHYARD_NPU_SIMULATOR_MINOR_VERSION", "77", 1);
    toolkit ? setenv("SWITCHYARD_NPU_SIMULATOR_CANN", toolkit, 1) : unsetenv("SWITCHYARD_NPU_SIMULATOR_CANN");
    Open();
    std::fprintf(stderr, "it says: %s.\n", Info(0).libraries);
    std::_Exit(0);
  };
  EXPECT_EXIT(say("8.7.6"), testing::ExitedWithCode(0), "it says: CANN 8.7.6, AscendCL 1.77.0[.]");
  EXPECT_EXIT(say(nullptr), testing::ExitedWithCode(0), "it says: AscendCL 1.77.0[.]");
}

TEST_F(NpuDeviceDeathTest, TheHostFaultsWhereItFollowsADeviceAddress) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Open();
  sy_buffer* buffer = Allocate(4096);
  void* address = nullptr;
  ASSERT_EQ(memory().native_address(device(), buffer, &address, error()), SY_OK);
  EXPECT_DEATH(
      {
        const char byte = *static_cast<volatile char*>(address);
        std::_Exit(byte == 0 ? 0 : 0);
      },
      "");
  api().free(device(), buffer);
}

TEST_F(NpuDevice, MemoryOfSomebodyElseIsImportedByTheNameOfItsKind) {
  Open();
  sy_buffer *own = Allocate(64), *same = nullptr;
  void* address = nullptr;
  ASSERT_EQ(memory().native_address(device(), own, &address, error()), SY_OK);
  EXPECT_EQ(memory().import_memory(device(), address, "cuda", 64, &same, error()), SY_UNSUPPORTED);
  EXPECT_THAT(backend_->message(), HasSubstr("expected memory of kind \"npu\", found \"cuda\""));
  ASSERT_EQ(memory().import_memory(device(), address, "npu", 64, &same, error()), SY_OK) << backend_->message();
  int32_t host = 5, back = 0;
  ASSERT_EQ(Copy(nullptr, At(own, 60), Host(&host), 4), SY_OK);
  ASSERT_EQ(Copy(nullptr, Host(&back), At(same, 60), 4), SY_OK);
  EXPECT_EQ(back, 5);
  api().free(device(), same);
  ASSERT_EQ(Copy(nullptr, Host(&back), At(own, 60), 4), SY_OK) << "free only forgot it";
  api().free(device(), own);
}

class NpuPeer : public NpuDevice {
 protected:
  const sy_peer_v1& peers() { return *backend_->Interface<sy_peer_v1>("peer/1"); }
  sy_buffer* Share(uint64_t bytes) {
    sy_alloc_options options{SY_HEADER(sy_alloc_options)};
    options.exportable = 1;
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(api().alloc(device(), bytes, &options, &buffer, error()), SY_OK) << backend_->message();
    return buffer;
  }
  std::string Export(sy_buffer* buffer) {
    std::string description(SY_MEMORY_DESCRIPTION_BYTES, '\0');
    uint32_t bytes = 0;
    EXPECT_EQ(peers().export_memory(device(), buffer, description.data(), SY_MEMORY_DESCRIPTION_BYTES, &bytes, error()),
              SY_OK)
        << backend_->message();
    return description.substr(0, bytes);
  }
  sy_status Import(const std::string& description, sy_buffer** buffer) {
    return peers().import_memory(device(), description.data(), static_cast<uint32_t>(description.size()), buffer,
                                 error());
  }
};

// The kit tries what is promised; here what only this plugin says: copies are refused, not tried, once nobody knows
// what the memory is.
TEST_F(NpuPeer, TheMemoryOfAProcessThatHasEndedIsRefusedByItsWords) {
  int described[2], leave[2];
  ASSERT_EQ(pipe(described), 0);
  ASSERT_EQ(pipe(leave), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    close(leave[1]);
    Open();
    sy_buffer* const buffer = Share(3 << 20);
    int32_t value = 41;
    Copy(nullptr, At(buffer, (3 << 20) - 4), Host(&value), 4);
    const std::string description = Export(buffer);
    char byte = 0;
    const bool written = write(described[1], description.data(), description.size()) > 0;
    _exit(written && read(leave[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(described[1]);
  close(leave[0]);
  std::string description(SY_MEMORY_DESCRIPTION_BYTES, '\0');
  const ssize_t bytes = read(described[0], description.data(), description.size());
  ASSERT_GT(bytes, 0);
  description.resize(static_cast<size_t>(bytes));
  Open();
  sy_buffer *first = nullptr, *second = nullptr, *own = Allocate(8);
  ASSERT_EQ(Import(description, &first), SY_OK) << backend_->message();
  ASSERT_EQ(Import(description, &second), SY_OK) << backend_->message();
  api().free(device(), first);
  int32_t back = 0;
  ASSERT_EQ(Copy(nullptr, Host(&back), At(second, (3 << 20) - 4), 4), SY_OK) << backend_->message();
  EXPECT_EQ(back, 41);
  EXPECT_EQ(Copy(stream(), At(own), At(second, (3 << 20) - 4), 8), SY_INVALID) << "beyond the end";
  close(leave[1]);
  int status = 0;
  ASSERT_EQ(waitpid(owner, &status, 0), owner);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Copy(nullptr, Host(&back), At(second), 4), SY_INVALID);
  EXPECT_THAT(backend_->message(), HasSubstr("the process that exported this memory has ended"));
  EXPECT_EQ(Copy(stream(), At(own), At(second), 4), SY_INVALID);
  EXPECT_EQ(api().fill(device(), stream(), At(second), 1, 4, nullptr, error()), SY_INVALID);
  EXPECT_NE(Import(description, &first), SY_OK);
  api().free(device(), second);
  ASSERT_EQ(Copy(stream(), Host(&back), At(own), 4), SY_OK) << "the device goes on";
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_OK);
  api().free(device(), own);
  close(described[0]);
}

TEST_F(NpuPeer, QueuedCopiesOfAnotherDevicesMemoryKeepTheOrderOfTheirStreamAndDoNotWait) {
  Open("20000");
  sy_device* other = nullptr;
  const sy_open_options options{SY_HEADER(sy_open_options)};
  ASSERT_EQ(api().open(instance(), 1, &options, &other, error()), SY_OK) << backend_->message();
  sy_buffer* const shared = Share(64);
  const std::string description = Export(shared);
  sy_buffer* imported = nullptr;
  ASSERT_EQ(
      peers().import_memory(other, description.data(), static_cast<uint32_t>(description.size()), &imported, error()),
      SY_OK)
      << backend_->message();
  sy_stream* queue = nullptr;
  ASSERT_EQ(api().stream_create(other, nullptr, &queue, error()), SY_OK);
  Pinned values[] = {{*this, 1}, {*this, 2}}, back[] = {{*this, 0}, {*this, 0}};
  for (int i : {0, 1}) {
    ASSERT_EQ(api().copy(other, queue, At(imported), Host(values[i].number), 4, nullptr, error()), SY_OK)
        << backend_->message();
    ASSERT_EQ(api().copy(other, queue, Host(back[i].number), At(imported), 4, nullptr, error()), SY_OK)
        << backend_->message();
  }
  EXPECT_EQ(*back[0].number + *back[1].number, 0) << "a queued copy returns before it has run";
  ASSERT_EQ(api().synchronize(other, queue, nullptr, error()), SY_OK) << backend_->message();
  EXPECT_EQ(*back[0].number, 1);
  EXPECT_EQ(*back[1].number, 2);
  api().stream_destroy(other, queue);
  api().free(other, imported);
  api().close(other);
  api().free(device(), shared);
}

TEST_F(NpuDevice, CopiesAndKernelsDoNotBlockTheHost) {
  Open("30000");
  sy_buffer* buffer = Allocate(4);
  const Pinned host(*this, 1), back(*this, 0);
  ASSERT_EQ(Copy(stream(), At(buffer), Host(host.number), 4), SY_OK);
  ASSERT_EQ(Copy(stream(), Host(back.number), At(buffer), 4), SY_OK);
  EXPECT_EQ(*back.number, 0) << "a copy returns before it has run";
  ASSERT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_OK);
  EXPECT_EQ(*back.number, 1);
  api().free(device(), buffer);
}

TEST_F(NpuDevice, EveryThreadWorksWithoutChoosingADeviceFirst) {
  Open();
  sy_device* other = nullptr;
  const sy_open_options options{SY_HEADER(sy_open_options)};
  ASSERT_EQ(api().open(instance(), 3, &options, &other, error()), SY_OK) << backend_->message();
  std::thread([&] {
    // To and fro between two devices, on a thread that the runtime has not seen.
    for (sy_device* each : {device(), other, device()}) {
      sy_buffer* buffer = nullptr;
      int32_t host = 9, back = 0;
      EXPECT_EQ(api().alloc(each, 4, nullptr, &buffer, nullptr), SY_OK);
      EXPECT_EQ(api().copy(each, nullptr, At(buffer), Host(&host), 4, nullptr, nullptr), SY_OK);
      EXPECT_EQ(api().copy(each, nullptr, Host(&back), At(buffer), 4, nullptr, nullptr), SY_OK);
      EXPECT_EQ(back, 9);
      api().free(each, buffer);
    }
  }).join();
  api().close(other);
}

TEST_F(NpuDevice, MemoryIsCountedForEachDevice) {
  Open();
  const uint64_t first = Info(0).free_bytes, second = Info(1).free_bytes;
  sy_buffer* buffer = Allocate(1 << 20);
  EXPECT_EQ(Info(0).free_bytes, first - (1 << 20));
  EXPECT_EQ(Info(1).free_bytes, second);
  api().free(device(), buffer);
  EXPECT_EQ(Info(0).free_bytes, first);
}

TEST_F(NpuDevice, TheFirstErrorOfAStreamStaysAlthoughTheRuntimeTellsItOnce) {
  Open("0", "3");
  sy_buffer* buffer = Allocate(4);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, nullptr, error()), SY_OK);
  }
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_INTERNAL);
  EXPECT_THAT(backend_->message(), HasSubstr("task 3 fails"));
  EXPECT_EQ(error()->native_code, 507015);
  error()->message[0] = '\0';
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_INTERNAL);
  EXPECT_THAT(backend_->message(), HasSubstr("task 3 fails"));
  EXPECT_EQ(api().synchronize(device(), nullptr, nullptr, error()), SY_INTERNAL) << "and of the device as a whole";

  // Another stream goes on, and an event of the failed one fails with it.
  const sy_stream_options options{SY_HEADER(sy_stream_options)};
  sy_stream* other = nullptr;
  ASSERT_EQ(api().stream_create(device(), &options, &other, error()), SY_OK);
  ASSERT_EQ(api().fill(device(), other, At(buffer), 7, 4, nullptr, error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), other, nullptr, error()), SY_OK);
  sy_event* event = nullptr;
  ASSERT_EQ(api().event_create(device(), nullptr, &event, error()), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, stream(), error()), SY_OK);
  EXPECT_EQ(api().event_synchronize(device(), event, error()), SY_INTERNAL);
  api().event_destroy(device(), event);
  api().stream_destroy(device(), other);
  api().free(device(), buffer);
}

class NpuSemaphore : public NpuDevice {
 protected:
  void SetUp() override {
    Open();
    api_ = backend_->Interface<sy_semaphore_v1>("semaphore/1");
    ASSERT_NE(api_, nullptr);
    ASSERT_EQ(api_->create(device(), nullptr, &semaphore_, error()), SY_OK) << backend_->message();
    ASSERT_EQ(api().stream_create(device(), nullptr, &other_, error()), SY_OK) << backend_->message();
    buffer_ = Allocate(4);
  }
  void TearDown() override {
    api().stream_destroy(device(), other_);
    api_->destroy(device(), semaphore_);
    api().free(device(), buffer_);
  }
  sy_status Signal(uint64_t value) { return api_->signal(device(), semaphore_, value, error()); }
  sy_status Wait(uint64_t value, uint64_t ms) { return api_->wait(device(), semaphore_, value, ms, error()); }
  sy_status StreamSignal(sy_stream* on, uint64_t value) {
    return api_->stream_signal(device(), on, semaphore_, value, error());
  }
  sy_status StreamWait(sy_stream* on, uint64_t value) {
    return api_->stream_wait(device(), on, semaphore_, value, error());
  }
  uint64_t Count() {
    uint64_t value = 99999;
    EXPECT_EQ(api_->query(device(), semaphore_, &value, error()), SY_OK) << backend_->message();
    return value;
  }

  const sy_semaphore_v1* api_ = nullptr;
  sy_semaphore* semaphore_ = nullptr;
  sy_stream* other_ = nullptr;
  sy_buffer* buffer_ = nullptr;
};

TEST_F(NpuSemaphore, TheHostCountsUpwardsAndWaitsUpToItsTime) {
  EXPECT_EQ(Count(), 0u);
  EXPECT_EQ(Wait(0, 0), SY_OK);
  ASSERT_EQ(Signal(5), SY_OK) << backend_->message();
  EXPECT_EQ(Count(), 5u);
  EXPECT_EQ(Wait(4, 0), SY_OK);
  EXPECT_EQ(Signal(5), SY_INVALID);
  EXPECT_THAT(backend_->message(), HasSubstr("the count is 5 and cannot become 5"));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Wait(6, 30), SY_TIMEOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
  EXPECT_THAT(backend_->message(), HasSubstr("the count is 5 after 30 ms, expected 6"));
  std::thread signaller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(api_->signal(device(), semaphore_, 6, nullptr), SY_OK);
  });
  EXPECT_EQ(Wait(6, UINT64_MAX), SY_OK);
  signaller.join();
}

TEST_F(NpuSemaphore, AStreamIsHeldUntilTheHostSignalsAndTellsTheHostInTurn) {
  int32_t before = 1, seen = 0;
  const Pinned after(*this, 2);
  ASSERT_EQ(Copy(nullptr, At(buffer_), Host(&before), 4), SY_OK);
  ASSERT_EQ(StreamWait(stream(), 2), SY_OK) << backend_->message();
  ASSERT_EQ(Copy(stream(), At(buffer_), Host(after.number), 4), SY_OK);
  ASSERT_EQ(StreamSignal(stream(), 3), SY_OK) << backend_->message();
  ASSERT_EQ(Signal(1), SY_OK);
  EXPECT_EQ(Wait(3, 50), SY_TIMEOUT) << "1 is not 2";
  ASSERT_EQ(Copy(other_, Host(&seen), At(buffer_), 4), SY_OK);
  ASSERT_EQ(api().synchronize(device(), other_, nullptr, error()), SY_OK) << "the other stream is not held";
  EXPECT_EQ(seen, 1);
  ASSERT_EQ(Signal(2), SY_OK);
  EXPECT_EQ(Wait(3, 20000), SY_OK) << backend_->message();
  ASSERT_EQ(Copy(nullptr, Host(&seen), At(buffer_), 4), SY_OK);
  EXPECT_EQ(seen, 2);
}

// Whoever waits for the whole device holds up nobody who could end the wait.
TEST_F(NpuSemaphore, WhileTheDeviceIsSynchronizedOthersMakeAndEndStreamsAndSignal) {
  ASSERT_EQ(StreamWait(stream(), 1), SY_OK) << backend_->message();
  std::thread waiting([&] { EXPECT_EQ(api().synchronize(device(), nullptr, nullptr, nullptr), SY_OK); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  sy_stream* brief = nullptr;
  ASSERT_EQ(api().stream_create(device(), nullptr, &brief, error()), SY_OK) << backend_->message();
  ASSERT_EQ(StreamSignal(brief, 1), SY_OK) << backend_->message();
  api().stream_destroy(device(), brief);
  waiting.join();
}

TEST_F(NpuSemaphore, AStreamWaitsForAnotherThatSignalsLater) {
  int32_t sent = 7;
  const Pinned seen(*this, 0);
  ASSERT_EQ(StreamWait(other_, 1), SY_OK) << backend_->message();
  ASSERT_EQ(Copy(other_, Host(seen.number), At(buffer_), 4), SY_OK);
  ASSERT_EQ(Copy(stream(), At(buffer_), Host(&sent), 4), SY_OK);
  ASSERT_EQ(StreamSignal(stream(), 1), SY_OK) << backend_->message();
  ASSERT_EQ(api().synchronize(device(), other_, nullptr, error()), SY_OK) << backend_->message();
  EXPECT_EQ(*seen.number, 7);
  EXPECT_EQ(Count(), 1u);
}

// Of the runtime's own calls none tells of this failure: the stream that waits is let go by us.
TEST_F(NpuSemaphore, WhoWaitsForAFailedStreamFailsWithItAndSoDoesWhoWaitsForThat) {
  sy_event* events[3];  // before the wait, behind it, and of a stream that waits for the second
  for (sy_event*& event : events) ASSERT_EQ(api().event_create(device(), nullptr, &event, error()), SY_OK);
  sy_stream *third = nullptr, *failing = nullptr;
  ASSERT_EQ(api().stream_create(device(), nullptr, &third, error()), SY_OK);
  setenv("SWITCHYARD_NPU_SIMULATOR_FAIL_AT", "1", 1);  // of streams made from here on
  ASSERT_EQ(api().stream_create(device(), nullptr, &failing, error()), SY_OK);
  ASSERT_EQ(api().event_record(device(), events[0], other_, error()), SY_OK);
  ASSERT_EQ(StreamWait(other_, 2), SY_OK) << backend_->message();
  ASSERT_EQ(api().event_record(device(), events[1], other_, error()), SY_OK);
  ASSERT_EQ(api().stream_wait(device(), third, events[1], error()), SY_OK);
  ASSERT_EQ(api().event_record(device(), events[2], third, error()), SY_OK);
  ASSERT_EQ(StreamSignal(failing, 1), SY_OK) << backend_->message();
  ASSERT_EQ(Wait(1, 20000), SY_OK) << backend_->message();

  ASSERT_EQ(api().fill(device(), failing, At(buffer_), 0, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(StreamSignal(failing, 2), SY_OK) << backend_->message();
  EXPECT_NE(Wait(2, 20000), SY_OK);
  const std::string told = backend_->message();
  EXPECT_THAT(told, HasSubstr("task 1 fails"));
  for (sy_stream* each : {failing, other_, third}) {
    EXPECT_NE(api().synchronize(device(), each, nullptr, error()), SY_OK);
    EXPECT_EQ(told, backend_->message());
  }
  EXPECT_EQ(api().event_query(device(), events[0], error()), SY_OK) << "nothing before the wait has failed";
  for (sy_event* each : {events[1], events[2]}) {
    EXPECT_NE(api().event_synchronize(device(), each, error()), SY_OK);
    EXPECT_EQ(told, backend_->message());
    EXPECT_NE(api().event_query(device(), each, error()), SY_OK);
  }
  // A stream that did not wait goes on, and whoever waits later is told too.
  sy_stream* late = nullptr;
  ASSERT_EQ(api().stream_create(device(), nullptr, &late, error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), late, nullptr, error()), SY_OK);
  ASSERT_EQ(StreamWait(late, 2), SY_OK) << backend_->message();
  EXPECT_NE(api().synchronize(device(), late, nullptr, error()), SY_OK);
  for (sy_event* event : events) api().event_destroy(device(), event);
  for (sy_stream* each : {third, failing, late}) api().stream_destroy(device(), each);
}

// Which of its waits was in vain does not depend on how often a stream has waited for the other since.
TEST_F(NpuSemaphore, AStreamThatWaitedTwiceFailsFromTheWaitThatWasInVain) {
  sy_event* events[4];  // of the stream that is held: behind the wait, and later; of that which waits: between, behind
  for (sy_event*& event : events) ASSERT_EQ(api().event_create(device(), nullptr, &event, error()), SY_OK);
  sy_stream *third = nullptr, *failing = nullptr;
  ASSERT_EQ(api().stream_create(device(), nullptr, &third, error()), SY_OK);
  setenv("SWITCHYARD_NPU_SIMULATOR_FAIL_AT", "1", 1);  // of streams made from here on
  ASSERT_EQ(api().stream_create(device(), nullptr, &failing, error()), SY_OK);
  ASSERT_EQ(StreamWait(other_, 1), SY_OK) << backend_->message();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(api().event_record(device(), events[i], other_, error()), SY_OK);
    ASSERT_EQ(api().stream_wait(device(), third, events[i], error()), SY_OK);
    ASSERT_EQ(api().event_record(device(), events[2 + i], third, error()), SY_OK);
  }
  ASSERT_EQ(api().fill(device(), failing, At(buffer_), 0, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(StreamSignal(failing, 1), SY_OK) << backend_->message();
  EXPECT_NE(Wait(1, 20000), SY_OK);
  for (sy_event* each : events) EXPECT_NE(api().event_synchronize(device(), each, error()), SY_OK);
  for (sy_event* event : events) api().event_destroy(device(), event);
  for (sy_stream* each : {third, failing}) api().stream_destroy(device(), each);
}

// Streams that nobody orders: the lower count comes last and changes nothing, whatever the host signals meanwhile.
TEST_F(NpuSemaphore, ACountNeverFallsWhoeverSignalsLast) {
  ASSERT_EQ(StreamWait(other_, 10), SY_OK) << backend_->message();
  ASSERT_EQ(StreamSignal(other_, 3), SY_OK) << backend_->message();
  ASSERT_EQ(StreamSignal(stream(), 12), SY_OK) << backend_->message();
  ASSERT_EQ(api().synchronize(device(), other_, nullptr, error()), SY_OK) << backend_->message();
  EXPECT_EQ(Count(), 12u);
  EXPECT_EQ(Signal(11), SY_INVALID);
  EXPECT_EQ(Count(), 12u);
}

TEST_F(NpuDevice, AKernelOverFreedMemoryFailsItsStreamByName) {
  Open();
  const sy_tensor tensor = Describe(F32({8}));
  sy_pointwise_attributes a{};
  a.instruction_count = a.output_count = 1;
  a.instructions[0].op = SY_PW_EXP;
  a.outputs[0] = 1;
  const Op op("pointwise", a);
  const std::vector<sy_tensor> tensors = {tensor};
  const sy_prepare_request request = backend_->Request(op, tensors, tensors);
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(backend_->kernels().prepare(device(), &request, &kernel, &info, error()), SY_OK) << backend_->message();
  sy_buffer *in = Allocate(32), *out = Allocate(32);
  const sy_place from = At(in), to = At(out);
  const sy_binding binding{SY_HEADER(sy_binding), &from, &to, {}, {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(backend_->kernels().bind(device(), kernel, &binding, &bound, &launch, error()), SY_OK)
      << backend_->message();
  api().free(device(), in);
  ASSERT_EQ(launch(bound, stream(), error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_INTERNAL);
  EXPECT_THAT(backend_->message(), HasSubstr("aclnnExp touches device memory that is not allocated"));
  backend_->kernels().unbind(device(), bound);
  backend_->kernels().release(device(), kernel);
  api().free(device(), out);
}

TEST_F(NpuDevice, SixtyFourBitLabelsAreUnsupportedAndTheReasonSaysSo) {
  Open();
  Tensor labels{SY_I64, {2}, {0, 1}};
  sy_cross_entropy_attributes a{};
  a.ignore_index = -100;
  const Result refused =
      backend_->Run(Op("cross_entropy", a), {F32({2, 3}, {1, 2, 3, 4, 5, 6}), labels}, {F32({2}), F32({2})});
  EXPECT_EQ(refused.status, SY_UNSUPPORTED);
  EXPECT_THAT(refused.message, HasSubstr("64-bit"));
}

TEST_F(NpuDevice, ScratchBeyondTheLimitIsRefusedWithBothSizes) {
  Open();
  const std::vector<sy_tensor> in = {Describe(F32({2, 33, 3, 1, 4}))},
                               out = {Describe(F32({2, 33, 1, 4})), Describe(F32({2, 1, 33}))};
  sy_attention_attributes a{};
  a.scale = 0.5f;
  const Op op("attention", a);
  sy_prepare_request request = backend_->Request(op, in, out);
  request.workspace_limit = 1000;
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  EXPECT_EQ(backend_->kernels().prepare(device(), &request, &kernel, &info, error()), SY_UNSUPPORTED);
  EXPECT_THAT(backend_->message(), HasSubstr("allowed are 1000"));
}

TEST_F(NpuDevice, AnOperatorThatCannotBeMadeRepeatableIsPlannedAtEveryLaunch) {
  Open();
  setenv("SWITCHYARD_NPU_SIMULATOR_ONCE", "aclnnReduceSum", 1);
  sy_reduce_attributes a{};
  a.axes = 2;
  a.scale = 1;
  for (int round = 0; round < 2; ++round) {
    const Result sums = backend_->Run(Op("reduce", a), {F32({2, 3}, {1, 2, 3, 4, 5, 6})}, {F32({2})});
    ASSERT_EQ(sums.status, SY_OK) << sums.message;
    EXPECT_THAT(sums[0], ElementsAre(6, 15));
  }
  unsetenv("SWITCHYARD_NPU_SIMULATOR_ONCE");
}

// The graph x → matmul → reshape → gelu → reshape → matmul, of which a region takes all.
TEST_F(NpuDevice, ARegionIsOneKernelForSeveralNodes) {
  Open();
  const auto& regions = *backend_->Interface<sy_region_v2>("region/2");
  sy_matmul_attributes product{};
  product.alpha = 1;
  sy_pointwise_attributes relu{};
  relu.instruction_count = relu.output_count = 1;
  relu.instructions[0].op = SY_PW_RELU;
  relu.outputs[0] = 1;
  // 0 x, 1 w, 2 x·w, 3 as (1, 2, 2), 4 relu, 5 as (2, 2), 6 v, 7 result
  const std::vector<sy_tensor> tensors = {Describe(F32({2, 1})),    Describe(F32({1, 2})),    Describe(F32({2, 2})),
                                          Describe(F32({1, 2, 2})), Describe(F32({1, 2, 2})), Describe(F32({2, 2})),
                                          Describe(F32({2, 1})),    Describe(F32({2, 1}))};
  const uint32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const uint32_t second[] = {5, 6}, ends[] = {0, 1, 6};
  const std::vector<sy_region_node> nodes = {{"matmul", &product, sizeof product, 2, 1, &ids[0], &ids[2]},
                                             {"reshape", nullptr, 0, 1, 1, &ids[2], &ids[3]},
                                             {"pointwise", &relu, sizeof relu, 1, 1, &ids[3], &ids[4]},
                                             {"reshape", nullptr, 0, 1, 1, &ids[4], &ids[5]},
                                             {"matmul", &product, sizeof product, 2, 1, second, &ids[7]}};
  const sy_region graph{SY_HEADER(sy_region), 8, 5, 3, 1, tensors.data(), nodes.data(), ends, &ids[7]};
  std::vector<uint32_t> claims(5, 99);
  ASSERT_EQ(regions.partition(device(), &graph, claims.data(), error()), SY_OK) << backend_->message();
  EXPECT_THAT(claims, ElementsAre(1, 1, 1, 1, 1));

  sy_kernel* kernel = nullptr;
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  ASSERT_EQ(regions.prepare(device(), &graph, 1 << 20, &kernel, &info, error()), SY_OK) << backend_->message();
  std::vector<sy_buffer*> buffers = {
      backend_->Upload(Encode(F32({2, 1}, {1, 2}))), backend_->Upload(Encode(F32({1, 2}, {3, -4}))),
      backend_->Upload(Encode(F32({2, 1}, {10, 100}))), Allocate(8), Allocate(info.workspace_bytes)};
  const std::vector<sy_place> inputs = {At(buffers[0]), At(buffers[1]), At(buffers[2])};
  const sy_place output = At(buffers[3]);
  const sy_binding binding{SY_HEADER(sy_binding), inputs.data(), &output, At(buffers[4]), {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(backend_->kernels().bind(device(), kernel, &binding, &bound, &launch, error()), SY_OK)
      << backend_->message();
  ASSERT_EQ(launch(bound, stream(), error()), SY_OK) << backend_->message();
  Tensor result = F32({2, 1});
  Decode(backend_->Download(buffers[3], 8), &result);
  EXPECT_THAT(result.values, ElementsAre(30, 60));
  backend_->kernels().unbind(device(), bound);
  backend_->kernels().release(device(), kernel);
  for (sy_buffer* buffer : buffers) api().free(device(), buffer);
}

// A node's attributes may be those of a later edition: what it asks for beyond what is known is refused, and nothing
// else.
TEST_F(NpuDevice, ARegionWhoseNodeAsksForMoreThanIsKnownIsRefused) {
  Open();
  const auto& regions = *backend_->Interface<sy_region_v2>("region/2");
  struct Longer {
    sy_matmul_attributes known;
    int32_t more;
  } attributes{};
  attributes.known.alpha = 1;
  const std::vector<sy_tensor> tensors(3, Describe(F32({2, 2})));
  const uint32_t ids[] = {0, 1, 2};
  const sy_region_node node = {"matmul", &attributes, sizeof attributes, 2, 1, &ids[0], &ids[2]};
  const sy_region region{SY_HEADER(sy_region), 3, 1, 2, 1, tensors.data(), &node, ids, &ids[2]};
  sy_kernel* kernel = nullptr;
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  attributes.more = 1;
  EXPECT_EQ(regions.prepare(device(), &region, 1 << 20, &kernel, &info, error()), SY_UNSUPPORTED);
  EXPECT_THAT(backend_->message(), HasSubstr("of which the plugin knows"));
  attributes.more = 0;
  ASSERT_EQ(regions.prepare(device(), &region, 1 << 20, &kernel, &info, error()), SY_OK) << backend_->message();
  backend_->kernels().release(device(), kernel);
}

TEST_F(NpuDevice, ARegionLeavesOutWhatWouldRunBeforeItself) {
  Open();
  const auto& regions = *backend_->Interface<sy_region_v2>("region/2");
  sy_matmul_attributes first{}, second = first;
  first.alpha = second.alpha = 1;
  first.activation = SY_ACTIVATION_RELU;
  sy_pointwise_attributes negate{};
  negate.instruction_count = negate.output_count = 1;
  negate.instructions[0].op = SY_PW_NEG;
  negate.outputs[0] = 1;
  // 2 = relu(0·1); 3 = −2, outside; 4 = 2·3: the second product needs what is made from the first one outside.
  const std::vector<sy_tensor> tensors(5, Describe(F32({2, 2})));
  const uint32_t ids[] = {0, 1, 2, 3, 4};
  const std::vector<sy_region_node> nodes = {{"matmul", &first, sizeof first, 2, 1, &ids[0], &ids[2]},
                                             {"pointwise", &negate, sizeof negate, 1, 1, &ids[2], &ids[3]},
                                             {"matmul", &second, sizeof second, 2, 1, &ids[2], &ids[4]}};
  const sy_region graph{SY_HEADER(sy_region), 5, 3, 2, 1, tensors.data(), nodes.data(), ids, &ids[4]};
  std::vector<uint32_t> claims(3, 99);
  ASSERT_EQ(regions.partition(device(), &graph, claims.data(), error()), SY_OK) << backend_->message();
  EXPECT_THAT(claims, ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace switchyard::test
