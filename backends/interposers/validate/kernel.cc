// kernel/2 with its launches, region/2, capture/2 and profiler/2.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {

Turn Validate::TakeTurn(Checked& check, sy_device* device) {
  const auto* const entry = devices_.Find(device);
  return entry == nullptr
             ? nullptr
             : Take(check, entry->record.kernels, devices_.Describe(device), " prepares or releases a kernel");
}

std::vector<Use>* Validate::UsesOf(const Named& named) {
  const auto look = [&](auto& objects) -> std::vector<Use>* {
    auto* const entry = objects.Find(named.handle);
    return entry == nullptr || entry->id != named.id ? nullptr : &entry->record.uses;
  };
  switch (named.kind) {
    case Named::kNothing:
      return nullptr;
    case Named::kBuffer:
      return look(buffers_);
    case Named::kBinding:
      return look(bindings_);
    case Named::kEvent:
      return look(events_);
    case Named::kGraph:
      return look(graphs_);
    case Named::kSemaphore:
      return look(semaphores_);
  }
  return nullptr;
}

// Heeds what a plugin says of a kernel that it has made; `op` is for the message.
KernelState Validate::CheckKernel(Checked& check, sy_device* device, const sy_kernel_info& info, const char* op,
                                  uint64_t limit, uint32_t inputs, uint32_t outputs) {
  KernelState state;
  state.device = device;
  state.capturable = info.capturable != 0;
  check.Promised(info.workspace_bytes <= limit, op, ": it asks for ", info.workspace_bytes,
                 " bytes of workspace where at most ", limit, " were offered: expected SY_UNSUPPORTED");
  check.Promised(info.constant_bytes == 0 || Inner<sy_kernel_v2>().write_constants != nullptr, op, ": it asks for ",
                 info.constant_bytes, " bytes of constants and lacks the function write_constants");
  check.Promised(info.determinism <= SY_DETERMINISM_EXACT, op, ": there is no determinism ", info.determinism);
  for (uint32_t o = 0; info.inplace != nullptr && o < outputs; ++o) {
    check.Promised(info.inplace[o] >= -1 && info.inplace[o] < static_cast<int64_t>(inputs), op, ": output ", o,
                   " is said to share the place of input ", info.inplace[o], " of ", inputs);
    state.inplace.push_back(info.inplace[o]);
  }
  return state;
}

sy_status Validate::Around(Call<&sy_kernel_v2::prepare> call, sy_device* device, const sy_prepare_request* given,
                           sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  Checked check(*this, "prepare");
  check.Live(devices_, device);
  check.Expect(given != nullptr && kernel != nullptr && info != nullptr, "an argument is NULL");
  sy_prepare_request request{};
  bool known = true;  // every dtype
  if (check.good()) {
    request = ReadStruct(given);
    check.Expect(request.op != nullptr, "the request names no op");
    check.Expect(request.inputs != nullptr || request.input_count == 0, "there are no inputs where ",
                 request.input_count, " are counted");
    check.Expect(request.outputs != nullptr || request.output_count == 0, "there are no outputs where ",
                 request.output_count, " are counted");
    check.Expect(request.attributes != nullptr || request.attributes_size == 0, "there are no attributes where ",
                 request.attributes_size, " bytes are counted");
    if (request.forward != nullptr) check.LiveOn(kernels_, request.forward, device);
    for (uint32_t i = 0; check.good() && i < request.input_count; ++i)
      known &= ElementBytes(request.inputs[i].dtype) > 0;
    for (uint32_t o = 0; check.good() && o < request.output_count; ++o)
      known &= ElementBytes(request.outputs[o].dtype) > 0;
  }
  const Turn turn = TakeTurn(check, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, given, kernel, info, error);
  check.Return();
  check.Promised(known || status != SY_INVALID, request.op,
                 ": it answered SY_INVALID to a dtype that it does not know: expected SY_UNSUPPORTED");
  if (status != SY_OK) return status;
  const sy_kernel_info said = ReadStruct(info);
  check.Promised(!SY_HAS(sy_kernel_info, info, determinism) || said.determinism >= request.determinism, request.op,
                 ": it reaches determinism ", said.determinism, " where ", request.determinism, " is required");
  check.Promised(request.paired_forward != 0 || request.forward != nullptr || said.residual_bytes == 0, request.op,
                 ": it leaves ", said.residual_bytes, " bytes for a backward that does not follow");
  kernels_.Add(
      *kernel,
      CheckKernel(check, device, said, request.op, request.workspace_limit, request.input_count, request.output_count),
      check.Here(" of ", request.op));
  return SY_OK;
}

// A binding that names these came to be, or ended.
void Validate::CountBinding(const std::vector<Named>& names, int change) {
  for (const Named& named : names) {
    auto* const buffer = named.kind == Named::kBuffer ? buffers_.Find(named.handle) : nullptr;
    if (buffer != nullptr && buffer->id == named.id) buffer->record.bindings += change;
  }
}

