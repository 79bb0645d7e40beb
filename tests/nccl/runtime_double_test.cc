// The double of libcudart keeps the rules that the plugins are tested against: asynchronous streams, events, capture,
// memory that faults when it is misused, errors that stay.
#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/nccl/ranks.h"

namespace switchyard::nccl_testing {
namespace {

// In a process of its own, since settings are read once; two devices.
std::string InProcess(std::map<std::string, std::string> environment, const std::function<void(Rank&)>& body) {
  return RunRanks({.size = 1, .environment = std::move(environment)}, body);
}

void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Puts `body` on a stream, as a kernel.
cudaError_t Launch(cudaStream_t stream, std::function<void()> body) {
  return cudaDoubleEnqueue(
      stream, [](void* data) { (*static_cast<std::function<void()>*>(data))(); },
      new std::function<void()>(std::move(body)), [](void* data) { delete static_cast<std::function<void()>*>(data); });
}

TEST(CudaRuntimeDouble, StreamsRunBehindTheHostAndInOrder) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        std::atomic<int> step{0};
                        RequireOk(Launch(self.stream,
                                         [&] {
                                           Sleep(50);
                                           step = step == 0 ? 1 : -1;
                                         }),
                                  "launch");
                        RequireOk(Launch(self.stream, [&] { step = step == 1 ? 2 : -1; }), "launch");
                        Require(step == 0 && cudaStreamQuery(self.stream) == cudaErrorNotReady, "a launch blocked");
                        RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                        Require(step == 2, "step is {}", step.load());
                      }),
            "");
}

TEST(CudaRuntimeDouble, EventsOrderStreams) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        cudaStream_t other = nullptr;
                        cudaEvent_t event = nullptr;
                        RequireOk(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "create");
                        RequireOk(cudaEventCreate(&event), "create");
                        RequireOk(cudaEventQuery(event), "an event that was never recorded has passed");
                        std::atomic<bool> first{false}, ordered{false};
                        RequireOk(Launch(self.stream,
                                         [&] {
                                           Sleep(30);
                                           first = true;
                                         }),
                                  "launch");
                        RequireOk(cudaEventRecord(event, self.stream), "record");
                        Require(cudaEventQuery(event) == cudaErrorNotReady, "the event passed early");
                        RequireOk(cudaStreamWaitEvent(other, event, 0), "wait");
                        RequireOk(Launch(other, [&] { ordered = first.load(); }), "launch");
                        RequireOk(cudaStreamSynchronize(other), "synchronize");
                        Require(ordered, "the stream did not wait for the event");
                      }),
            "");
}

// The node that a forked stream recorded without joining is what a real capture refuses.
TEST(CudaRuntimeDouble, CaptureForksAndJoinsThroughEvents) {
  EXPECT_EQ(InProcess({{"CUDA_DOUBLE_GRAPH_ORDER", "last"}},
                      [](Rank& self) {
                        cudaStream_t other = nullptr;
                        cudaEvent_t fork = nullptr, join = nullptr;
                        RequireOk(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "create");
                        RequireOk(cudaEventCreate(&fork), "create");
                        RequireOk(cudaEventCreate(&join), "create");
                        std::string order;
                        const auto capture = [&](bool joins, cudaGraph_t* graph) {
                          RequireOk(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal), "begin");
                          RequireOk(Launch(self.stream, [&] { order += 'a'; }), "launch");
                          RequireOk(cudaEventRecord(fork, self.stream), "record");
                          RequireOk(cudaStreamWaitEvent(other, fork, 0), "wait");
                          RequireOk(Launch(self.stream, [&] { order += 'b'; }), "launch");
                          RequireOk(Launch(other, [&] { order += 'c'; }), "launch");
                          RequireOk(cudaEventRecord(join, other), "record");
                          if (joins) RequireOk(cudaStreamWaitEvent(self.stream, join, 0), "wait");
                          RequireOk(Launch(self.stream, [&] { order += 'd'; }), "launch");
                          return cudaStreamEndCapture(self.stream, graph);
                        };
                        cudaGraph_t graph = nullptr;
                        cudaGraphExec_t executable = nullptr;
                        Require(capture(false, &graph) == cudaErrorStreamCaptureUnjoined && graph == nullptr,
                                "unjoined work was not noticed");
                        RequireOk(capture(true, &graph), "capture");
                        Require(order.empty(), "captured work ran");
                        RequireOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
                        RequireOk(cudaGraphDestroy(graph), "destroy");
                        RequireOk(cudaGraphLaunch(executable, self.stream), "launch");
                        RequireOk(cudaGraphLaunch(executable, self.stream), "launch");
                        RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                        Require(order == "acbdacbd", "ran as {}", order);
                      }),
            "");
}

