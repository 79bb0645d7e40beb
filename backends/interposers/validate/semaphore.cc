// semaphore/1.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {
namespace {

constexpr uint64_t kMostCount = (uint64_t{1} << 63) - 1;

}  // namespace

// The count is `value` at least. Signals up to there have run: had one come later, it would have lowered the count.
bool Validate::Reached(SemaphoreRecord& semaphore, uint64_t value) {
  semaphore.reached = std::max(semaphore.reached, value);
  for (const auto& signal : semaphore.signals) {
    if (timelines_.Finished(signal.line, signal.item)) semaphore.reached = std::max(semaphore.reached, signal.value);
  }
  const auto is_reached = [&](const SemaphoreRecord::Queued& queued) { return queued.value <= semaphore.reached; };
  for (const auto& signal : semaphore.signals) {
    if (is_reached(signal)) timelines_.Complete(signal.line, signal.item);
  }
  std::erase_if(semaphore.signals, is_reached);
  return std::erase_if(semaphore.waits, is_reached) > 0;
}

sy_status Validate::Around(Call<&sy_semaphore_v1::create> call, sy_device* device, const sy_semaphore_options* options,
                           sy_semaphore** semaphore, sy_error* error) {
  Checked check(*this, "create of a semaphore");
  check.Live(devices_, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, options, semaphore, error));
  if (status != SY_OK) return status;
  check.Return();
  SemaphoreRecord record;
  record.device = device;
  semaphores_.Add(*semaphore, std::move(record), check.Here());
  return SY_OK;
}

void Validate::Around(Call<&sy_semaphore_v1::destroy> call, sy_device* device, sy_semaphore* semaphore) {
  Checked check(*this, "destroy of a semaphore", kNoStatus);
  check.Live(devices_, device);
  if (check.LiveOn(semaphores_, semaphore, device) != nullptr) {
    check.Alone(semaphores_, semaphore);
    CheckIdle(check, semaphores_, semaphore);
  }
  if (!check.good()) return check.Report();
  semaphores_.Remove(semaphore, check.Here());
  check.Leave();
  Forward(call, device, semaphore);
}

sy_status Validate::Around(Call<&sy_semaphore_v1::signal> call, sy_device* device, sy_semaphore* semaphore,
                           uint64_t value, sy_error* error) {
  Checked check(*this, "signal of a semaphore");
  check.Live(devices_, device);
  auto* entry = check.LiveOn(semaphores_, semaphore, device);
  if (entry != nullptr) {
    Reached(entry->record, 0);
    check.Expect(value <= kMostCount, "a semaphore counts to ", kMostCount, " at most, and is asked to become ", value);
    check.Expect(value > entry->record.reached, semaphores_.Describe(semaphore), " has reached ", entry->record.reached,
                 "; it only grows, and is asked to become ", value);
    CheckSignal(check, entry->record, value, nullptr);
  }
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, semaphore, value, error));
  if (status != SY_OK) return status;
  check.Return();
  if (entry = semaphores_.Find(semaphore); entry != nullptr) Reached(entry->record, value);
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_semaphore_v1::query> call, sy_device* device, sy_semaphore* semaphore,
                           uint64_t* value, sy_error* error) {
  Checked check(*this, "query of a semaphore");
  check.Live(devices_, device);
  auto* entry = check.LiveOn(semaphores_, semaphore, device);
  check.Expect(value != nullptr, "there is no place for the value");
  if (!check.good()) return check.Refuse(error);
  Reached(entry->record, 0);
  const uint64_t before = entry->record.reached;
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, semaphore, value, error));
  if (status != SY_OK) return status;
  check.Return();
  check.Promised(*value <= kMostCount, semaphores_.Describe(semaphore), " is at ", *value, ", which it cannot reach");
  check.Promised(*value >= before, semaphores_.Describe(semaphore), " had reached ", before, " and is at ", *value);
  if (entry = semaphores_.Find(semaphore); entry != nullptr && Reached(entry->record, *value)) undecided_.clear();
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_semaphore_v1::wait> call, sy_device* device, sy_semaphore* semaphore,
                           uint64_t value, uint64_t timeout_ms, sy_error* error) {
  Checked check(*this, "wait for a semaphore");
  check.Live(devices_, device);
  auto* entry = check.LiveOn(semaphores_, semaphore, device);
  if (!check.good()) return check.Refuse(error);
  Reached(entry->record, 0);
  const uint64_t before = entry->record.reached;
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, semaphore, value, timeout_ms, error));
  if (status != SY_OK && status != SY_TIMEOUT) return status;
  check.Return();
  check.Promised(status == SY_OK || value > before, semaphores_.Describe(semaphore), " had reached ", before,
                 ", and the wait for ", value, " answered SY_TIMEOUT");
  if (entry = semaphores_.Find(semaphore); entry != nullptr && status == SY_OK && Reached(entry->record, value))
    undecided_.clear();
  return status;
}

