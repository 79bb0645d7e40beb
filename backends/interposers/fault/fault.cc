#include "backends/interposers/fault/fault.h"

#include <chrono>
#include <thread>

namespace switchyard {
namespace {

// Finite in every dtype, and far from what a trained network holds: 51015.3 in f32, 51008 in bf16, 7.28 in f16.
constexpr unsigned char kWrong[8] = {0x47, 0x47, 0x47, 0x47, 0x47, 0x47, 0x47, 0x47};

}  // namespace

bool Fault::Strikes(Site site, const char* function) {
  const bool counts =
      plan_.site == Site::kDeviceLost ? site != Site::kNone && site != Site::kCollective : site == plan_.site;
  if (!counts) return false;
  const uint64_t number = ++count_;
  if (number == plan_.first) {
    HostLog(2, Text("fault:", plan_.text, " strikes ", plugin_name(), ": ", function));
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
  const auto* record = reinterpret_cast<const BoundRecord*>(bound);
  if (record->outputs.empty() || Extent(record->kernel->outputs[0]) == 0) return SY_OK;
  const sy_place wrong{nullptr, const_cast<unsigned char*>(kWrong), 0};
  return Forward(Call<&sy_device_v1::copy>(), record->kernel->device, stream, record->outputs[0], wrong,
                 ElementBytes(record->kernel->outputs[0].dtype), error);
}

}  // namespace switchyard
