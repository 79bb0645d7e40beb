// A backend with one fault planted in it: SWITCHYARD_FAULT names the fault, SWITCHYARD_FAULT_BASE the library of the
// backend, which is `reference`, or `null` for the faults of streams. The kit has to find each.
#include "tests/conformance/faulty_plugin.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/ops.h"
#include "core/abi/plugin.h"

struct sy_instance {
  sy_plugin base;
};

namespace {
const sy_host* host = nullptr;  // of the first instance: it names the fault
}  // namespace

bool Fault(const char* name) {
  const char* fault = host->setting(host->context, "FAULT");
  return fault != nullptr && strcmp(fault, name) == 0;
}

namespace {

sy_instance* BaseOf(sy_instance* instance) { return instance->base.instance; }

// The tables are the same for every instance; their first arguments are those of the base, but for count, open and
// query, which take an instance of this plugin.
int instances = 0;
sy_instance* first_instance = nullptr;
sy_device_v2 device_interface{};
sy_kernel_v2 kernel_interface{};
sy_memory_ext_v2 memory_interface{};
sy_capture_v2 capture_interface{};
sy_profiler_v2 profiler_interface{};
sy_region_v2 region_interface{};
const sy_device_v2* base_device = nullptr;
const sy_kernel_v2* base_kernel = nullptr;
const sy_memory_ext_v2* base_memory = nullptr;
const sy_capture_v2* base_capture = nullptr;
const sy_profiler_v2* base_profiler = nullptr;
const sy_semaphore_v1* faulty_semaphores = nullptr;
const sy_peer_v1* faulty_peers = nullptr;

uint64_t BytesOf(const sy_tensor& tensor) {
  constexpr uint64_t kBytes[SY_DTYPE_COUNT] = {4, 2, 2, 8, 4, 8, 1};
  uint64_t bytes = kBytes[tensor.dtype];
  for (int32_t i = 0; i < tensor.rank; ++i) bytes *= static_cast<uint64_t>(tensor.dims[i]);
  return bytes;
}

// For faults that touch the data of a launch: on the reference.
uint8_t* Address(sy_device* device, sy_place place) {
  void* address = nullptr;
  if (base_memory == nullptr) return nullptr;
  base_memory->native_address(device, place.buffer, &address, nullptr);
  return static_cast<uint8_t*>(address) + place.offset;
}

struct FaultyKernel {
  sy_device* device;
  sy_kernel* base;
  std::string op;
  std::vector<sy_tensor> inputs, outputs;
  bool accumulates = false;
  struct FaultyBound* first = nullptr;
};
struct FaultyBound {
  FaultyKernel* kernel;
  sy_bound* base;
  sy_launch launch;
  std::vector<sy_place> inputs, outputs;
  int launches = 0;
};

void AddToFirst(const sy_tensor& tensor, uint8_t* address, float amount) {
  if (tensor.dtype == SY_F64) {
    double value;
    memcpy(&value, address, sizeof value);
    value += amount;
    memcpy(address, &value, sizeof value);
  } else if (tensor.dtype == SY_F32) {
    float value;
    memcpy(&value, address, sizeof value);
    value += amount;
    memcpy(address, &value, sizeof value);
  }
}

sy_status Launch(sy_bound* handle, sy_stream* stream, sy_error* error) {
  auto* bound = reinterpret_cast<FaultyBound*>(handle);
  FaultyKernel& kernel = *bound->kernel;
  const std::string& op = kernel.op;
  ++bound->launches;
  if (Fault("skips_a_launch") && op == "matmul") return SY_OK;
  if (op == "region") return SY_OK;
  if (Fault("forgets_other_bindings") && op == "transpose" && kernel.first != bound && kernel.first != nullptr) {
    return kernel.first->launch(kernel.first->base, stream, error);
  }
  const sy_status status = bound->launch(bound->base, stream, error);
  sy_device* const device = kernel.device;
  uint8_t* const output = Address(device, bound->outputs[0]);
  if (Fault("wrong_number") && op == "layer_norm") AddToFirst(kernel.outputs[0], output, 0.01f);
  if (Fault("wrong_gradient") && op == "softmax_backward") AddToFirst(kernel.outputs[0], output, 0.01f);
  if (Fault("wrong_second_output") && op == "attention")
    AddToFirst(kernel.outputs[1], Address(device, bound->outputs[1]), 0.1f);
  if (Fault("writes_outside") && op == "reduce") output[BytesOf(kernel.outputs[0])] = 1;
  if (Fault("writes_before") && op == "reduce") output[-1] = 1;
  if (Fault("changes_an_input") && op == "concat") Address(device, bound->inputs[1])[0] ^= 1;
  const auto in_place = [&] { return bound->inputs[0].buffer == bound->outputs[0].buffer; };
  if (Fault("wrong_in_place") && op == "roll" && in_place()) output[0] ^= 1;
  if (Fault("other_bits_in_place") && op == "softmax" && in_place()) output[0] ^= 1;  // within the tolerance
  if (Fault("changes_on_relaunch") && op == "pad" && bound->launches > 1) output[0] ^= 1;
  if (Fault("accumulates_twice") && kernel.accumulates && op == "squared_norm") {
    return bound->launch(bound->base, stream, error);
  }
  const bool halves = kernel.outputs[0].dtype == SY_BF16;
  if (Fault("cuts_off") && halves && op == "pointwise" && kernel.inputs[0].dtype == SY_F32) {
    const uint8_t* const input = Address(device, bound->inputs[0]);
    for (uint64_t i = 0; i < BytesOf(kernel.outputs[0]) / 2; ++i) memcpy(output + 2 * i, input + 4 * i + 2, 2);
  }
  if (Fault("leans_towards_zero") && halves && op == "layer_norm") {
    for (uint64_t i = 0; i < BytesOf(kernel.outputs[0]); i += 4) output[i] -= output[i] > 0;
  }
  if (Fault("leans_down") && halves && op == "layer_norm") {
    for (uint64_t i = 0; i < BytesOf(kernel.outputs[0]); i += 4) {
      if ((output[i + 1] & 0x80) != 0)
        output[i] += output[i] < 255;
      else
        output[i] -= output[i] > 0;
    }
  }
  if (Fault("norms_another_sum") && halves && op == "layer_norm" && kernel.inputs.size() == 4) {
    const int64_t columns = kernel.inputs[0].dims[1];
    const auto number = [&](const sy_place& place, int64_t i, int64_t bytes) {  // f32, or a bf16 as its upper half
      float value = 0;
      memcpy(reinterpret_cast<uint8_t*>(&value) + 4 - bytes, Address(device, place) + i * bytes, bytes);
      return value;
    };
    for (int64_t i = 0; i < kernel.inputs[0].dims[0] * columns; ++i) {  // gamma is 1, beta is 0
      const float h = number(bound->inputs[0], i, 2) + number(bound->inputs[1], i, 2);
      const float y = (h - number(bound->outputs[1], i / columns, 4)) * number(bound->outputs[2], i / columns, 4);
      memcpy(output + 2 * i, reinterpret_cast<const uint8_t*>(&y) + 2, 2);
    }
  }
  const sy_tensor& result = kernel.outputs[0];
  if (Fault("fills_gaps") && result.rank > 1 && result.strides[result.rank - 2] > result.dims[result.rank - 1]) {
    output[result.dims[result.rank - 1] * 4] = 1;
  }
  if (Fault("spills_over_rows") && op == "softmax") {  // a sum over the whole tensor, as a careless reduction has it
    float sum = 0, value = 0;
    for (uint64_t i = 0; i < BytesOf(kernel.outputs[0]); i += 4) {
      memcpy(&value, output + i, 4);
      sum += value;
    }
    if (!(sum - sum == 0)) memcpy(output, &sum, 4);
  }
  if (Fault("trains_wrongly") && op == "optimizer_update") AddToFirst(kernel.outputs[0], output, 1.0f);
  return status;
}

// As if every tensor lay in row-major order.
void Straighten(std::vector<sy_tensor>& tensors) {
  for (sy_tensor& tensor : tensors) {
    int64_t stride = 1;
    for (int32_t axis = tensor.rank; axis-- > 0; stride *= tensor.dims[axis]) tensor.strides[axis] = stride;
  }
}

// A kernel of two inputs of five elements, for requests that deserve none.
sy_status PrepareAnything(sy_device* device, sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  sy_pointwise_attributes add{};
  add.instruction_count = add.output_count = 1;
  add.instructions[0] = {SY_PW_ADD, 0, 1, 0, 0};
  add.outputs[0] = 2;
  sy_tensor five{};
  five.rank = 1;
  five.dims[0] = 5;
  five.strides[0] = 1;
  const sy_tensor inputs[] = {five, five};
  sy_prepare_request request{};
  request.header = SY_HEADER(sy_prepare_request);
  request.op = "pointwise";
  request.op_version = 1;
  request.attributes = &add;
  request.attributes_size = sizeof add;
  request.input_count = 2;
  request.output_count = 1;
  request.inputs = inputs;
  request.outputs = &five;
  request.workspace_limit = uint64_t{1} << 32;
  return base_kernel->prepare(device, &request, kernel, info, error);
}

sy_status Prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  sy_prepare_request changed{};
  memcpy(&changed, given, given->header.size < sizeof changed ? given->header.size : sizeof changed);
  const sy_prepare_request* const request = &changed;
  const std::string op = request->op;
  if (Fault("ignores_extensions")) changed.header.next = nullptr;
  const sy_extension* const chain = info->header.next;
  if (Fault("ignores_extensions_of_infos")) info->header.next = nullptr;
  if (Fault("refuses_optional_extensions") && changed.header.next != nullptr) {
    if (error != nullptr) snprintf(error->message, sizeof error->message, "extended");
    return SY_UNSUPPORTED;
  }
  const uint32_t known = sizeof(sy_matmul_attributes);
  if (Fault("ignores_longer_attributes") && op == "matmul" && changed.attributes_size > known) {
    changed.attributes_size = known;
  }
  if (Fault("reads_beyond_attributes") && op == "matmul" && changed.attributes_size < known) {
    changed.attributes_size = known;
  }
  if (Fault("lacks_ops") && (op == "matmul" || op == "layer_norm" || op == "attention")) {
    if (error != nullptr) snprintf(error->message, sizeof error->message, "%s is not one of the ops here", op.c_str());
    return SY_UNSUPPORTED;
  }
  if (Fault("knows_only_f32")) {
    const auto foreign = [](const sy_tensor& tensor) { return tensor.dtype != SY_F32; };
    if (std::any_of(request->inputs, request->inputs + request->input_count, foreign) ||
        std::any_of(request->outputs, request->outputs + request->output_count, foreign)) {
      if (error != nullptr) snprintf(error->message, sizeof error->message, "%s of more than f32", op.c_str());
      return SY_UNSUPPORTED;
    }
  }
  if (Fault("refuses_501_elements") && request->outputs[0].rank == 1 && request->outputs[0].dims[0] == 501)
    return SY_UNSUPPORTED;
  if (Fault("refuses_in_different_words") && (op == "matmul" || op == "pointwise")) {
    std::string words = "no element by element";
    if (op == "matmul")
      words = "no product of " + std::to_string(request->inputs[0].dims[request->inputs[0].rank - 1]) + " columns";
    if (error != nullptr) snprintf(error->message, sizeof error->message, "%s", words.c_str());
    return SY_UNSUPPORTED;
  }
  std::vector<sy_tensor> straight_inputs;
  if (Fault("ignores_strides") && op == "softmax") {
    straight_inputs.assign(request->inputs, request->inputs + request->input_count);
    Straighten(straight_inputs);
    changed.inputs = straight_inputs.data();
  }
  if (Fault("takes_any_determinism")) changed.determinism = SY_DETERMINISM_ANY;
  if (Fault("refuses_unknown_tuning") && changed.tuning > SY_TUNING_MEASURE) return SY_UNSUPPORTED;
  const bool takes_all = Fault("takes_unknown_ops");
  sy_status status = base_kernel->prepare(device, request, kernel, info, takes_all ? nullptr : error);
  info->header.next = chain;
  if (Fault("calls_the_unknown_invalid") && status == SY_UNSUPPORTED) status = SY_INVALID;
  if (Fault("calls_the_broken_unsupported") && status == SY_INVALID) status = SY_UNSUPPORTED;
  if (takes_all && status == SY_UNSUPPORTED) status = PrepareAnything(device, kernel, info, error);
  if (Fault("takes_nonsense") && status == SY_INVALID && op == "reduce") {
    status = PrepareAnything(device, kernel, info, error);
  }
  if (Fault("crashes_on_nonsense") && status == SY_INVALID && op == "pool") raise(SIGSEGV);
  if (status != SY_OK) return status;
  if (Fault("ignores_determinism")) info->determinism = SY_DETERMINISM_ANY;
  if (Fault("ignores_the_workspace_limit")) info->workspace_bytes = 4096;
  if (Fault("keeps_all_there_is") && op == "softmax") info->persistent_bytes = UINT64_MAX;
  if (Fault("invents_a_determinism_class") && op == "softmax") info->determinism = 77;
  if (Fault("lacks_a_library") && (op == "matmul" || op == "attention"))
    info->second_choice = op == "matmul" ? "libfast is not installed\x1b[2J" : "libfast 1.0 is too old";
  auto* faulty = new FaultyKernel{device, *kernel, op, {}, {}};
  faulty->inputs.assign(request->inputs, request->inputs + request->input_count);
  faulty->outputs.assign(request->outputs, request->outputs + request->output_count);
  faulty->accumulates = request->accumulate != nullptr;
  *kernel = reinterpret_cast<sy_kernel*>(faulty);
  return SY_OK;
}

