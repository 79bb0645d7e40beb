// A program that uses plugins through the ABI alone. It is built twice, with the headers of this tree and with those of
// a later version (later_headers.sh), and tries plugins that were built with either: what both know works, what only
// one of them knows does no harm.
//   partner plugin.so…
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/ops.h"
#include "core/abi/plugin.h"

#ifdef BUILT_LATER
static_assert(SY_LATER_DTYPE == SY_U8 + 1);  // these are the later headers
#endif

namespace {

int failures = 0;
const char* plugin_path = "";

#define EXPECT(condition)                                                           \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::printf("%s: line %d: expected %s\n", plugin_path, __LINE__, #condition); \
      ++failures;                                                                   \
    }                                                                               \
  } while (false)

// One of our structs, whose header says `size`, and bytes behind that which nobody else may write.
template <typename T>
struct Guarded {
  explicit Guarded(size_t size = sizeof(T)) : size(size) {
    std::memset(bytes, kGuard, sizeof bytes);
    std::memset(bytes, 0, size);
    const sy_header header = SY_HEADER(T);
    std::memcpy(bytes, &header, sizeof header);
    get()->header.size = static_cast<uint32_t>(size);
  }
  T* get() { return reinterpret_cast<T*>(bytes); }
  T* operator->() { return get(); }
  bool Whole() const {
    for (size_t i = size; i < sizeof bytes; ++i) {
      if (bytes[i] != kGuard) return false;
    }
    return true;
  }

  static constexpr unsigned char kGuard = 0xa5;
  size_t size;
  alignas(16) unsigned char bytes[sizeof(T) + 128];
};

// The plugin's table in the size that we know: what it lacks is NULL.
template <typename T>
bool Take(const sy_plugin& plugin, const char* name, T* table) {
  const auto* given = static_cast<const T*>(plugin.get_interface(plugin.instance, name));
  std::memset(static_cast<void*>(table), 0, sizeof *table);
  if (given == nullptr) return false;
  EXPECT(given->header.major == SY_ABI_MAJOR);
  std::memcpy(static_cast<void*>(table), given, given->header.size < sizeof(T) ? given->header.size : sizeof(T));
  return true;
}

const sy_extension required = {SY_HEADER(sy_extension), "partner.secret/1", 1};
const sy_extension optional = {SY_HEADER(sy_extension), "partner.hint/1", 0};

// Tensors of this shape, contiguous.
sy_tensor Matrix(sy_dtype dtype, int64_t rows, int64_t columns) {
  sy_tensor tensor{};
  tensor.dtype = dtype;
  tensor.rank = 2;
  tensor.dims[0] = rows;
  tensor.dims[1] = tensor.strides[0] = columns;
  tensor.strides[1] = 1;
  return tensor;
}

// An op of `inputs` matrices of 2 × 2 and one output; its status.
sy_status Prepare(const sy_kernel_v2& api, sy_device* device, const char* op, uint32_t inputs, sy_dtype dtype,
                  const void* attributes, uint32_t attributes_size, sy_kernel** kernel,
                  const sy_extension* extension = nullptr, uint64_t* workspace = nullptr,
                  uint32_t determinism = SY_DETERMINISM_ANY) {
  const sy_tensor tensors[2] = {Matrix(dtype, 2, 2), Matrix(dtype, 2, 2)};
  Guarded<sy_prepare_request> request;
  request->header.next = extension;
  request->op = op;
  request->op_version = 1;
  request->attributes = attributes;
  request->attributes_size = attributes_size;
  request->input_count = inputs;
  request->output_count = 1;
  request->inputs = request->outputs = tensors;
  request->workspace_limit = 1 << 20;
  request->determinism = determinism;
  int32_t inplace = -1;
  Guarded<sy_kernel_info> info;
  info->inplace = &inplace;
  Guarded<sy_error> error;
  const sy_status status = api.prepare(device, request.get(), kernel, info.get(), error.get());
  EXPECT(info.Whole() && error.Whole());
  EXPECT((error->message[0] == '\0') == (status == SY_OK));
  EXPECT(info->persistent_bytes == 0 && info->constant_bytes == 0);  // neither softmax nor matmul needs them
  if (workspace != nullptr) *workspace = info->workspace_bytes;
  return status;
}

