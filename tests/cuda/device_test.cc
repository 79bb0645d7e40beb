// The cuda plugin by its C interface, on the double of the CUDA runtime: what capture/2, semaphore/1 and peer/1 promise
// beyond what one process of the conformance kit sees, and instances that share nothing.
#include "core/abi/device.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/abi/boundary.h"
#include "core/abi/kernel.h"
#include "core/abi/op_request.h"
#include "core/abi/ops.h"
#include "gtest/gtest.h"
#include "tests/ranks/processes.h"

namespace switchyard {
namespace {

using ranks::Require;
using Bytes = std::vector<uint8_t>;

constexpr uint64_t kBytes = 300000;

// A host that keeps what is logged.
struct Listener {
  static void Log(void* context, int32_t, const char* text) { static_cast<Listener*>(context)->heard += text; }
  static const char* Setting(void*, const char*) { return nullptr; }

  std::string heard;
  const sy_host host = {SY_HEADER(sy_host), this, Log, Setting};
};

sy_tensor Contiguous(sy_dtype dtype, const std::vector<int64_t>& dims) {
  sy_tensor tensor{};
  tensor.dtype = dtype;
  tensor.rank = static_cast<int32_t>(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) {
    tensor.dims[i] = dims[i];
    tensor.strides[i] = stride;
  }
  return tensor;
}

// An op with its operands, to be changed and prepared.
struct Op {
  template <typename A>
  Op(const char* name, const A& given, std::vector<sy_tensor> in, std::vector<sy_tensor> out) : Op(name, in, out) {
    attributes.assign(reinterpret_cast<const uint8_t*>(&given), reinterpret_cast<const uint8_t*>(&given + 1));
    request.attributes = attributes.data();
    request.attributes_size = static_cast<uint32_t>(attributes.size());
  }
  Op(const char* name, std::vector<sy_tensor> in, std::vector<sy_tensor> out)
      : inputs(std::move(in)), outputs(std::move(out)), inplace(outputs.size()) {
    request.op = name;
    request.op_version = 1;
    request.input_count = static_cast<uint32_t>(inputs.size());
    request.output_count = static_cast<uint32_t>(outputs.size());
    request.inputs = inputs.data();
    request.outputs = outputs.data();
    request.workspace_limit = 1 << 20;
    info.inplace = inplace.data();
  }
  Op(const Op&) = delete;