sy_status Bind(sy_device* device, sy_kernel* handle, const sy_binding* binding, sy_bound** bound, sy_launch* launch,
               sy_error* error) {
  auto* kernel = reinterpret_cast<FaultyKernel*>(handle);
  auto* faulty = new FaultyBound{kernel, nullptr, nullptr, {}, {}};
  faulty->inputs.assign(binding->inputs, binding->inputs + kernel->inputs.size());
  faulty->outputs.assign(binding->outputs, binding->outputs + kernel->outputs.size());
  sy_binding changed = *binding;
  if (Fault("mixes_up_threads")) {  // by what all of them share
    static std::mutex mutex;
    static sy_place output;
    {
      const std::lock_guard lock(mutex);
      output = binding->outputs[0];
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const std::lock_guard lock(mutex);
    faulty->outputs[0] = output;
    changed.outputs = faulty->outputs.data();
  }
  if (Fault("binds_anywhere")) {
    for (sy_place& place : faulty->inputs) place.offset = 0;
    for (sy_place& place : faulty->outputs) place.offset = 0;
    changed.inputs = faulty->inputs.data();
    changed.outputs = faulty->outputs.data();
  }
  const sy_status status = base_kernel->bind(device, kernel->base, &changed, &faulty->base, &faulty->launch, error);
  if (status != SY_OK) {
    delete faulty;
    return status;
  }
  if (kernel->first == nullptr) kernel->first = faulty;
  *bound = reinterpret_cast<sy_bound*>(faulty);
  *launch = Launch;
  return SY_OK;
}

void Unbind(sy_device* device, sy_bound* handle) {
  auto* bound = reinterpret_cast<FaultyBound*>(handle);
  if (bound->kernel->first == bound) bound->kernel->first = nullptr;
  base_kernel->unbind(device, bound->base);
  delete bound;
}

void Release(sy_device* device, sy_kernel* handle) {
  auto* kernel = reinterpret_cast<FaultyKernel*>(handle);
  base_kernel->release(device, kernel->base);
  if (!Fault("leaks_on_the_host")) delete kernel;
}

sy_status WriteConstants(sy_device* device, sy_kernel* kernel, sy_stream* stream, sy_place constants, sy_error* error) {
  return base_kernel->write_constants(device, reinterpret_cast<FaultyKernel*>(kernel)->base, stream, constants, error);
}

sy_status Count(sy_instance* instance, int32_t* count, sy_error* error) {
  if (Fault("has_no_devices_and_no_words")) return SY_UNSUPPORTED;
  return base_device->count(BaseOf(instance), count, error);
}

sy_status Query(sy_instance* instance, int32_t index, sy_device_info* info, sy_error* error) {
  const sy_extension* const chain = info->header.next;
  if (Fault("ignores_extensions_of_infos")) info->header.next = nullptr;
  const sy_status status = base_device->query(BaseOf(instance), index, info, error);
  info->header.next = chain;
  if (Fault("writes_errors_on_success") && status == SY_OK && error != nullptr) error->message[0] = '\0';
  if (status == SY_OK && Fault("writes_beyond_a_struct")) info->static_loss_scale = 7;
  if (status == SY_OK && SY_HAS(sy_device_info, info, libraries)) {
    static char told[64];
    static int queries = 0;
    snprintf(told, sizeof told, "libfast 1.0, query %d", Fault("forgets_what_it_said") ? ++queries : 0);
    info->libraries = Fault("writes_lines_of_libraries") ? "libfast 1.0\nlibslow 2.0" : told;
  }
  if (status != SY_OK && Fault("answers_nonsense_indices")) return SY_OK;
  return status;
}

bool closed = false;  // any device, once there were several instances

void Close(sy_device* device) {
  closed = closed || instances > 1;
  base_device->close(device);
}

sy_status Alloc(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                sy_error* error) {
  if (Fault("ignores_extensions")) options = nullptr;
  if (Fault("allocates_nothing") && bytes == 0) bytes = 1;
  const sy_status status = base_device->alloc(device, bytes, options, buffer, error);
  return status == SY_OUT_OF_MEMORY && Fault("misnames_out_of_memory") ? SY_INTERNAL : status;
}

void Free(sy_device* device, sy_buffer* buffer) {
  BeforeFree(device, buffer);
  if (!Fault("never_frees")) base_device->free(device, buffer);
}

sy_status Copy(sy_device* device, sy_stream* stream, sy_place to, sy_place from, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  for (const sy_place& place : {to, from}) BeforeUse(place);
  if (closed && Fault("closes_every_device")) {
    if (error != nullptr) snprintf(error->message, sizeof error->message, "the device was closed");
    return SY_DEVICE_LOST;
  }
  if (Fault("copies_between_host_memory") && to.buffer == nullptr && from.buffer == nullptr) {
    memmove(to.host, from.host, bytes);
    return SY_OK;
  }
  if (Fault("copies_nothing")) return SY_OK;
  if (Fault("copies_whole_words") && to.buffer != nullptr && from.buffer != nullptr) bytes &= ~uint64_t{3};
  if (Fault("aligns_host_addresses") && from.buffer == nullptr) {
    from.host = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(from.host) & ~uintptr_t{1});
  }
  if (Fault("returns_too_early") && stream == nullptr && to.buffer != nullptr && from.buffer == nullptr) {
    static sy_stream* own = nullptr;
    if (own == nullptr && base_device->stream_create(device, nullptr, &own, error) != SY_OK) return SY_INTERNAL;
    return base_device->copy(device, own, to, from, bytes, options, error);
  }
  if (Fault("forgets_the_order") && to.buffer != nullptr && from.buffer != nullptr) {
    static std::optional<std::pair<sy_place, sy_place>> held;  // every second copy overtakes the one before it
    if (!held) {
      held = {to, from};
      return SY_OK;
    }
    const sy_status status = base_device->copy(device, stream, to, from, bytes, options, error);
    if (status != SY_OK) return status;
    std::tie(to, from) = *std::exchange(held, std::nullopt);
  }
  const sy_status status = base_device->copy(device, stream, to, from, bytes, options, error);
  if (Fault("crashes_on_a_copy_too_long") && status != SY_OK) raise(SIGSEGV);
  if (Fault("blocks_the_host") && status == SY_OK) return base_device->synchronize(device, stream, nullptr, error);
  return status;
}

