#include "tools/conform/refusal_checks.h"

#include <algorithm>
#include <functional>

#include "tools/conform/given_struct.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

constexpr uint32_t kUnheardOf = 99;  // as a class, a level or a priority

// A call that is refused at once, or on a device with streams by the stream on which it was queued.
Status ExpectInvalidCall(Device& device, const std::string& what,
                         const std::function<sy_status(sy_stream*, sy_error*)>& call) {
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  WatchedError error;
  sy_status status = call(stream.handle(), error.get());
  SY_RETURN_IF_ERROR(error.Judge(status, what));
  if (status == SY_OK && device.async()) {
    status = device.api()->synchronize(device.handle(), stream.handle(), nullptr, error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, what + ", told by its stream"));
  }
  return ExpectStatus(status, {SY_INVALID}, what);
}

// The prepared kernel bound to its own memory, of which one place is moved to where less than its bytes are left.
Status CheckBind(const Plugin& plugin, Device& device) {
  const auto* const kernels = plugin.Interface<sy_kernel_v2>("kernel/2");
  if (kernels == nullptr) return Unimplemented("it has no kernels");
  for (const char* op : {"pointwise", "matmul", "softmax", "transpose"}) {
    const Problem problem = MakeProblem(FirstCase(op), SY_F32, 1);
    const auto kernel = PrepareOp(device, problem);
    if (kernel.status().code() == absl::StatusCode::kUnimplemented) continue;
    SY_RETURN_IF_ERROR(kernel.status());
    const uint64_t alignment = device.info().alignment;
    std::vector<Buffer> buffers;
    const auto memory = [&](uint64_t bytes) -> StatusOr<sy_place> {
      if (bytes == 0) return sy_place{};
      SY_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(bytes));
      buffers.push_back(std::move(buffer));
      return buffers.back().at(0);
    };
    std::vector<sy_place> places;
    for (const auto* tensors : {&problem.inputs, &problem.outputs}) {
      for (const sy_tensor& tensor : *tensors) {
        SY_ASSIGN_OR_RETURN(const sy_place place,
                            memory(static_cast<uint64_t>(Elements(tensor)) * BytesOf(tensor.dtype)));
        places.push_back(place);
      }
    }
    sy_binding binding{};
    binding.header = SY_HEADER(sy_binding);
    binding.inputs = places.data();
    binding.outputs = places.data() + problem.inputs.size();
    SY_ASSIGN_OR_RETURN(binding.workspace, memory(kernel->info().workspace_bytes));
    SY_ASSIGN_OR_RETURN(binding.persistent, memory(kernel->info().persistent_bytes));
    SY_ASSIGN_OR_RETURN(binding.constants, memory(kernel->info().constant_bytes));
    SY_ASSIGN_OR_RETURN(binding.residual, memory(kernel->info().residual_bytes));
    for (size_t moved = 0; moved < places.size(); ++moved) {
      for (const uint64_t offset : {alignment, uint64_t{1} << 40, UINT64_MAX / alignment * alignment}) {
        const sy_place before = places[moved];
        places[moved].offset = offset;
        WatchedError error;
        sy_bound* bound = nullptr;
        sy_launch launch = nullptr;
        const sy_status status =
            kernels->bind(device.handle(), kernel->handle(), &binding, &bound, &launch, error.get());
        if (status == SY_OK) kernels->unbind(device.handle(), bound);
        places[moved] = before;
        const std::string what = fmt::format("bind of {} with place {} at offset {}", op, moved, offset);
        SY_RETURN_IF_ERROR(error.Judge(status, what));
        SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_INVALID}, what));
      }
    }
  }
  return OkStatus();
}