void TryKernels(const sy_kernel_v2& api, const sy_device_v2& memory, sy_device* device, sy_buffer* buffer,
                uint32_t alignment) {
  sy_kernel* kernel = nullptr;
  EXPECT(Prepare(api, device, "an_op_of_later", 1, SY_F32, nullptr, 0, &kernel) == SY_UNSUPPORTED);
  EXPECT(Prepare(api, device, "softmax", 1, SY_DTYPE_COUNT, nullptr, 0, &kernel) == SY_UNSUPPORTED);
  EXPECT(Prepare(api, device, "softmax", 1, SY_U8 + 1, nullptr, 0, &kernel) == SY_UNSUPPORTED);
  EXPECT(Prepare(api, device, "softmax", 1, SY_F32, nullptr, 0, &kernel, &required) == SY_UNSUPPORTED);
  EXPECT(Prepare(api, device, "softmax", 1, SY_F32, nullptr, 0, &kernel, nullptr, nullptr, SY_DETERMINISM_EXACT + 1) ==
         SY_UNSUPPORTED);

  // Attributes of another version: larger, and what it has more is zero, or is not.
  struct {
    sy_matmul_attributes known;
    uint64_t more[2];
  } attributes{};
  attributes.known.alpha = 1;
  const sy_status larger = Prepare(api, device, "matmul", 2, SY_F32, &attributes, sizeof attributes, &kernel);
  if (larger == SY_OK) api.release(device, kernel);
  const sy_status plain = Prepare(api, device, "matmul", 2, SY_F32, &attributes, sizeof attributes.known, &kernel);
  if (plain == SY_OK) api.release(device, kernel);
  EXPECT(larger == plain);
  attributes.more[1] = 1;
  EXPECT(Prepare(api, device, "matmul", 2, SY_F32, &attributes, sizeof attributes, &kernel) == SY_UNSUPPORTED);

  // What both know is computed.
  uint64_t workspace = 0;
  const sy_status prepared = Prepare(api, device, "softmax", 1, SY_F32, nullptr, 0, &kernel, &optional, &workspace);
  if (prepared == SY_UNSUPPORTED) return;
  EXPECT(prepared == SY_OK);
  const float x[4] = {1, 1, 5, 5};
  float y[4] = {};
  EXPECT(memory.copy(device, nullptr, {buffer, nullptr, 0}, {nullptr, const_cast<float*>(x), 0}, sizeof x, nullptr,
                     nullptr) == SY_OK);
  const sy_place input = {buffer, nullptr, 0}, output = {buffer, nullptr, alignment};
  Guarded<sy_binding> binding;
  binding->inputs = &input;
  binding->outputs = &output;
  if (workspace > 0) EXPECT(memory.alloc(device, workspace, nullptr, &binding->workspace.buffer, nullptr) == SY_OK);
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  EXPECT(api.bind(device, kernel, binding.get(), &bound, &launch, nullptr) == SY_OK);
  sy_stream* stream = nullptr;
  if (memory.stream_create != nullptr) EXPECT(memory.stream_create(device, nullptr, &stream, nullptr) == SY_OK);
  EXPECT(launch(bound, stream, nullptr) == SY_OK);
  EXPECT(memory.synchronize(device, stream, nullptr, nullptr) == SY_OK);
  EXPECT(memory.copy(device, nullptr, {nullptr, y, 0}, output, sizeof y, nullptr, nullptr) == SY_OK);
  for (const float one : y) EXPECT(one == 0.5f);
  if (stream != nullptr) memory.stream_destroy(device, stream);
  api.unbind(device, bound);
  api.release(device, kernel);
  memory.free(device, binding->workspace.buffer);
}

void TryDevice(const sy_plugin& plugin, const sy_device_v2& api) {
  int32_t count = 0;
  Guarded<sy_error> error;
  EXPECT(api.count(plugin.instance, &count, error.get()) == SY_OK && count > 0);
  if (count <= 0) return;
  for (const size_t size : {sizeof(sy_device_info), offsetof(sy_device_info, memory_kind)}) {
    Guarded<sy_device_info> info(size);
    EXPECT(api.query(plugin.instance, 0, info.get(), error.get()) == SY_OK);
    EXPECT(info.Whole() && info->memory_bytes > 0 && info->header.size == size);
  }
  Guarded<sy_device_info> info;
  info->header.next = &required;
  EXPECT(api.query(plugin.instance, 0, info.get(), nullptr) == SY_UNSUPPORTED);
  info->header.next = &optional;
  EXPECT(api.query(plugin.instance, 0, info.get(), nullptr) == SY_OK);
  EXPECT(error.Whole() && error->message[0] == '\0');

  sy_device* device = nullptr;
  Guarded<sy_open_options> open;
  open->header.next = &required;
  EXPECT(api.open(plugin.instance, 0, open.get(), &device, error.get()) == SY_UNSUPPORTED);
  EXPECT(std::strstr(error->message, "partner.secret/1") != nullptr && error.Whole());
  open->header.next = &optional;
  EXPECT(api.open(plugin.instance, 0, open.get(), &device, nullptr) == SY_OK);
  sy_buffer* buffer = nullptr;
  Guarded<sy_alloc_options> alloc;
  const uint64_t bytes = 2ull * info->alignment + 64;
  EXPECT(api.alloc(device, bytes, alloc.get(), &buffer, nullptr) == SY_OK);
  sy_buffer* refused = nullptr;
  EXPECT(api.alloc(device, 0, nullptr, &refused, nullptr) == SY_INVALID);
  alloc->header.next = &required;
  EXPECT(api.alloc(device, bytes, alloc.get(), &refused, nullptr) == SY_UNSUPPORTED);

  const uint64_t step = info->copy_granularity > 1 ? info->copy_granularity : 1;
  std::vector<char> sent(8 * step, 'x'), received(8 * step, ' ');
  Guarded<sy_copy_options> copy;
  const sy_place there = {buffer, nullptr, step};
  EXPECT(api.copy(device, nullptr, there, {nullptr, sent.data(), 0}, sent.size(), copy.get(), nullptr) == SY_OK);
  EXPECT(api.copy(device, nullptr, {nullptr, received.data(), 0}, there, sent.size(), nullptr, nullptr) == SY_OK);
  EXPECT(sent == received);
  EXPECT(api.copy(device, nullptr, {buffer, nullptr, bytes}, {nullptr, sent.data(), 0}, sent.size(), nullptr,
                  nullptr) == SY_INVALID);
  copy->header.next = &required;
  EXPECT(api.copy(device, nullptr, there, {nullptr, sent.data(), 0}, sent.size(), copy.get(), nullptr) ==
         SY_UNSUPPORTED);
  Guarded<sy_synchronize_options> synchronize;
  EXPECT(api.synchronize(device, nullptr, synchronize.get(), nullptr) == SY_OK);

  sy_kernel_v2 kernels;
  if (Take(plugin, "kernel/2", &kernels)) TryKernels(kernels, api, device, buffer, info->alignment);
  api.free(device, buffer);
  api.close(device);
}

