// A fake plugin behind validate: what a caller may get wrong with any plugin, and what a plugin may.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/abi/collective.h"
#include "tests/interposers/fake_plugin.h"
#include "tests/interposers/interposed.h"

namespace switchyard {

// What another thread does while the plugin is in a call, once.
inline std::function<void()> in_the_call;
inline void BeInTheCall() {
  if (in_the_call) std::thread(std::exchange(in_the_call, nullptr)).join();
}
constexpr const char* kTogether = "in another thread at the same time";

class PromiseTest : public testing::Test {
 protected:
  void TearDown() override {
    if (device_ == nullptr) return;
    Clear();
    api_->close(device_);
    EXPECT_EQ(Pending(), "") << "the test left something behind";
  }
  // Wraps the fake as it now is, and opens its device.
  void Wrap() {
    const auto validate = Registry::Get().Find(PluginKind::kInterposer, "validate").value();
    Clear();
    outer_.header = SY_HEADER(sy_plugin);
    ASSERT_EQ(validate->Interface<sy_interpose_v2>("interpose/2")
                  ->wrap(validate->table().instance, &fake_.table, "", &outer_, &error_),
              SY_OK)
        << error_.message;
    Take("device/2", api_);
    Take("kernel/2", kernels_);
    Take("memory_ext/2", memory_);
    Take("capture/2", capture_);
    Take("profiler/2", profiler_);
    Take("semaphore/1", semaphores_);
    Take("peer/1", peer_);
    Take("collective/2", collective_);
    ASSERT_EQ(api_->open(outer_.instance, 0, nullptr, &device_, &error_), SY_OK) << error_.message;
    ASSERT_EQ(api_->stream_create(device_, nullptr, &stream_, &error_), SY_OK) << error_.message;
    ASSERT_EQ(api_->alloc(device_, 512, nullptr, &buffer_, &error_), SY_OK) << error_.message;
  }
  void End() {
    EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
    api_->free(device_, buffer_);
    api_->stream_destroy(device_, stream_);
  }
  template <typename Table>
  void Take(const char* name, const Table*& table) {
    table = static_cast<const Table*>(outer_.get_interface(outer_.instance, name));
    ASSERT_NE(table, nullptr) << name;
  }
  void Clear() { error_ = EmptyError(); }
  std::string Pending() {
    Clear();
    return collective_->reduces(outer_.instance, SY_SUM, SY_F32, &error_) == SY_OK ? "" : error_.message;
  }
  void ExpectPending(const std::vector<std::string>& words) {
    const std::string text = Pending();
    for (const std::string& word : words) EXPECT_THAT(text, testing::HasSubstr(word));
    Clear();
  }
  void ExpectRefused(sy_status status, const std::vector<std::string>& words) {
    EXPECT_EQ(status, SY_INVALID);
    for (const std::string& word : words) EXPECT_THAT(error_.message, testing::HasSubstr(word));
    Clear();
  }
  sy_kernel* Prepare(const char* op) {
    negation_.request.op = op;
    sy_kernel* kernel = nullptr;
    EXPECT_EQ(kernels_->prepare(device_, &negation_.request, &kernel, &negation_.info, &error_), SY_OK)
        << error_.message;
    return kernel;
  }
  // From the first 256 bytes of the buffer to the others.
  sy_bound* Bind(sy_kernel* kernel, sy_place constants = {}) {
    places_.binding.constants = constants;
    places_.input = At(buffer_);
    places_.output = At(buffer_, 256);
    sy_bound* bound = nullptr;
    EXPECT_EQ(kernels_->bind(device_, kernel, &places_.binding, &bound, &launch_, &error_), SY_OK) << error_.message;
    return bound;
  }
  sy_communicator* Communicator(sy_device* device = nullptr) {
    const int32_t host = 0;
    sy_init_request request{};
    request.header = SY_HEADER(sy_init_request);
    request.size = 1;
    request.hosts = &host;
    request.name = "alone";
    request.device = device;
    request.backend = device == nullptr ? nullptr : &outer_;
    sy_communicator* communicator = nullptr;
    EXPECT_EQ(collective_->init(outer_.instance, &request, &communicator, &error_), SY_OK) << error_.message;
    EXPECT_EQ(collective_->poll(communicator, &error_), SY_OK);
    return communicator;
  }
  sy_status AllReduce(sy_communicator* communicator, sy_request** request, sy_dtype dtype = SY_F32) {
    static float values[4];
    sy_call call{};
    call.header = SY_HEADER(sy_call);
    call.tag = "gradients";
    return collective_->all_reduce(communicator, &call, values, values, 4, dtype, SY_SUM, request, &error_);
  }

  FakePlugin& fake_ = *new FakePlugin;  // lives as long as the process, as every plugin
  sy_plugin outer_{};
  const sy_device_v2* api_ = nullptr;
  const sy_kernel_v2* kernels_ = nullptr;
  const sy_memory_ext_v2* memory_ = nullptr;
  const sy_capture_v2* capture_ = nullptr;
  const sy_profiler_v2* profiler_ = nullptr;
  const sy_semaphore_v1* semaphores_ = nullptr;
  const sy_peer_v1* peer_ = nullptr;
  const sy_collective_v2* collective_ = nullptr;
  sy_device* device_ = nullptr;
  sy_stream* stream_ = nullptr;
  sy_buffer* buffer_ = nullptr;
  sy_launch launch_ = nullptr;
  Negation negation_{64};
  Places places_{{}, {}};
  sy_error error_{};
  std::array<char, 512> host_{};
};

}  // namespace switchyard
