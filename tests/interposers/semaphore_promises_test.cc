// What both sides promise of semaphores, held to by the validating interposer.
#include "tests/interposers/promises.h"

namespace switchyard {
namespace {

TEST_F(PromiseTest, ASemaphoreOnlyGrows) {
  Wrap();
  sy_semaphore* semaphore = nullptr;
  uint64_t value = 0;
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  EXPECT_EQ(semaphores_->signal(device_, semaphore, 5, &error_), SY_OK) << error_.message;
  ExpectRefused(semaphores_->signal(device_, semaphore, 5, &error_),
                {"signal of a semaphore", "has reached 5", "to become 5"});
  EXPECT_EQ(semaphores_->stream_signal(device_, stream_, semaphore, 8, &error_), SY_OK) << error_.message;
  ExpectRefused(semaphores_->stream_signal(device_, stream_, semaphore, 7, &error_), {"will have reached 8"});
  semaphores_->destroy(device_, semaphore);
  ExpectPending({"destroy of a semaphore", "stream_signal", "nobody has waited for"});
  EXPECT_EQ(semaphores_->wait(device_, semaphore, 8, 1000, &error_), SY_OK) << error_.message;
  ExpectRefused(semaphores_->signal(device_, semaphore, 8, &error_), {"has reached 8"});
  FakePlugin::Counts().begin()->second = 2;
  EXPECT_EQ(semaphores_->query(device_, semaphore, &value, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "had reached 8 and is at 2"});
  EXPECT_EQ(semaphores_->wait(device_, semaphore, 8, 1000, &error_), SY_TIMEOUT);
  ExpectPending({"the plugin broke a promise", "had reached 8, and the wait for 8 answered SY_TIMEOUT"});
  semaphores_->destroy(device_, semaphore);
  EXPECT_EQ(Pending(), "") << "the wait came after the signal";
  End();
}

// A wait on one stream for what another signals orders them, whichever was asked first.
TEST_F(PromiseTest, ASemaphoreOrdersStreams) {
  Wrap();
  sy_stream* other = nullptr;
  sy_semaphore* semaphore = nullptr;
  ASSERT_EQ(api_->stream_create(device_, nullptr, &other, &error_), SY_OK);
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  for (const bool wait_first : {false, true}) {
    sy_buffer* buffer = nullptr;
    const uint64_t value = wait_first ? 2 : 1;
    ASSERT_EQ(api_->alloc(device_, 64, nullptr, &buffer, &error_), SY_OK);
    const auto wait = [&] {
      EXPECT_EQ(semaphores_->stream_wait(device_, other, semaphore, value, &error_), SY_OK) << error_.message;
    };
    if (wait_first) wait();
    EXPECT_EQ(api_->fill(device_, stream_, At(buffer), 0, 64, nullptr, &error_), SY_OK);
    EXPECT_EQ(semaphores_->stream_signal(device_, stream_, semaphore, value, &error_), SY_OK);
    if (!wait_first) wait();
    api_->free(device_, buffer);
    ExpectPending({"free", "fill", "nobody has waited for"});
    EXPECT_EQ(api_->synchronize(device_, other, nullptr, &error_), SY_OK);
    api_->free(device_, buffer);
    EXPECT_EQ(Pending(), "");
  }
  semaphores_->destroy(device_, semaphore);
  api_->stream_destroy(device_, other);
  End();
}

TEST_F(PromiseTest, ASemaphoreCountsTo63Bits) {
  constexpr uint64_t kTooMuch = uint64_t{1} << 63;
  Wrap();
  sy_semaphore* semaphore = nullptr;
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  ExpectRefused(semaphores_->signal(device_, semaphore, kTooMuch, &error_), {"counts to 9223372036854775807 at most"});
  ExpectRefused(semaphores_->stream_signal(device_, stream_, semaphore, kTooMuch, &error_),
                {"stream_signal", "at most"});
  FakePlugin::Counts()[semaphore] = kTooMuch;
  uint64_t value = 0;
  EXPECT_EQ(semaphores_->query(device_, semaphore, &value, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "is at 9223372036854775808, which it cannot reach"});
  semaphores_->destroy(device_, semaphore);
  End();
}

}  // namespace
}  // namespace switchyard
