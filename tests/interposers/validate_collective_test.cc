// The validating interposer around collectives: wrong calls, and what both sides promise.
#include "tests/interposers/promises.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A communicator of one rank: everything that can be wrong on one side.
TEST(ValidateCollectiveTest, WrongCallsAreRefused) {
  const auto found = Registry::Get().Find(PluginKind::kCollective, "shm");
  ASSERT_TRUE(found.ok()) << Message(found.status());
  const auto plugin = Interpose(*found, {"validate"});
  ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
  const auto* api = (*plugin)->Interface<sy_collective_v2>("collective/2");
  sy_error error = EmptyError();
  const int32_t host = 0;
  sy_store store{};
  store.header = SY_HEADER(sy_store);
  store.put = [](void*, const char*, const void*, uint32_t, sy_error*) -> sy_status { return SY_OK; };
  store.get = [](void*, const char*, void*, uint32_t, uint32_t*, uint64_t, sy_error*) -> sy_status {
    return SY_TIMEOUT;
  };
  sy_init_request request{};
  request.header = SY_HEADER(sy_init_request);
  request.rank = 2;
  request.size = 1;
  request.hosts = &host;
  request.name = "alone";
  request.store = &store;
  request.timeout_ms = 1000;
  sy_communicator* communicator = nullptr;
  EXPECT_EQ(api->init((*plugin)->table().instance, &request, &communicator, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("rank 2 of 1"));
  request.rank = 0;
  ASSERT_EQ(api->init((*plugin)->table().instance, &request, &communicator, &error), SY_OK) << error.message;
  sy_call call{};
  call.header = SY_HEADER(sy_call);
  call.tag = "gradients";
  sy_request* pending = nullptr;
  float values[8] = {1, 2, 3};
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, AllOf(HasSubstr("init of alone"), HasSubstr("has not finished init")));
  while (api->poll(communicator, &error) == SY_IN_PROGRESS) {
  }
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values + 1, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("overlap"));
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values, 3, 99, SY_SUM, &pending, &error), SY_UNSUPPORTED)
      << "what the plugin does not know is the plugin's to say";
  EXPECT_EQ(api->all_reduce(communicator, &call, nullptr, values, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("no memory to send from"));
  EXPECT_EQ(api->broadcast(communicator, &call, values, 3, SY_F32, 5, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("rank 5 of 1"));
  EXPECT_EQ(api->request_poll(communicator, reinterpret_cast<sy_request*>(0x99), &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("0x99, which never was a request"));
  ASSERT_EQ(api->all_reduce(communicator, &call, values, values, 3, SY_F32, SY_SUM, &pending, &error), SY_OK)
      << error.message;
  if (pending != nullptr) {
    while (api->request_poll(communicator, pending, &error) == SY_IN_PROGRESS) {
    }
    api->request_release(communicator, pending);
  }
  EXPECT_EQ(values[2], 3);
  api->destroy(communicator);
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, AllOf(HasSubstr("expected a live communicator"), HasSubstr("destroy")));
}

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

}  // namespace
}  // namespace switchyard