// To whatever file of results this process has open.
void WriteIntoTheResults() {
  for (int descriptor = 3; descriptor < 64; ++descriptor) {
    char path[512] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    if (readlink(link.c_str(), path, sizeof path - 1) <= 0 || strstr(path, "result-") == nullptr) continue;
    constexpr char kGarbage[] = "{\"end\": 5}\nall is well";
    (void)!write(descriptor, kGarbage, sizeof kGarbage - 1);
  }
}

sy_status FillBytes(sy_device* device, sy_stream* stream, sy_place to, uint8_t value, uint64_t bytes,
                    const sy_fill_options* options, sy_error* error) {
  while (Fault("hangs_in_fill")) pause();
  if (Fault("crashes_in_fill")) raise(SIGSEGV);
  if (Fault("exits_in_fill")) exit(0);
  if (Fault("ends_in_fill")) _exit(0);
  if (Fault("throws_in_fill")) throw std::runtime_error("out of \x1b[31mpaint");
  if (Fault("writes_into_the_results")) WriteIntoTheResults();
  if (Fault("fills_what_there_is") && base_device->fill(device, stream, to, value, bytes, options, nullptr) != SY_OK)
    return SY_OK;
  return base_device->fill(device, stream, to, value, bytes, options, error);
}

sy_stream* captured = nullptr;  // the last on which a capture was begun

