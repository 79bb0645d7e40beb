// The validating interposer around kernels, captures and the profiler: wrong sequences are refused.
#include "tests/interposers/validate.h"

namespace switchyard {
namespace {

TEST_F(ValidateTest, KernelsAreBoundToPlacesThatSuitAndReleasedAfterTheirBindings) {
  Negation negation(64);
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(kernels_->prepare(device_, &negation.request, &kernel, &negation.info, &error_), SY_OK) << error_.message;
  sy_buffer* const buffer = Alloc(512);
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  Places short_output(At(buffer), At(buffer, 384));
  short_output.output.offset = 512 - 128;
  ExpectRefused(kernels_->bind(device_, kernel, &short_output.binding, &bound, &launch, &error_),
                {"bind", "output 0", "256 bytes"});
  Places askew(At(buffer), At(buffer, 4));
  ExpectRefused(kernels_->bind(device_, kernel, &askew.binding, &bound, &launch, &error_), {"offset 4", "alignment"});
  Places host(Host(host_.data()), At(buffer, 256));
  ExpectRefused(kernels_->bind(device_, kernel, &host.binding, &bound, &launch, &error_),
                {"input 0", "expected device memory"});

  Places places(At(buffer), At(buffer, 256));
  ASSERT_EQ(kernels_->bind(device_, kernel, &places.binding, &bound, &launch, &error_), SY_OK) << error_.message;
  kernels_->release(device_, kernel);
  ExpectPending({"release", "prepare of pointwise", "1 bindings"});
  kernels_->unbind(device_, bound);
  ExpectRefused(launch(bound, nullptr, &error_), {"launch", "expected a live binding", "bind of pointwise", "unbind"});
  kernels_->release(device_, kernel);
  EXPECT_EQ(Pending(), "");
  ExpectRefused(kernels_->bind(device_, kernel, &places.binding, &bound, &launch, &error_), {"expected a live kernel"});
  api_->free(device_, buffer);
}

TEST_F(ValidateTest, ABufferIsNotFreedUnderABinding) {
  Negation negation(64);
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(kernels_->prepare(device_, &negation.request, &kernel, &negation.info, &error_), SY_OK) << error_.message;
  sy_buffer* const x = Alloc(256);
  sy_buffer* const y = Alloc(256);
  Places places(At(x), At(y));
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(kernels_->bind(device_, kernel, &places.binding, &bound, &launch, &error_), SY_OK) << error_.message;
  api_->free(device_, y);
  ExpectPending({"free", "alloc of 256 bytes", "is named by 1 bindings"});
  kernels_->unbind(device_, bound);
  kernels_->release(device_, kernel);
  api_->free(device_, x);
  api_->free(device_, y);
  EXPECT_EQ(Pending(), "");
}

TEST_F(ValidateTest, CapturesBeginBeforeTheyEnd) {
  sy_stream* const stream = Stream();
  sy_graph* graph = nullptr;
  ExpectRefused(capture_->end(device_, stream, &graph, &error_), {"end of a capture", "is not being captured"});
  ASSERT_EQ(capture_->begin(device_, stream, nullptr, &error_), SY_OK) << error_.message;
  ExpectRefused(capture_->begin(device_, stream, nullptr, &error_), {"is being captured already"});
  ASSERT_EQ(capture_->end(device_, stream, &graph, &error_), SY_OK) << error_.message;
  EXPECT_EQ(capture_->launch(device_, graph, stream, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, stream, nullptr, &error_), SY_OK);
  capture_->release(device_, graph);
  ExpectRefused(capture_->launch(device_, graph, stream, &error_), {"expected a live graph", "release of a graph"});
  // What a capture cannot hold the plugin refuses itself, and then the whole capture.
  ASSERT_EQ(capture_->begin(device_, stream, nullptr, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, stream, nullptr, &error_), SY_UNSUPPORTED);
  EXPECT_EQ(capture_->end(device_, stream, &graph, &error_), SY_UNSUPPORTED);
  EXPECT_EQ(api_->synchronize(device_, stream, nullptr, &error_), SY_OK) << "after the end it runs work as before";
  EXPECT_EQ(Pending(), "");
  api_->stream_destroy(device_, stream);
}

TEST_F(ValidateTest, TheProfilerIsStartedOnce) {
  const auto* profiler = plugin_->Interface<sy_profiler_v2>("profiler/2");
  ASSERT_NE(profiler, nullptr);
  ExpectRefused(profiler->stop(device_, &error_), {"was not started"});
  EXPECT_EQ(profiler->start(device_, &error_), SY_OK);
  ExpectRefused(profiler->start(device_, &error_), {"runs already"});
  EXPECT_EQ(profiler->stop(device_, &error_), SY_OK);
}

}  // namespace
}  // namespace switchyard
