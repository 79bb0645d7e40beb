// In which order a graph runs what it holds, and what its events order, held to by the validating interposer.
#include "tests/interposers/order_promises.h"

namespace switchyard {
namespace {

class GraphOrderTest : public OrderTest {
 protected:
  void SetUp() override {
    fake_.device.query = [](sy_instance*, int32_t, sy_device_info* info, sy_error*) {
      info->flags = SY_DEVICE_ASYNC | SY_DEVICE_CAPTURES_STREAMS;
      return sy_status{SY_OK};
    };
    fake_.kernel.prepare = [](sy_device*, const sy_prepare_request*, sy_kernel** made, sy_kernel_info* info,
                              sy_error*) {
      info->capturable = 1;
      return NewHandle(made);
    };
  }
  void Begin() { EXPECT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK) << error_.message; }
  sy_graph* EndCapture() {
    sy_graph* graph = nullptr;
    EXPECT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK) << error_.message;
    return graph;
  }
  void Replay(sy_graph* graph, sy_stream* stream) {
    EXPECT_EQ(capture_->launch(device_, graph, stream, &error_), SY_OK) << error_.message;
  }
  void Record(sy_event* event, sy_stream* stream) {
    EXPECT_EQ(api_->event_record(device_, event, stream, &error_), SY_OK) << error_.message;
  }
  void Wait(sy_stream* stream, sy_event* event) {
    EXPECT_EQ(api_->stream_wait(device_, stream, event, &error_), SY_OK) << error_.message;
  }
  void EndWithGraph(sy_graph* graph) {
    EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
    capture_->release(device_, graph);
    EXPECT_EQ(Pending(), "");
    EndWithBinding();
  }
};

TEST_F(GraphOrderTest, AReplayIsALaunchOfItsBindings) {
  WrapWithBinding();
  sy_graph* graph = nullptr;
  EXPECT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  ExpectLaunch(stream_);
  EXPECT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK);
  ExpectLaunch(other_);  // what was captured has not run
  ExpectRefused(capture_->launch(device_, graph, stream_, &error_), {"launch of a graph", "nothing orders"});
  EXPECT_EQ(capture_->launch(device_, graph, other_, &error_), SY_OK) << error_.message;
  ExpectUnordered(stream_);
  EXPECT_EQ(api_->event_record(device_, event_, other_, &error_), SY_OK);
  EXPECT_EQ(api_->stream_wait(device_, stream_, event_, &error_), SY_OK);
  ExpectLaunch(stream_);
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  capture_->release(device_, graph);
  EndWithBinding();
}

// An event of a graph orders what it stands behind in the graph, and nothing else of it.
TEST_F(GraphOrderTest, WhoWaitsForAnEventOfAReplayIsBehindWhatTheEventStandsBehind) {
  WrapWithBinding();
  sy_bound* const later = Bind(kernel_);
  const auto expect_unordered = [&](sy_bound* bound, sy_stream* stream) {
    ExpectRefused(launch_(bound, stream, &error_), {"is used by call", "launch of a graph", "nothing orders"});
  };
  Begin();
  ExpectLaunch(stream_);
  Record(event_, stream_);
  EXPECT_EQ(launch_(later, stream_, &error_), SY_OK) << error_.message;
  sy_graph* const graph = EndCapture();
  Replay(graph, stream_);
  expect_unordered(bound_, other_);
  Wait(other_, event_);
  ExpectLaunch(other_);
  expect_unordered(later, other_);
  ExpectRefused(capture_->launch(device_, graph, stream_, &error_), {"is used by call", "launch on another stream"});
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  // The host may wait for it too; what stands behind the event it has not waited for.
  Replay(graph, stream_);
  EXPECT_EQ(api_->event_synchronize(device_, event_, &error_), SY_OK);
  ExpectLaunch(other_);
  expect_unordered(later, other_);
  // Recorded elsewhere it says nothing of the graph.
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  Replay(graph, stream_);
  Record(event_, other_);
  Wait(other_, event_);
  expect_unordered(bound_, other_);
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  capture_->release(device_, graph);
  kernels_->unbind(device_, later);
  EndWithBinding();
}

TEST_F(GraphOrderTest, TheLastEventOfAGraphEndsItsReplay) {
  WrapWithBinding();
  Begin();
  ExpectLaunch(stream_);
  Record(event_, stream_);
  sy_graph* const graph = EndCapture();
  Replay(graph, stream_);
  capture_->release(device_, graph);
  ExpectPending({"release of a graph", "nobody has waited for"});
  EXPECT_EQ(api_->event_synchronize(device_, event_, &error_), SY_OK);
  EndWithGraph(graph);
}

TEST_F(GraphOrderTest, WhatOneCaptureHoldsIsOrderedByItsEvents) {
  WrapWithBinding();
  sy_event* join = nullptr;
  ASSERT_EQ(api_->event_create(device_, nullptr, &join, &error_), SY_OK);
  Begin();
  Record(event_, stream_);
  Wait(other_, event_);
  ExpectLaunch(other_);
  ExpectRefused(launch_(bound_, stream_, &error_),
                {"launch", "bind of plain", "by the same capture", "nothing orders"});
  Record(join, other_);
  Wait(stream_, join);
  ExpectLaunch(stream_);
  sy_graph* const graph = EndCapture();
  Replay(graph, stream_);
  // The fork stands before both launches, the join before one of them.
  Wait(other_, join);
  ExpectRefused(launch_(bound_, other_, &error_), {"launch of a graph", "nothing orders"});
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK);
  capture_->release(device_, graph);
  api_->event_destroy(device_, join);
  EndWithBinding();
}

// A graph that itself signals a semaphore may order what no call tells of: nobody is accused.
TEST_F(GraphOrderTest, ASemaphoreThatAGraphSignalsIsTakenForAnOrder) {
  WrapWithBinding();
  sy_semaphore* semaphore = nullptr;
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  Begin();
  ExpectLaunch(stream_);
  EXPECT_EQ(semaphores_->stream_signal(device_, stream_, semaphore, 1, &error_), SY_OK) << error_.message;
  sy_graph* const graph = EndCapture();
  EXPECT_EQ(semaphores_->stream_wait(device_, other_, semaphore, 1, &error_), SY_OK);
  Replay(graph, stream_);
  ExpectLaunch(other_);
  EXPECT_EQ(semaphores_->signal(device_, semaphore, 2, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
  capture_->release(device_, graph);
  semaphores_->destroy(device_, semaphore);
  EndWithBinding();
}

}  // namespace
}  // namespace switchyard