  Bytes attributes;
  std::vector<sy_tensor> inputs, outputs;
  std::vector<int32_t> inplace;
  sy_prepare_request request{SY_HEADER(sy_prepare_request)};
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
};

// A new instance of the plugin, which serves `listener`.
sy_plugin NewInstance(const Listener& listener) {
  void* const library = dlopen(CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  Require(library != nullptr, "no library");
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  sy_plugin plugin{SY_HEADER(sy_plugin)};
  Require(create != nullptr && create(&listener.host, &plugin, nullptr) == SY_OK, "no instance");
  return plugin;
}

// A device of a new instance of the plugin. Calls that should succeed throw where they do not.
class Cuda {
 public:
  explicit Cuda(int index = 0)
      : plugin_(NewInstance(*listener_)),
        api(*Interface<sy_device_v2>("device/2")),
        memory(*Interface<sy_memory_ext_v2>("memory_ext/2")),
        capture(*Interface<sy_capture_v2>("capture/2")),
        semaphores(*Interface<sy_semaphore_v1>("semaphore/1")),
        peers(*Interface<sy_peer_v1>("peer/1")),
        kernels(*Interface<sy_kernel_v2>("kernel/2")) {
    Ok(api.open(plugin_.instance, index, nullptr, &device, Error()), "open");
    listener_->heard.clear();
  }
  ~Cuda() { api.close(device); }

  sy_error* Error() {
    error = {SY_HEADER(sy_error)};
    return &error;
  }
  void Ok(sy_status status, const char* what) const {
    Require(status == SY_OK, "{} answered {}: {} ({})", what, status, error.message, error.location);
  }
  void Is(sy_status status, sy_status expected, const char* what, const char* words = "") const {
    Require(status == expected, "{} answered {}, expected {}: {}", what, status, expected, error.message);
    Require(std::string(error.message).find(words) != std::string::npos, "{} said: {}", what, error.message);
  }
  std::string Heard() const { return listener_->heard; }
  // What frees and cannot fail logs what went wrong.
  void ExpectNothingLogged() const { Require(listener_->heard.empty(), "logged: {}", listener_->heard); }
  sy_stream* Stream() {
    sy_stream* stream = nullptr;
    Ok(api.stream_create(device, nullptr, &stream, Error()), "stream_create");
    return stream;
  }
  sy_buffer* Buffer(uint8_t content, uint64_t bytes = kBytes, bool exportable = false) {
    sy_alloc_options options{SY_HEADER(sy_alloc_options)};
    options.exportable = exportable;
    sy_buffer* buffer = nullptr;
    Ok(api.alloc(device, bytes, &options, &buffer, Error()), "alloc");
    Fill(nullptr, buffer, content, bytes);
    return buffer;
  }
  sy_event* Event() {
    sy_event* event = nullptr;
    Ok(api.event_create(device, nullptr, &event, Error()), "event_create");
    return event;
  }
  void Record(sy_event* event, sy_stream* stream) {
    Ok(api.event_record(device, event, stream, Error()), "event_record");
  }
  sy_status Wait(sy_stream* stream, sy_event* event) { return api.stream_wait(device, stream, event, Error()); }
  sy_status Query(sy_device_info* info) { return api.query(plugin_.instance, 0, info, Error()); }
  void Copy(sy_stream* stream, sy_buffer* to, sy_buffer* from) {
    Ok(api.copy(device, stream, {to, nullptr, 0}, {from, nullptr, 0}, kBytes, nullptr, Error()), "copy");
  }
  void Fill(sy_stream* stream, sy_buffer* buffer, uint8_t content, uint64_t bytes = kBytes) {
    Ok(api.fill(device, stream, {buffer, nullptr, 0}, content, bytes, nullptr, Error()), "fill");
  }
  void Synchronize(sy_stream* stream) { Ok(api.synchronize(device, stream, nullptr, Error()), "synchronize"); }
  void ExpectContent(sy_buffer* buffer, uint8_t expected, const char* what) {
    Bytes found(kBytes);
    Ok(api.copy(device, nullptr, {nullptr, found.data(), 0}, {buffer, nullptr, 0}, kBytes, nullptr, Error()), "copy");
    for (uint64_t i = 0; i < kBytes; ++i)
      Require(found[i] == expected, "{}: byte {} is {}, expected {}", what, i, found[i], expected);
  }
  sy_status TryPrepare(Op& op, sy_kernel** kernel) {
    return kernels.prepare(device, &op.request, kernel, &op.info, Error());
  }
  sy_kernel* Prepare(Op& op) {
    sy_kernel* kernel = nullptr;
    Ok(TryPrepare(op, &kernel), "prepare");
    return kernel;
  }
  sy_semaphore* Semaphore() {
    sy_semaphore* semaphore = nullptr;
    Ok(semaphores.create(device, nullptr, &semaphore, Error()), "create");
    return semaphore;
  }
  uint64_t CountOf(sy_semaphore* semaphore) {
    uint64_t value = 0;
    Ok(semaphores.query(device, semaphore, &value, Error()), "query");
    return value;
  }
  Bytes Export(sy_buffer* buffer) {
    Bytes description(SY_MEMORY_DESCRIPTION_BYTES);
    uint32_t bytes = 0;
    Ok(peers.export_memory(device, buffer, description.data(), SY_MEMORY_DESCRIPTION_BYTES, &bytes, Error()), "export");
    description.resize(bytes);
    return description;
  }
  sy_status TryImport(const Bytes& description, sy_buffer** buffer) {
    return peers.import_memory(device, description.data(), static_cast<uint32_t>(description.size()), buffer, Error());
  }
  sy_buffer* Import(const Bytes& description) {
    sy_buffer* buffer = nullptr;
    Ok(TryImport(description, &buffer), "import");
    return buffer;
  }

 private:
  template <typename T>
  const T* Interface(const char* name) {
    const auto* table = static_cast<const T*>(plugin_.get_interface(plugin_.instance, name));
    Require(table != nullptr, "the plugin has no {}", name);
    return table;
  }
  Listener* const listener_ = new Listener;  // a host lives as long as the process
  const sy_plugin plugin_;

 public:
  const sy_device_v2& api;
  const sy_memory_ext_v2& memory;
  const sy_capture_v2& capture;
  const sy_semaphore_v1& semaphores;
  const sy_peer_v1& peers;
  const sy_kernel_v2& kernels;
  sy_device* device = nullptr;
  sy_error error{SY_HEADER(sy_error)};
};

// Each rank a process, on a machine whose streams run 20 ms behind.
std::string Processes(int processes, const std::function<void(int)>& body,
                      std::map<std::string, std::string> more = {}) {
  more.emplace("CUDA_DOUBLE_DELAY_US", "20000");
  return ranks::RunProcesses({.size = processes, .environment = std::move(more)}, body);
}

// Other versions than those of the headers: what the libraries answer is shown, and a missing one is left out.
TEST(CudaLibraries, AreShownInTheVersionsThatTheyAnswer) {
  for (const bool cudnn : {false, true}) {
    EXPECT_EQ(Processes(1,
                        [&](int) {
                          if (cudnn) Require(dlopen(CUDNN_DOUBLE, RTLD_NOW | RTLD_GLOBAL) != nullptr, "no double");
                          Cuda cuda;
                          sy_device_info info{SY_HEADER(sy_device_info)};
                          cuda.Ok(cuda.Query(&info), "query");
                          const std::string expected = "CUDA driver 77.6, runtime 66.5, cuBLASLt 55.4.3";
                          Require(info.libraries == expected + (cudnn ? ", cuDNN 44.3.2" : ""), "it says {}",
                                  info.libraries);
                          info.header.size = offsetof(sy_device_info, libraries);  // as version 2.0 asks
                          info.libraries = "untouched";
                          cuda.Ok(cuda.Query(&info), "query");
                          Require(std::string(info.libraries) == "untouched", "it wrote behind the struct of 2.0");
                        },
                        {{"CUDA_DOUBLE_DRIVER_VERSION", "77060"},
                         {"CUDA_DOUBLE_RUNTIME_VERSION", "66050"},
                         {"CUBLAS_LT_DOUBLE_VERSION", "550403"},
                         {"CUDNN_DOUBLE_VERSION", "440302"}}),
              "");
  }
}

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

TEST(CudaSemaphore, HostAndStreamsWaitForEachOther) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda, second(1);
                  sy_stream *const stream = cuda.Stream(), *const other = second.Stream();
                  sy_buffer* const buffer = cuda.Buffer(1);
                  sy_semaphore* const semaphore = cuda.Semaphore();
                  const sy_semaphore_v1& api = cuda.semaphores;
                  Require(cuda.CountOf(semaphore) == 0, "it does not start at 0");
                  cuda.Is(api.wait(cuda.device, semaphore, 1, 30, cuda.Error()), SY_TIMEOUT, "wait", "30 ms");
                  cuda.Ok(api.wait(cuda.device, semaphore, 0, 0, cuda.Error()), "wait for what is reached");
                  // Waits that are asked for before anybody raises it: of a stream, and of the host.
                  cuda.Ok(api.stream_wait(cuda.device, stream, semaphore, 1ull << 40, cuda.Error()), "stream_wait");
                  cuda.Fill(stream, buffer, 2);
                  cuda.Ok(api.stream_signal(cuda.device, stream, semaphore, 1ull << 41, cuda.Error()), "stream_signal");
                  std::atomic<bool> woken{false};
                  std::thread waiter([&] {
                    sy_error error{SY_HEADER(sy_error)};
                    woken = api.wait(cuda.device, semaphore, 1ull << 41, 10000, &error) == SY_OK;
                  });
                  cuda.Ok(api.signal(cuda.device, semaphore, (1ull << 40) - 1, cuda.Error()), "signal");
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                  Require(cuda.CountOf(semaphore) == (1ull << 40) - 1, "the stream ran on at a count one too low");
                  cuda.ExpectContent(buffer, 1, "held up");
                  Require(!woken, "the host's wait ended too early");
                  cuda.Ok(api.signal(cuda.device, semaphore, (1ull << 40) + 3, cuda.Error()), "signal");
                  waiter.join();
                  Require(woken, "the host's wait did not end");
                  cuda.ExpectContent(buffer, 2, "behind the wait");
                  Require(cuda.CountOf(semaphore) == 1ull << 41, "the stream did not raise it");
                  for (const uint64_t value : {uint64_t{7}, uint64_t{1} << 41})
                    cuda.Is(api.signal(cuda.device, semaphore, value, cuda.Error()), SY_INVALID, "signal");
                  // A count is reached for streams of another device too.
                  second.Ok(api.stream_wait(second.device, other, semaphore, 9, second.Error()), "stream_wait");
                  second.Synchronize(other);
                  cuda.Synchronize(stream);
                  api.destroy(cuda.device, semaphore);
                  cuda.ExpectNothingLogged();
                }),
      "");
}

