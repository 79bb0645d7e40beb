// What both sides promise of errors, headers, kernels and counts, held to by the validating interposer.
#include "tests/interposers/promises.h"

#include <functional>
#include <thread>

namespace switchyard {
namespace {

TEST_F(PromiseTest, TheErrorIsUntouchedOnSuccess) {
  fake_.device.copy = [](sy_device*, sy_stream*, sy_place, sy_place, uint64_t, const sy_copy_options*,
                         sy_error* error) {
    if (error != nullptr) std::strcpy(error->message, "all is well");
    return sy_status{SY_OK};
  };
  fake_.device.event_query = [](sy_device*, sy_event*, sy_error* error) {
    error->native_code = 600;
    return sy_status{SY_IN_PROGRESS};
  };
  Wrap();
  EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, nullptr, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "copy: it answered 0 and changed the error"});
  sy_event* event = nullptr;
  EXPECT_EQ(api_->event_create(device_, nullptr, &event, &error_), SY_OK);
  EXPECT_EQ(api_->event_query(device_, event, &error_), SY_IN_PROGRESS);
  ExpectPending({"event_query: it answered 8 and changed the error"});
  EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, nullptr, nullptr), SY_OK)
      << "without an error there is nothing to touch";
  api_->event_destroy(device_, event);
  End();
}

TEST_F(PromiseTest, FailuresSayWhyAndOnlyPollsAreInProgress) {
  fake_.device.copy = [](sy_device*, sy_stream*, sy_place, sy_place, uint64_t, const sy_copy_options*, sy_error*) {
    return sy_status{SY_UNSUPPORTED};
  };
  fake_.device.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, const sy_fill_options*, sy_error*) {
    return sy_status{SY_IN_PROGRESS};
  };
  Wrap();
  EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, nullptr, &error_), SY_UNSUPPORTED);
  ExpectPending({"the plugin broke a promise", "copy: it answered 1 without a message"});
  EXPECT_EQ(api_->fill(device_, nullptr, At(buffer_), 0, 8, nullptr, &error_), SY_IN_PROGRESS);
  ExpectPending({"fill: it answered SY_IN_PROGRESS, which only polls may"});
  End();
}

TEST_F(PromiseTest, TheFirstErrorOfAStreamStays) {
  static bool fails;
  fails = true;
  fake_.device.synchronize = [](sy_device*, sy_stream*, const sy_synchronize_options*, sy_error* error) {
    return fails ? SY_FAIL(error, SY_INTERNAL, "fake: a kernel has failed") : sy_status{SY_OK};
  };
  Wrap();
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_INTERNAL);
  Clear();
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_INTERNAL);
  EXPECT_EQ(Pending(), "");
  fails = false;
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "it answered SY_OK though stream", "expected its first error again"});
  End();
}