void TryCollective(const sy_plugin& plugin, const sy_collective_v2& api) {
  for (const size_t size : {sizeof(sy_collective_info), offsetof(sy_collective_info, alignment)}) {
    Guarded<sy_collective_info> info(size);
    EXPECT(api.query(plugin.instance, info.get(), nullptr) == SY_OK);
    EXPECT(info.Whole() && info->memory_kinds != nullptr && info->header.size == size);
  }
  EXPECT(api.reduces(plugin.instance, SY_SUM, SY_F32, nullptr) == SY_OK);
  Guarded<sy_error> error;
  EXPECT(api.reduces(plugin.instance, SY_PRODUCT + 1, SY_F32, error.get()) == SY_UNSUPPORTED);
  EXPECT(error->message[0] != '\0' && error.Whole());
  EXPECT(api.reduces(plugin.instance, SY_SUM, SY_U8 + 1, nullptr) == SY_UNSUPPORTED);
  sy_communicator* communicator = nullptr;
  Guarded<sy_init_request> init;
  init->size = 1;
  init->name = "partner";
  init->header.next = &required;
  EXPECT(api.init(plugin.instance, init.get(), &communicator, nullptr) == SY_UNSUPPORTED);
}

const char* Setting(void* context, const char* name) {
  return std::getenv((std::string(static_cast<const char*>(context)) + name).c_str());
}

// An instance that serves a host of its own, whose settings begin with `prefix`.
void TryInstance(sy_plugin_create_fn create, char* prefix) {
  static auto& hosts = *new std::deque<Guarded<sy_host>>;  // they live as long as the process
  Guarded<sy_host>& host = hosts.emplace_back();
  host->context = prefix;
  host->log = [](void*, int32_t, const char*) {};
  host->setting = Setting;
  Guarded<sy_plugin> plugin;
  plugin->header.next = &required;
  EXPECT(create(host.get(), plugin.get(), nullptr) == SY_UNSUPPORTED);
  plugin->header.next = nullptr;
  Guarded<sy_error> error;
  EXPECT(create(host.get(), plugin.get(), error.get()) == SY_OK);
  EXPECT(plugin->magic == SY_PLUGIN_MAGIC && plugin.Whole() && error.Whole() && error->message[0] == '\0');
  EXPECT(plugin->header.size == sizeof(sy_plugin));
  sy_device_v2 device;
  sy_collective_v2 collective;
  const bool has_device = Take(*plugin.get(), "device/2", &device);
  const bool has_collective = Take(*plugin.get(), "collective/2", &collective);
  EXPECT(has_device || has_collective);
  EXPECT(plugin->get_interface(plugin->instance, "an interface of later/1") == nullptr);
  if (has_device) TryDevice(*plugin.get(), device);
  if (has_collective) TryCollective(*plugin.get(), collective);
}

void Try(const char* path) {
  plugin_path = path;
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::printf("%s\n", dlerror());
  EXPECT(library != nullptr);
  if (library == nullptr) return;
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  EXPECT(create != nullptr);
  static char first[] = "SWITCHYARD_", second[] = "PARTNER_";
  if (create == nullptr) return;
  TryInstance(create, first);
  TryInstance(create, second);
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) Try(arguments[i]);
  std::printf("ABI %d.%d: %d plugins tried, %d failures\n", SY_ABI_MAJOR, SY_ABI_MINOR, count - 1, failures);
  return failures != 0 || count < 2;
}