// A capture holds no wait for a place in another one, nor for one in a capture that has ended; its streams are its own
// until it ends, and only where it began.
TEST(CudaRuntimeDouble, StreamsAreDrawnIntoOneCaptureOnly) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        cudaStream_t other = nullptr;
                        cudaEvent_t here = nullptr, there = nullptr;
                        cudaGraph_t graph = nullptr;
                        RequireOk(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "create");
                        RequireOk(cudaEventCreate(&here), "create");
                        RequireOk(cudaEventCreate(&there), "create");
                        const auto begin = [](cudaStream_t stream, cudaEvent_t event) {
                          RequireOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "begin");
                          RequireOk(Launch(stream, [] {}), "launch");
                          RequireOk(cudaEventRecord(event, stream), "record");
                        };
                        begin(self.stream, here);
                        begin(other, there);
                        Require(cudaStreamWaitEvent(other, here, 0) == cudaErrorStreamCaptureMerge, "merged");
                        for (const cudaStream_t stream : {self.stream, other}) {
                          Require(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated,
                                  "a capture survived the merge");
                        }
                        begin(other, there);
                        Require(cudaStreamWaitEvent(other, here, 0) == cudaErrorCapturedEvent, "waited for no place");
                        Require(cudaStreamEndCapture(other, &graph) == cudaErrorStreamCaptureInvalidated,
                                "the capture survived");
                        begin(self.stream, here);
                        RequireOk(cudaStreamWaitEvent(other, here, 0), "wait");
                        Require(cudaStreamEndCapture(other, &graph) == cudaErrorStreamCaptureUnmatched, "it ended");
                        Require(cudaStreamEndCapture(self.stream, &graph) == cudaErrorStreamCaptureInvalidated,
                                "the capture survived");
                        bool ran = false;
                        RequireOk(Launch(other, [&] { ran = true; }), "launch");
                        RequireOk(cudaStreamSynchronize(other), "synchronize");
                        Require(ran, "the stream was not let go");
                      }),
            "");
}

// What a graph's nodes own may call the runtime where it is released: with the executable graph, or with a capture that
// leaves none.
TEST(CudaRuntimeDouble, WhatAGraphOwnsIsReleasedWithIt) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        cudaEvent_t event = nullptr;
                        cudaGraph_t graph = nullptr;
                        cudaGraphExec_t executable = nullptr;
                        int released = 0;
                        const auto capture = [&] {
                          RequireOk(cudaEventCreate(&event), "create");
                          RequireOk(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeRelaxed), "begin");
                          const std::shared_ptr<void> owned(event, [&](void* made) {
                            released += cudaEventDestroy(static_cast<cudaEvent_t>(made)) == cudaSuccess;
                          });
                          RequireOk(Launch(self.stream, [owned] {}), "launch");
                        };
                        capture();
                        RequireOk(cudaStreamEndCapture(self.stream, &graph), "end");
                        RequireOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
                        RequireOk(cudaGraphDestroy(graph), "destroy");
                        Require(released == 0, "released with the graph");
                        RequireOk(cudaGraphExecDestroy(executable), "destroy");
                        Require(released == 1, "not released with the executable graph");
                        capture();
                        Require(cudaStreamSynchronize(self.stream) == cudaErrorStreamCaptureUnsupported, "synchronize");
                        Require(cudaStreamEndCapture(self.stream, &graph) == cudaErrorStreamCaptureInvalidated, "end");
                        Require(released == 2, "not released with the capture");
                      }),
            "");
}

