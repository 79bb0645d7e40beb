// The cuda plugin by its C interface, on the double of the CUDA runtime: a device whose calls throw where they fail,
// ops to be prepared, and processes that use them.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/abi/boundary.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/op_request.h"
#include "core/abi/ops.h"
#include "gtest/gtest.h"
#include "tests/ranks/processes.h"

namespace switchyard::cuda_testing {

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

inline sy_tensor Contiguous(sy_dtype dtype, const std::vector<int64_t>& dims) {
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
inline sy_plugin NewInstance(const Listener& listener) {
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
inline std::string Processes(int processes, const std::function<void(int)>& body,
                             std::map<std::string, std::string> more = {}) {
  more.emplace("CUDA_DOUBLE_DELAY_US", "20000");
  return ranks::RunProcesses({.size = processes, .environment = std::move(more)}, body);
}

}  // namespace switchyard::cuda_testing