TEST(CudaSemaphore, WithoutMemoryOperationsOfTheDriverThereIsNone) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        sy_semaphore* semaphore = nullptr;
                        cuda.Is(cuda.semaphores.create(cuda.device, nullptr, &semaphore, cuda.Error()), SY_UNSUPPORTED,
                                "create", "64-bit stream memory operations");
                      },
                      {{"CUDA_DOUBLE_MEMORY_OPS", "0"}}),
            "");
}

Bytes Told(const std::string& key) {
  Bytes text(SY_MEMORY_DESCRIPTION_BYTES);
  uint32_t bytes = 0;
  Require(ranks::Wait(key, 20000), "{} never came", key);
  const sy_store* const store = ranks::SharedStore();
  Require(
      store->get(store->context, key.c_str(), text.data(), SY_MEMORY_DESCRIPTION_BYTES, &bytes, 0, nullptr) == SY_OK,
      "{} is not there", key);
  text.resize(bytes);
  return text;
}

TEST(CudaPeer, AnotherProcessReadsAndWritesWhatWasExported) {
  EXPECT_EQ(Processes(2,
                      [](int rank) {
                        Cuda cuda(rank);
                        if (rank == 0) {
                          sy_buffer* const buffer = cuda.Buffer(5, kBytes, true);
                          const Bytes description = cuda.Export(buffer);
                          ranks::Put("memory", std::string(description.begin(), description.end()));
                          Require(ranks::Wait("written", 20000), "nobody wrote");
                          cuda.ExpectContent(buffer, 6, "written by the other process");
                          cuda.Fill(nullptr, buffer, 7);
                          ranks::Put("changed", "yes");
                          Require(ranks::Wait("freed", 20000), "nobody freed");
                          cuda.ExpectContent(buffer, 7, "after the other process freed it");
                          cuda.api.free(cuda.device, buffer);
                          return;
                        }
                        // Twice: the handle is opened once, and closed with the last buffer of it.
                        const Bytes description = Told("memory");
                        sy_buffer *const first = cuda.Import(description), *const second = cuda.Import(description);
                        sy_buffer* const own = cuda.Buffer(0);
                        cuda.Ok(cuda.api.copy(cuda.device, nullptr, {own, nullptr, 0}, {first, nullptr, 0}, kBytes,
                                              nullptr, cuda.Error()),
                                "copy");
                        cuda.ExpectContent(own, 5, "read from the other process");
                        cuda.Fill(nullptr, first, 6);
                        cuda.api.free(cuda.device, first);
                        cuda.ExpectContent(second, 6, "after one of two was freed");
                        ranks::Put("written", "yes");
                        Require(ranks::Wait("changed", 20000), "nobody changed it");
                        cuda.ExpectContent(second, 7, "what the owner wrote");
                        cuda.Is(cuda.api.copy(cuda.device, nullptr, {own, nullptr, 0}, {second, nullptr, 1}, kBytes,
                                              nullptr, cuda.Error()),
                                SY_INVALID, "a copy beyond its end");
                        cuda.api.free(cuda.device, second);
                        sy_buffer* const again = cuda.Import(description);
                        cuda.ExpectContent(again, 7, "opened again");
                        cuda.api.free(cuda.device, again);
                        cuda.ExpectNothingLogged();
                        ranks::Put("freed", "yes");
                      }),
            "");
}

