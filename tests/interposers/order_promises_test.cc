// What threads may do at the same time and what streams order, held to by the validating interposer.
#include <functional>
#include <thread>

#include "tests/interposers/promises.h"

namespace switchyard {
namespace {

// Runs in another thread while the plugin is in a call.
std::function<void()> in_the_call;
void BeInTheCall() {
  if (in_the_call) std::thread(std::exchange(in_the_call, nullptr)).join();
}

constexpr const char* kTogether = "by another thread at the same time";

class OrderTest : public PromiseTest {
 protected:
  // Two streams, and a binding whose launch_ is called.
  void WrapWithBinding() {
    Wrap();
    ASSERT_EQ(api_->stream_create(device_, nullptr, &other_, &error_), SY_OK) << error_.message;
    ASSERT_EQ(api_->event_create(device_, nullptr, &event_, &error_), SY_OK) << error_.message;
    kernel_ = Prepare("plain");
    bound_ = Bind(kernel_);
  }
  void EndWithBinding() {
    EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
    kernels_->unbind(device_, bound_);
    kernels_->release(device_, kernel_);
    api_->event_destroy(device_, event_);
    api_->stream_destroy(device_, other_);
    End();
  }
  void ExpectLaunch(sy_stream* stream) { EXPECT_EQ(launch_(bound_, stream, &error_), SY_OK) << error_.message; }
  void ExpectUnordered(sy_stream* stream) {
    ExpectRefused(launch_(bound_, stream, &error_), {"launch", "bind of plain", "nothing orders before this launch"});
  }

  sy_stream* other_ = nullptr;
  sy_event* event_ = nullptr;
  sy_kernel* kernel_ = nullptr;
  sy_bound* bound_ = nullptr;
};

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

TEST_F(OrderTest, AReplayIsALaunchOfItsBindings) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request*, sy_kernel** made, sy_kernel_info* info, sy_error*) {
    info->capturable = 1;
    return NewHandle(made);
  };
  WrapWithBinding();
  sy_graph* graph = nullptr;
  EXPECT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  ExpectLaunch(stream_);
  EXPECT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK);
  ExpectLaunch(other_);  // what was captured has not run
  ExpectRefused(capture_->launch(device_, graph, stream_, &error_), {"launch of a graph", "nothing orders"});
  EXPECT_EQ(capture_->launch(device_, graph, other_, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  capture_->release(device_, graph);
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

TEST_F(OrderTest, ThreadsTakeTurnsToPrepareKernels) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request*, sy_kernel** made, sy_kernel_info* info, sy_error*) {
    BeInTheCall();
    info->determinism = SY_DETERMINISM_EXACT;
    return NewHandle(made);
  };
  WrapWithBinding();
  sy_error theirs = EmptyError();
  sy_status prepared = SY_OK, copied = SY_INVALID;
  in_the_call = [&] {
    Negation negation(64);
    sy_kernel* kernel = nullptr;
    prepared = kernels_->prepare(device_, &negation.request, &kernel, &negation.info, &theirs);
    copied = api_->fill(device_, nullptr, At(buffer_), 0, 8, nullptr, nullptr);
  };
  sy_kernel* const kernel = Prepare("plain");
  EXPECT_EQ(prepared, SY_INVALID);
  EXPECT_THAT(theirs.message,
              testing::AllOf(testing::HasSubstr("prepares or releases a kernel"), testing::HasSubstr(kTogether)));
  EXPECT_EQ(copied, SY_OK);
  in_the_call = [&] { kernels_->release(device_, kernel); };
  sy_kernel* const second = Prepare("plain");
  ExpectPending({"release", "prepares or releases a kernel", kTogether});
  for (sy_kernel* const one : {kernel, second}) kernels_->release(device_, one);
  EXPECT_EQ(Pending(), "");
  EndWithBinding();
}

TEST_F(OrderTest, ThreadsTakeTurnsOnACommunicator) {
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
    EXPECT_THAT(theirs.message, testing::HasSubstr(kTogether));
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
