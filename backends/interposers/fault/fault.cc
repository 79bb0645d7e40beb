#include "backends/interposers/fault/fault.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace switchyard {
namespace {

// Finite in every dtype, and far from what a trained network holds: 51015.3 in f32, 51008 in bf16, 7.28 in f16.
constexpr unsigned char kWrong = 0x47;

constexpr size_t kMostGranularity = 4096;  // bytes

}  // namespace

bool Fault::Strikes(Site site, const char* function) {
  const bool counts =
      plan_.site == Site::kDeviceLost ? site != Site::kNone && site != Site::kCollective : site == plan_.site;
  if (!counts) return false;
  const uint64_t number = ++count_;
  if (number == plan_.first) {
    Log(2, Text("fault:", plan_.text, " strikes ", plugin_name(), ": ", function));
  }
  return number == plan_.first || (plan_.onwards && number > plan_.first);
}

sy_status Fault::Fail(const char* function, sy_error* error) const {
  const sy_status status = plan_.site == Site::kAlloc        ? SY_OUT_OF_MEMORY
                           : plan_.site == Site::kDeviceLost ? SY_DEVICE_LOST
                                                             : SY_INTERNAL;
  return Refuse(error, status, Text(function, " fails because --interpose asks for it: fault:", plan_.text));
}

void Fault::Delay() const { std::this_thread::sleep_for(std::chrono::milliseconds(plan_.delay_ms)); }

sy_status Fault::Corrupt(sy_bound* bound, sy_stream* stream, sy_error* error) {
  static auto* const pattern = new std::vector<unsigned char>(kMostGranularity, kWrong);
  const BoundRecord* const record = RecordOf(bound);
  if (record->outputs.empty() || Extent(record->kernel->outputs[0]) == 0) return SY_OK;
  sy_device* const device = record->kernel->device;
  sy_device_info info{};
  info.header = SY_HEADER(sy_device_info);
  const sy_status known =
      Forward(Call<&sy_device_v2::query>(), static_cast<sy_instance*>(this), RecordOf(device)->index, &info, error);
  if (known != SY_OK) return known;
  const uint64_t bytes = std::max<uint64_t>(info.copy_granularity, ElementBytes(record->kernel->outputs[0].dtype));
  if (bytes > kMostGranularity) {
    return SY_FAIL(error, SY_UNSUPPORTED, "fault: a wrong launch copies at most %zu bytes, the device at least %llu",
                   kMostGranularity, static_cast<unsigned long long>(bytes));
  }
  return Forward(Call<&sy_device_v2::copy>(), device, stream, record->outputs[0], sy_place{nullptr, pattern->data(), 0},
                 bytes, static_cast<const sy_copy_options*>(nullptr), error);
}

}  // namespace switchyard
