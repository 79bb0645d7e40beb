// What capture/2 promises beyond what one process of the conformance kit sees, and what streams do beside a capture.
#include <atomic>
#include <thread>

#include "tests/cuda/plugin_device.h"

namespace switchyard::cuda_testing {
namespace {

// Two ranks as threads of one process share the context of their GPU: one waits for its device while the other
// captures.
TEST(CudaCapture, AnotherRankOfTheProcessWaitsForItsDeviceMeanwhile) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda, other;
                        sy_stream *const stream = cuda.Stream(), *const working = other.Stream();
                        sy_buffer *const buffer = cuda.Buffer(1), *const others = other.Buffer(2);
                        sy_graph* graph = nullptr;
                        cuda.Ok(cuda.capture.begin(cuda.device, stream, nullptr, cuda.Error()), "begin");
                        cuda.Fill(stream, buffer, 3);
                        sy_status waited = SY_INTERNAL;
                        std::thread([&] {
                          other.Fill(working, others, 4);
                          waited = other.api.synchronize(other.device, nullptr, nullptr, other.Error());
                        }).join();
                        other.Is(waited, SY_OK, "a wait for the other rank's device");
                        cuda.Is(cuda.api.synchronize(cuda.device, nullptr, nullptr, cuda.Error()), SY_UNSUPPORTED,
                                "a wait for the rank's own device", "captured");
                        cuda.Fill(stream, buffer, 5);
                        cuda.Ok(cuda.capture.end(cuda.device, stream, &graph, cuda.Error()), "end");
                        cuda.Ok(cuda.capture.launch(cuda.device, graph, stream, cuda.Error()), "launch");
                        cuda.Synchronize(nullptr);
                        cuda.ExpectContent(buffer, 5, "replayed");
                        cuda.capture.release(cuda.device, graph);
                        cuda.ExpectNothingLogged();
                      }),
            "");
}

TEST(CudaStreams, AWaitForTheDeviceIsForAllOfThemAlsoForThoseThatAreGone) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        sy_buffer* const buffer = cuda.Buffer(0, 10);
                        std::vector<sy_stream*> streams = {cuda.Stream(), cuda.Stream(), cuda.Stream()};
                        for (int round = 0; round < 3; ++round) {
                          std::vector<sy_event*> events;
                          for (size_t i = 0; i < streams.size(); ++i) {  // the first has most to do
                            for (size_t fill = 0; fill < 5 * (streams.size() - i); ++fill)
                              cuda.Fill(streams[i], buffer, 1, 10);
                            events.push_back(cuda.Event());
                            cuda.Record(events.back(), streams[i]);
                          }
                          const auto gone = round == 0 ? streams.begin() : streams.end() - 1;
                          cuda.api.stream_destroy(cuda.device, *gone);
                          streams.erase(gone);
                          cuda.Synchronize(nullptr);
                          for (sy_event* const event : events) {
                            cuda.Ok(cuda.api.event_query(cuda.device, event, cuda.Error()), "event_query");
                            cuda.api.event_destroy(cuda.device, event);
                          }
                        }
                        cuda.ExpectNothingLogged();
                      }),
            "");
}

