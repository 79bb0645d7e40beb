// What both sides promise of errors, headers and counts, held to by the validating interposer.
#include "tests/interposers/promises.h"

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
  EXPECT_EQ(api_->fill(device_, stream_, At(buffer_), 0, 8, nullptr, &error_), SY_OK);
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_INTERNAL);
  Clear();
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_INTERNAL);
  EXPECT_EQ(Pending(), "");
  fails = false;
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "it answered SY_OK though stream", "expected its first error again"});
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

TEST_F(PromiseTest, LibrariesAreALineOfText) {
  static const char* said;
  static const char* const kinds[] = {"host", nullptr};
  fake_.device.query = [](sy_instance*, int32_t, sy_device_info* info, sy_error*) {
    info->alignment = 64;
    info->libraries = said;
    return sy_status{SY_OK};
  };
  fake_.collective.query = [](sy_instance*, sy_collective_info* info, sy_error*) {
    info->completion = SY_COMPLETES_ON_STREAM;
    info->memory_kinds = kinds;
    info->libraries = said;
    return sy_status{SY_OK};
  };
  said = nullptr;
  Wrap();
  for (const auto& [text, sound] : {std::pair("libfast 1.0", true), {"libfast 1.0\nlibslow 2.0", false}, {"", false}}) {
    said = text;
    sy_device_info info{};
    info.header = SY_HEADER(sy_device_info);
    EXPECT_EQ(api_->query(outer_.instance, 0, &info, &error_), SY_OK);
    if (!sound) {
      ExpectPending({"query", "its libraries are no line of text"});
    }
    sy_collective_info about{};
    about.header = SY_HEADER(sy_collective_info);
    EXPECT_EQ(collective_->query(outer_.instance, &about, &error_), SY_OK);
    if (!sound) {
      ExpectPending({"query", "its libraries are no line of text"});
    }
    EXPECT_EQ(Pending(), "") << text;
  }
  End();
}

TEST_F(PromiseTest, AStatusMeansWhatItMeans) {
  static sy_status answer;
  static const char* said;
  fake_.device.copy = [](sy_device*, sy_stream*, sy_place, sy_place, uint64_t, const sy_copy_options*,
                         sy_error* error) { return SY_FAIL(error, answer, "%s", said); };
  fake_.device.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, const sy_fill_options*, sy_error* error) {
    std::strcpy(error->message, "fake: no");
    std::memset(error->location, 'x', sizeof error->location);
    return sy_status{SY_UNSUPPORTED};
  };
  Wrap();
  std::string longest(sizeof error_.message - 2, 'x');
  longest += "\xC3\xA9";
  const std::tuple<sy_status, const char*, const char*> cases[] = {
      {SY_TIMEOUT, "fake: late", "copy: it answered 4, and nobody gave it a time limit"},
      {SY_ABORTED, "fake: gone", "copy: it answered 6, which is for collectives only"},
      {SY_UNSUPPORTED, "fake: \xC3(", "with a message that is not UTF-8"},
      {SY_UNSUPPORTED, "fake: \xFF", "with a message that is not UTF-8"},
      {SY_UNSUPPORTED, "fake: \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", ""},
      {SY_UNSUPPORTED, longest.c_str(), ""}};
  for (const auto& [status, message, blame] : cases) {
    answer = status;
    said = message;
    EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, nullptr, &error_), status);
    const std::string pending = Pending();
    EXPECT_THAT(pending, testing::HasSubstr(blame));
    EXPECT_EQ(pending.empty(), *blame == '\0') << pending;
    Clear();
  }
  EXPECT_EQ(api_->fill(device_, nullptr, At(buffer_), 0, 8, nullptr, &error_), SY_UNSUPPORTED);
  ExpectPending({"fill: it answered 1 with a location that does not end"});
  End();
}

}  // namespace
}  // namespace switchyard