sy_status Validate::Around(Call<&sy_semaphore_v1::stream_signal> call, sy_device* device, sy_stream* stream,
                           sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  Checked check(*this, "stream_signal");
  check.Live(devices_, device);
  if (stream == nullptr && Inner<sy_device_v2>().stream_create == nullptr)  // the plugin says that it has none
    return Forward(call, device, stream, semaphore, value, error);
  check.Expect(stream != nullptr, "expected a stream");
  auto* const on = CheckStream(check, device, stream);
  auto* const entry = check.LiveOn(semaphores_, semaphore, device);
  if (on != nullptr && entry != nullptr) {
    Reached(entry->record, 0);
    uint64_t least = entry->record.reached;
    for (const auto& signal : entry->record.signals) {
      if (signal.line == on->record.line) least = std::max(least, signal.value);
    }
    check.Expect(value <= kMostCount, "a semaphore counts to ", kMostCount, " at most, and is asked to become ", value);
    check.Expect(value > least, semaphores_.Describe(semaphore), " will have reached ", least,
                 "; it only grows, and is asked to become ", value);
    CheckSignal(check, entry->record, value, &on->record);
    entry->record.recorded |= on->record.capture != 0;
  }
  if (!check.good()) return check.Refuse(error);
  const Submission work = Uses(check, on, "stream_signal", Naming({NameOf(semaphores_, semaphore)}));
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, stream, semaphore, value, error), work);
  if (status != SY_OK || work.names == nullptr) return status;
  check.Return();
  auto* const now = semaphores_.Find(semaphore);
  if (now == nullptr) return SY_OK;
  auto& signals = now->record.signals;
  const auto by_value = [](const auto& one, const auto& other) { return one.value < other.value; };
  const SemaphoreRecord::Queued signal{value, work.line, work.item};
  signals.insert(std::upper_bound(signals.begin(), signals.end(), signal, by_value), signal);
  std::erase_if(now->record.waits, [&](const SemaphoreRecord::Queued& wait) {
    if (wait.value > value) return false;
    timelines_.Order(wait.line, wait.item, work.line, work.item);
    return true;
  });
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_semaphore_v1::stream_wait> call, sy_device* device, sy_stream* stream,
                           sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  Checked check(*this, "stream_wait for a semaphore");
  check.Live(devices_, device);
  if (stream == nullptr && Inner<sy_device_v2>().stream_create == nullptr)  // the plugin says that it has none
    return Forward(call, device, stream, semaphore, value, error);
  check.Expect(stream != nullptr, "expected a stream");
  auto* const on = CheckStream(check, device, stream);
  auto* const entry = check.LiveOn(semaphores_, semaphore, device);
  if (!check.good()) return check.Refuse(error);
  Reached(entry->record, 0);
  const Submission work = Uses(check, on, "stream_wait for a semaphore", Naming({NameOf(semaphores_, semaphore)}));
  if (work.names != nullptr && value > entry->record.reached) {
    const auto& signals = entry->record.signals;  // the first that suffices comes before all higher ones
    const auto first =
        std::find_if(signals.begin(), signals.end(), [&](const auto& one) { return one.value >= value; });
    if (first != signals.end()) {
      timelines_.Order(work.line, work.item, first->line, first->item);
    } else {
      entry->record.waits.push_back({value, work.line, work.item});
    }
  }
  check.Leave();
  return Heed(device, Forward(call, device, stream, semaphore, value, error), work);
}

}  // namespace switchyard