TEST(CudaCapture, AnEventOfTheCaptureIsRecordedByEveryReplay) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda;
                  sy_stream *const stream = cuda.Stream(), *const other = cuda.Stream();
                  sy_buffer *const from = cuda.Buffer(1), *const to = cuda.Buffer(2);
                  sy_event* event = nullptr;
                  cuda.Ok(cuda.api.event_create(cuda.device, nullptr, &event, cuda.Error()), "event_create");
                  sy_graph* graph = nullptr;
                  cuda.Ok(cuda.capture.begin(cuda.device, stream, nullptr, cuda.Error()), "begin");
                  cuda.Fill(stream, from, 7);
                  cuda.Ok(cuda.api.event_record(cuda.device, event, stream, cuda.Error()), "event_record");
                  cuda.Ok(cuda.capture.end(cuda.device, stream, &graph, cuda.Error()), "end");
                  cuda.Ok(cuda.api.event_query(cuda.device, event, cuda.Error()), "an event that was never recorded");
                  for (const uint8_t content : {7, 8}) {
                    cuda.Ok(cuda.capture.launch(cuda.device, graph, stream, cuda.Error()), "launch");
                    cuda.Is(cuda.api.event_query(cuda.device, event, cuda.Error()), SY_IN_PROGRESS, "event_query");
                    cuda.Ok(cuda.api.stream_wait(cuda.device, other, event, cuda.Error()), "stream_wait");
                    cuda.Ok(cuda.api.copy(cuda.device, other, {to, nullptr, 0}, {from, nullptr, 0}, kBytes, nullptr,
                                          cuda.Error()),
                            "copy");
                    cuda.Synchronize(other);
                    cuda.ExpectContent(to, 7, content == 7 ? "behind the first replay" : "behind the second");
                    cuda.Ok(cuda.api.event_query(cuda.device, event, cuda.Error()), "event_query");
                    cuda.Fill(nullptr, from, 8);
                  }
                  cuda.capture.release(cuda.device, graph);
                }),
      "");
}

TEST(CudaCapture, WhatCannotBeRecordedIsUnsupportedAndSpoilsTheCapture) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda;
                  sy_stream* const stream = cuda.Stream();
                  sy_buffer* const buffer = cuda.Buffer(1);
                  Bytes pageable(kBytes, 9);
                  sy_semaphore* const semaphore = cuda.Semaphore();
                  const std::pair<const char*, std::function<sy_status()>> refused[] = {
                      {"synchronize", [&] { return cuda.api.synchronize(cuda.device, stream, nullptr, cuda.Error()); }},
                      {"a copy from memory that is not pinned",
                       [&] {
                         return cuda.api.copy(cuda.device, stream, {buffer, nullptr, 0}, {nullptr, pageable.data(), 0},
                                              kBytes, nullptr, cuda.Error());
                       }},
                      {"a copy to memory that is not pinned",
                       [&] {
                         return cuda.api.copy(cuda.device, stream, {nullptr, pageable.data(), 0}, {buffer, nullptr, 0},
                                              kBytes, nullptr, cuda.Error());
                       }},
                      {"stream_signal",
                       [&] { return cuda.semaphores.stream_signal(cuda.device, stream, semaphore, 1, cuda.Error()); }},
                      {"stream_wait",
                       [&] { return cuda.semaphores.stream_wait(cuda.device, stream, semaphore, 1, cuda.Error()); }}};
                  for (const auto& [what, call] : refused) {
                    sy_graph* graph = nullptr;
                    cuda.Ok(cuda.capture.begin(cuda.device, stream, nullptr, cuda.Error()), "begin");
                    cuda.Is(call(), SY_UNSUPPORTED, what);
                    cuda.Is(cuda.capture.end(cuda.device, stream, &graph, cuda.Error()), SY_UNSUPPORTED, "end");
                    Require(graph == nullptr, "{}: a spoiled capture left a graph", what);
                    cuda.Fill(stream, buffer, 5);
                    cuda.Synchronize(stream);
                    cuda.ExpectContent(buffer, 5, what);
                  }
                  cuda.semaphores.destroy(cuda.device, semaphore);
                }),
      "");
}