sy_status Synchronize(sy_device* device, sy_stream* stream, const sy_synchronize_options* options, sy_error* error) {
  if (Fault("waits_in_captures") && stream != nullptr && captured == stream) return SY_OK;
  static std::set<sy_stream*> told;  // streams whose error was told once
  if (Fault("forgets_errors") && told.count(stream)) return SY_OK;
  const sy_status status = base_device->synchronize(device, stream, options, error);
  if (status != SY_OK) told.insert(stream);
  return status;
}

std::map<sy_event*, sy_stream*> recorded_events;  // where they were recorded last

sy_status EventRecord(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error) {
  const sy_stream* const before = std::exchange(recorded_events[event], stream);
  if (Fault("keeps_the_first_record") && before != nullptr && before != stream) return SY_OK;
  return base_device->event_record(device, event, stream, error);
}

sy_status StreamWait(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error) {
  if (Fault("refuses_events_without_a_record") && recorded_events.count(event) == 0) return SY_INVALID;
  return Fault("waits_for_no_event") ? SY_OK : base_device->stream_wait(device, stream, event, error);
}

sy_status Open(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device,
               sy_error* error) {
  if (Fault("reads_beyond_a_struct") && options != nullptr && options->deterministic > 1) {
    if (error != nullptr) snprintf(error->message, sizeof error->message, "deterministic is 0 or 1");
    return SY_INVALID;
  }
  const sy_status status = base_device->open(BaseOf(instance), index, options, device, error);
  static bool armed = false;
  if (Fault("crashes_at_the_end") && !std::exchange(armed, true)) atexit([] { raise(SIGSEGV); });
  if (Fault("leaks_descriptors")) (void)dup(0);
  if (Fault("leaks_threads")) {
    std::thread([] {
      for (;;) pause();
    }).detach();
  }
  return status;
}

