// A device of the null plugin (asynchronous, opaque) behind validate, driven through the C interfaces.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/interposers/interposed.h"

namespace switchyard {

class ValidateTest : public testing::Test {
 protected:
  void SetUp() override {
    plugin_ = Interposed("null", {"validate"});
    ASSERT_NE(plugin_, nullptr);
    api_ = plugin_->Interface<sy_device_v2>("device/2");
    kernels_ = plugin_->Interface<sy_kernel_v2>("kernel/2");
    capture_ = plugin_->Interface<sy_capture_v2>("capture/2");
    Clear();
    device_ = Open(0);
  }
  void TearDown() override {
    Clear();
    if (device_ != nullptr) api_->close(device_);
    EXPECT_EQ(Pending(), "") << "the test left something behind";
  }

  sy_device* Open(int32_t index) {
    sy_open_options options{};
    options.header = SY_HEADER(sy_open_options);
    sy_device* device = nullptr;
    EXPECT_EQ(api_->open(plugin_->table().instance, index, &options, &device, &error_), SY_OK) << error_.message;
    return device;
  }
  sy_buffer* Alloc(uint64_t bytes) {
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(api_->alloc(device_, bytes, nullptr, &buffer, &error_), SY_OK) << error_.message;
    return buffer;
  }
  sy_stream* Stream(sy_device* device = nullptr) {
    sy_stream_options options{};
    options.header = SY_HEADER(sy_stream_options);
    sy_stream* stream = nullptr;
    EXPECT_EQ(api_->stream_create(device ? device : device_, &options, &stream, &error_), SY_OK) << error_.message;
    return stream;
  }
  sy_event* Event() {
    sy_event* event = nullptr;
    EXPECT_EQ(api_->event_create(device_, nullptr, &event, &error_), SY_OK) << error_.message;
    return event;
  }
  void Clear() { error_ = EmptyError(); }
  // What a function without a status had to say: the next call that has one tells it, once.
  std::string Pending() {
    Clear();
    int32_t count = 0;
    return api_->count(plugin_->table().instance, &count, &error_) == SY_OK ? "" : error_.message;
  }
  // A call was refused as the caller's mistake, with these words.
  void ExpectRefused(sy_status status, const std::vector<std::string>& words) {
    EXPECT_EQ(status, SY_INVALID);
    for (const std::string& word : words) EXPECT_THAT(error_.message, testing::HasSubstr(word));
    Clear();
  }
  void ExpectPending(const std::vector<std::string>& words) {
    const std::string text = Pending();
    for (const std::string& word : words) EXPECT_THAT(text, testing::HasSubstr(word));
    Clear();
  }

  std::shared_ptr<Plugin> plugin_;
  const sy_device_v2* api_ = nullptr;
  const sy_kernel_v2* kernels_ = nullptr;
  const sy_capture_v2* capture_ = nullptr;
  sy_device* device_ = nullptr;
  sy_error error_{};
  std::array<float, 64> host_{};
};

}  // namespace switchyard