sy_status Validate::Around(Call<&sy_kernel_v2::bind> call, sy_device* device, sy_kernel* kernel,
                           const sy_binding* given, sy_bound** bound, sy_launch* launch, sy_error* error) {
  Checked check(*this, "bind");
  const auto* owner = check.Live(devices_, device);
  auto* entry = check.LiveOn(kernels_, kernel, device);
  check.Expect(given != nullptr && bound != nullptr && launch != nullptr, "an argument is NULL");
  if (!check.good()) return check.Refuse(error);
  const auto record = Find(kernel);
  const sy_binding binding = ReadStruct(given);
  const uint64_t alignment = owner->record.alignment;
  std::vector<Named> used;
  const auto look = [&](const std::string& role, const sy_place& place, uint64_t bytes, bool needed) {
    if (bytes == 0 || (place.buffer == nullptr && !needed)) return;
    check.Expect(place.buffer != nullptr, record->op, ", ", role, ": expected device memory for ", bytes, " bytes");
    CheckPlace(check, role.c_str(), device, place, bytes);
    check.Expect(place.offset % alignment == 0, record->op, ", ", role, ": offset ", place.offset,
                 " is no multiple of the device's alignment, ", alignment);
    const auto* buffer = place.buffer == nullptr ? nullptr : buffers_.Find(place.buffer);
    if (buffer == nullptr) return;
    check.Expect(!buffer->record.imported, record->op, ", ", role, ": ", buffers_.Describe(place.buffer),
                 " was imported: it is for copy and fill only");
    used.push_back(NameOf(buffers_, place.buffer));
  };
  for (size_t i = 0; i < record->inputs.size(); ++i)
    look(Text("input ", i), binding.inputs[i], Extent(record->inputs[i]), true);
  for (size_t o = 0; o < record->outputs.size(); ++o)
    look(Text("output ", o), binding.outputs[o], Extent(record->outputs[o]), true);
  look("workspace", binding.workspace, record->workspace_bytes, true);
  look("persistent", binding.persistent, record->persistent_bytes, true);
  look("constants", binding.constants, record->constant_bytes, true);
  look("residual", binding.residual, record->residual_bytes, false);
  for (size_t o = 0; check.good() && o < record->outputs.size(); ++o) {
    const auto shares = [&](const sy_place& place, uint64_t bytes) {
      return Overlap(binding.outputs[o], Extent(record->outputs[o]), place, bytes);
    };
    for (size_t i = 0; i < record->inputs.size(); ++i) {
      const bool inplace = o < entry->record.inplace.size() && entry->record.inplace[o] == static_cast<int32_t>(i) &&
                           binding.inputs[i].offset == binding.outputs[o].offset;
      check.Expect(inplace || !shares(binding.inputs[i], Extent(record->inputs[i])), record->op, ": output ", o,
                   " overlaps input ", i, ", which the kernel does not allow");
    }
    for (size_t p = 0; p < o; ++p) {
      check.Expect(!shares(binding.outputs[p], Extent(record->outputs[p])), record->op, ": outputs ", p, " and ", o,
                   " overlap");
    }
  }
  if (!check.good()) return check.Refuse(error);
  ++entry->record.bindings;
  CountBinding(used, 1);
  check.Leave();
  BindingState state;
  state.device = device;
  state.kernel = kernel;
  state.constants_written = record->constant_bytes == 0;
  state.constants = {binding.constants.buffer, NameOf(buffers_, binding.constants.buffer).id, binding.constants.offset};
  const sy_status status = Forward(call, device, kernel, given, bound, launch, error);
  check.Return();
  if (status == SY_OK) {
    Make(*bound, this);
    auto& added = bindings_.Add(*bound, std::move(state), check.Here(" of ", record->op));
    added.record.names = Naming(std::move(used));
  } else {
    CountBinding(used, -1);
    if (entry = kernels_.Find(kernel); entry != nullptr) --entry->record.bindings;
  }
  return status;
}

void Validate::Around(Call<&sy_kernel_v2::unbind> call, sy_device* device, sy_bound* bound) {
  Checked check(*this, "unbind", kNoStatus);
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(bindings_, bound, device);
  if (entry != nullptr) CheckIdle(check, bindings_, bound);
  if (!check.good()) return check.Report();
  if (auto* const kernel = kernels_.Find(entry->record.kernel)) --kernel->record.bindings;
  CountBinding(*entry->record.names, -1);
  bindings_.Remove(bound, check.Here());
  check.Leave();
  Forward(call, device, bound);
}