TEST(CudaPeer, AnotherDeviceOfTheProcessReachesIt) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda owner, other(1);
                        sy_buffer* const buffer = owner.Buffer(5, kBytes, true);
                        for (Cuda* const one : {&owner, &other}) {
                          sy_buffer* const imported = one->Import(owner.Export(buffer));
                          one->ExpectContent(imported, 5, "imported");
                          one->Fill(nullptr, imported, 5);
                          one->api.free(one->device, imported);
                        }
                        owner.ExpectContent(buffer, 5, "after the importers freed it");
                        owner.ExpectNothingLogged();
                        other.ExpectNothingLogged();
                      }),
            "");
}

// Four devices of which each may reach one other.
TEST(CudaPeer, MoreDevicesThanMayReachEachOtherAreOpenedAllTheSame) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Listener& listener = *new Listener;
                  const sy_plugin plugin = NewInstance(listener);
                  const auto* api = static_cast<const sy_device_v2*>(plugin.get_interface(plugin.instance, "device/2"));
                  for (const int index : {0, 1, 2, 3}) {
                    listener.heard.clear();
                    sy_device* device = nullptr;
                    sy_error error{SY_HEADER(sy_error)};
                    const sy_status status = api->open(plugin.instance, index, nullptr, &device, &error);
                    Require(status == SY_OK, "open of device {} answered {}: {}", index, status, error.message);
                    const size_t told = listener.heard.find("go through the host");
                    Require((told != std::string::npos) == (index == 2), "device {}: {}", index, listener.heard);
                    const bool why = listener.heard.find("cudaErrorTooManyPeers") != std::string::npos;
                    Require(why == (index == 2), "device {}: {}", index, listener.heard);
                    Require(listener.heard.find("through the host", told + 20) == std::string::npos || index != 2,
                            "more than once: {}", listener.heard);
                    sy_buffer* buffer = nullptr;
                    Require(api->alloc(device, 100, nullptr, &buffer, &error) == SY_OK, "alloc: {}", error.message);
                  }
                },
                {{"CUDA_DOUBLE_DEVICES", "4"}, {"CUDA_DOUBLE_PEER_LIMIT", "1"}}),
      "");
}

TEST(CudaPeer, WhatCannotBeSharedIsRefused) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda owner, other(1);
                  sy_buffer *const plain = owner.Buffer(5), *const shared = owner.Buffer(5, 10, true);
                  Bytes room(SY_MEMORY_DESCRIPTION_BYTES);
                  uint32_t bytes = 0;
                  owner.Is(owner.peers.export_memory(owner.device, plain, room.data(), SY_MEMORY_DESCRIPTION_BYTES,
                                                     &bytes, owner.Error()),
                           SY_INVALID, "export", "exportable");
                  owner.Is(owner.peers.export_memory(owner.device, shared, room.data(), 20, &bytes, owner.Error()),
                           SY_INVALID, "export", "20 bytes");
                  const Bytes description = owner.Export(shared);
                  sy_buffer* imported = nullptr;
                  other.Is(other.TryImport(description, &imported), SY_UNSUPPORTED, "import", "device 1 cannot reach");
                  owner.api.free(owner.device, owner.Import(description));
                  owner.Is(owner.TryImport(Bytes(description.size(), 3), &imported), SY_INVALID, "import of noise");
                  owner.Is(owner.TryImport(Bytes(description.begin(), description.end() - 1), &imported), SY_INVALID,
                           "import of a part");
                },
                {{"CUDA_DOUBLE_PEERS", "0"}}),
      "");
}

TEST(CudaPeer, MemoryOfAProcessThatHasEndedIsRefused) {
  EXPECT_EQ(Processes(2,
                      [](int rank) {
                        Cuda cuda;
                        if (rank == 0) {
                          const Bytes description = cuda.Export(cuda.Buffer(5, kBytes, true));
                          ranks::Put("memory", std::string(description.begin(), description.end()));
                          ranks::Die(rank);
                        }
                        const Bytes description = Told("memory");
                        sy_status status = SY_OK;
                        for (int look = 0; look < 1000 && status == SY_OK; ++look) {
                          sy_buffer* imported = nullptr;
                          status = cuda.TryImport(description, &imported);
                          if (status == SY_OK) cuda.api.free(cuda.device, imported);
                          std::this_thread::sleep_for(std::chrono::milliseconds(5));
                        }
                        cuda.Is(status, SY_UNSUPPORTED, "import", "cudaIpcOpenMemHandle");
                      }),
            "");
}

// There is no cuDNN beside the double, which `open` says in the log.
TEST(CudaInstances, EachLogsToItsOwnHost) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Listener* const listeners[] = {new Listener, new Listener};
                        const sy_plugin plugins[] = {NewInstance(*listeners[0]), NewInstance(*listeners[1])};
                        for (int i : {0, 1}) {
                          sy_instance* const instance = plugins[i].instance;
                          const auto* api =
                              static_cast<const sy_device_v2*>(plugins[i].get_interface(instance, "device/2"));
                          sy_device* device = nullptr;
                          Require(api->open(instance, 0, nullptr, &device, nullptr) == SY_OK, "open");
                          api->close(device);
                          Require(listeners[i]->heard.find("libcudnn") != std::string::npos, "heard: {}",
                                  listeners[i]->heard);
                          Require(listeners[1 - i]->heard.empty(), "the other heard: {}", listeners[1 - i]->heard);
                          listeners[i]->heard.clear();
                        }
                      }),
            "");
}

