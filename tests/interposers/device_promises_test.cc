// What both sides promise of memory, streams and captures, held to by the validating interposer.
#include "tests/interposers/promises.h"

namespace switchyard {
namespace {

TEST_F(PromiseTest, CopiesAndFillsAreOfWhatTheDeviceCopies) {
  Wrap();
  ExpectRefused(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 6, nullptr, &error_),
                {"copy", "destination: 6 bytes at offset 0", "the 4 bytes that the device copies"});
  ExpectRefused(api_->copy(device_, nullptr, Host(host_.data()), At(buffer_, 2), 4, nullptr, &error_),
                {"source: 4 bytes at offset 2"});
  ExpectRefused(api_->fill(device_, nullptr, At(buffer_, 1), 0, 4, nullptr, &error_), {"fill", "offset 1"});
  ExpectRefused(api_->copy(device_, nullptr, At(buffer_), At(buffer_, 4), 8, nullptr, &error_), {"overlap"});
  EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data() + 1), 4, nullptr, &error_), SY_OK)
      << "host memory may lie anywhere";
  End();
}

TEST_F(PromiseTest, ABindingOutlivesItsLaunches) {
  Wrap();
  sy_kernel* const kernel = Prepare("plain");
  sy_bound* const bound = Bind(kernel);
  EXPECT_EQ(launch_(bound, stream_, &error_), SY_OK) << error_.message;
  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "binding", "is used by call", "launch", "nobody has waited for"});
  sy_event* event = nullptr;
  EXPECT_EQ(api_->event_create(device_, nullptr, &event, &error_), SY_OK);
  EXPECT_EQ(api_->event_record(device_, event, stream_, &error_), SY_OK);
  api_->event_destroy(device_, event);
  ExpectPending({"event_destroy", "event_record", "nobody has waited for"});
  EXPECT_EQ(api_->event_synchronize(device_, event, &error_), SY_OK);
  kernels_->unbind(device_, bound);
  EXPECT_EQ(Pending(), "") << "the event came after the launch";
  api_->event_destroy(device_, event);
  kernels_->release(device_, kernel);
  End();
}

// A destroyed stream runs what is queued to its end: whoever waits for the device has waited for that.
TEST_F(PromiseTest, TheDeviceIsWaitedForWithWhatDestroyedStreamsHaveQueued) {
  Wrap();
  sy_stream* stream = nullptr;
  sy_buffer* buffer = nullptr;
  for (const bool of_the_device : {true, false}) {
    ASSERT_EQ(api_->stream_create(device_, nullptr, &stream, &error_), SY_OK);
    ASSERT_EQ(api_->alloc(device_, 64, nullptr, &buffer, &error_), SY_OK);
    EXPECT_EQ(api_->fill(device_, stream, At(buffer), 0, 64, nullptr, &error_), SY_OK);
    api_->stream_destroy(device_, stream);
    api_->free(device_, buffer);
    ExpectPending({"free", "fill", "nobody has waited for"});
    EXPECT_EQ(api_->synchronize(device_, of_the_device ? nullptr : stream_, nullptr, &error_), SY_OK);
    api_->free(device_, buffer);
    if (of_the_device) {
      EXPECT_EQ(Pending(), "");
    } else {
      ExpectPending({"free", "fill", "nobody has waited for"});
    }
  }
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  api_->free(device_, buffer);
  EXPECT_EQ(Pending(), "");
  End();
}

TEST_F(PromiseTest, WhatAGraphNamesOutlivesIt) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    info->capturable = std::strcmp(request->op, "recorded") == 0;
    return NewHandle(made);
  };
  Wrap();
  sy_kernel* const kernel = Prepare("recorded");
  sy_bound* const bound = Bind(kernel);
  const sy_launch launch = launch_;
  sy_kernel* const other = Prepare("not recorded");
  sy_bound* const other_bound = Bind(other);
  sy_graph* graph = nullptr;
  EXPECT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  EXPECT_EQ(launch(bound, stream_, &error_), SY_OK) << error_.message;
  ExpectRefused(launch_(other_bound, stream_, &error_), {"launch", "prepare of not recorded", "is not capturable"});
  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "is named by what stream", "captures"});
  EXPECT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK);
  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "is named by graph"});
  EXPECT_EQ(capture_->launch(device_, graph, stream_, &error_), SY_OK) << error_.message;
  capture_->release(device_, graph);
  ExpectPending({"release of a graph", "launch of a graph", "nobody has waited for"});
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  api_->close(device_);
  ExpectPending({"close", "left"});
  capture_->release(device_, graph);
  EXPECT_EQ(Pending(), "");
  for (sy_bound* const one : {bound, other_bound}) kernels_->unbind(device_, one);
  for (sy_kernel* const one : {kernel, other}) kernels_->release(device_, one);
  End();
}

