// What both sides promise of collectives, held to by the validating interposer.
#include "tests/interposers/promises.h"

namespace switchyard {
namespace {

TEST_F(PromiseTest, CommunicatorsEndBeforeTheDeviceThatTheyName) {
  fake_.collective.split = [](sy_communicator*, int32_t, int32_t, const char*, sy_communicator** made, sy_error*) {
    return NewHandle(made);
  };
  Wrap();
  sy_communicator* const communicator = Communicator(device_);
  sy_communicator* part = nullptr;
  EXPECT_EQ(collective_->split(communicator, 0, 0, "part", &part, &error_), SY_OK) << error_.message;
  End();
  api_->close(device_);
  ExpectPending({"close", "open of device 0", "is named by 2 communicators"});
  collective_->destroy(communicator);
  api_->close(device_);
  ExpectPending({"close", "is named by 1 communicators"});
  collective_->destroy(part);
}

TEST_F(PromiseTest, RequestsAreReleasedOnceAndBeforeTheirCommunicator) {
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_communicator* const other = Communicator();
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request), SY_OK) << error_.message;
  ExpectRefused(collective_->request_poll(other, request, &error_), {"request_poll", "belongs to communicator"});
  collective_->destroy(communicator);
  ExpectPending({"destroy", "every request to be released before", "all_reduce of gradients"});
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK) << error_.message;
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK) << "polled again it says the same";
  collective_->request_release(communicator, request);
  EXPECT_EQ(Pending(), "");
  collective_->request_release(communicator, request);
  ExpectPending({"request_release", "expected a live request", "ended by call"});
  ExpectRefused(collective_->request_poll(communicator, request, &error_),
                {"request_poll", "all_reduce of gradients", "request_release"});
  for (sy_communicator* const one : {communicator, other}) collective_->destroy(one);
  EXPECT_EQ(Pending(), "");
  End();
}

TEST_F(PromiseTest, ARequestStaysAsItEnded) {
  static int polls;
  polls = 0;
  fake_.collective.request_poll = [](sy_communicator*, sy_request*, sy_error* error) {
    return ++polls == 1 ? SY_FAIL(error, SY_ABORTED, "fake: a peer is gone") : sy_status{SY_OK};
  };
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request), SY_OK) << error_.message;
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_ABORTED);
  Clear();
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "had ended with 6, and a later poll answered 0"});
  collective_->request_release(communicator, request);
  collective_->destroy(communicator);
  End();
}

TEST_F(PromiseTest, AnUnknownDtypeIsUnsupportedAndNotInvalid) {
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request, 99), SY_UNSUPPORTED);
  EXPECT_EQ(Pending(), "");
  collective_->destroy(communicator);
  End();
}

TEST_F(PromiseTest, AnUnknownDtypeThatIsCalledInvalidIsABrokenPromise) {
  fake_.collective.all_reduce = [](sy_communicator*, const sy_call*, const void*, void*, uint64_t, sy_dtype, int32_t,
                                   sy_request**, sy_error* error) { return SY_FAIL(error, SY_INVALID, "fake: no"); };
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request, 99), SY_INVALID);
  ExpectPending({"the plugin broke a promise", "all_reduce", "expected SY_UNSUPPORTED"});
  EXPECT_EQ(AllReduce(communicator, &request, SY_F32), SY_INVALID);
  EXPECT_EQ(Pending(), "");
  collective_->destroy(communicator);
  End();
}

TEST_F(PromiseTest, ThreadsTakeTurnsOnACommunicator) {
  fake_.collective.request_poll = [](sy_communicator*, sy_request*, sy_error*) {
    return BeInTheCall(), sy_status{SY_OK};
  };
  fake_.collective.split = [](sy_communicator*, int32_t, int32_t, const char*, sy_communicator** made, sy_error*) {
    BeInTheCall();
    return NewHandle(made);
  };
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_communicator* const apart = Communicator();
  sy_communicator* part = nullptr;
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request), SY_OK) << error_.message;
  const std::function<sy_status(sy_communicator*, sy_error*)> calls[] = {
      [&](sy_communicator* on, sy_error* error) { return collective_->poll(on, error); },
      [&](sy_communicator* on, sy_error* error) {
        sy_communicator* ours = nullptr;
        const sy_status status = collective_->split(on, 0, 0, "ours", &ours, error);
        if (status == SY_OK) collective_->destroy(ours);
        return status;
      },
      [&](sy_communicator* on, sy_error* error) {
        sy_call call{};
        call.header = SY_HEADER(sy_call);
        sy_request* ours = nullptr;
        const sy_status status = collective_->send_recv_batch(on, &call, nullptr, 0, &ours, error);
        if (status == SY_OK) collective_->request_release(on, ours);
        return status;
      },
  };
  for (const auto& call : calls) {
    sy_error theirs = EmptyError();
    sy_status same = SY_OK, other = SY_INVALID;
    const auto meanwhile = [&] {
      same = call(communicator, &theirs);
      other = call(apart, nullptr);
      collective_->abort(communicator);
    };
    in_the_call = meanwhile;
    EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK) << error_.message;
    EXPECT_EQ(same, SY_INVALID);
    EXPECT_EQ(other, SY_OK);
    EXPECT_THAT(theirs.message, HasSubstr(kTogether));
    same = SY_OK;
    in_the_call = meanwhile;
    EXPECT_EQ(collective_->split(communicator, 0, 0, "part", &part, &error_), SY_OK) << error_.message;
    EXPECT_EQ(same, SY_INVALID);
    collective_->destroy(part);
  }
  in_the_call = [&] { collective_->request_release(communicator, request); };
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK) << error_.message;
  ExpectPending({"request_release", "communicator", kTogether});
  collective_->request_release(communicator, request);
  for (sy_communicator* const one : {communicator, apart}) collective_->destroy(one);
  EXPECT_EQ(Pending(), "");
  End();
}

}  // namespace
}  // namespace switchyard