// The double loses the device where it multiplies zeros.
TEST(CudaKernels, AlgorithmsAreMeasuredOnNumbersAndKeptOnDisk) {
  const auto cache = std::filesystem::path(testing::TempDir()) / "cuda_measured_algorithms";
  std::filesystem::remove_all(cache);
  EXPECT_EQ(Processes(1,
                      [&](int) {
                        setenv("XDG_CACHE_HOME", cache.c_str(), 1);
                        setenv("CUBLAS_LT_DOUBLE_ZEROS", "fault", 1);
                        Cuda cuda;
                        for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16}) {
                          const sy_tensor matrix = Contiguous(dtype, {32, 32});
                          Op op("matmul", sy_matmul_attributes{.alpha = 1}, {matrix, matrix}, {matrix});
                          op.request.tuning = SY_TUNING_MEASURE;
                          cuda.kernels.release(cuda.device, cuda.Prepare(op));
                        }
                      }),
            "");
  int lines = 0;
  for (const auto& file : std::filesystem::directory_iterator(cache / "switchyard")) {
    std::ifstream stream(file.path());
    for (std::string line; std::getline(stream, line);) ++lines;
  }
  EXPECT_EQ(lines, 3);
  std::filesystem::remove_all(cache);
}

// An exact GELU behind a product of halves: cuDNN's double has a kernel that takes no longer than the product, which
// its heuristics do not offer, and others that ask for too much workspace, take longer or are not there.
TEST(CudaKernels, AProductWithGeluIsMeasuredBothWaysAndTheFasterOneKept) {
  struct Case {
    const char* name;
    std::map<std::string, std::string> environment;
    uint32_t tuning, determinism;
    bool cudnn;
    const char *kept, *second_choice;  // the line's value; words of the reason. "": none
  };
  const std::map<std::string, std::string> slow = {{"CUBLAS_LT_DOUBLE_DELAY_US", "10000"}};
  const auto cache = std::filesystem::path(testing::TempDir()) / "cuda_gelu_products";
  std::filesystem::remove_all(cache);
  for (const Case& c : {Case{"cuDNN refuses each plan",
                             {{"CUDNN_DOUBLE_REFUSES", "plans"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "",
                             "a prerequisite of the double is missing"},
                        Case{"cuDNN has no engine",
                             {{"CUDNN_DOUBLE_REFUSES", "engines"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "",
                             "no engine"},
                        Case{"there is no cuDNN", {}, SY_TUNING_MEASURE, SY_DETERMINISM_ANY, false, "", "libcudnn"},
                        Case{"nothing is measured", slow, SY_TUNING_HEURISTIC, SY_DETERMINISM_ANY, true, "", ""},
                        Case{"bits have to repeat", slow, SY_TUNING_MEASURE, SY_DETERMINISM_RUN, true, "", ""},
                        Case{"cuDNN is slower",
                             {{"CUDNN_DOUBLE_DELAY_US", "10000"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "usual",
                             ""},
                        Case{"cuDNN is faster", slow, SY_TUNING_MEASURE, SY_DETERMINISM_ANY, true, "2 2", ""},
                        Case{"it is known",
                             {{"CUDNN_DOUBLE_DELAY_US", "10000"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "2 2",
                             ""},
                        Case{"what is known is refused",
                             {{"CUDNN_DOUBLE_REFUSES", "plans"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "2 2",
                             "a prerequisite of the double is missing"}}) {
    SCOPED_TRACE(c.name);
    if (std::string(c.name) == "cuDNN is faster") std::filesystem::remove_all(cache);
    std::map<std::string, std::string> environment = c.environment;
    environment["CUDA_DOUBLE_DELAY_US"] = "0";  // what takes time is said above
    EXPECT_EQ(Processes(
                  1,
                  [&](int) {
                    setenv("XDG_CACHE_HOME", cache.c_str(), 1);
                    if (c.cudnn) Require(dlopen(CUDNN_DOUBLE, RTLD_NOW | RTLD_GLOBAL) != nullptr, "no double");
                    Cuda cuda;
                    const sy_tensor matrix = Contiguous(SY_BF16, {32, 32});
                    sy_matmul_attributes attributes{.alpha = 1, .bias = 1, .activation = SY_ACTIVATION_GELU};
                    attributes.save_preactivation = 1;
                    Op op("matmul", attributes, {matrix, matrix, Contiguous(SY_F32, {32})}, {matrix, matrix});
                    op.request.tuning = c.tuning;
                    op.request.determinism = c.determinism;
                    sy_kernel* const kernel = cuda.Prepare(op);
                    const std::string why = op.info.second_choice ? op.info.second_choice : "";
                    Require(why.empty() == (*c.second_choice == '\0') && why.find(c.second_choice) != std::string::npos,
                            "second choice: {}", why);
                    cuda.kernels.release(cuda.device, kernel);
                  },
                  environment),
              "");
    std::string kept;
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(cache / "switchyard", none)) {
      std::ifstream stream(file.path());
      for (std::string line; std::getline(stream, line);)
        if (line.starts_with("gelu,")) kept += line.substr(line.find(' ') + 1);
    }
    EXPECT_EQ(kept, c.kept);
  }
  std::filesystem::remove_all(cache);
}

// An epilogue that the library refuses costs a pass, and is a second choice; an f32 bias beside halves costs the
// conversion of as many numbers, in the workspace behind the 3,000 bytes of the double's first algorithm, and is none.
// It waits for a pass that is made anyway, unless that would write the preactivation again. Where there is less room,
// the double has an algorithm that needs none.
TEST(CudaKernels, ABiasInF32BesideHalvesIsConvertedWhereThatSparesAPass) {
  struct Case {
    int32_t activation, save;
    const char* epilogues;  // which are there: "all", or a value of CUBLAS_LT_DOUBLE_PLAIN
    uint64_t limit, workspace_bytes;
    const char* way;
    bool second_choice;
  };
  for (const Case& c :
       {Case{SY_ACTIVATION_NONE, 0, "all", 4096, 3072 + 256, "epilogue 4, a converted bias", false},
        Case{SY_ACTIVATION_GELU_TANH, 0, "all", 4096, 3072 + 256, "epilogue 36, a converted bias", false},
        Case{SY_ACTIVATION_GELU_TANH, 1, "all", 4096, 3072 + 256, "epilogue 164, a converted bias", false},
        Case{SY_ACTIVATION_GELU, 0, "all", 4096, 3072, "epilogue 1, a pass of our own", false},
        Case{SY_ACTIVATION_GELU, 1, "all", 4096, 3072 + 256, "epilogue 4, a converted bias, a pass of our own", false},
        Case{SY_ACTIVATION_NONE, 0, "all", 3100, 256, "epilogue 4, a converted bias", false},
        Case{SY_ACTIVATION_GELU, 1, "all", 255, 0, "epilogue 1, a pass of our own", false},
        Case{SY_ACTIVATION_GELU_TANH, 1, "all", 255, 0, "epilogue 1, a pass of our own", true},
        Case{SY_ACTIVATION_GELU_TANH, 0, "1", 4096, 3072, "epilogue 1, a pass of our own", true},
        Case{SY_ACTIVATION_GELU_TANH, 0, "attribute", 4096, 3072, "epilogue 1, a pass of our own", true}}) {
    const std::string name = std::to_string(c.activation) + std::to_string(c.save) + " " + c.epilogues;
    EXPECT_EQ(Processes(1,
                        [&](int) {
                          if (std::strcmp(c.epilogues, "all") != 0) setenv("CUBLAS_LT_DOUBLE_PLAIN", c.epilogues, 1);
                          Cuda cuda;
                          const sy_tensor matrix = Contiguous(SY_BF16, {32, 32});
                          sy_matmul_attributes attributes{.alpha = 1, .bias = 1, .activation = c.activation};
                          attributes.save_preactivation = c.save;
                          Op op("matmul", attributes, {matrix, matrix, Contiguous(SY_F32, {32})},
                                std::vector<sy_tensor>(c.save ? 2 : 1, matrix));
                          op.request.workspace_limit = c.limit;
                          sy_kernel* const kernel = cuda.Prepare(op);
                          const std::string heard = cuda.Heard(), way = heard.substr(heard.find("epilogue"));
                          Require(way == c.way, "{}: {}", name, heard);
                          Require(op.info.workspace_bytes == c.workspace_bytes, "{}: {} bytes of workspace", name,
                                  op.info.workspace_bytes);
                          Require((op.info.second_choice != nullptr) == c.second_choice, "{}: second choice: {}", name,
                                  op.info.second_choice ? op.info.second_choice : "no");
                          cuda.kernels.release(cuda.device, kernel);
                        }),
              "");
  }
}

TEST(CudaKernels, AProductWhoseAlgorithmNeedsMoreWorkspaceThanItMayIsRefused) {
  const auto cache = std::filesystem::path(testing::TempDir()) / "cuda_large_workspaces";
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const sy_tensor matrix = Contiguous(SY_BF16, {32, 32});
                        for (const bool measured : {false, true}) {
                          Op op("matmul", sy_matmul_attributes{.alpha = 1}, {matrix, matrix}, {matrix});
                          op.request.tuning = measured ? SY_TUNING_MEASURE : SY_TUNING_HEURISTIC;
                          op.request.workspace_limit = 4096;
                          sy_kernel* kernel = nullptr;
                          cuda.Is(cuda.TryPrepare(op, &kernel), SY_UNSUPPORTED, "prepare",
                                  "needs 7168 bytes of workspace, the limit is 4096");
                          op.request.workspace_limit = 7168;
                          kernel = cuda.Prepare(op);
                          Require(op.info.workspace_bytes == 7168, "{} bytes", op.info.workspace_bytes);
                          cuda.kernels.release(cuda.device, kernel);
                        }
                      },
                      {{"CUBLAS_LT_DOUBLE_WORKSPACE", "7000"}, {"XDG_CACHE_HOME", cache.string()}}),
            "");
  std::filesystem::remove_all(cache);
}

// So that a plugin that forgets cudaSetDevice on a thread of its host is seen (CudaOps.AFreshThreadMultiplies).
TEST(CudaKernels, AProductWithoutAContextIsAnErrorOfTheLibrary) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const sy_tensor matrix = Contiguous(SY_BF16, {32, 32});
                        Op op("matmul", sy_matmul_attributes{.alpha = 1}, {matrix, matrix}, {matrix});
                        sy_kernel* kernel = nullptr;
                        cuda.Is(cuda.TryPrepare(op, &kernel), SY_UNSUPPORTED, "prepare",
                                "cublasLtMatmulAlgoGetHeuristic");
                        Require(cuda.error.native_code == 1, "native code {}", cuda.error.native_code);
                      },
                      {{"CUDA_DOUBLE_CONTEXTS", "0"}}),
            "");
}

// A convolution is first asked of cuDNN, which is not there.
TEST(CudaKernels, AnErrorIsUntouchedWhereAnotherKernelTakesTheOpAndSaysThatItIsTheSecondChoice) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        sy_convolution_attributes attributes{};
                        attributes.spatial_rank = 2;
                        attributes.groups = 1;
                        for (int i : {0, 1}) attributes.stride[i] = attributes.dilation[i] = 1;
                        Op op("convolution", attributes,
                              {Contiguous(SY_F32, {1, 4, 4, 3}), Contiguous(SY_F32, {2, 3, 3, 3})},
                              {Contiguous(SY_F32, {1, 2, 2, 2})});
                        sy_kernel* kernel = nullptr;
                        std::strcpy(cuda.Error()->message, "as it was");
                        cuda.Is(cuda.kernels.prepare(cuda.device, &op.request, &kernel, &op.info, &cuda.error), SY_OK,
                                "prepare", "as it was");
                        const std::string why = op.info.second_choice ? op.info.second_choice : "not said";
                        Require(why.find("libcudnn") != std::string::npos, "why it is the second choice: {}", why);
                        cuda.kernels.release(cuda.device, kernel);
                        op.request.workspace_limit = 0;
                        op.request.determinism = SY_DETERMINISM_EXACT;
                        cuda.Is(cuda.TryPrepare(op, &kernel), SY_UNSUPPORTED, "prepare", "batch split");
                      }),
            "");
}