// What a capture drew in is being captured like the stream on which it was begun, and no longer.
TEST_F(PromiseTest, StreamsThatACaptureDrewInAreCaptured) {
  fake_.device.query = [](sy_instance*, int32_t, sy_device_info* info, sy_error*) {
    info->flags = SY_DEVICE_ASYNC | SY_DEVICE_CAPTURES_STREAMS;
    return sy_status{SY_OK};
  };
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    info->capturable = std::strcmp(request->op, "recorded") == 0;
    return NewHandle(made);
  };
  Wrap();
  sy_kernel* const kernel = Prepare("recorded");
  sy_bound* const bound = Bind(kernel);
  const sy_launch launch = launch_;
  sy_kernel* const other = Prepare("not recorded");
  sy_bound* const other_bound = Bind(other);
  sy_stream *branch = nullptr, *outside = nullptr;
  sy_event *fork = nullptr, *join = nullptr;
  for (sy_stream** stream : {&branch, &outside})
    ASSERT_EQ(api_->stream_create(device_, nullptr, stream, &error_), SY_OK);
  for (sy_event** event : {&fork, &join}) ASSERT_EQ(api_->event_create(device_, nullptr, event, &error_), SY_OK);

  ASSERT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  ASSERT_EQ(api_->event_record(device_, fork, stream_, &error_), SY_OK) << error_.message;
  EXPECT_EQ(launch_(other_bound, branch, &error_), SY_OK) << "not drawn in yet";
  EXPECT_EQ(api_->synchronize(device_, branch, nullptr, &error_), SY_OK) << "its next launch is on another stream";
  ASSERT_EQ(api_->stream_wait(device_, branch, fork, &error_), SY_OK) << error_.message;
  ASSERT_EQ(launch(bound, branch, &error_), SY_OK) << error_.message;
  ExpectRefused(launch_(other_bound, branch, &error_), {"is not capturable", "between begin and end"});
  EXPECT_EQ(api_->synchronize(device_, branch, nullptr, &error_), SY_OK);
  ExpectPending({"broke a promise", "synchronize", "is being captured: expected SY_UNSUPPORTED"});
  ExpectRefused(capture_->begin(device_, branch, nullptr, &error_), {"is being captured already"});
  sy_graph* graph = nullptr;
  ExpectRefused(capture_->end(device_, branch, &graph, &error_), {"was drawn into a capture"});
  api_->stream_destroy(device_, branch);
  ExpectPending({"stream_destroy", "is being captured"});
  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "is named by what stream", "captures"});
  EXPECT_EQ(launch_(other_bound, outside, &error_), SY_OK) << "a stream that waits for nothing of it";
  EXPECT_EQ(api_->synchronize(device_, outside, nullptr, &error_), SY_OK) << error_.message;
  ASSERT_EQ(api_->event_record(device_, join, branch, &error_), SY_OK);
  ASSERT_EQ(api_->stream_wait(device_, stream_, join, &error_), SY_OK);
  ASSERT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK) << error_.message;

  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "is named by graph"});
  EXPECT_EQ(launch_(other_bound, branch, &error_), SY_OK) << "after the end it runs work as before";
  EXPECT_EQ(api_->stream_wait(device_, outside, fork, &error_), SY_OK);
  EXPECT_EQ(api_->synchronize(device_, outside, nullptr, &error_), SY_OK) << "which draws nobody in any more";
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
  capture_->release(device_, graph);
  for (sy_event* event : {fork, join}) api_->event_destroy(device_, event);
  for (sy_bound* const one : {bound, other_bound}) kernels_->unbind(device_, one);
  for (sy_kernel* const one : {kernel, other}) kernels_->release(device_, one);
  for (sy_stream* stream : {branch, outside}) api_->stream_destroy(device_, stream);
  EXPECT_EQ(Pending(), "");
  End();
}