// Two streams take turns: `first` fills, `second` copies what it finds, `first` copies that on, `second` once more.
// With the graph's nodes in the other order that its edges allow, what is not waited for has not happened.
TEST(CudaCapture, AStreamThatWaitsIsDrawnInAndEachWaitIsAnEdge) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda;
                  sy_device_info info{SY_HEADER(sy_device_info)};
                  cuda.Ok(cuda.Query(&info), "query");
                  Require((info.flags & SY_DEVICE_CAPTURES_STREAMS) != 0, "the device does not say so");
                  sy_stream *const first = cuda.Stream(), *const second = cuda.Stream(), *const outside = cuda.Stream();
                  sy_buffer *const a = cuda.Buffer(1), *const b = cuda.Buffer(2), *const c = cuda.Buffer(3),
                                   *const d = cuda.Buffer(4);
                  sy_event *const fork = cuda.Event(), *const join = cuda.Event();
                  sy_graph* graph = nullptr;
                  cuda.Record(join, second);  // what an event stood for before counts no more
                  cuda.Ok(cuda.capture.begin(cuda.device, first, nullptr, cuda.Error()), "begin");
                  cuda.Fill(first, a, 7);
                  cuda.Record(fork, first);
                  cuda.Ok(cuda.Wait(second, fork), "a wait that draws in");
                  cuda.Is(cuda.capture.begin(cuda.device, outside, nullptr, cuda.Error()), SY_OK, "another capture");
                  cuda.Is(cuda.capture.end(cuda.device, outside, &graph, cuda.Error()), SY_OK, "its end");
                  cuda.capture.release(cuda.device, graph);
                  cuda.Copy(second, b, a);
                  cuda.Record(join, second);
                  cuda.Ok(cuda.Wait(first, join), "a wait that joins");
                  cuda.Copy(first, c, b);
                  cuda.Record(fork, first);
                  cuda.Ok(cuda.Wait(second, fork), "a wait of a stream that was drawn in before");
                  cuda.Copy(second, d, c);
                  cuda.Record(join, second);
                  cuda.Ok(cuda.Wait(first, join), "a wait that joins again");
                  cuda.Record(fork, first);
                  cuda.Is(cuda.capture.end(cuda.device, second, &graph, cuda.Error()), SY_INVALID, "end elsewhere");
                  cuda.Ok(cuda.capture.end(cuda.device, first, &graph, cuda.Error()), "end");
                  cuda.ExpectContent(a, 1, "before any replay");
                  for (int replay = 0; replay < 2; ++replay) {
                    cuda.Ok(cuda.capture.launch(cuda.device, graph, first, cuda.Error()), "launch");
                    for (sy_event* const event : {join, fork})
                      cuda.Is(cuda.api.event_query(cuda.device, event, cuda.Error()), SY_IN_PROGRESS, "event_query");
                    cuda.Ok(cuda.Wait(outside, fork), "a wait for the replay");
                    cuda.Synchronize(outside);
                    cuda.ExpectContent(d, 7, "replayed");
                    for (sy_buffer* const buffer : {a, b, c, d}) cuda.Fill(nullptr, buffer, 9);
                  }
                  cuda.capture.release(cuda.device, graph);
                  cuda.Fill(second, b, 5);  // which runs, now that the capture has ended
                  cuda.Synchronize(second);
                  cuda.ExpectContent(b, 5, "after the capture");
                  for (sy_event* const event : {fork, join}) cuda.api.event_destroy(cuda.device, event);
                  cuda.ExpectNothingLogged();
                },
                {{"CUDA_DOUBLE_GRAPH_ORDER", "last"}}),
      "");
}

