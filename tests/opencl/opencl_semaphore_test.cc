// semaphore/1 of the opencl plugin, through the ABI: host and streams raise counts and wait for them, in every order.
// What a failed stream does to them is in opencl_stream_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::HasSubstr;

constexpr uint64_t kLongMs = 20000;  // of a wait that must end by itself

class OpenClSemaphore : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(api_, nullptr);
    semaphore_ = Make();
    ASSERT_EQ(backend_.api().stream_create(device(), nullptr, &other_, error()), SY_OK) << backend_.message();
    ASSERT_EQ(backend_.api().alloc(device(), kBytes, nullptr, &buffer_, error()), SY_OK) << backend_.message();
    ASSERT_EQ(Fill(stream(), 1), SY_OK);
    ASSERT_EQ(Synchronize(stream()), SY_OK);
  }
  void TearDown() override {
    backend_.api().stream_destroy(device(), other_);
    api_->destroy(device(), semaphore_);
    backend_.api().free(device(), buffer_);
  }
  sy_device* device() { return backend_.device(); }
  sy_stream* stream() { return backend_.stream(); }
  sy_error* error() { return backend_.error(); }

  sy_semaphore* Make() {
    sy_semaphore* made = nullptr;
    EXPECT_EQ(api_->create(device(), nullptr, &made, error()), SY_OK) << backend_.message();
    return made;
  }
  sy_status Signal(uint64_t value) { return api_->signal(device(), semaphore_, value, error()); }
  sy_status Wait(uint64_t value, uint64_t ms) { return api_->wait(device(), semaphore_, value, ms, error()); }
  uint64_t Count(sy_semaphore* semaphore) {
    uint64_t value = 99999;
    EXPECT_EQ(api_->query(device(), semaphore, &value, error()), SY_OK) << backend_.message();
    return value;
  }
  sy_status StreamSignal(sy_stream* on, uint64_t value) {
    return api_->stream_signal(device(), on, semaphore_, value, error());
  }
  sy_status StreamWait(sy_stream* on, uint64_t value) {
    return api_->stream_wait(device(), on, semaphore_, value, error());
  }
  sy_status Fill(sy_stream* on, uint8_t value) {
    return backend_.api().fill(device(), on, {buffer_, nullptr, 0}, value, kBytes, nullptr, error());
  }
  sy_status Read(sy_stream* on, std::vector<uint8_t>* bytes) {
    bytes->resize(kBytes);
    return backend_.api().copy(device(), on, {nullptr, bytes->data(), 0}, {buffer_, nullptr, 0}, kBytes, nullptr,
                               error());
  }
  sy_status Synchronize(sy_stream* on) { return backend_.api().synchronize(device(), on, nullptr, error()); }

  static constexpr uint64_t kBytes = 64;
  Backend backend_{"opencl"};
  const sy_semaphore_v1* api_ = backend_.Interface<sy_semaphore_v1>("semaphore/1");
  sy_semaphore* semaphore_ = nullptr;
  sy_stream* other_ = nullptr;
  sy_buffer* buffer_ = nullptr;
};

TEST_F(OpenClSemaphore, TheHostCountsUpwardsOnly) {
  EXPECT_EQ(Count(semaphore_), 0u);
  EXPECT_EQ(Wait(0, 0), SY_OK);
  ASSERT_EQ(Signal(5), SY_OK) << backend_.message();
  EXPECT_EQ(Count(semaphore_), 5u);
  EXPECT_EQ(Wait(4, 0), SY_OK);
  EXPECT_EQ(Signal(5), SY_INVALID);
  EXPECT_THAT(backend_.message(), HasSubstr("the count is 5 and cannot become 5"));
  EXPECT_EQ(Signal(4), SY_INVALID);
  EXPECT_EQ(StreamSignal(stream(), 3), SY_INVALID);
  EXPECT_EQ(Count(semaphore_), 5u);
}

