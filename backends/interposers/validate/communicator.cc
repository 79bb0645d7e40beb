// collective/2: communicators, their memory, and groups.
#include "backends/interposers/validate/validate.h"

namespace switchyard {
namespace {

constexpr int kMostKinds = 64;

}  // namespace

// A communicator that names the device came to be, or ended. Where the outermost device is another interposer's, it is
// not known here.
void Validate::CountCommunicator(sy_device* device, int change) {
  Validate* const maker = device == nullptr ? nullptr : FindMaker(device);
  if (maker == nullptr) return;
  const std::lock_guard lock(maker->mutex_);
  if (auto* const entry = maker->devices_.Find(device)) entry->record.communicators += change;
}

Turn Validate::TakeTurn(Checked& check, sy_communicator* communicator) {
  const auto* const entry = communicators_.Find(communicator);
  return entry == nullptr ? nullptr
                          : Take(check, entry->record.turn, communicators_.Describe(communicator), " is used");
}

sy_status Validate::Around(Call<&sy_collective_v2::query> call, sy_instance* instance, sy_collective_info* given,
                           sy_error* error) {
  Checked check(*this, "query");
  check.Expect(given != nullptr, "there is no place for the answer");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, instance, given, error);
  if (status != SY_OK) return status;
  const sy_collective_info info = ReadStruct(given);
  check.Return();
  check.Promised(Ends(info.name), "the name does not end");
  check.Promised(IsOneLine(info.libraries), "its libraries are no line of text");
  check.Promised(info.completion <= SY_COMPLETES_BY_POLL, "there is no completion ", info.completion);
  check.Promised(info.completion == SY_COMPLETES_ON_STREAM || Inner<sy_collective_v2>().request_release != nullptr,
                 "it completes by poll and lacks the function request_release");
  if (SY_HAS(sy_collective_info, given, memory_kinds)) {
    check.Promised(info.memory_kinds != nullptr, "it lists no memory kinds, not even none");
    int kinds = 0;
    while (info.memory_kinds != nullptr && kinds < kMostKinds && info.memory_kinds[kinds] != nullptr) ++kinds;
    check.Promised(kinds < kMostKinds, "its list of memory kinds does not end");
  }
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_collective_v2::reduces> call, sy_instance* instance, int32_t reduction,
                           sy_dtype dtype, sy_error* error) {
  Checked check(*this, "reduces");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, instance, reduction, dtype, error);
  check.Return();
  check.Promised(status == SY_OK || status == SY_UNSUPPORTED, "it answered ", status,
                 "; expected SY_OK or SY_UNSUPPORTED");
  return status;
}

sy_status Validate::Around(Call<&sy_collective_v2::init> call, sy_instance* instance, const sy_init_request* given,
                           sy_communicator** communicator, sy_error* error) {
  Checked check(*this, "init");
  check.Expect(given != nullptr && communicator != nullptr, "an argument is NULL");
  CommunicatorState state;
  std::string name;
  if (check.good()) {
    const sy_init_request request = ReadStruct(given);
    check.Expect(request.size >= 1 && request.rank >= 0 && request.rank < request.size, "rank ", request.rank, " of ",
                 request.size, " ranks");
    check.Expect(request.name != nullptr && request.hosts != nullptr, "the request lacks its name or its hosts");
    check.Expect(request.size == 1 || request.store != nullptr, "the request lacks its store");
    check.Expect(request.device == nullptr || request.backend != nullptr,
                 "the request names a device and no backend that opened it");
    if (check.good()) {
      state.rank = request.rank;
      state.size = request.size;
      state.device = request.device;
      name = request.name;
    }
  }
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, instance, given, communicator, error);
  if (status != SY_OK) return status;
  CountCommunicator(state.device, 1);
  check.Return();
  Make(*communicator, this);
  communicators_.Add(*communicator, state, check.Here(" of ", name));
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_collective_v2::poll> call, sy_communicator* communicator, sy_error* error) {
  Checked check(*this, "poll");
  const auto* const entry = check.Live(communicators_, communicator);
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Refuse(error);
  const bool was_ready = entry->record.ready;
  const sy_status had_failed = entry->record.failed;
  const bool was_aborted = entry->record.aborted;
  check.Leave();
  const sy_status status = Forward(call, communicator, error);
  check.Return();
  const bool is_error = status != SY_OK && status != SY_IN_PROGRESS;
  check.Promised(had_failed == SY_OK || is_error, communicators_.Describe(communicator), " had answered ", had_failed,
                 " before, and a later poll answered ", status);
  check.Promised(!was_ready || status != SY_IN_PROGRESS, communicators_.Describe(communicator),
                 " had finished init, and a later poll answered SY_IN_PROGRESS");
  check.Promised(!was_aborted || is_error, communicators_.Describe(communicator),
                 " was aborted before, and a later poll answered ", status);
  if (auto* const now = communicators_.Find(communicator)) {
    now->record.aborted |= status == SY_ABORTED;
    if (status == SY_OK) now->record.ready = true;
    if (is_error && now->record.failed == SY_OK) now->record.failed = status;
  }
  return status;
}

