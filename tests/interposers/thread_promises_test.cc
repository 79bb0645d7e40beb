// What threads may do at the same time, held to by the validating interposer. It is seen while the plugin is in a call.
#include "tests/interposers/promises.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

class ThreadTest : public PromiseTest {
 protected:
  // Another thread does this during a call, and it is refused with these words; `call` is made and passes.
  template <typename Call>
  void ExpectRefusedDuring(const Call& call, const std::function<sy_status(sy_error*)>& other,
                           const std::vector<std::string>& words) {
    sy_error theirs = EmptyError();
    sy_status status = SY_OK;
    in_the_call = [&] { status = other(&theirs); };
    call();
    EXPECT_EQ(in_the_call, nullptr) << "nobody was in the call";
    EXPECT_EQ(status, SY_INVALID);
    for (const std::string& word : words) EXPECT_THAT(theirs.message, HasSubstr(word));
    EXPECT_THAT(theirs.message, HasSubstr(kTogether));
    EXPECT_EQ(error_.message, std::string());
  }
  // The same for what cannot say so itself.
  template <typename Call>
  void ExpectReportedDuring(const Call& call, const std::function<void()>& other,
                            const std::vector<std::string>& words) {
    in_the_call = other;
    call();
    EXPECT_EQ(in_the_call, nullptr) << "nobody was in the call";
    const std::string text = Pending();
    for (const std::string& word : words) EXPECT_THAT(text, HasSubstr(word));
    EXPECT_THAT(text, HasSubstr(kTogether));
    Clear();
  }
};

TEST_F(ThreadTest, TakesTurnsToOpenAndCloseDevices) {
  fake_.device.open = [](sy_instance*, int32_t, const sy_open_options*, sy_device** made, sy_error*) {
    BeInTheCall();
    return NewHandle(made);
  };
  fake_.device.close = [](sy_device*) { BeInTheCall(); };
  Wrap();
  sy_device *first = nullptr, *second = nullptr;
  const auto open = [&](sy_device** made, sy_error* error) {
    return api_->open(outer_.instance, 0, nullptr, made, error);
  };
  ASSERT_EQ(open(&first, &error_), SY_OK);
  const auto opening = [&] { EXPECT_EQ(open(&second, &error_), SY_OK); };
  ExpectReportedDuring(opening, [&] { api_->close(first); }, {"close", "the instance opens or closes a device"});
  ExpectRefusedDuring([&] { api_->close(second); }, [&](sy_error* error) { return open(&second, error); },
                      {"open", "the instance opens or closes a device"});
  in_the_call = [&] { EXPECT_EQ(api_->fill(device_, nullptr, At(buffer_), 0, 8, nullptr, nullptr), SY_OK); };
  api_->close(first);
  EXPECT_EQ(Pending(), "") << "another device is at work meanwhile";
  End();
}

TEST_F(ThreadTest, TakesTurnsOnTheProfiler) {
  fake_.profiler.start = [](sy_device*, sy_error*) { return BeInTheCall(), sy_status{SY_OK}; };
  fake_.profiler.stop = fake_.profiler.start;
  fake_.profiler.drain = [](sy_device*, sy_span*, uint32_t, uint32_t* count, uint64_t*, sy_error*) {
    BeInTheCall();
    return *count = 0, sy_status{SY_OK};
  };
  Wrap();
  const auto drain = [&](sy_error* error) {
    uint32_t count = 0;
    uint64_t offset = 0;
    return profiler_->drain(device_, nullptr, 0, &count, &offset, error);
  };
  const auto stop = [&](sy_error* error) { return profiler_->stop(device_, error); };
  ExpectRefusedDuring([&] { EXPECT_EQ(profiler_->start(device_, &error_), SY_OK); }, drain, {"drain", "the profiler"});
  ExpectRefusedDuring([&] { EXPECT_EQ(drain(&error_), SY_OK); }, stop, {"stop of the profiler", "the profiler of"});
  ExpectRefusedDuring([&] { EXPECT_EQ(stop(&error_), SY_OK); }, drain, {"drain"});
  EXPECT_EQ(drain(&error_), SY_OK) << error_.message;
  End();
}

TEST_F(ThreadTest, AKernelIsNotReleasedWhileItIsBoundOrUnbound) {
  fake_.kernel.bind = [](sy_device*, sy_kernel*, const sy_binding*, sy_bound** made, sy_launch* launch, sy_error*) {
    *launch = [](sy_bound*, sy_stream*, sy_error*) { return BeInTheCall(), sy_status{SY_OK}; };
    BeInTheCall();
    return NewHandle(made);
  };
  fake_.kernel.unbind = [](sy_device*, sy_bound*) { BeInTheCall(); };
  Wrap();
  sy_kernel* const kernel = Prepare("plain");
  sy_bound* bound = nullptr;
  const auto release = [&] { kernels_->release(device_, kernel); };
  ExpectReportedDuring([&] { bound = Bind(kernel); }, release, {"release", "prepare of plain", "is named in a call"});
  ExpectReportedDuring([&] { EXPECT_EQ(launch_(bound, nullptr, &error_), SY_OK); },
                       [&] { kernels_->unbind(device_, bound); }, {"unbind", "bind of plain", "is being launched"});
  ExpectReportedDuring([&] { kernels_->unbind(device_, bound); }, release, {"release", "is named in a call"});
  release();
  EXPECT_EQ(Pending(), "");
  End();
}