TEST_F(OpenClSemaphore, AWaitOfTheHostEndsAtItsTimeOrWithTheSignalOfAThread) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Wait(1, 30), SY_TIMEOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(30));
  EXPECT_THAT(backend_.message(), HasSubstr("the count is 0 after 30 ms, expected 1"));
  std::thread signaller([&] {
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_EQ(api_->signal(device(), semaphore_, 1, nullptr), SY_OK);
  });
  EXPECT_EQ(Wait(1, UINT64_MAX), SY_OK);
  signaller.join();
}

TEST_F(OpenClSemaphore, AStreamWaitsForWhatTheHostSignalsLater) {
  std::vector<uint8_t> before, after;
  ASSERT_EQ(StreamWait(stream(), 2), SY_OK) << backend_.message();
  ASSERT_EQ(Fill(stream(), 7), SY_OK);
  sy_event* event = nullptr;
  ASSERT_EQ(backend_.api().event_create(device(), nullptr, &event, error()), SY_OK);
  ASSERT_EQ(backend_.api().event_record(device(), event, stream(), error()), SY_OK);
  ASSERT_EQ(Signal(1), SY_OK);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(backend_.api().event_query(device(), event, error()), SY_IN_PROGRESS) << "1 is not 2";
  sy_buffer* more = nullptr;
  ASSERT_EQ(backend_.api().alloc(device(), kBytes, nullptr, &more, error()), SY_OK) << "nor is memory";
  backend_.api().free(device(), more);
  ASSERT_EQ(Read(other_, &before), SY_OK);
  ASSERT_EQ(Synchronize(other_), SY_OK) << "the other stream is not held";
  EXPECT_THAT(before, Each(1));
  ASSERT_EQ(Signal(2), SY_OK);
  ASSERT_EQ(backend_.api().event_synchronize(device(), event, error()), SY_OK) << backend_.message();
  ASSERT_EQ(Read(stream(), &after), SY_OK);
  ASSERT_EQ(Synchronize(stream()), SY_OK);
  EXPECT_THAT(after, Each(7));
  backend_.api().event_destroy(device(), event);
}

// Whoever waits for the whole device holds up nobody who could end the wait.
TEST_F(OpenClSemaphore, WhileTheDeviceIsSynchronizedOthersMakeAndEndStreamsAndSignal) {
  ASSERT_EQ(StreamWait(stream(), 1), SY_OK) << backend_.message();
  std::thread waiting([&] { EXPECT_EQ(backend_.api().synchronize(device(), nullptr, nullptr, nullptr), SY_OK); });
  std::this_thread::sleep_for(milliseconds(20));
  sy_stream* brief = nullptr;
  ASSERT_EQ(backend_.api().stream_create(device(), nullptr, &brief, error()), SY_OK) << backend_.message();
  ASSERT_EQ(StreamSignal(brief, 1), SY_OK) << backend_.message();
  backend_.api().stream_destroy(device(), brief);
  waiting.join();
}

TEST_F(OpenClSemaphore, AWaitForWhatIsReachedHoldsNothing) {
  ASSERT_EQ(Signal(3), SY_OK);
  ASSERT_EQ(StreamWait(stream(), 3), SY_OK);
  ASSERT_EQ(StreamWait(stream(), 1), SY_OK);
  EXPECT_EQ(Synchronize(stream()), SY_OK);
}

TEST_F(OpenClSemaphore, TheHostWaitsForTheSignalOfAStreamUpToItsTime) {
  sy_semaphore* gate = Make();
  ASSERT_EQ(api_->stream_wait(device(), stream(), gate, 1, error()), SY_OK);
  ASSERT_EQ(StreamSignal(stream(), 4), SY_OK) << backend_.message();
  EXPECT_EQ(Wait(4, 50), SY_TIMEOUT) << "the stream is held";
  EXPECT_EQ(Count(semaphore_), 0u);
  ASSERT_EQ(api_->signal(device(), gate, 1, error()), SY_OK);
  EXPECT_EQ(Wait(4, kLongMs), SY_OK) << backend_.message();
  EXPECT_EQ(Count(semaphore_), 4u);
  ASSERT_EQ(Synchronize(stream()), SY_OK);
  api_->destroy(device(), gate);
}