// And its streams, which belonged to it until then, run work again.
TEST(CudaCapture, WhatOneCaptureCannotHoldOfSeveralStreamsLeavesNoGraph) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda;
                  sy_stream *const stream = cuda.Stream(), *const other = cuda.Stream(), *const third = cuda.Stream();
                  sy_buffer* const buffer = cuda.Buffer(1);
                  Bytes pageable(kBytes, 9);
                  sy_event *const event = cuda.Event(), *const before = cuda.Event(), *const never = cuda.Event();
                  cuda.Record(before, other);
                  const auto draw_in = [&] {
                    cuda.Record(event, stream);
                    cuda.Ok(cuda.Wait(other, event), "a wait that draws in");
                  };
                  const std::pair<const char*, std::function<void()>> spoils[] = {
                      {"work that is not waited for",
                       [&] {
                         draw_in();
                         cuda.Fill(other, buffer, 3);
                       }},
                      {"an event that is not waited for",
                       [&] {
                         draw_in();
                         cuda.Record(never, other);
                       }},
                      {"what the other stream was refused",
                       [&] {
                         draw_in();
                         cuda.Is(cuda.api.copy(cuda.device, other, {buffer, nullptr, 0}, {nullptr, pageable.data(), 0},
                                               kBytes, nullptr, cuda.Error()),
                                 SY_UNSUPPORTED, "a copy from memory that is not pinned");
                         cuda.Record(event, other);
                         cuda.Ok(cuda.Wait(stream, event), "a wait that joins");
                       }},
                      {"a wait for an event from before",
                       [&] { cuda.Is(cuda.Wait(stream, before), SY_UNSUPPORTED, "a wait", "does not hold"); }},
                      {"the other stream's",
                       [&] {
                         draw_in();
                         cuda.Is(cuda.Wait(other, before), SY_UNSUPPORTED, "a wait", "does not hold");
                       }},
                      {"a wait for an event of another capture",
                       [&] {
                         sy_graph* graph = nullptr;
                         cuda.Record(event, stream);
                         cuda.Ok(cuda.capture.begin(cuda.device, third, nullptr, cuda.Error()), "begin");
                         cuda.Record(before, third);
                         cuda.Is(cuda.Wait(stream, before), SY_UNSUPPORTED, "a wait", "does not hold");
                         cuda.Ok(cuda.capture.end(cuda.device, third, &graph, cuda.Error()), "end of the other");
                         cuda.capture.release(cuda.device, graph);
                       }},
                      {"a wait without a stream",
                       [&] {
                         cuda.Record(event, stream);
                         cuda.Is(cuda.Wait(nullptr, event), SY_UNSUPPORTED, "a wait", "only a stream");
                       }},
                      {"a capture in the capture", [&] {
                         draw_in();
                         cuda.Is(cuda.capture.begin(cuda.device, other, nullptr, cuda.Error()), SY_INVALID, "begin");
                       }}};
                  for (const auto& [what, spoil] : spoils) {
                    sy_graph* graph = nullptr;
                    cuda.Ok(cuda.capture.begin(cuda.device, stream, nullptr, cuda.Error()), what);
                    spoil();
                    cuda.Is(cuda.capture.end(cuda.device, stream, &graph, cuda.Error()), SY_UNSUPPORTED, what);
                    Require(graph == nullptr, "{}: a spoiled capture left a graph", what);
                    uint8_t content = 50;
                    for (sy_stream* const freed : {stream, other, third}) {
                      cuda.Fill(freed, buffer, ++content);
                      cuda.Synchronize(freed);
                      cuda.ExpectContent(buffer, content, what);
                    }
                    cuda.Record(before, third);
                  }
                }),
      "");
}

TEST(CudaCapture, ACopyFromPinnedMemoryReplaysWhatLiesThere) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        sy_stream* const stream = cuda.Stream();
                        sy_buffer* const buffer = cuda.Buffer(1);
                        void* pinned = nullptr;
                        cuda.Ok(cuda.memory.host_alloc(cuda.device, kBytes, &pinned, cuda.Error()), "host_alloc");
                        sy_graph* graph = nullptr;
                        cuda.Ok(cuda.capture.begin(cuda.device, stream, nullptr, cuda.Error()), "begin");
                        cuda.Ok(cuda.api.copy(cuda.device, stream, {buffer, nullptr, 0}, {nullptr, pinned, 0}, kBytes,
                                              nullptr, cuda.Error()),
                                "copy");
                        cuda.Ok(cuda.capture.end(cuda.device, stream, &graph, cuda.Error()), "end");
                        for (const uint8_t content : {3, 4}) {
                          std::memset(pinned, content, kBytes);
                          cuda.Ok(cuda.capture.launch(cuda.device, graph, stream, cuda.Error()), "launch");
                          cuda.Synchronize(stream);
                          cuda.ExpectContent(buffer, content, "replayed");
                        }
                      }),
            "");
}

}  // namespace
}  // namespace switchyard::cuda_testing
