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
                          sy_tensor matrix{};
                          matrix.dtype = dtype;
                          matrix.rank = 2;
                          matrix.dims[0] = matrix.dims[1] = matrix.strides[0] = 32;
                          matrix.strides[1] = 1;
                          sy_matmul_attributes attributes{};
                          attributes.alpha = 1;
                          const sy_tensor inputs[] = {matrix, matrix};
                          sy_prepare_request request{SY_HEADER(sy_prepare_request)};
                          request.op = "matmul";
                          request.op_version = 1;
                          request.attributes = &attributes;
                          request.attributes_size = sizeof attributes;
                          request.input_count = 2;
                          request.output_count = 1;
                          request.inputs = inputs;
                          request.outputs = &matrix;
                          request.workspace_limit = 1 << 20;
                          request.tuning = SY_TUNING_MEASURE;
                          sy_kernel_info info{SY_HEADER(sy_kernel_info)};
                          sy_kernel* kernel = nullptr;
                          cuda.Ok(cuda.kernels.prepare(cuda.device, &request, &kernel, &info, cuda.Error()), "prepare");
                          cuda.kernels.release(cuda.device, kernel);
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

// An epilogue that the library refuses costs a pass, and is a second choice; a bias that it does not read costs the
// conversion of as many numbers, in the workspace, and is none.
TEST(CudaKernels, ABiasInF32BesideHalvesIsReadAsItIsOrConverted) {
  struct Case {
    const char *setting, *value;
    uint64_t workspace_bytes;
    bool second_choice;
  };
  for (const Case& c :
       {Case{"CUBLAS_LT_DOUBLE_MIXED", "1", 0, false}, Case{"NOTHING", "1", 256, false},
        Case{"CUBLAS_LT_DOUBLE_PLAIN", "1", 0, true}, Case{"CUBLAS_LT_DOUBLE_PLAIN", "attribute", 0, true}}) {
    EXPECT_EQ(Processes(1,
                        [&](int) {
                          setenv(c.setting, c.value, 1);
                          Cuda cuda;
                          sy_tensor matrix{};
                          matrix.dtype = SY_BF16;
                          matrix.rank = 2;
                          matrix.dims[0] = matrix.dims[1] = matrix.strides[0] = 32;
                          matrix.strides[1] = 1;
                          sy_tensor bias{};
                          bias.dtype = SY_F32;
                          bias.rank = 1;
                          bias.dims[0] = 32;
                          bias.strides[0] = 1;
                          sy_matmul_attributes attributes{};
                          attributes.alpha = 1;
                          attributes.bias = 1;
                          attributes.activation = SY_ACTIVATION_GELU_TANH;
                          const sy_tensor inputs[] = {matrix, matrix, bias};
                          sy_prepare_request request{SY_HEADER(sy_prepare_request)};
                          request.op = "matmul";
                          request.op_version = 1;
                          request.attributes = &attributes;
                          request.attributes_size = sizeof attributes;
                          request.input_count = 3;
                          request.output_count = 1;
                          request.inputs = inputs;
                          request.outputs = &matrix;
                          request.workspace_limit = 1 << 20;
                          sy_kernel_info info{SY_HEADER(sy_kernel_info)};
                          sy_kernel* kernel = nullptr;
                          cuda.Ok(cuda.kernels.prepare(cuda.device, &request, &kernel, &info, cuda.Error()), "prepare");
                          Require(info.workspace_bytes == c.workspace_bytes, "{}={}: {} bytes of workspace", c.setting,
                                  c.value, info.workspace_bytes);
                          Require((info.second_choice != nullptr) == c.second_choice, "{}={}: second choice: {}",
                                  c.setting, c.value, info.second_choice ? info.second_choice : "no");
                          cuda.kernels.release(cuda.device, kernel);
                        }),
              "");
  }
}

// A convolution is first asked of cuDNN, which is not there.
TEST(CudaKernels, AnErrorIsUntouchedWhereAnotherKernelTakesTheOpAndSaysThatItIsTheSecondChoice) {
  EXPECT_EQ(
      Processes(
          1,
          [](int) {
            Cuda cuda;
            const auto tensor = [](std::vector<int64_t> dims) {
              sy_tensor made{};
              made.dtype = SY_F32;
              made.rank = static_cast<int32_t>(dims.size());
              int64_t stride = 1;
              for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) {
                made.dims[i] = dims[i];
                made.strides[i] = stride;
              }
              return made;
            };
            sy_convolution_attributes attributes{};
            attributes.spatial_rank = 2;
            attributes.groups = 1;
            for (int i : {0, 1}) attributes.stride[i] = attributes.dilation[i] = 1;
            const sy_tensor inputs[] = {tensor({1, 4, 4, 3}), tensor({2, 3, 3, 3})}, outputs[] = {tensor({1, 2, 2, 2})};
            sy_prepare_request request{SY_HEADER(sy_prepare_request)};
            request.op = "convolution";
            request.op_version = 1;
            request.attributes = &attributes;
            request.attributes_size = sizeof attributes;
            request.input_count = 2;
            request.output_count = 1;
            request.inputs = inputs;
            request.outputs = outputs;
            request.workspace_limit = 1 << 20;
            int32_t inplace = -1;
            sy_kernel_info info{SY_HEADER(sy_kernel_info)};
            info.inplace = &inplace;
            sy_kernel* kernel = nullptr;
            std::strcpy(cuda.Error()->message, "as it was");
            cuda.Is(cuda.kernels.prepare(cuda.device, &request, &kernel, &info, &cuda.error), SY_OK, "prepare",
                    "as it was");
            Require(
                info.second_choice != nullptr && std::string(info.second_choice).find("libcudnn") != std::string::npos,
                "why it is the second choice: {}", info.second_choice ? info.second_choice : "not said");
            cuda.kernels.release(cuda.device, kernel);
            request.workspace_limit = 0;
            request.determinism = SY_DETERMINISM_EXACT;
            cuda.Is(cuda.kernels.prepare(cuda.device, &request, &kernel, &info, cuda.Error()), SY_UNSUPPORTED,
                    "prepare", "batch split");
          }),
      "");
}

}  // namespace
}  // namespace switchyard
