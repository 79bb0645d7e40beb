// kernel/2 but for bindings and launches, and region/2.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {

Turn Validate::TakeTurn(Checked& check, sy_device* device) {
  const auto* const entry = devices_.Find(device);
  return entry == nullptr
             ? nullptr
             : Take(check, entry->record.kernels, devices_.Describe(device), " prepares or releases a kernel");
}

// Heeds what a plugin says of a kernel that it has made; `op` is for the message.
KernelState Validate::CheckKernel(Checked& check, sy_device* device, const sy_kernel_info* given, const char* op,
                                  uint64_t limit, uint32_t inputs, uint32_t outputs) {
  const sy_kernel_info info = ReadStruct(given);
  const auto* const owner = devices_.Find(device);
  check.Promised(!SY_HAS(sy_kernel_info, given, determinism) || owner == nullptr || !owner->record.deterministic ||
                     info.determinism >= SY_DETERMINISM_RUN,
                 op, ": it reaches determinism ", info.determinism, " on a device that was opened deterministic");
  KernelState state;
  state.device = device;
  state.capturable = info.capturable != 0;
  check.Promised(info.workspace_bytes <= limit, op, ": it asks for ", info.workspace_bytes,
                 " bytes of workspace where at most ", limit, " were offered: expected SY_UNSUPPORTED");
  check.Promised(info.constant_bytes == 0 || Inner<sy_kernel_v2>().write_constants != nullptr, op, ": it asks for ",
                 info.constant_bytes, " bytes of constants and lacks the function write_constants");
  check.Promised(info.second_choice == nullptr || info.second_choice[0] != '\0', op,
                 ": it calls the kernel its second choice without a word why");
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
      CheckKernel(check, device, info, request.op, request.workspace_limit, request.input_count, request.output_count),
      check.Here(" of ", request.op));
  return SY_OK;
}

void Validate::Around(Call<&sy_kernel_v2::release> call, sy_device* device, sy_kernel* kernel) {
  Checked check(*this, "release", kNoStatus);
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(kernels_, kernel, device);
  if (entry != nullptr) {
    check.Alone(kernels_, kernel);
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
  kernels_.Add(*kernel, CheckKernel(check, device, info, "region", limit, region->input_count, region->output_count),
               check.Here());
  return SY_OK;
}

}  // namespace switchyard
