// Devices, their profiler, and what must be gone before they close.
#include "backends/interposers/validate/validate.h"

namespace switchyard {

template <typename Record>
void Validate::CheckNoneLeft(Checked& check, Objects<Record>& objects, sy_device* device) {
  size_t left = 0;
  const void* one = nullptr;
  for (const auto& [handle, entry] : objects.live()) {
    if (entry.record.device != device) continue;
    ++left;
    one = handle;
  }
  check.Expect(left == 0, "expected everything of the device to be released before, found ", left, " left, among them ",
               objects.Describe(one));
}

sy_status Validate::Around(Call<&sy_device_v2::count> call, sy_instance* instance, int32_t* count, sy_error* error) {
  Checked check(*this, "count");
  check.Expect(count != nullptr, "there is no place for the count");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, instance, count, error);
  if (status != SY_OK) return status;
  check.Return();
  check.Promised(*count >= 0, "it answered SY_OK and ", *count, " devices");
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_device_v2::query> call, sy_instance* instance, int32_t index, sy_device_info* given,
                           sy_error* error) {
  Checked check(*this, "query");
  check.Expect(given != nullptr, "there is no place for the answer");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, instance, index, given, error);
  if (status != SY_OK) return status;
  const sy_device_info info = ReadStruct(given);
  const auto is_power = [](uint64_t number) { return number != 0 && (number & (number - 1)) == 0; };
  check.Return();
  check.Promised(Ends(info.name) && Ends(info.memory_kind), "the name or the memory kind does not end");
  check.Promised(!SY_HAS(sy_device_info, given, alignment) || is_power(info.alignment), "an alignment of ",
                 info.alignment, " bytes is no power of two");
  check.Promised(info.copy_granularity == 0 || is_power(info.copy_granularity), "a copy granularity of ",
                 info.copy_granularity, " bytes is no power of two");
  check.Promised(IsOneLine(info.libraries), "its libraries are no line of text");
  check.Promised(info.address_kind <= SY_ADDRESS_OPAQUE, "there is no address kind ", info.address_kind);
  check.Promised(!SY_HAS(sy_device_info, given, alignment) || info.copy_granularity <= info.alignment,
                 "a copy granularity of ", info.copy_granularity, " bytes does not divide the alignment of ",
                 info.alignment);
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_device_v2::open> call, sy_instance* instance, int32_t index,
                           const sy_open_options* options, sy_device** device, sy_error* error) {
  Checked check(*this, "open");
  check.Expect(device != nullptr, "there is no place for the handle");
  const Turn turn = Take(check, opening_, "the instance", " opens or closes a device");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  sy_device_info info{};
  info.header = SY_HEADER(sy_device_info);
  const sy_status known =
      Forward(Call<&sy_device_v2::query>(), instance, index, &info, static_cast<sy_error*>(nullptr));
  const sy_status status = Forward(call, instance, index, options, device, error);
  if (status != SY_OK) return status;
  check.Return();
  DeviceState record;
  if (known == SY_OK && info.alignment > 0) record.alignment = info.alignment;
  if (known == SY_OK) record.captures_streams = (info.flags & SY_DEVICE_CAPTURES_STREAMS) != 0;
  if (known == SY_OK && info.copy_granularity > 0) record.copy_granularity = info.copy_granularity;
  record.deterministic = options != nullptr && ReadStruct(options).deterministic != 0;
  Make(*device, this);
  devices_.Add(*device, record, check.Here(" of device ", index));
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v2::close> call, sy_device* device) {
  Checked check(*this, "close", kNoStatus);
  if (const auto* entry = check.Live(devices_, device); entry != nullptr) {
    check.Alone(devices_, device);
    check.Expect(entry->record.communicators == 0, devices_.Describe(device), " is named by ",
                 entry->record.communicators, " communicators");
    CheckNoneLeft(check, bindings_, device);
    CheckNoneLeft(check, graphs_, device);
    CheckNoneLeft(check, kernels_, device);
    CheckNoneLeft(check, buffers_, device);
    CheckNoneLeft(check, events_, device);
    CheckNoneLeft(check, semaphores_, device);
    CheckNoneLeft(check, streams_, device);
    CheckNoneLeft(check, host_memory_, device);
  }
  const Turn turn = Take(check, opening_, "the instance", " opens or closes a device");
  if (!check.good()) return check.Report();
  devices_.Remove(device, check.Here());
  check.Leave();
  Forward(call, device);
}

Turn Validate::TakeProfiler(Checked& check, sy_device* device) {
  const auto* const entry = devices_.Find(device);
  return entry == nullptr
             ? nullptr
             : Take(check, entry->record.profiler, "the profiler of ", devices_.Describe(device), " is used");
}

sy_status Validate::Around(Call<&sy_profiler_v2::start> call, sy_device* device, sy_error* error) {
  Checked check(*this, "start of the profiler");
  auto* const entry = check.Live(devices_, device);
  if (entry != nullptr)
    check.Expect(!entry->record.profiles, "the profiler of ", devices_.Describe(device), " runs already");
  const Turn turn = TakeProfiler(check, device);
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
  const Turn turn = TakeProfiler(check, device);
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
  const Turn turn = TakeProfiler(check, device);
  if (!check.good()) return check.Refuse(error);
  entry->record.profiles = false;
  check.Leave();
  return Forward(call, device, error);
}

}  // namespace switchyard