// The kernel for windows wants 2.9 MB, the one behind it 4.1 MB: the last refusal is told.
TEST(CudaKernels, AttentionWithoutRoomForItsBiasGradientIsRefused) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const int64_t b = 600, t = 49, h = 2, d = 32;
                        const sy_tensor qkv = Contiguous(SY_BF16, {b, t, 3, h, d}), bias = Contiguous(SY_F32, {h, t, t});
                        const sy_tensor out = Contiguous(SY_BF16, {b, t, h, d}), rows = Contiguous(SY_F32, {b, h, t});
                        Op op("attention_backward", sy_attention_attributes{.scale = 1, .bias = 1},
                              {qkv, out, rows, out, bias}, {qkv, bias});
                        sy_kernel* kernel = nullptr;
                        op.request.workspace_limit = 2'000'000;
                        cuda.Is(cuda.TryPrepare(op, &kernel), SY_UNSUPPORTED, "prepare", "bytes of workspace");
                        op.request.workspace_limit = 3'000'000;
                        kernel = cuda.Prepare(op);
                        Require(op.info.second_choice == nullptr, "the kernel for windows is the first choice");
                        cuda.kernels.release(cuda.device, kernel);
                      }),
            "");
}

// Windows of 144 tokens are too large for their kernel. cuDNN, asked next, has attention of halves with one addend, of
// a mask one for all of the batch or for each of it, and without the addend's gradient; f32 is never its own.
TEST(CudaKernels, AttentionOfWindowsThatAreTooLargeIsASecondChoiceInHalvesAlone) {
  struct Case {
    sy_dtype dtype;
    bool backward, bias, mask, dbias;
    const char* why;  // "": the first choice
    int64_t masks = 2;
  };
  const char *const planes = "a mask (1 or B, T, T)", *const both = "not both",
                    *const gradient = "no gradient of a bias", *const missing = "libcudnn";
  EXPECT_EQ(
      Processes(
          1,
          [&](int) {
            Cuda cuda;
            for (const Case& c :
                 {Case{SY_BF16, false, true, true, false, both}, Case{SY_F16, false, true, true, false, both},
                  Case{SY_BF16, true, true, true, true, both}, Case{SY_BF16, true, true, true, false, both},
                  Case{SY_BF16, true, true, false, true, gradient}, Case{SY_F16, true, true, false, true, gradient},
                  Case{SY_BF16, true, true, false, false, missing}, Case{SY_BF16, false, true, false, false, missing},
                  Case{SY_BF16, false, false, true, false, planes}, Case{SY_F16, true, false, true, false, planes},
                  Case{SY_BF16, false, false, true, false, missing, 1},
                  Case{SY_F16, true, false, true, false, missing, 4}, Case{SY_F32, false, false, true, false, ""},
                  Case{SY_F32, false, true, true, false, ""}, Case{SY_F32, true, true, true, true, ""},
                  Case{SY_F32, true, true, false, true, ""}}) {
              const int64_t b = 4, t = 144, h = 2, d = 32;
              const sy_tensor qkv = Contiguous(c.dtype, {b, t, 3, h, d}), out = Contiguous(c.dtype, {b, t, h, d}),
                              rows = Contiguous(SY_F32, {b, h, t}), bias = Contiguous(SY_F32, {h, t, t});
              std::vector<sy_tensor> inputs = {qkv}, outputs = {out, rows};
              if (c.backward) inputs = {qkv, out, rows, out}, outputs = {qkv};
              if (c.bias) inputs.push_back(bias);
              if (c.mask) inputs.push_back(Contiguous(SY_F32, {c.masks, t, t}));
              if (c.dbias) outputs.push_back(bias);
              sy_attention_attributes attributes{.scale = 1};
              attributes.bias = c.bias;
              attributes.mask = c.mask;
              Op op(c.backward ? "attention_backward" : "attention", attributes, inputs, outputs);
              op.request.workspace_limit = 1 << 30;
              sy_kernel* const kernel = cuda.Prepare(op);
              const std::string why = op.info.second_choice ? op.info.second_choice : "";
              Require(why.empty() == (*c.why == '\0') && why.find(c.why) != std::string::npos,
                      "dtype {}, backward {}, expected \"{}\": {}", static_cast<int>(c.dtype), c.backward, c.why, why);
              cuda.kernels.release(cuda.device, kernel);
            }
          }),
      "");
}

