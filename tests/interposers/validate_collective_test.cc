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

// A communicator of several ranks: the fake waits for none of them.
class CollectiveCallTest : public PromiseTest {
 protected:
  sy_communicator* Rank1Of3() {
    const int32_t hosts[3] = {};
    sy_store store{};
    store.header = SY_HEADER(sy_store);
    sy_init_request request{};
    request.header = SY_HEADER(sy_init_request);
    request.size = 3;
    request.rank = 1;
    request.hosts = hosts;
    request.name = "three";
    request.store = &store;
    sy_communicator* communicator = nullptr;
    EXPECT_EQ(collective_->init(outer_.instance, &request, &communicator, &error_), SY_OK) << error_.message;
    EXPECT_EQ(collective_->poll(communicator, &error_), SY_OK);
    return communicator;
  }
  void End(sy_communicator* communicator) {
    collective_->destroy(communicator);
    EXPECT_EQ(Pending(), "");
    PromiseTest::End();
  }
  sy_call call_ = {SY_HEADER(sy_call), "gradients"};
};

TEST_F(CollectiveCallTest, WhatIsInPlaceLiesAtTheBlockOfItsRank) {
  Wrap();
  sy_communicator* const communicator = Rank1Of3();
  float all[12] = {}, apart[12] = {};
  const auto gather = [&](float* send, float* receive) {
    sy_request* request = nullptr;
    const sy_status status = collective_->all_gather(communicator, &call_, send, receive, 4, SY_F32, &request, &error_);
    if (status == SY_OK) collective_->request_release(communicator, request);
    return status;
  };
  const auto scatter = [&](float* send, float* receive) {
    sy_request* request = nullptr;
    const sy_status status =
        collective_->reduce_scatter(communicator, &call_, send, receive, 4, SY_F32, SY_SUM, &request, &error_);
    if (status == SY_OK) collective_->request_release(communicator, request);
    return status;
  };
  EXPECT_EQ(gather(all + 4, all), SY_OK) << error_.message;
  EXPECT_EQ(gather(apart, all), SY_OK) << error_.message;
  ExpectRefused(gather(all, all), {"all_gather", "overlap without being in place"});
  ExpectRefused(gather(all + 8, all), {"all_gather", "overlap"});
  EXPECT_EQ(scatter(all, all + 4), SY_OK) << error_.message;
  EXPECT_EQ(scatter(all, apart), SY_OK) << error_.message;
  ExpectRefused(scatter(all, all), {"reduce_scatter", "overlap without being in place"});
  End(communicator);
}

TEST_F(CollectiveCallTest, MemoryOfACallIsNotFreedBeforeItHasEnded) {
  fake_.collective.request_poll = [](sy_communicator*, sy_request*, sy_error*) { return sy_status{SY_OK}; };
  Wrap();
  sy_communicator* const communicator = Rank1Of3();
  void* memory = nullptr;
  ASSERT_EQ(collective_->buffer_alloc(communicator, 64, &memory, &error_), SY_OK);
  sy_request* request = nullptr;
  float own[4] = {};
  EXPECT_EQ(collective_->all_reduce(communicator, &call_, own, static_cast<float*>(memory) + 12, 4, SY_F32, SY_SUM,
                                    &request, &error_),
            SY_OK)
      << error_.message;
  collective_->buffer_free(communicator, memory);
  ExpectPending({"buffer_free", "buffer_alloc of 64 bytes", "all_reduce of gradients", "no poll has seen ended"});
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK);
  collective_->buffer_free(communicator, memory);
  EXPECT_EQ(Pending(), "");
  collective_->buffer_free(communicator, nullptr);
  ExpectPending({"buffer_free", "NULL"});
  collective_->request_release(communicator, request);
  End(communicator);
}

TEST_F(CollectiveCallTest, RequestsOfAGroupArePolledBehindIt) {
  Wrap();
  sy_communicator* const communicator = Rank1Of3();
  sy_request* request = nullptr;
  EXPECT_EQ(collective_->group_begin(outer_.instance, &error_), SY_OK);
  EXPECT_EQ(AllReduce(communicator, &request), SY_OK) << error_.message;
  ExpectRefused(collective_->request_poll(communicator, request, &error_),
                {"request_poll", "a group that has not ended"});
  EXPECT_EQ(collective_->group_end(outer_.instance, &error_), SY_OK);
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK) << error_.message;
  collective_->request_release(communicator, request);
  End(communicator);
}

TEST_F(CollectiveCallTest, AnAbortedCommunicatorCallsNoMore) {
  Wrap();
  sy_communicator* const communicator = Rank1Of3();
  collective_->abort(communicator);
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request), SY_OK);
  EXPECT_EQ(Pending(), "") << "its request may tell";
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "request_poll", "made after its communicator was aborted"});
  EXPECT_EQ(collective_->poll(communicator, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "was aborted before, and a later poll answered 0"});
  collective_->request_release(communicator, request);
  End(communicator);
}

}  // namespace
}  // namespace switchyard