void Validate::Around(Call<&sy_kernel_v2::release> call, sy_device* device, sy_kernel* kernel) {
  Checked check(*this, "release", kNoStatus);
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(kernels_, kernel, device);
  if (entry != nullptr) {
    check.Expect(entry->record.bindings == 0, kernels_.Describe(kernel), " still has ", entry->record.bindings,
                 " bindings");
  }
  const Turn turn = TakeTurn(check, device);
  if (!check.good()) return check.Report();
  kernels_.Remove(kernel, check.Here());
  check.Leave();
  Forward(call, device, kernel);
}

sy_status Validate::Around(Call<&sy_kernel_v2::write_constants> call, sy_device* device, sy_kernel* kernel,
                           sy_stream* stream, sy_place constants, sy_error* error) {
  Checked check(*this, "write_constants");
  const auto* owner = check.Live(devices_, device);
  const auto* entry = check.LiveOn(kernels_, kernel, device);
  const auto record = entry == nullptr ? nullptr : Find(kernel);
  if (record != nullptr) {
    check.Expect(record->constant_bytes > 0, kernels_.Describe(kernel), " has no constants");
    check.Expect(constants.buffer != nullptr, "expected device memory");
    check.Expect(constants.offset % owner->record.alignment == 0, "offset ", constants.offset,
                 " is no multiple of the device's alignment, ", owner->record.alignment);
    CheckPlace(check, "constants", device, constants, record->constant_bytes);
  }
  auto* const on = CheckStream(check, device, stream);
  const Named buffer = NameOf(buffers_, constants.buffer);
  const ConstantsPlace place{constants.buffer, buffer.id, constants.offset};
  if (entry != nullptr) {
    const auto& written = entry->record.constants;
    check.Expect(std::find(written.begin(), written.end(), place) == written.end(), "the constants of ",
                 kernels_.Describe(kernel), " are written there already");
  }
  if (!check.good()) return check.Refuse(error);
  const Submission work = Uses(check, on, "write_constants", Naming({buffer}));
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, kernel, stream, constants, error), work);
  if (status != SY_OK) return status;
  check.Return();
  if (auto* const written = kernels_.Find(kernel)) written->record.constants.push_back(place);
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_launch_table::launch> call, sy_bound* bound, sy_stream* stream, sy_error* error) {
  Checked check(*this, "launch");
  if (!check.good()) return check.Refuse(error);
  auto* const entry = bindings_.Find(bound);
  if (entry == nullptr) {  // MakerOf guessed
    auto* const maker = static_cast<Validate*>(MakerOf(static_cast<const void*>(bound)));
    if (maker != this) {
      check.Leave();
      guess = maker;
      return maker->Around(call, bound, stream, error);
    }
    check.Live(bindings_, bound);
    return check.Refuse(error);
  }
  if (!entry->record.constants_written) {
    const auto& written = kernels_.Find(entry->record.kernel)->record.constants;
    entry->record.constants_written =
        std::find(written.begin(), written.end(), entry->record.constants) != written.end();
    check.Expect(entry->record.constants_written, bindings_.Describe(bound),
                 " names constants that write_constants has not written");
  }
  auto* const on = CheckStream(check, entry->record.device, stream);
  if (on != nullptr && on->record.capture != 0) {
    const auto* kernel = kernels_.Find(entry->record.kernel);
    check.Expect(kernel->record.capturable, kernels_.Describe(entry->record.kernel),
                 " is not capturable, and is launched on ", streams_.Describe(stream), " between begin and end");
  }
  CheckLaunch(check, bound, on);
  if (!check.good()) return check.Refuse(error);
  sy_device* const device = entry->record.device;
  const Submission work =
      Uses(check, on, "launch", entry->record.names, {Named::kBinding, bound, entry->id}, &entry->record.uses);
  const bool waits = stream == nullptr;
  entry->record.running += waits;
  check.Leave();
  const sy_status status = Heed(device, Forward(call, bound, stream, error), work);
  if (!waits) return status;
  check.Return();
  if (auto* const now = bindings_.Find(bound)) --now->record.running;
  return status;
}

