// kernel/1 with its launches, region/1, capture/1 and profiler/1.
#include "backends/interposers/validate/validate.h"

namespace switchyard {

// Everything that a binding or graph keeps must still be there.
template <typename Record>
void Validate::CheckAlive(Checked& check, const Objects<Record>& holders, const void* holder,
                          const std::vector<BufferUse>& buffers) {
  for (const BufferUse& use : buffers) {
    const auto* entry = buffers_.Find(use.buffer);
    check.Expect(entry != nullptr && entry->id == use.id, holders.Describe(holder),
                 " uses a buffer that was freed since: ", buffers_.Describe(use.buffer));
  }
}

sy_status Validate::Around(Call<&sy_kernel_v1::prepare> call, sy_device* device, const sy_prepare_request* given,
                           sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  Checked check(*this, "prepare");
  check.Live(devices_, device);
  check.Expect(given != nullptr && kernel != nullptr && info != nullptr, "an argument is NULL");
  std::string op;
  if (check.good()) {
    const sy_prepare_request request = ReadStruct(given);
    check.Expect(request.op != nullptr, "the request names no op");
    check.Expect(request.inputs != nullptr || request.input_count == 0, "there are no inputs where ",
                 request.input_count, " are counted");
    check.Expect(request.outputs != nullptr || request.output_count == 0, "there are no outputs where ",
                 request.output_count, " are counted");
    check.Expect(request.attributes != nullptr || request.attributes_size == 0, "there are no attributes where ",
                 request.attributes_size, " bytes are counted");
    if (request.forward != nullptr) check.LiveOn(kernels_, request.forward, device);
    if (check.good()) op = request.op;
  }
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, given, kernel, info, error);
  if (status != SY_OK) return status;
  check.Return();
  kernels_.Add(*kernel, {device, 0}, check.Here(" of ", op));
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_kernel_v1::bind> call, sy_kernel* kernel, const sy_binding* given, sy_bound** bound,
                           sy_launch* launch, sy_error* error) {
  Checked check(*this, "bind");
  auto* entry = check.Live(kernels_, kernel);
  check.Expect(given != nullptr && bound != nullptr && launch != nullptr, "an argument is NULL");
  if (!check.good()) return check.Refuse(error);
  const auto record = Find(kernel);
  const sy_binding binding = ReadStruct(given);
  sy_device* const device = entry->record.device;
  const auto* owner = devices_.Find(device);
  const uint64_t alignment = owner == nullptr ? 1 : owner->record.alignment;
  std::vector<BufferUse> used;
  const auto look = [&](const std::string& role, const sy_place& place, uint64_t bytes, bool needed) {
    if (bytes == 0 || (place.buffer == nullptr && !needed)) return;
    check.Expect(place.buffer != nullptr, record->op, ", ", role, ": expected device memory for ", bytes, " bytes");
    CheckPlace(check, role.c_str(), device, place, bytes);
    check.Expect(place.offset % alignment == 0, record->op, ", ", role, ": offset ", place.offset,
                 " is no multiple of the device's alignment, ", alignment);
    if (place.buffer != nullptr) used.push_back(UseOf(place.buffer));
  };
  for (size_t i = 0; i < record->inputs.size(); ++i)
    look(Text("input ", i), binding.inputs[i], Extent(record->inputs[i]), true);
  for (size_t o = 0; o < record->outputs.size(); ++o)
    look(Text("output ", o), binding.outputs[o], Extent(record->outputs[o]), true);
  look("workspace", binding.workspace, record->workspace_bytes, true);
  look("persistent", binding.persistent, record->persistent_bytes, true);
  look("residual", binding.residual, record->residual_bytes, false);
  if (!check.good()) return check.Refuse(error);
  ++entry->record.bindings;
  check.Leave();
  const sy_status status = Forward(call, kernel, given, bound, launch, error);
  check.Return();
  if (status == SY_OK) {
    bindings_.Add(*bound, {kernel, device, std::move(used)}, check.Here(" of ", record->op));
  } else if (entry = kernels_.Find(kernel); entry != nullptr) {
    --entry->record.bindings;
  }
  return status;
}

void Validate::Around(Call<&sy_kernel_v1::unbind> call, sy_bound* bound) {
  Checked check(*this, "unbind", kNoStatus);
  const auto* entry = check.Live(bindings_, bound);
  if (!check.good()) return check.Report();
  if (auto* const kernel = kernels_.Find(entry->record.kernel)) --kernel->record.bindings;
  bindings_.Remove(bound, check.Here());
  check.Leave();
  Forward(call, bound);
}

void Validate::Around(Call<&sy_kernel_v1::release> call, sy_kernel* kernel) {
  Checked check(*this, "release", kNoStatus);
  const auto* entry = check.Live(kernels_, kernel);
  if (entry != nullptr) {
    check.Expect(entry->record.bindings == 0, kernels_.Describe(kernel), " still has ", entry->record.bindings,
                 " bindings");
  }
  if (!check.good()) return check.Report();
  kernels_.Remove(kernel, check.Here());
  check.Leave();
  Forward(call, kernel);
}