TEST_F(PromiseTest, GraphsAndSemaphoresEndBeforeTheirDevice) {
  Wrap();
  sy_graph* graph = nullptr;
  EXPECT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  EXPECT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK);
  End();
  api_->close(device_);
  ExpectPending({"close", "1 left", "graph"});
  capture_->release(device_, graph);
  sy_semaphore* semaphore = nullptr;
  EXPECT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  api_->close(device_);
  ExpectPending({"close", "1 left", "semaphore"});
  semaphores_->destroy(device_, semaphore);
}

TEST_F(PromiseTest, ImportedMemoryIsForCopiesOnly) {
  Wrap();
  unsigned char description[SY_MEMORY_DESCRIPTION_BYTES];
  uint32_t bytes = 0;
  ExpectRefused(peer_->export_memory(device_, buffer_, description, sizeof description, &bytes, &error_),
                {"export_memory", "alloc of 512 bytes", "not allocated with sy_alloc_options.exportable"});
  sy_alloc_options options{};
  options.header = SY_HEADER(sy_alloc_options);
  options.exportable = 1;
  sy_buffer *exported = nullptr, *imported = nullptr;
  ASSERT_EQ(api_->alloc(device_, 512, &options, &exported, &error_), SY_OK);
  ASSERT_EQ(peer_->export_memory(device_, exported, description, sizeof description, &bytes, &error_), SY_OK)
      << error_.message;
  ASSERT_EQ(peer_->import_memory(device_, description, bytes, &imported, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->copy(device_, nullptr, At(imported, 4096), At(exported), 256, nullptr, &error_), SY_OK)
      << error_.message;
  sy_kernel* const kernel = Prepare("plain");
  Places places(At(imported), At(exported));
  sy_bound* bound = nullptr;
  ExpectRefused(kernels_->bind(device_, kernel, &places.binding, &bound, &launch_, &error_),
                {"bind", "input 0", "was imported: it is for copy and fill only"});
  kernels_->release(device_, kernel);
  api_->free(device_, exported);
  ExpectPending({"free", "alloc of 512 bytes", "is imported by 1 buffers that were not freed"});
  for (sy_buffer* const one : {imported, exported}) api_->free(device_, one);
  EXPECT_EQ(Pending(), "");
  End();
}

TEST_F(PromiseTest, ADescriptionFitsWhereItWasAskedFor) {
  fake_.peer.export_memory = [](sy_device*, sy_buffer*, void*, uint32_t capacity, uint32_t* bytes, sy_error*) {
    *bytes = capacity + 1;
    return sy_status{SY_OK};
  };
  Wrap();
  sy_alloc_options options{};
  options.header = SY_HEADER(sy_alloc_options);
  options.exportable = 1;
  sy_buffer* exported = nullptr;
  unsigned char description[SY_MEMORY_DESCRIPTION_BYTES];
  uint32_t bytes = 0;
  ASSERT_EQ(api_->alloc(device_, 512, &options, &exported, &error_), SY_OK);
  EXPECT_EQ(peer_->export_memory(device_, exported, description, sizeof description, &bytes, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "a description of 257 bytes where there are 256"});
  api_->free(device_, exported);
  End();
}

TEST_F(PromiseTest, HostMemoryOutlivesItsCopies) {
  Wrap();
  void* memory = nullptr;
  ASSERT_EQ(memory_->host_alloc(device_, 64, &memory, &error_), SY_OK);
  EXPECT_EQ(api_->copy(device_, stream_, At(buffer_), Host(static_cast<char*>(memory) + 32), 32, nullptr, &error_),
            SY_OK)
      << error_.message;
  memory_->host_free(device_, memory);
  ExpectPending({"host_free", "host_alloc of 64 bytes", "copy", "nobody has waited for"});
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  EXPECT_EQ(api_->copy(device_, stream_, At(buffer_), Host(host_.data()), 32, nullptr, &error_), SY_OK);
  memory_->host_free(device_, memory);
  EXPECT_EQ(Pending(), "") << "other memory is copied from";
  memory_->host_free(device_, nullptr);
  ExpectPending({"host_free", "found a NULL host allocation"});
  End();
}

}  // namespace
}  // namespace switchyard