// No requests at all, whatever the op: where the plugin takes the op, they are the caller's fault.
Status CheckBrokenRequests(Device& device, const OpCase& one) {
  const Problem good = MakeProblem(one, SY_F32, 1);
  if (const auto taken = PrepareOp(device, good); !taken.ok()) return taken.status();
  const auto refuse = [&](const char* what, const std::function<void(Problem&)>& change) -> Status {
    Problem problem = good;
    change(problem);
    const auto kernel = PrepareOp(device, problem);
    if (kernel.status().code() == absl::StatusCode::kInvalidArgument) return OkStatus();
    return Internal("{}: expected SY_INVALID, found {}", what, kernel.ok() ? "success" : kernel.status().ToString());
  };
  for (const bool output : {false, true}) {
    const auto change = [output](const std::function<void(sy_tensor&)>& tensor) {
      return [=](Problem& problem) { tensor(output ? problem.outputs[0] : problem.inputs[0]); };
    };
    SY_RETURN_IF_ERROR(refuse("rank 9", change([](sy_tensor& t) { t.rank = SY_MAX_RANK + 1; })));
    SY_RETURN_IF_ERROR(refuse("rank -1", change([](sy_tensor& t) { t.rank = -1; })));
    SY_RETURN_IF_ERROR(refuse("an extent of -4", change([](sy_tensor& t) { t.dims[0] = -4; })));
    SY_RETURN_IF_ERROR(refuse("an extent of 0", change([](sy_tensor& t) { t.dims[0] = 0; })));
    SY_RETURN_IF_ERROR(refuse("more than 2^63 bytes", change([](sy_tensor& t) { t.dims[0] = int64_t{1} << 62; })));
  }
  if (!good.attributes.empty()) {
    SY_RETURN_IF_ERROR(refuse("no attributes", [](Problem& problem) { problem.attributes.clear(); }));
  }
  for (const bool output : {false, true}) {
    const auto kernel = PrepareOp(device, good, {.without_inputs = !output, .without_outputs = output});
    if (kernel.status().code() == absl::StatusCode::kInvalidArgument) continue;
    return Internal("a count of {} without an array: expected SY_INVALID, found {}", output ? "outputs" : "inputs",
                    kernel.ok() ? "success" : kernel.status().ToString());
  }
  return OkStatus();
}

// What a later edition may mean, beside ops, dtypes and attributes.
Status CheckUnknownDeterminism(Device& device) {
  for (const std::string& op : OpNames()) {
    const auto kernel = PrepareOp(device, MakeProblem(FirstCase(op), SY_F32, 1), {.determinism = kUnheardOf});
    if (kernel.status().code() == absl::StatusCode::kUnimplemented) continue;
    return Internal("{} of determinism class {}: expected SY_UNSUPPORTED, found {}", op, kUnheardOf,
                    kernel.ok() ? "success" : kernel.status().ToString());
  }
  return OkStatus();
}

Status CheckNearestLevels(Device& device) {
  for (const std::string& op : OpNames()) {
    const Problem problem = MakeProblem(FirstCase(op), SY_F32, 1);
    const auto usual = PrepareOp(device, problem), unknown = PrepareOp(device, problem, {.tuning = kUnheardOf});
    if (usual.status().code() == unknown.status().code()) continue;
    return Internal("{} at tuning level {}: expected the answer of those that are known, found {}", op, kUnheardOf,
                    unknown.ok() ? "success" : unknown.status().ToString());
  }
  if (!device.async()) return OkStatus();
  for (const int32_t priority : {static_cast<int32_t>(kUnheardOf), -1}) {
    sy_stream_options options{};
    options.header = SY_HEADER(sy_stream_options);
    options.priority = priority;
    sy_stream* stream = nullptr;
    const sy_status status = device.api()->stream_create(device.handle(), &options, &stream, nullptr);
    if (status == SY_OK) device.api()->stream_destroy(device.handle(), stream);
    SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK}, fmt::format("a stream of priority {}", priority)));
  }
  return OkStatus();
}

Status CheckUnknownMemoryKind(const Plugin& plugin, Device& device) {
  const auto* const memory = plugin.Interface<sy_memory_ext_v2>("memory_ext/2");
  if (memory == nullptr || memory->import_memory == nullptr) return Unimplemented("it imports no memory");
  Bytes bytes(4096);
  for (const char* kind : {"conform.nowhere", ""}) {
    WatchedError error;
    sy_buffer* buffer = nullptr;
    const sy_status status =
        memory->import_memory(device.handle(), bytes.data(), kind, bytes.size(), &buffer, error.get());
    if (status == SY_OK) device.api()->free(device.handle(), buffer);
    const std::string what = fmt::format("import_memory of kind \"{}\"", kind);
    SY_RETURN_IF_ERROR(error.Judge(status, what));
    SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_UNSUPPORTED}, what));
  }
  return OkStatus();
}

