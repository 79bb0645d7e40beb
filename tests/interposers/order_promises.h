// What streams order, held to by the validating interposer.
#pragma once

#include <string>

#include "tests/interposers/promises.h"

namespace switchyard {

// Two streams, and a binding whose launch_ is called.
class OrderTest : public PromiseTest {
 protected:
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

}  // namespace switchyard