TEST_F(ThreadTest, NothingEndsUnderACallThatNamesIt) {
  fake_.device.event_synchronize = [](sy_device*, sy_event*, sy_error*) { return BeInTheCall(), sy_status{SY_OK}; };
  fake_.device.synchronize = [](sy_device*, sy_stream*, const sy_synchronize_options*, sy_error*) {
    return BeInTheCall(), sy_status{SY_OK};
  };
  fake_.device.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, const sy_fill_options*, sy_error*) {
    return BeInTheCall(), sy_status{SY_OK};
  };
  fake_.semaphore.wait = [](sy_device*, sy_semaphore*, uint64_t, uint64_t, sy_error*) {
    return BeInTheCall(), sy_status{SY_OK};
  };
  fake_.collective.abort = [](sy_communicator*) { BeInTheCall(); };
  fake_.capture.launch = [](sy_device*, sy_graph*, sy_stream*, sy_error*) { return BeInTheCall(), sy_status{SY_OK}; };
  Wrap();
  sy_event* event = nullptr;
  sy_semaphore* semaphore = nullptr;
  sy_graph* graph = nullptr;
  ASSERT_EQ(api_->event_create(device_, nullptr, &event, &error_), SY_OK);
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  ASSERT_EQ(api_->event_record(device_, event, stream_, &error_), SY_OK);
  ASSERT_EQ(api_->event_synchronize(device_, event, &error_), SY_OK);
  ASSERT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  ASSERT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK);
  sy_communicator* const communicator = Communicator();
  const auto passes = [&](auto call, auto... arguments) {
    return [=, this] { EXPECT_EQ(call(device_, arguments..., &error_), SY_OK) << error_.message; };
  };
  ExpectReportedDuring(passes(api_->event_synchronize, event), [&] { api_->event_destroy(device_, event); },
                       {"event_destroy", "is named in a call"});
  ExpectReportedDuring(passes(api_->synchronize, stream_, nullptr), [&] { api_->stream_destroy(device_, stream_); },
                       {"stream_destroy", "is named in a call"});
  ExpectReportedDuring(passes(api_->fill, nullptr, At(buffer_), uint8_t{0}, uint64_t{8}, nullptr),
                       [&] { api_->free(device_, buffer_); }, {"free", "is named in a call"});
  ExpectReportedDuring(passes(semaphores_->wait, semaphore, uint64_t{0}, uint64_t{0}),
                       [&] { semaphores_->destroy(device_, semaphore); }, {"destroy", "is named in a call"});
  ExpectReportedDuring(passes(capture_->launch, graph, nullptr), [&] { capture_->release(device_, graph); },
                       {"release of a graph", "is named in a call"});
  ExpectReportedDuring([&] { collective_->abort(communicator); }, [&] { collective_->destroy(communicator); },
                       {"destroy", "communicator", "is named in a call"});
  // A wait for the whole device names no stream.
  sy_stream* other = nullptr;
  ASSERT_EQ(api_->stream_create(device_, nullptr, &other, &error_), SY_OK);
  in_the_call = [&] { api_->stream_destroy(device_, other); };
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  EXPECT_EQ(Pending(), "");
  collective_->destroy(communicator);
  capture_->release(device_, graph);
  semaphores_->destroy(device_, semaphore);
  api_->event_destroy(device_, event);
  End();
  ExpectReportedDuring(passes(api_->synchronize, nullptr, nullptr), [&] { api_->close(device_); },
                       {"close", "is named in a call"});
}

TEST_F(ThreadTest, TakesTurnsOnAStream) {
  fake_.device.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, const sy_fill_options*, sy_error*) {
    BeInTheCall();
    return sy_status{SY_OK};
  };
  Wrap();
  sy_stream* other = nullptr;
  ASSERT_EQ(api_->stream_create(device_, nullptr, &other, &error_), SY_OK) << error_.message;
  sy_error theirs = EmptyError();
  sy_status same = SY_OK, without = SY_OK, apart = SY_OK, waits = SY_OK;
  in_the_call = [&] {
    const auto copy = [&](sy_stream* stream, sy_error* error) {
      return api_->copy(device_, stream, At(buffer_, 64), Host(host_.data()), 8, nullptr, error);
    };
    same = copy(stream_, &theirs);
    without = copy(nullptr, nullptr);
    apart = copy(other, nullptr);
    waits = api_->synchronize(device_, stream_, nullptr, nullptr);
  };
  EXPECT_EQ(api_->fill(device_, stream_, At(buffer_), 0, 8, nullptr, &error_), SY_OK) << error_.message;
  EXPECT_EQ(same, SY_INVALID);
  EXPECT_THAT(theirs.message, HasSubstr("is given work in another thread at the same time"));
  EXPECT_EQ(without, SY_OK);
  EXPECT_EQ(apart, SY_OK);
  EXPECT_EQ(waits, SY_OK);
  EXPECT_EQ(api_->fill(device_, stream_, At(buffer_), 0, 8, nullptr, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
  api_->stream_destroy(device_, other);
  End();
}

TEST_F(ThreadTest, TakesTurnsToPrepareKernels) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request*, sy_kernel** made, sy_kernel_info* info, sy_error*) {
    BeInTheCall();
    info->determinism = SY_DETERMINISM_EXACT;
    return NewHandle(made);
  };
  Wrap();
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
  EXPECT_THAT(theirs.message, testing::AllOf(HasSubstr("prepares or releases a kernel"), HasSubstr(kTogether)));
  EXPECT_EQ(copied, SY_OK);
  in_the_call = [&] { kernels_->release(device_, kernel); };
  sy_kernel* const second = Prepare("plain");
  ExpectPending({"release", "prepares or releases a kernel", kTogether});
  for (sy_kernel* const one : {kernel, second}) kernels_->release(device_, one);
  EXPECT_EQ(Pending(), "");
  End();
}

}  // namespace
}  // namespace switchyard