sy_status Validate::Around(Call<&sy_launch_table::launch> call, sy_bound* bound, sy_stream* stream, sy_error* error) {
  Checked check(*this, "launch");
  const auto* entry = check.Live(bindings_, bound);
  if (entry != nullptr) CheckAlive(check, bindings_, bound, entry->record.buffers);
  auto* const on = entry == nullptr ? nullptr : CheckStream(check, entry->record.device, stream);
  if (!check.good()) return check.Refuse(error);
  const Submission work = Uses(check, on, "launch", entry->record.buffers);
  sy_device* const device = entry->record.device;
  check.Leave();
  return Heed(device, Forward(call, bound, stream, error), work);
}

sy_status Validate::Around(Call<&sy_region_v1::partition> call, sy_device* device, const sy_region* graph,
                           uint32_t* claims, sy_error* error) {
  Checked check(*this, "partition");
  check.Live(devices_, device);
  check.Expect(graph != nullptr && claims != nullptr, "an argument is NULL");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  return Forward(call, device, graph, claims, error);
}

sy_status Validate::Around(Call<&sy_region_v1::prepare> call, sy_device* device, const sy_region* region,
                           uint64_t limit, sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  Checked check(*this, "prepare of a region");
  check.Live(devices_, device);
  check.Expect(region != nullptr && kernel != nullptr && info != nullptr, "an argument is NULL");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, region, limit, kernel, info, error);
  if (status != SY_OK) return status;
  check.Return();
  kernels_.Add(*kernel, {device, 0}, check.Here());
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_capture_v1::begin> call, sy_device* device, sy_stream* stream, sy_error* error) {
  Checked check(*this, "begin of a capture");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(streams_, stream, device);
  if (entry != nullptr) check.Expect(!entry->record.capturing, streams_.Describe(stream), " is being captured already");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, stream, error);
  if (status != SY_OK) return status;
  check.Return();
  if (auto* const now = streams_.Find(stream)) {
    now->record.capturing = true;
    now->record.captured.clear();
  }
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_capture_v1::end> call, sy_device* device, sy_stream* stream, sy_graph** graph,
                           sy_error* error) {
  Checked check(*this, "end of a capture");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(streams_, stream, device);
  if (entry != nullptr) check.Expect(entry->record.capturing, streams_.Describe(stream), " is not being captured");
  if (!check.good()) return check.Refuse(error);
  entry->record.capturing = false;
  GraphState state{device, std::exchange(entry->record.captured, {})};
  check.Leave();
  const sy_status status = Forward(call, device, stream, graph, error);
  if (status != SY_OK) return status;
  check.Return();
  graphs_.Add(*graph, std::move(state), check.Here());
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_capture_v1::launch> call, sy_graph* graph, sy_stream* stream, sy_error* error) {
  Checked check(*this, "launch of a graph");
  const auto* entry = check.Live(graphs_, graph);
  if (entry != nullptr) CheckAlive(check, graphs_, graph, entry->record.buffers);
  auto* const on = entry == nullptr ? nullptr : CheckStream(check, entry->record.device, stream);
  if (!check.good()) return check.Refuse(error);
  const Submission work = Uses(check, on, "launch of a graph", entry->record.buffers);
  sy_device* const device = entry->record.device;
  check.Leave();
  return Heed(device, Forward(call, graph, stream, error), work);
}

void Validate::Around(Call<&sy_capture_v1::release> call, sy_graph* graph) {
  Checked check(*this, "release of a graph", kNoStatus);
  check.Live(graphs_, graph);
  if (!check.good()) return check.Report();
  graphs_.Remove(graph, check.Here());
  check.Leave();
  Forward(call, graph);
}

sy_status Validate::Around(Call<&sy_profiler_v1::start> call, sy_device* device, sy_error* error) {
  Checked check(*this, "start of the profiler");
  auto* const entry = check.Live(devices_, device);
  if (entry != nullptr)
    check.Expect(!entry->record.profiles, "the profiler of ", devices_.Describe(device), " runs already");
  if (!check.good()) return check.Refuse(error);
  entry->record.profiles = true;
  check.Leave();
  return Forward(call, device, error);
}

sy_status Validate::Around(Call<&sy_profiler_v1::drain> call, sy_device* device, sy_span* spans, uint32_t capacity,
                           uint32_t* count, uint64_t* host_minus_device_ns, sy_error* error) {
  Checked check(*this, "drain");
  check.Live(devices_, device);
  check.Expect((spans != nullptr || capacity == 0) && count != nullptr && host_minus_device_ns != nullptr,
               "an argument is NULL");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  return Forward(call, device, spans, capacity, count, host_minus_device_ns, error);
}

sy_status Validate::Around(Call<&sy_profiler_v1::stop> call, sy_device* device, sy_error* error) {
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