// Whether the caller's threads take turns is seen while the plugin is at work.
TEST_F(PromiseTest, ThreadsTakeTurnsOnAStream) {
  static std::function<void()> meanwhile;
  fake_.device.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, const sy_fill_options*, sy_error*) {
    std::thread([] { meanwhile(); }).join();
    return sy_status{SY_OK};
  };
  Wrap();
  sy_stream* other = nullptr;
  ASSERT_EQ(api_->stream_create(device_, nullptr, &other, &error_), SY_OK) << error_.message;
  sy_error theirs = EmptyError();
  sy_status same = SY_OK, without = SY_OK, apart = SY_OK, waits = SY_OK;
  meanwhile = [&] {
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
  EXPECT_THAT(theirs.message, testing::HasSubstr("is given work by another thread at the same time"));
  EXPECT_EQ(without, SY_OK);
  EXPECT_EQ(apart, SY_OK);
  EXPECT_EQ(waits, SY_OK);
  meanwhile = [] {};
  EXPECT_EQ(api_->fill(device_, stream_, At(buffer_), 0, 8, nullptr, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
  api_->stream_destroy(device_, other);
  End();
}

TEST_F(PromiseTest, HeadersAreSane) {
  Wrap();
  sy_copy_options options{};
  const auto copy = [&] { return api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, &options, &error_); };
  ExpectRefused(copy(), {"copy", "the header of a struct says 0 bytes"});
  options.header = SY_HEADER(sy_copy_options);
  EXPECT_EQ(copy(), SY_OK) << error_.message;
  sy_extension link{};
  link.header = SY_HEADER(sy_extension);
  options.header.next = &link;
  ExpectRefused(copy(), {"an extension says", "has no name"});
  link.name = "acme.hint/1";
  EXPECT_EQ(copy(), SY_OK) << error_.message;
  link.header.next = &link;
  ExpectRefused(copy(), {"does not end after 64 links"});
  End();
}

TEST_F(PromiseTest, ARequiredExtensionIsNotIgnored) {
  Wrap();
  sy_extension link{};
  link.header = SY_HEADER(sy_extension);
  link.name = "other.topic/1";
  link.required = 1;
  sy_fill_options options{};
  options.header = SY_HEADER(sy_fill_options);
  options.header.next = &link;
  const auto fill = [&] { return api_->fill(device_, nullptr, At(buffer_), 0, 8, &options, &error_); };
  EXPECT_EQ(fill(), SY_OK);
  ExpectPending({"the plugin broke a promise", "fill", "other.topic/1 is required"});
  link.name = "acme.topic/1";
  EXPECT_EQ(fill(), SY_OK);
  EXPECT_EQ(Pending(), "") << "its own it may know";
  End();
}

TEST_F(PromiseTest, ConstantsAreBoundAndWrittenBeforeTheFirstLaunch) {
  Wrap();
  sy_kernel* const kernel = Prepare("tabled");
  sy_buffer* constants = nullptr;
  ASSERT_EQ(api_->alloc(device_, FakePlugin::kConstantBytes, nullptr, &constants, &error_), SY_OK);
  Places without(At(buffer_), At(buffer_, 256));
  sy_bound* bound = nullptr;
  ExpectRefused(kernels_->bind(device_, kernel, &without.binding, &bound, &launch_, &error_),
                {"bind", "constants: expected device memory for 64 bytes"});
  bound = Bind(kernel, At(constants));
  ExpectRefused(launch_(bound, stream_, &error_), {"launch", "names constants that write_constants has not written"});
  ExpectRefused(kernels_->write_constants(device_, kernel, stream_, At(constants, 64), &error_),
                {"write_constants", "do not lie inside 64 bytes"});
  EXPECT_EQ(kernels_->write_constants(device_, kernel, stream_, At(constants), &error_), SY_OK) << error_.message;
  EXPECT_EQ(launch_(bound, stream_, &error_), SY_OK) << error_.message;
  ExpectRefused(kernels_->write_constants(device_, kernel, stream_, At(constants), &error_),
                {"are written there already"});
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  kernels_->unbind(device_, bound);
  kernels_->release(device_, kernel);
  api_->free(device_, constants);
  End();
}

TEST_F(PromiseTest, WhoeverAsksForConstantsWritesThem) {
  fake_.kernel.write_constants = nullptr;
  Wrap();
  sy_kernel* const kernel = Prepare("tabled");
  ExpectPending(
      {"the plugin broke a promise", "tabled", "64 bytes of constants", "lacks the function write_constants"});
  kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, OutputsOverlapOnlyAsTheKernelAllows) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    if (std::strcmp(request->op, "inplace") == 0) info->inplace[0] = 0;
    return NewHandle(made);
  };
  Wrap();
  sy_bound* bound = nullptr;
  Places same(At(buffer_), At(buffer_)), askew(At(buffer_), At(buffer_, 64));
  sy_kernel* const plain = Prepare("plain");
  ExpectRefused(kernels_->bind(device_, plain, &same.binding, &bound, &launch_, &error_),
                {"output 0 overlaps input 0, which the kernel does not allow"});
  sy_kernel* const inplace = Prepare("inplace");
  ExpectRefused(kernels_->bind(device_, inplace, &askew.binding, &bound, &launch_, &error_), {"output 0 overlaps"});
  EXPECT_EQ(kernels_->bind(device_, inplace, &same.binding, &bound, &launch_, &error_), SY_OK) << error_.message;
  kernels_->unbind(device_, bound);
  for (sy_kernel* const kernel : {plain, inplace}) kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, AKernelIsAsItWasAskedFor) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error* error) {
    const std::string op = request->op;
    if (op == "hungry") info->workspace_bytes = request->workspace_limit + 1;
    if (op == "leaving") info->residual_bytes = 8;
    if (op == "wild") info->inplace[0] = 1;
    if (request->inputs[0].dtype == 99) return SY_FAIL(error, SY_INVALID, "fake: a dtype of 99");
    return NewHandle(made);
  };
  Wrap();
  const std::pair<const char*, const char*> cases[] = {
      {"hungry", "1048577 bytes of workspace where at most 1048576 were offered"},
      {"leaving", "it leaves 8 bytes for a backward that does not follow"},
      {"wild", "output 0 is said to share the place of input 1 of 1"},
      {"random", "it reaches determinism 0 where 1 is required"},
  };
  for (const auto& [op, words] : cases) {
    negation_.info = {};
    negation_.info.header = SY_HEADER(sy_kernel_info);
    negation_.info.inplace = &negation_.inplace;
    negation_.inplace = -1;
    negation_.request.determinism = std::strcmp(op, "random") == 0 ? SY_DETERMINISM_RUN : SY_DETERMINISM_ANY;
    sy_kernel* const kernel = Prepare(op);
    ExpectPending({"the plugin broke a promise", words});
    kernels_->release(device_, kernel);
  }
  sy_kernel* kernel = nullptr;
  negation_.tensor.dtype = 99;
  EXPECT_EQ(kernels_->prepare(device_, &negation_.request, &kernel, &negation_.info, &error_), SY_INVALID);
  ExpectPending({"the plugin broke a promise", "SY_INVALID to a dtype that it does not know"});
  End();
}

TEST_F(PromiseTest, CountsAreCountsAndStringsEnd) {
  fake_.device.count = [](sy_instance*, int32_t* count, sy_error*) { return *count = -3, sy_status{SY_OK}; };
  fake_.device.query = [](sy_instance*, int32_t, sy_device_info* info, sy_error*) {
    std::memset(info->memory_kind, 'x', sizeof info->memory_kind);
    info->alignment = 48;
    return sy_status{SY_OK};
  };
  fake_.collective.query = [](sy_instance*, sy_collective_info* info, sy_error*) {
    std::memset(info->name, 'x', sizeof info->name);
    info->completion = SY_COMPLETES_BY_POLL;
    return sy_status{SY_OK};
  };
  Wrap();
  int32_t count = 0;
  EXPECT_EQ(api_->count(outer_.instance, &count, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "count", "-3 devices"});
  sy_device_info info{};
  info.header = SY_HEADER(sy_device_info);
  EXPECT_EQ(api_->query(outer_.instance, 0, &info, &error_), SY_OK);
  ExpectPending({"query", "the name or the memory kind does not end"});
  sy_collective_info about{};
  about.header = SY_HEADER(sy_collective_info);
  EXPECT_EQ(collective_->query(outer_.instance, &about, &error_), SY_OK);
  ExpectPending({"query", "the name does not end"});
  End();
}

}  // namespace
}  // namespace switchyard
