// First errors stay: of streams, of the events behind, and of communicators, held to by the validating interposer.
#include "tests/interposers/promises.h"

namespace switchyard {
namespace {

// What the fake answers to synchronize, to whoever asks an event, and to event_record.
sy_status stream_status, event_status, record_status;
sy_status AnswerWith(sy_status status, sy_error* error) {
  return status == SY_OK || status == SY_IN_PROGRESS ? status : SY_FAIL(error, status, "fake: something has failed");
}

class FirstErrorTest : public PromiseTest {
 protected:
  void SetUp() override {
    stream_status = event_status = record_status = SY_OK;
    fake_.device.synchronize = [](sy_device*, sy_stream*, const sy_synchronize_options*, sy_error* error) {
      return AnswerWith(stream_status, error);
    };
    fake_.device.event_query = [](sy_device*, sy_event*, sy_error* error) { return AnswerWith(event_status, error); };
    fake_.device.event_synchronize = fake_.device.event_query;
    fake_.device.event_record = [](sy_device*, sy_event*, sy_stream*, sy_error* error) {
      return AnswerWith(record_status, error);
    };
    Wrap();
    ASSERT_EQ(api_->stream_create(device_, nullptr, &other_, &error_), SY_OK) << error_.message;
    ASSERT_EQ(api_->event_create(device_, nullptr, &event_, &error_), SY_OK) << error_.message;
    EXPECT_EQ(api_->fill(device_, stream_, At(buffer_), 0, 8, nullptr, &error_), SY_OK) << error_.message;
  }
  void Record(sy_stream* stream) {
    EXPECT_EQ(api_->event_record(device_, event_, stream, &error_), record_status) << error_.message;
    Clear();
  }
  void Synchronize(sy_status status) {
    stream_status = status;
    EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), status) << error_.message;
    stream_status = SY_OK;
    Clear();
  }
  // Asks the event in both ways, and expects each to be blamed with these words, or with none.
  void Ask(sy_status status, const std::string& blame = "") {
    event_status = status;
    for (const auto ask : {api_->event_synchronize, api_->event_query}) {
      EXPECT_EQ(ask(device_, event_, &error_), status) << error_.message;
      if (blame.empty()) {
        EXPECT_EQ(Pending(), "");
        Clear();
      } else {
        ExpectPending({"the plugin broke a promise", blame});
      }
    }
  }
  void EndAll() {
    EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
    api_->event_destroy(device_, event_);
    api_->stream_destroy(device_, other_);
    End();
  }

  sy_stream* other_ = nullptr;
  sy_event* event_ = nullptr;
};

TEST_F(FirstErrorTest, AnEventBehindAFailureAnswersIt) {
  Record(stream_);
  Synchronize(SY_INTERNAL);
  Ask(SY_OK);  // it was recorded before, perhaps before what has failed
  Record(stream_);
  Ask(SY_OK, "was recorded on a stream that had failed");
  Ask(SY_INTERNAL);
  Record(other_);
  Ask(SY_OK);
  EndAll();
}

TEST_F(FirstErrorTest, WhatAnEventAnsweredItAndItsStreamAnswerAgain) {
  Record(stream_);
  Ask(SY_INTERNAL);
  Ask(SY_OK, "has answered an error before");
  Synchronize(SY_INTERNAL);
  Synchronize(SY_OK);
  ExpectPending({"the plugin broke a promise", "synchronize: it answered SY_OK though stream"});
  EndAll();
}

TEST_F(FirstErrorTest, AnEventsErrorIsItsStreams) {
  Record(stream_);
  Ask(SY_DEVICE_LOST);
  Synchronize(SY_OK);
  ExpectPending({"the plugin broke a promise", "synchronize: it answered SY_OK though stream"});
  EndAll();
}

TEST_F(FirstErrorTest, ARecordThatWasRefusedLeavesTheEventAsItWas) {
  Record(other_);
  Synchronize(SY_INTERNAL);
  record_status = SY_INTERNAL;
  Record(stream_);
  Ask(SY_OK);  // it still stands on the other stream
  EndAll();
}

TEST_F(FirstErrorTest, AStreamWithoutWorkDoesNotFail) {
  const std::string blame = "a stream fails only by its own work";
  Synchronize(SY_OK);
  Synchronize(SY_INTERNAL);
  ExpectPending({"the plugin broke a promise", "synchronize: it answered 7", blame});
  Synchronize(SY_INTERNAL);
  EXPECT_EQ(Pending(), "") << "its first error it repeats";
  EndAll();
}

TEST_F(FirstErrorTest, AStreamWhoseLastEventWasReachedDoesNotFail) {
  Record(stream_);
  Ask(SY_OK);
  event_status = SY_INTERNAL;
  EXPECT_EQ(api_->event_query(device_, event_, &error_), SY_INTERNAL);
  ExpectPending({"the plugin broke a promise", "event_query: it answered 7", "fails only by its own work"});
  EndAll();
}

TEST_F(FirstErrorTest, AStreamMayFailByWhatItWaitedForAndByWhatOthersQueuedAndWithItsDevice) {
  Record(other_);
  Synchronize(SY_OK);
  EXPECT_EQ(api_->stream_wait(device_, stream_, event_, &error_), SY_OK);
  Synchronize(SY_INTERNAL);
  void* handle = nullptr;
  EXPECT_EQ(memory_->native_stream(device_, other_, &handle, &error_), SY_OK);
  for (const sy_status status : {SY_OK, SY_INTERNAL}) {
    stream_status = status;
    EXPECT_EQ(api_->synchronize(device_, other_, nullptr, &error_), status) << error_.message;
    Clear();
  }
  sy_stream* third = nullptr;
  EXPECT_EQ(api_->stream_create(device_, nullptr, &third, &error_), SY_OK);
  stream_status = SY_DEVICE_LOST;
  EXPECT_EQ(api_->synchronize(device_, third, nullptr, &error_), SY_DEVICE_LOST);
  stream_status = SY_OK;
  EXPECT_EQ(Pending(), "");
  api_->stream_destroy(device_, third);
  EndAll();
}

TEST_F(PromiseTest, ACommunicatorRepeatsItsFirstErrorAndIsInitializedOnce) {
  static sy_status answer;
  answer = SY_OK;
  fake_.collective.poll = [](sy_communicator*, sy_error* error) { return AnswerWith(answer, error); };
  Wrap();
  sy_communicator* const communicator = Communicator();
  const auto poll = [&](sy_status status) {
    answer = status;
    EXPECT_EQ(collective_->poll(communicator, &error_), status);
    Clear();
  };
  poll(SY_IN_PROGRESS);
  ExpectPending({"the plugin broke a promise", "had finished init, and a later poll answered SY_IN_PROGRESS"});
  poll(SY_TIMEOUT);
  poll(SY_TIMEOUT);
  poll(SY_ABORTED);
  EXPECT_EQ(Pending(), "");
  poll(SY_OK);
  ExpectPending({"the plugin broke a promise", "had answered 4 before, and a later poll answered 0"});
  collective_->destroy(communicator);
  End();
}

}  // namespace
}  // namespace switchyard