sy_status NativeAddress(sy_device* device, sy_buffer* buffer, void** address, sy_error* error) {
  static uintptr_t calls = 0;
  const sy_status status = base_memory->native_address(device, buffer, address, error);
  if (Fault("has_two_addresses")) *address = static_cast<char*>(*address) + 64 * (++calls % 2);
  return status;
}

sy_status Import(sy_device* device, void* address, const char* kind, uint64_t bytes, sy_buffer** buffer,
                 sy_error* error) {
  if (Fault("imports_any_kind")) kind = "host";
  if (Fault("imports_a_copy")) return base_device->alloc(device, bytes, nullptr, buffer, error);
  return base_memory->import_memory(device, address, kind, bytes, buffer, error);
}

sy_status LaunchGraph(sy_device* device, sy_graph* graph, sy_stream* stream, sy_error* error) {
  const sy_status status = base_capture->launch(device, graph, stream, error);
  return Fault("replays_twice") && status == SY_OK ? base_capture->launch(device, graph, stream, error) : status;
}

sy_status BeginCapture(sy_device* device, sy_stream* stream, const sy_capture_options* options, sy_error* error) {
  captured = stream;
  static std::set<sy_stream*> capturing;
  if (!Fault("captures_in_captures")) return base_capture->begin(device, stream, options, error);
  return capturing.insert(stream).second ? base_capture->begin(device, stream, options, error) : SY_OK;
}