// Only an external record outlives its capture: as a node, which every replay runs.
TEST(CudaRuntimeDouble, AnExternalRecordOfACaptureIsANode) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        cudaEvent_t event = nullptr, inner = nullptr;
                        cudaGraph_t graph = nullptr;
                        cudaGraphExec_t executable = nullptr;
                        RequireOk(cudaEventCreate(&event), "create");
                        RequireOk(cudaEventCreate(&inner), "create");
                        Require(cudaEventRecordWithFlags(event, self.stream, cudaEventRecordExternal) ==
                                    cudaErrorInvalidValue,
                                "an external record outside of a capture");
                        RequireOk(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeRelaxed), "begin");
                        RequireOk(Launch(self.stream, [] { Sleep(50); }), "launch");
                        RequireOk(cudaEventRecordWithFlags(event, self.stream, cudaEventRecordExternal), "record");
                        RequireOk(cudaEventRecord(inner, self.stream), "record");
                        RequireOk(cudaStreamEndCapture(self.stream, &graph), "end");
                        RequireOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
                        RequireOk(cudaEventQuery(event), "an event that was never recorded has passed");
                        Require(cudaEventQuery(inner) == cudaErrorCapturedEvent, "a place in a graph has no state");
                        for (int replay = 0; replay < 2; ++replay) {
                          RequireOk(cudaGraphLaunch(executable, self.stream), "launch");
                          Require(cudaEventQuery(event) == cudaErrorNotReady, "the event passed early");
                          RequireOk(cudaEventSynchronize(event), "synchronize");
                        }
                      }),
            "");
}

// An external wait looks at what was recorded when its graph is launched, and within the graph at what the graph itself
// recorded before it.
TEST(CudaRuntimeDouble, AnExternalWaitOfACaptureWaitsAtEachLaunch) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        cudaStream_t other = nullptr;
                        cudaEvent_t event = nullptr;
                        cudaGraph_t graph = nullptr;
                        cudaGraphExec_t executable = nullptr;
                        RequireOk(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "create");
                        RequireOk(cudaEventCreate(&event), "create");
                        Require(cudaStreamWaitEvent(self.stream, event, cudaEventWaitExternal) == cudaErrorInvalidValue,
                                "an external wait outside of a capture");
                        std::atomic<int> done{0}, seen{0};
                        RequireOk(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeRelaxed), "begin");
                        RequireOk(cudaStreamWaitEvent(self.stream, event, cudaEventWaitExternal), "wait");
                        RequireOk(Launch(self.stream, [&] { seen = done.load(); }), "launch");
                        RequireOk(cudaEventRecordWithFlags(event, self.stream, cudaEventRecordExternal), "record");
                        RequireOk(cudaStreamWaitEvent(self.stream, event, cudaEventWaitExternal), "wait");
                        RequireOk(cudaStreamEndCapture(self.stream, &graph), "end");
                        RequireOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
                        for (int replay = 0; replay < 3; ++replay) {
                          if (replay > 0) {  // what was never recorded has passed
                            RequireOk(Launch(other,
                                             [&, replay] {
                                               Sleep(30);
                                               done = replay;
                                             }),
                                      "launch");
                            RequireOk(cudaEventRecord(event, other), "record");
                          }
                          RequireOk(cudaGraphLaunch(executable, self.stream), "launch");
                          RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                          Require(seen == replay, "replay {} saw {}", replay, seen.load());
                        }
                      }),
            "");
}