TEST_F(OpenClSemaphore, AStreamWaitsForAnotherThatSignalsLater) {
  std::vector<uint8_t> seen;
  ASSERT_EQ(StreamWait(other_, 1), SY_OK) << "nobody has said yet that he will signal";
  ASSERT_EQ(Read(other_, &seen), SY_OK);
  ASSERT_EQ(Fill(stream(), 9), SY_OK);
  ASSERT_EQ(StreamSignal(stream(), 1), SY_OK);
  ASSERT_EQ(Synchronize(other_), SY_OK) << backend_.message();
  EXPECT_THAT(seen, Each(9));
}

TEST_F(OpenClSemaphore, TwoStreamsHandABufferToAndFro) {
  // other_ doubles what stream() wrote: stream() writes at even counts, other_ reads at odd ones.
  constexpr int kRounds = 100;
  std::vector<std::vector<uint8_t>> seen(kRounds);
  for (uint64_t round = 0; round < kRounds; ++round) {
    ASSERT_EQ(StreamWait(other_, 2 * round + 1), SY_OK);
    ASSERT_EQ(Read(other_, &seen[round]), SY_OK);
    ASSERT_EQ(StreamSignal(other_, 2 * round + 2), SY_OK) << backend_.message();
    ASSERT_EQ(StreamWait(stream(), 2 * round), SY_OK);
    ASSERT_EQ(Fill(stream(), static_cast<uint8_t>(round)), SY_OK);
    ASSERT_EQ(StreamSignal(stream(), 2 * round + 1), SY_OK) << backend_.message();
  }
  ASSERT_EQ(Wait(2 * kRounds, kLongMs), SY_OK) << backend_.message();
  ASSERT_EQ(Synchronize(nullptr), SY_OK);
  for (int round = 0; round < kRounds; ++round) EXPECT_THAT(seen[round], Each(round)) << "round " << round;
}

// The driver's callbacks may come later than the end of the work.
TEST_F(OpenClSemaphore, TheCountIsThereOnceTheStreamIsSynchronized) {
  for (uint64_t value = 1; value <= 500; ++value) {
    ASSERT_EQ(Fill(stream(), 3), SY_OK);
    ASSERT_EQ(StreamSignal(stream(), value), SY_OK) << backend_.message();
    ASSERT_EQ(Synchronize(stream()), SY_OK);
    ASSERT_EQ(Count(semaphore_), value);
  }
}

TEST_F(OpenClSemaphore, ItIsDestroyedOnceItsWorkHasFinishedWhateverTheDriverStillHasToTell) {
  for (int round = 0; round < 300; ++round) {
    sy_semaphore* brief = Make();
    ASSERT_EQ(api_->stream_wait(device(), other_, brief, 1, error()), SY_OK);
    ASSERT_EQ(api_->stream_signal(device(), stream(), brief, 1, error()), SY_OK);
    ASSERT_EQ(Synchronize(stream()), SY_OK);
    ASSERT_EQ(Synchronize(other_), SY_OK);
    api_->destroy(device(), brief);
  }
}

TEST_F(OpenClSemaphore, ThreadsThatWaitAreAllLetGo) {
  std::vector<std::thread> threads;
  for (uint64_t value = 1; value <= 8; ++value) {
    threads.emplace_back(
        [&, value] { EXPECT_EQ(api_->wait(device(), semaphore_, value, kLongMs, nullptr), SY_OK) << value; });
  }
  for (uint64_t value = 1; value <= 8; ++value) {
    ASSERT_EQ(value % 2 ? StreamSignal(stream(), value) : StreamSignal(other_, value), SY_OK) << backend_.message();
    ASSERT_EQ(StreamWait(value % 2 ? other_ : stream(), value), SY_OK);
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(Synchronize(nullptr), SY_OK);
}

}  // namespace
}  // namespace switchyard::test