sy_status DrainSpans(sy_device* device, sy_span* spans, uint32_t capacity, uint32_t* count, uint64_t* offset,
                     sy_error* error) {
  const sy_status status = base_profiler->drain(device, spans, capacity, count, offset, error);
  if (Fault("loses_spans") && *count > 1) --*count;
  for (uint32_t i = 0; i < *count && Fault("turns_time_round"); ++i) std::swap(spans[i].start_ns, spans[i].end_ns);
  return status;
}

// Claims the first and the last node of whatever it is shown.
sy_status Partition(sy_device*, const sy_region* graph, uint32_t* claims, sy_error*) {
  for (uint32_t node = 0; node < graph->node_count; ++node) {
    if (Fault("ignores_strides_in_regions")) {
      claims[node] = strcmp(graph->nodes[node].op, "pointwise") == 0 ? node + 1 : 0;
      continue;
    }
    claims[node] = Fault("skips_a_region") || node == 0 || node + 1 == graph->node_count;
  }
  if (Fault("claims_more_nodes_than_there_are")) claims[graph->node_count] = 1;
  return SY_OK;
}

// A region of one node, as if every tensor lay in row-major order.
sy_status PrepareStraightNode(sy_device* device, const sy_region& region, sy_kernel** kernel, sy_kernel_info* info,
                              sy_error* error) {
  const sy_region_node& node = region.nodes[0];
  std::vector<sy_tensor> inputs, outputs;
  for (uint32_t i = 0; i < node.input_count; ++i) inputs.push_back(region.tensors[node.inputs[i]]);
  for (uint32_t o = 0; o < node.output_count; ++o) outputs.push_back(region.tensors[node.outputs[o]]);
  Straighten(inputs);
  Straighten(outputs);
  sy_prepare_request request{};
  request.header = SY_HEADER(sy_prepare_request);
  request.op = node.op;
  request.op_version = 1;
  request.attributes = node.attributes;
  request.attributes_size = node.attributes_size;
  request.input_count = node.input_count;
  request.output_count = node.output_count;
  request.inputs = inputs.data();
  request.outputs = outputs.data();
  request.workspace_limit = uint64_t{1} << 32;
  const sy_status status = base_kernel->prepare(device, &request, kernel, info, error);
  if (status != SY_OK) return status;
  *kernel = reinterpret_cast<sy_kernel*>(new FaultyKernel{device, *kernel, node.op, inputs, outputs});
  return SY_OK;
}