TEST(CudaRuntimeDouble, CaptureIsBrokenByWhatItForbids) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        cudaEvent_t before = nullptr;
                        RequireOk(cudaEventCreate(&before), "create");
                        RequireOk(cudaEventRecord(before, self.stream), "record");
                        void* memory = nullptr;
                        cudaGraph_t graph = nullptr;
                        const std::function<cudaError_t()> forbidden[] = {
                            [&] { return cudaStreamSynchronize(self.stream); }, [&] { return cudaMalloc(&memory, 4); },
                            [&] { return cudaStreamWaitEvent(self.stream, before, 0); }};
                        for (const auto& call : forbidden) {
                          RequireOk(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal), "begin");
                          const cudaError_t code = call();
                          Require(code == cudaErrorStreamCaptureUnsupported || code == cudaErrorStreamCaptureIsolation,
                                  "answered {}", cudaGetErrorName(code));
                          Require(cudaStreamEndCapture(self.stream, &graph) == cudaErrorStreamCaptureInvalidated,
                                  "the capture survived");
                        }
                      }),
            "");
}

// Whatever the capture's mode and whichever thread began it; those of another device are left alone.
TEST(CudaRuntimeDouble, AWaitForADeviceBreaksEveryCaptureOnIt) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        cudaGraph_t graph = nullptr;
                        for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                                cudaStreamCaptureModeRelaxed}) {
                          for (const int device : {0, 1}) {
                            if (device == 1 && mode == cudaStreamCaptureModeGlobal) continue;  // it forbids it as well
                            RequireOk(cudaStreamBeginCapture(self.stream, mode), "begin");
                            cudaError_t code = cudaSuccess;
                            std::thread([&] {
                              RequireOk(cudaSetDevice(device), "cudaSetDevice");
                              code = cudaDeviceSynchronize();
                            }).join();
                            const bool same = device == 0;
                            Require(code == (same ? cudaErrorStreamCaptureUnsupported : cudaSuccess),
                                    "mode {}, device {}: {}", static_cast<int>(mode), device, cudaGetErrorName(code));
                            const cudaError_t ended = cudaStreamEndCapture(self.stream, &graph);
                            Require(ended == (same ? cudaErrorStreamCaptureInvalidated : cudaSuccess),
                                    "mode {}, device {}: the end answered {}", static_cast<int>(mode), device,
                                    cudaGetErrorName(ended));
                          }
                        }
                      }),
            "");
}

TEST(CudaRuntimeDouble, UseOfFreedMemoryFaults) {
  EXPECT_NE(InProcess({},
                      [](Rank& self) {
                        void* memory = nullptr;
                        RequireOk(cudaMalloc(&memory, 100), "cudaMalloc");
                        RequireOk(cudaFree(memory), "cudaFree");
                        RequireOk(Launch(self.stream, [=] { static_cast<volatile char*>(memory)[0] = 1; }), "launch");
                        cudaStreamSynchronize(self.stream);
                      })
                .find("signal 11"),
            std::string::npos);
}

TEST(CudaRuntimeDouble, WritesBehindAnAllocationAreFound) {
  EXPECT_EQ(InProcess({},
                      [](Rank& self) {
                        void* memory = nullptr;
                        RequireOk(cudaMalloc(&memory, 100), "cudaMalloc");
                        RequireOk(Launch(self.stream, [=] { static_cast<char*>(memory)[100] = 1; }), "launch");
                        RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                        Require(cudaFree(memory) == cudaErrorIllegalAddress, "not found");
                        Require(cudaStreamSynchronize(self.stream) == cudaErrorIllegalAddress,
                                "the error did not stay");
                      }),
            "");
}