void Validate::Around(Call<&sy_collective_v2::abort> call, sy_communicator* communicator) {
  Checked check(*this, "abort", kNoStatus);
  check.Live(communicators_, communicator);
  if (!check.good()) return check.Report();
  check.Leave();
  Forward(call, communicator);
  check.Return();
  if (auto* const now = communicators_.Find(communicator)) now->record.aborted = true;
}

void Validate::Around(Call<&sy_collective_v2::destroy> call, sy_communicator* communicator) {
  Checked check(*this, "destroy", kNoStatus);
  if (check.Live(communicators_, communicator) != nullptr) check.Alone(communicators_, communicator);
  for (const auto& [request, entry] : requests_.live()) {
    check.Expect(entry.record.communicator != communicator, "expected every request to be released before, found ",
                 requests_.Describe(request));
  }
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Report();
  std::vector<const void*> gone;  // with it
  for (const auto& [address, entry] : owned_.live()) {
    if (entry.record.communicator == communicator) gone.push_back(address);
  }
  for (const void* address : gone) owned_.Remove(address, check.Here());
  sy_device* const device = communicators_.Find(communicator)->record.device;
  communicators_.Remove(communicator, check.Here());
  check.Leave();
  CountCommunicator(device, -1);
  Forward(call, communicator);
}

sy_status Validate::Around(Call<&sy_collective_v2::split> call, sy_communicator* communicator, int32_t color,
                           int32_t key, const char* name, sy_communicator** result, sy_error* error) {
  Checked check(*this, "split");
  check.Live(communicators_, communicator);
  check.Expect(name != nullptr && result != nullptr, "an argument is NULL");
  check.Expect(color >= -1, "expected a color from 0, or -1 for none, found ", color);
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, communicator, color, key, name, result, error);
  if (status != SY_OK || *result == nullptr) return status;
  check.Return();
  // It is ready at once. Its rank and size are the plugin's to know; those of the parent bound them.
  const auto* parent = communicators_.Find(communicator);
  CommunicatorState state = parent == nullptr ? CommunicatorState{} : parent->record;
  state.turn = NewTurn();
  state.split = true;
  Make(*result, this);
  communicators_.Add(*result, state, check.Here(" of ", name));
  check.Leave();
  CountCommunicator(state.device, 1);
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_collective_v2::group_begin> call, sy_instance* instance, sy_error* error) {
  Checked check(*this, "group_begin");
  if (!check.good()) return check.Refuse(error);
  ++groups_[std::this_thread::get_id()];
  check.Leave();
  return Forward(call, instance, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::group_end> call, sy_instance* instance, sy_error* error) {
  Checked check(*this, "group_end");
  int& open = groups_[std::this_thread::get_id()];
  check.Expect(open > 0, "there was no group_begin on this thread");
  if (!check.good()) return check.Refuse(error);
  const bool ends = --open == 0;
  check.Leave();
  const sy_status status = Forward(call, instance, error);
  check.Return();
  for (auto& [request, entry] : requests_.live()) {
    if (ends && entry.record.group == std::this_thread::get_id()) entry.record.group = {};
  }
  return status;
}

sy_status Validate::Around(Call<&sy_collective_v2::buffer_alloc> call, sy_communicator* communicator, uint64_t bytes,
                           void** address, sy_error* error) {
  Checked check(*this, "buffer_alloc");
  check.Live(communicators_, communicator);
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, communicator, bytes, address, error);
  if (status != SY_OK) return status;
  check.Return();
  owned_.Add(*address, {communicator, bytes}, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

void Validate::Around(Call<&sy_collective_v2::buffer_free> call, sy_communicator* communicator, void* address) {
  Checked check(*this, "buffer_free", kNoStatus);
  check.Live(communicators_, communicator);
  const auto* entry = check.Live(owned_, address);
  if (entry != nullptr) {
    check.Expect(entry->record.communicator == communicator, owned_.Describe(address), " belongs to ",
                 communicators_.Describe(entry->record.communicator));
    for (const auto& [request, call] : requests_.live()) {
      for (const Range& range : call.record.memory) {
        check.Expect(
            call.record.status != SY_IN_PROGRESS || !Overlap(range.address, range.bytes, address, entry->record.bytes),
            owned_.Describe(address), " is used by ", requests_.Describe(request), ", which no poll has seen ended");
      }
    }
  }
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Report();
  owned_.Remove(address, check.Here());
  check.Leave();
  Forward(call, communicator, address);
}

}  // namespace switchyard