sy_status Validate::Around(Call<&sy_region_v2::partition> call, sy_device* device, const sy_region* graph,
                           uint32_t* claims, sy_error* error) {
  Checked check(*this, "partition");
  check.Live(devices_, device);
  check.Expect(graph != nullptr && claims != nullptr, "an argument is NULL");
  const Turn turn = TakeTurn(check, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  return Forward(call, device, graph, claims, error);
}

sy_status Validate::Around(Call<&sy_region_v2::prepare> call, sy_device* device, const sy_region* region,
                           uint64_t limit, sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  Checked check(*this, "prepare of a region");
  check.Live(devices_, device);
  check.Expect(region != nullptr && kernel != nullptr && info != nullptr, "an argument is NULL");
  const Turn turn = TakeTurn(check, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, region, limit, kernel, info, error);
  if (status != SY_OK) return status;
  check.Return();
  kernels_.Add(*kernel,
               CheckKernel(check, device, ReadStruct(info), "region", limit, region->input_count, region->output_count),
               check.Here());
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_capture_v2::begin> call, sy_device* device, sy_stream* stream,
                           const sy_capture_options* options, sy_error* error) {
  Checked check(*this, "begin of a capture");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(streams_, stream, device);
  if (entry != nullptr)
    check.Expect(entry->record.capture == 0, streams_.Describe(stream), " is being captured already");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, stream, options, error);
  if (status != SY_OK) return status;
  check.Return();
  if (auto* const now = streams_.Find(stream)) {
    now->record.capture = ++captures_;
    now->record.begins_capture = true;
    now->record.captured.clear();
  }
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_capture_v2::end> call, sy_device* device, sy_stream* stream, sy_graph** graph,
                           sy_error* error) {
  Checked check(*this, "end of a capture");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(streams_, stream, device);
  if (entry != nullptr) {
    check.Expect(entry->record.capture != 0, streams_.Describe(stream), " is not being captured");
    check.Expect(entry->record.capture == 0 || entry->record.begins_capture, streams_.Describe(stream),
                 " was drawn into a capture that ends where it was begun, on another stream");
  }
  if (!check.good()) return check.Refuse(error);
  const uint64_t capture = entry->record.capture;
  for (auto& [handle, other] : streams_.live()) {
    if (other.record.capture == capture) other.record.capture = 0;
  }
  entry->record.begins_capture = false;
  std::vector<Named> captured = std::exchange(entry->record.captured, {});
  check.Leave();
  const sy_status status = Forward(call, device, stream, graph, error);
  if (status != SY_OK) return status;
  check.Return();
  GraphState state;
  state.device = device;
  auto& added = graphs_.Add(*graph, std::move(state), check.Here());
  captured.push_back({Named::kGraph, *graph, added.id});
  std::sort(captured.begin(), captured.end());
  captured.erase(std::unique(captured.begin(), captured.end()), captured.end());
  added.record.names = Naming(std::move(captured));
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_capture_v2::launch> call, sy_device* device, sy_graph* graph, sy_stream* stream,
                           sy_error* error) {
  Checked check(*this, "launch of a graph");
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(graphs_, graph, device);
  auto* const on = entry == nullptr ? nullptr : CheckStream(check, device, stream);
  if (entry != nullptr) {
    for (const Named& named : *entry->record.names) {
      if (named.kind == Named::kBinding) CheckLaunch(check, named.handle, on);
    }
  }
  if (!check.good()) return check.Refuse(error);
  const Submission work = Uses(check, on, "launch of a graph", entry->record.names);
  check.Leave();
  return Heed(device, Forward(call, device, graph, stream, error), work);
}

void Validate::Around(Call<&sy_capture_v2::release> call, sy_device* device, sy_graph* graph) {
  Checked check(*this, "release of a graph", kNoStatus);
  check.Live(devices_, device);
  if (check.LiveOn(graphs_, graph, device) != nullptr) CheckIdle(check, graphs_, graph);
  if (!check.good()) return check.Report();
  graphs_.Remove(graph, check.Here());
  check.Leave();
  Forward(call, device, graph);
}

sy_status Validate::Around(Call<&sy_profiler_v2::start> call, sy_device* device, sy_error* error) {
  Checked check(*this, "start of the profiler");
  auto* const entry = check.Live(devices_, device);
  if (entry != nullptr)
    check.Expect(!entry->record.profiles, "the profiler of ", devices_.Describe(device), " runs already");
  if (!check.good()) return check.Refuse(error);
  entry->record.profiles = true;
  check.Leave();
  return Forward(call, device, error);
}

sy_status Validate::Around(Call<&sy_profiler_v2::drain> call, sy_device* device, sy_span* spans, uint32_t capacity,
                           uint32_t* count, uint64_t* host_minus_device_ns, sy_error* error) {
  Checked check(*this, "drain");
  check.Live(devices_, device);
  check.Expect((spans != nullptr || capacity == 0) && count != nullptr && host_minus_device_ns != nullptr,
               "an argument is NULL");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, spans, capacity, count, host_minus_device_ns, error);
  if (status != SY_OK) return status;
  check.Return();
  check.Promised(*count <= capacity, "it answered ", *count, " spans where ", capacity, " were asked for");
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_profiler_v2::stop> call, sy_device* device, sy_error* error) {
  Checked check(*this, "stop of the profiler");
  auto* const entry = check.Live(devices_, device);
  if (entry != nullptr)
    check.Expect(entry->record.profiles, "the profiler of ", devices_.Describe(device), " was not started");
  if (!check.good()) return check.Refuse(error);
  entry->record.profiles = false;
  check.Leave();
  return Forward(call, device, error);
}

}  // namespace switchyard