TEST(CudaRuntimeDouble, CopiesAreCheckedForBoundsAndDirection) {
  EXPECT_EQ(InProcess({},
                      [](Rank&) {
                        void* memory = nullptr;
                        char host[200] = {};
                        RequireOk(cudaMalloc(&memory, 100), "cudaMalloc");
                        RequireOk(cudaMemcpy(memory, host, 100, cudaMemcpyHostToDevice), "copy");
                        Require(cudaMemcpy(memory, host, 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue,
                                "bounds");
                        Require(cudaMemcpy(host, host + 100, 10, cudaMemcpyHostToDevice) == cudaErrorInvalidValue,
                                "direction");
                        Require(cudaPeekAtLastError() == cudaErrorInvalidValue, "no last error");
                        Require(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess,
                                "the last error is taken once");
                      }),
            "");
}

TEST(CudaRuntimeDouble, AHandleIsOpenedByOtherProcessesOnly) {
  EXPECT_EQ(RunRanks({.size = 2},
                     [](Rank& self) {
                       cudaIpcMemHandle_t handle;
                       if (self.rank == 0) {
                         void *memory = nullptr, *opened = nullptr;
                         RequireOk(cudaMalloc(&memory, 1000), "cudaMalloc");
                         RequireOk(cudaMemset(memory, 3, 1000), "cudaMemset");
                         Require(cudaIpcGetMemHandle(&handle, static_cast<char*>(memory) + 8) == cudaErrorInvalidValue,
                                 "a handle of a place inside");
                         RequireOk(cudaIpcGetMemHandle(&handle, memory), "cudaIpcGetMemHandle");
                         Require(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess) ==
                                     cudaErrorDeviceUninitialized,
                                 "it opened its own handle");
                         const auto* const bytes = reinterpret_cast<const char*>(&handle);
                         ranks::Put("handle", std::string(bytes, bytes + sizeof handle));
                         Require(ranks::Wait("done", 20000), "the other process is not done");
                         return;
                       }
                       Require(ranks::Wait("handle", 20000), "no handle");
                       uint32_t bytes = 0;
                       const sy_store* const store = ranks::SharedStore();
                       store->get(store->context, "handle", &handle, sizeof handle, &bytes, 0, nullptr);
                       void *first = nullptr, *second = nullptr;
                       char content = 0;
                       for (void** const opened : {&first, &second})
                         RequireOk(cudaIpcOpenMemHandle(opened, handle, cudaIpcMemLazyEnablePeerAccess), "open");
                       Require(first == second, "a handle that was opened twice has two addresses");
                       Require(cudaFree(first) == cudaErrorInvalidValue, "what was opened was freed");
                       RequireOk(cudaIpcCloseMemHandle(first), "close");
                       RequireOk(cudaMemcpy(&content, second, 1, cudaMemcpyDeviceToHost), "copy");
                       Require(content == 3, "read {}", content);
                       RequireOk(cudaIpcCloseMemHandle(second), "close");
                       Require(cudaIpcCloseMemHandle(second) == cudaErrorInvalidValue, "closed more often than opened");
                       ranks::Put("done", "yes");
                     }),
            "");
}

TEST(CudaRuntimeDouble, MemoryEndsAtItsLimitAndComesBack) {
  EXPECT_EQ(InProcess({{"CUDA_DOUBLE_MEMORY_BYTES", "1000"}},
                      [](Rank&) {
                        void *first = nullptr, *second = nullptr;
                        RequireOk(cudaMalloc(&first, 600), "cudaMalloc");
                        Require(cudaMalloc(&second, 600) == cudaErrorMemoryAllocation, "no limit");
                        RequireOk(cudaFree(first), "cudaFree");
                        RequireOk(cudaMalloc(&second, 600), "cudaMalloc");
                      }),
            "");
}

TEST(CudaRuntimeDouble, LostDeviceStaysLost) {
  EXPECT_EQ(InProcess({{"CUDA_DOUBLE_FAULT", "lost@2"}},
                      [](Rank& self) {
                        int ran = 0;
                        for (int i = 0; i < 3; ++i) RequireOk(Launch(self.stream, [&] { ++ran; }), "launch");
                        Require(cudaStreamSynchronize(self.stream) == cudaErrorIllegalAddress, "not lost");
                        Require(ran == 1, "{} launches ran", ran);
                        void* memory = nullptr;
                        Require(cudaMalloc(&memory, 4) == cudaErrorIllegalAddress, "the error did not stay");
                      }),
            "");
}

TEST(CudaRuntimeDouble, MachineWithoutDriverSaysSo) {
  EXPECT_NE(InProcess({{"CUDA_DOUBLE_NO_DRIVER", "1"}}, [](Rank&) {}).find("driver version is insufficient"),
            std::string::npos);
}

}  // namespace
}  // namespace switchyard::nccl_testing