// A grid has at most 65535 blocks along its second axis, here of 16 keys.
TEST(CudaKernels, AttentionOfMoreTokensThanAGridHasBlocksForIsRefused) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda;
                  for (const int64_t tokens : {65535 * 16, 65535 * 16 + 1}) {
                    const sy_tensor qkv = Contiguous(SY_F32, {1, tokens, 3, 1, 128});
                    const sy_tensor out = Contiguous(SY_F32, {1, tokens, 1, 128});
                    const sy_tensor rows = Contiguous(SY_F32, {1, 1, tokens});
                    Op op("attention_backward", sy_attention_attributes{.scale = 1}, {qkv, out, rows, out}, {qkv});
                    op.request.workspace_limit = 1 << 30;
                    sy_kernel* kernel = nullptr;
                    const sy_status status = cuda.TryPrepare(op, &kernel);
                    if (tokens == 65535 * 16) {
                      cuda.Ok(status, "as many tokens as there is room for");
                      cuda.kernels.release(cuda.device, kernel);
                    } else {
                      cuda.Is(status, SY_UNSUPPORTED, "one more", "too many tokens");
                    }
                  }
                }),
      "");
}

// The first launch that bind records fails, then the graph of the second: neither is an error, one warning is heard,
// and the third, of the same code, is loaded by the stream that failed before.
// A program without an instruction is a copy, which has nothing to launch onto itself.
TEST(CudaKernels, ABindingThatLaunchesNothingLeavesTheLoadingToTheNext) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const sy_tensor x = Contiguous(SY_F32, {4, 8});
                        sy_buffer *const from = cuda.Buffer(3, 128), *const to = cuda.Buffer(1, 128);
                        sy_pointwise_attributes copy{};
                        copy.output_count = 1;
                        Op op("pointwise", copy, {x}, {x});
                        sy_kernel* const kernel = cuda.Prepare(op);
                        Require(op.inplace[0] == 0, "not in place: {}", op.inplace[0]);
                        for (sy_buffer* const target : {from, to}) {
                          const sy_place input{from, nullptr, 0}, output{target, nullptr, 0};
                          sy_binding binding{SY_HEADER(sy_binding)};
                          binding.inputs = &input;
                          binding.outputs = &output;
                          sy_bound* bound = nullptr;
                          sy_launch launch = nullptr;
                          cuda.Ok(cuda.kernels.bind(cuda.device, kernel, &binding, &bound, &launch, cuda.Error()),
                                  "bind");
                          cuda.Ok(launch(bound, nullptr, cuda.Error()), "launch");
                          cuda.kernels.unbind(cuda.device, bound);
                        }
                        uint8_t found = 0;
                        cuda.Ok(cuda.api.copy(cuda.device, nullptr, {nullptr, &found, 0}, {to, nullptr, 0}, 1, nullptr,
                                              cuda.Error()),
                                "copy");
                        Require(found == 3, "found {}", found);
                        cuda.ExpectNothingLogged();
                        cuda.kernels.release(cuda.device, kernel);
                      },
                      {{"CUDA_DOUBLE_LAZY", "1"}}),
            "");
}