sy_status PrepareRegion(sy_device* device, const sy_region* region, uint64_t, sy_kernel** kernel, sy_kernel_info* info,
                        sy_error* error) {
  if (Fault("ignores_strides_in_regions")) return PrepareStraightNode(device, *region, kernel, info, error);
  const sy_status status = PrepareAnything(device, kernel, info, error);
  if (status != SY_OK) return status;
  auto* faulty = new FaultyKernel{device, *kernel, "region", {}, {}};
  faulty->inputs.resize(region->input_count);
  faulty->outputs.resize(region->output_count);
  *kernel = reinterpret_cast<sy_kernel*>(faulty);
  return SY_OK;
}

const void* Interface(sy_instance* instance, const char* name) {
  const bool first = instance == first_instance;
  if (Fault("hides_interfaces_of_the_second") && !first && strcmp(name, "kernel/2") == 0) return nullptr;
  if (strcmp(name, "device/2") == 0 || (Fault("answers_every_name") && strncmp(name, "device", 6) == 0))
    return &device_interface;
  if (strcmp(name, "kernel/2") == 0) return &kernel_interface;
  if (strcmp(name, "memory_ext/2") == 0) return base_memory == nullptr ? nullptr : &memory_interface;
  if (strcmp(name, "capture/2") == 0) return base_capture == nullptr ? nullptr : &capture_interface;
  if (strcmp(name, "profiler/2") == 0) return base_profiler == nullptr ? nullptr : &profiler_interface;
  if (strcmp(name, "semaphore/1") == 0) return faulty_semaphores;
  if (strcmp(name, "peer/1") == 0) return faulty_peers;
  const bool regions = Fault("claims_what_is_not_convex") || Fault("skips_a_region") ||
                       Fault("claims_more_nodes_than_there_are") || Fault("ignores_strides_in_regions");
  if (strcmp(name, "region/2") == 0) return regions ? &region_interface : nullptr;
  return instance->base.get_interface(instance->base.instance, name);
}

