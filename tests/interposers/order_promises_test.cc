// What streams order, held to by the validating interposer.
#include "tests/interposers/order_promises.h"

namespace switchyard {
namespace {

TEST_F(OrderTest, TwoLaunchesOfABindingAreOrderedByEventsAndWaits) {
  WrapWithBinding();
  ExpectLaunch(stream_);
  ExpectLaunch(stream_);
  ExpectUnordered(other_);
  ExpectUnordered(nullptr);
  EXPECT_EQ(api_->event_record(device_, event_, stream_, &error_), SY_OK);
  ExpectUnordered(other_);
  EXPECT_EQ(api_->stream_wait(device_, other_, event_, &error_), SY_OK);
  ExpectLaunch(other_);
  ExpectUnordered(stream_);
  EXPECT_EQ(api_->synchronize(device_, other_, nullptr, &error_), SY_OK);
  ExpectLaunch(stream_);
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  ExpectLaunch(nullptr);
  ExpectLaunch(other_);
  EndWithBinding();
}

TEST_F(OrderTest, AnOrderMayLeadOverAThirdStreamAndSemaphores) {
  WrapWithBinding();
  sy_stream* between = nullptr;
  ASSERT_EQ(api_->stream_create(device_, nullptr, &between, &error_), SY_OK);
  sy_semaphore* semaphore = nullptr;
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  ExpectLaunch(stream_);
  EXPECT_EQ(api_->event_record(device_, event_, stream_, &error_), SY_OK);
  EXPECT_EQ(api_->stream_wait(device_, between, event_, &error_), SY_OK);
  EXPECT_EQ(semaphores_->stream_signal(device_, between, semaphore, 1, &error_), SY_OK);
  ExpectUnordered(other_);
  EXPECT_EQ(semaphores_->stream_wait(device_, other_, semaphore, 1, &error_), SY_OK);
  ExpectLaunch(other_);
  EXPECT_EQ(semaphores_->stream_wait(device_, stream_, semaphore, 2, &error_), SY_OK);
  ExpectLaunch(stream_);  // what will signal it may come behind the launch of the other stream
  EXPECT_EQ(semaphores_->stream_signal(device_, other_, semaphore, 2, &error_), SY_OK);
  ExpectUnordered(between);
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  semaphores_->destroy(device_, semaphore);
  api_->stream_destroy(device_, between);
  EndWithBinding();
}

TEST_F(OrderTest, ThreadsTakeTurnsOnABinding) {
  fake_.kernel.bind = [](sy_device*, sy_kernel*, const sy_binding*, sy_bound** made, sy_launch* launch, sy_error*) {
    *launch = [](sy_bound*, sy_stream*, sy_error*) { return BeInTheCall(), sy_status{SY_OK}; };
    return NewHandle(made);
  };
  WrapWithBinding();
  for (sy_stream* const stream : {stream_, static_cast<sy_stream*>(nullptr)}) {
    sy_error theirs = EmptyError();
    sy_status status = SY_OK;
    in_the_call = [&] { status = launch_(bound_, other_, &theirs); };
    ExpectLaunch(stream);
    EXPECT_EQ(status, SY_INVALID);
    EXPECT_THAT(theirs.message, testing::HasSubstr(stream == nullptr ? kTogether : "nothing orders"));
    EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  }
  ExpectLaunch(other_);
  EndWithBinding();
}

// What is held by a semaphore runs behind what signals it.
TEST_F(OrderTest, ASignalThatLetsALaunchGoStandsBehindTheOtherOne) {
  WrapWithBinding();
  sy_semaphore* semaphore = nullptr;
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  const auto wait = [&](sy_stream* stream, uint64_t value) {
    EXPECT_EQ(semaphores_->stream_wait(device_, stream, semaphore, value, &error_), SY_OK) << error_.message;
  };
  const auto signal = [&](sy_stream* stream, uint64_t value) {
    return stream == nullptr ? semaphores_->signal(device_, semaphore, value, &error_)
                             : semaphores_->stream_signal(device_, stream, semaphore, value, &error_);
  };
  const std::vector<std::string> words = {"bind of plain", "launch, and on another stream by call", "behind neither"};
  sy_stream* apart = nullptr;
  ASSERT_EQ(api_->stream_create(device_, nullptr, &apart, &error_), SY_OK);
  // The later launch is held: only the stream of the earlier one, or whoever has waited for that, may let it go.
  ExpectLaunch(stream_);
  wait(other_, 1);
  ExpectLaunch(other_);
  ExpectRefused(signal(nullptr, 1), words);
  ExpectRefused(signal(apart, 2), words);
  EXPECT_EQ(signal(stream_, 1), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  // The earlier one is held: it may come last.
  wait(stream_, 5);
  ExpectLaunch(stream_);
  ExpectLaunch(other_);
  ExpectRefused(signal(nullptr, 5), words);
  EXPECT_EQ(signal(other_, 5), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  // The host has waited.
  ExpectLaunch(stream_);
  wait(other_, 6);
  ExpectLaunch(other_);
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  EXPECT_EQ(signal(nullptr, 6), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  semaphores_->destroy(device_, semaphore);
  api_->stream_destroy(device_, apart);
  EndWithBinding();
}

TEST_F(OrderTest, TheLastOfSeveralSignalsDecides) {
  WrapWithBinding();
  sy_semaphore *first = nullptr, *second = nullptr;
  ASSERT_EQ(semaphores_->create(device_, nullptr, &first, &error_), SY_OK);
  ASSERT_EQ(semaphores_->create(device_, nullptr, &second, &error_), SY_OK);
  ExpectLaunch(stream_);
  for (sy_semaphore* const one : {first, second})
    EXPECT_EQ(semaphores_->stream_wait(device_, other_, one, 1, &error_), SY_OK);
  ExpectLaunch(other_);
  EXPECT_EQ(semaphores_->signal(device_, first, 1, &error_), SY_OK) << error_.message;
  ExpectRefused(semaphores_->signal(device_, second, 1, &error_), {"signal of a semaphore", "behind neither"});
  EXPECT_EQ(semaphores_->stream_signal(device_, stream_, second, 1, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  for (sy_semaphore* const one : {first, second}) semaphores_->destroy(device_, one);
  EndWithBinding();
}

}  // namespace
}  // namespace switchyard