TEST(CudaKernels, WhatBindCannotLoadIsWarnedOfOnceAndRunsAllTheSame) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const sy_tensor x = Contiguous(SY_F32, {4, 8});
                        sy_buffer *const from = cuda.Buffer(0, 128), *const to = cuda.Buffer(1, 128);
                        const sy_place input{from, nullptr, 0}, output{to, nullptr, 0};
                        sy_binding binding{SY_HEADER(sy_binding)};
                        binding.inputs = &input;
                        binding.outputs = &output;
                        Op op("softmax", {x}, {x});
                        std::vector<sy_kernel*> kernels;
                        std::vector<sy_bound*> bounds;
                        sy_launch launch = nullptr;
                        for (const char* what : {"first", "second", "third"}) {
                          kernels.push_back(cuda.Prepare(op));
                          std::strcpy(cuda.Error()->message, "as it was");
                          cuda.Is(cuda.kernels.bind(cuda.device, kernels.back(), &binding, &bounds.emplace_back(),
                                                    &launch, &cuda.error),
                                  SY_OK, what, "as it was");
                        }
                        const std::string heard = cuda.Heard(), words = "is loaded at its first launch";
                        Require(heard.find(words) != std::string::npos && heard.find(words) == heard.rfind(words),
                                "heard: {}", heard);
                        Require(heard.find("cudaErrorLaunchOutOfResources") != std::string::npos, "heard: {}", heard);
                        for (sy_bound* const bound : bounds) {
                          cuda.Fill(nullptr, to, 1, 128);
                          cuda.Ok(launch(bound, nullptr, cuda.Error()), "launch");
                          std::vector<float> found(32);
                          cuda.Ok(cuda.api.copy(cuda.device, nullptr, {nullptr, found.data(), 0}, output, 128, nullptr,
                                                cuda.Error()),
                                  "copy");
                          Require(found == std::vector<float>(32, 0.125f), "found {}", found[0]);
                          cuda.kernels.unbind(cuda.device, bound);
                        }
                        for (sy_kernel* const kernel : kernels) cuda.kernels.release(cuda.device, kernel);
                      },
                      {{"CUDA_DOUBLE_FAULT", "launch@1,graph@1"}, {"CUDA_DOUBLE_LAZY", "1"}}),
            "");
}

}  // namespace
}  // namespace switchyard