template <typename T>
const T* BaseInterface(const sy_plugin& base, const char* name) {
  return static_cast<const T*>(base.get_interface(base.instance, name));
}

}  // namespace

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* given, sy_plugin* plugin, sy_error* error) {
  if (host == nullptr) host = given;
  ++instances;
  void* const library = dlopen(host->setting(host->context, "FAULT_BASE"), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return SY_INTERNAL;
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  auto* const instance = new sy_instance{{SY_HEADER(sy_plugin)}};
  if (first_instance == nullptr) first_instance = instance;
  if (Fault("is_made_once") && instance != first_instance) return SY_INTERNAL;
  sy_plugin& base = instance->base;
  if (Fault("mixes_hosts")) given->setting(host->context, "FAULT");
  if (create(given, &base, error) != SY_OK) return SY_INTERNAL;
  base_device = BaseInterface<sy_device_v2>(base, "device/2");
  base_kernel = BaseInterface<sy_kernel_v2>(base, "kernel/2");
  base_memory = BaseInterface<sy_memory_ext_v2>(base, "memory_ext/2");
  base_capture = BaseInterface<sy_capture_v2>(base, "capture/2");
  base_profiler = BaseInterface<sy_profiler_v2>(base, "profiler/2");
  faulty_semaphores = FaultySemaphores(BaseInterface<sy_semaphore_v1>(base, "semaphore/1"));
  faulty_peers = FaultyPeers(BaseInterface<sy_peer_v1>(base, "peer/1"), base_device);
  device_interface = *base_device;
  device_interface.count = Count;
  device_interface.open = Open;
  device_interface.close = Close;
  device_interface.query = Query;
  device_interface.alloc = Alloc;
  device_interface.free = Free;
  device_interface.copy = Copy;
  device_interface.synchronize = Synchronize;
  if (base_device->stream_wait != nullptr) device_interface.stream_wait = StreamWait;
  if (Fault("refuses_events_without_a_record") || Fault("keeps_the_first_record"))
    device_interface.event_record = EventRecord;
  if (Fault("gives_no_stream"))
    device_interface.stream_create = [](sy_device*, const sy_stream_options*, sy_stream** stream, sy_error*) {
      *stream = nullptr;
      return sy_status{SY_OK};
    };
  if (Fault("gives_no_event"))
    device_interface.event_create = [](sy_device*, const sy_event_options*, sy_event** event, sy_error*) {
      *event = nullptr;
      return sy_status{SY_OK};
    };
  if (base_device->fill != nullptr) device_interface.fill = FillBytes;
  kernel_interface = {SY_HEADER(sy_kernel_v2), Prepare, Bind, Unbind, Release, WriteConstants};
  region_interface = {SY_HEADER(sy_region_v2), Partition, PrepareRegion};
  if (base_memory != nullptr) {
    memory_interface = *base_memory;
    memory_interface.native_address = NativeAddress;
    memory_interface.import_memory = Import;
  }
  if (base_capture != nullptr) {
    capture_interface = *base_capture;
    capture_interface.begin = BeginCapture;
    capture_interface.launch = LaunchGraph;
  }
  if (base_profiler != nullptr) {
    profiler_interface = *base_profiler;
    profiler_interface.drain = DrainSpans;
  }
  *plugin = base;
  plugin->name = "faulty";
  plugin->instance = instance;
  plugin->get_interface = Interface;
  return SY_OK;
}