Status CheckUnknownInterfaces(const Plugin& plugin) {
  const sy_plugin& table = plugin.table();
  for (const char* name : {"conform.nothing/1", "device/3", "device/1", "device", "", "kernel/22"}) {
    if (table.get_interface(table.instance, name) == nullptr) continue;
    return Internal("get_interface(\"{}\"): expected NULL", name);
  }
  return OkStatus();
}

}  // namespace

void CheckRefusals(Recorder& recorder, const Plugin& plugin, Device& device) {
  recorder.Run("refusal/unknown_interfaces", [&] { return CheckUnknownInterfaces(plugin); });
  recorder.Run("refusal/unknown_memory_kind", [&] { return CheckUnknownMemoryKind(plugin, device); });
  if (!device.has_kernels()) return;
  recorder.Run("refusal/unknown_determinism", [&] { return CheckUnknownDeterminism(device); });
  recorder.Run("refusal/nearest_levels", [&] { return CheckNearestLevels(device); });
  recorder.Run("refusal/bind", [&] { return CheckBind(plugin, device); });
  for (const std::string& op : OpNames()) {
    recorder.Run("refusal/prepare/" + op, [&] { return CheckBrokenRequests(device, FirstCase(op)); });
  }
}

Status RunBadPlaces(const Plugin& plugin, const nlohmann::json& task) {
  constexpr uint64_t kBytes = 4096;
  SY_ASSIGN_OR_RETURN(const auto opened, Device::Open(plugin, task.value("device", 0), {}));
  Device& device = *opened;
  const sy_device_v2& api = *device.api();
  {
    WatchedError error;
    sy_buffer* nothing = nullptr;
    const sy_status status = api.alloc(device.handle(), 0, nullptr, &nothing, error.get());
    if (status == SY_OK) api.free(device.handle(), nothing);
    SY_RETURN_IF_ERROR(error.Judge(status, "alloc of 0 bytes"));
    SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_INVALID}, "alloc of 0 bytes"));
  }
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(kBytes));
  Bytes host(2 * kBytes), other(2 * kBytes);
  const uint64_t step = device.info().copy_granularity;
  const auto copy = [&](const char* what, sy_place to, sy_place from, uint64_t bytes) {
    return ExpectInvalidCall(device, what, [&](sy_stream* stream, sy_error* error) {
      return api.copy(device.handle(), stream, to, from, bytes, nullptr, error);
    });
  };
  SY_RETURN_IF_ERROR(copy("a copy from host to host", HostPlace(host.data()), HostPlace(other.data()), kBytes));
  const struct {
    const char* what;
    uint64_t offset, bytes;
  } beyond[] = {{"more bytes than the buffer has", 0, kBytes + step},
                {"the last bytes and some behind them", kBytes - step, 2 * step},
                {"an offset behind the end", kBytes + step, step},
                {"an offset near 2^64", UINT64_MAX - step + 1, 2 * step}};  // the sum of both wraps round
  for (const auto& [what, offset, bytes] : beyond) {
    const std::string text = what;
    SY_RETURN_IF_ERROR(copy(("a copy to " + text).c_str(), buffer.at(offset), HostPlace(host.data()), bytes));
    SY_RETURN_IF_ERROR(copy(("a copy from " + text).c_str(), HostPlace(host.data()), buffer.at(offset), bytes));
    SY_ASSIGN_OR_RETURN(const Buffer second, device.Allocate(2 * kBytes));
    SY_RETURN_IF_ERROR(copy(("a copy inside the device to " + text).c_str(), buffer.at(offset), second.at(0), bytes));
    if (api.fill == nullptr) continue;
    SY_RETURN_IF_ERROR(ExpectInvalidCall(device, "a fill of " + text, [&](sy_stream* stream, sy_error* error) {
      return api.fill(device.handle(), stream, buffer.at(offset), 1, bytes, nullptr, error);
    }));
  }
  SY_RETURN_IF_ERROR(device.Upload(buffer.at(0), host.data(), kBytes));
  return Annotate(device.Download(other.data(), buffer.at(0), kBytes), "a good copy after refused ones");
}

}  // namespace switchyard::conform
