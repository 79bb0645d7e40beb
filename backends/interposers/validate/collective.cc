// collective/2.
#include "backends/interposers/validate/validate.h"

namespace switchyard {
namespace {

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto* const first = static_cast<const char*>(a);
  const auto* const second = static_cast<const char*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

constexpr int kMostKinds = 64;

// Does every partner know the dtype, and the reduction where there is one?
bool KnowsDtype(sy_dtype dtype) { return dtype >= 0 && dtype < SY_DTYPE_COUNT; }
bool KnowsReduction(int32_t reduction) { return reduction >= 0 && reduction < SY_REDUCTION_COUNT; }

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

// A call on a communicator that has finished init.
Objects<CommunicatorState>::Entry* Validate::CheckCall(Checked& check, sy_communicator* communicator,
                                                       const sy_call* call) {
  auto* const entry = check.Live(communicators_, communicator);
  check.Expect(call != nullptr, "there is no sy_call");
  if (entry != nullptr) {
    check.Expect(entry->record.ready, communicators_.Describe(communicator),
                 " has not finished init: poll did not answer SY_OK yet");
  }
  return check.good() ? entry : nullptr;
}

// Counts are in elements. In place is legal; a partial overlap is not. Nothing is known of an unknown dtype's memory.
void Validate::CheckData(Checked& check, const void* send, const void* receive, uint64_t send_count,
                         uint64_t receive_count, sy_dtype dtype) {
  const uint64_t send_bytes = sy_dtype_bytes(dtype, send_count), receive_bytes = sy_dtype_bytes(dtype, receive_count);
  check.Expect(send != nullptr || send_bytes == 0, "there is no memory to send from");
  check.Expect(receive != nullptr || receive_bytes == 0, "there is no memory to receive into");
}

// Passes on a call that may leave a request. `known`: every partner knows its dtype and its reduction.
template <auto Function, typename... Arguments>
sy_status Validate::Begin(Checked& check, bool known, Call<Function> call, Arguments... arguments) {
  const auto all = std::make_tuple(arguments...);
  sy_communicator* const communicator = std::get<0>(all);
  const sy_call* const details = std::get<1>(all);
  sy_request** const request = std::get<sy_request**>(all);
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Refuse(ErrorOf(arguments...));
  check.Leave();
  const sy_status status = Forward(call, arguments...);
  check.Return();
  check.Promised(known || status != SY_INVALID,
                 "it answered SY_INVALID to a dtype or reduction that it does not know: expected SY_UNSUPPORTED");
  if (status != SY_OK || request == nullptr || *request == nullptr) return status;
  check.Promised(requests_.Find(*request) == nullptr, "it answered ", requests_.Describe(*request),
                 " again, which was not released yet");
  requests_.Add(*request, {communicator}, check.Here(" of ", details->tag == nullptr ? "no tag" : details->tag));
  return SY_OK;
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
  check.Leave();
  const sy_status status = Forward(call, communicator, error);
  check.Return();
  const bool is_error = status != SY_OK && status != SY_IN_PROGRESS;
  check.Promised(had_failed == SY_OK || is_error, communicators_.Describe(communicator), " had answered ", had_failed,
                 " before, and a later poll answered ", status);
  check.Promised(!was_ready || status != SY_IN_PROGRESS, communicators_.Describe(communicator),
                 " had finished init, and a later poll answered SY_IN_PROGRESS");
  if (auto* const now = communicators_.Find(communicator)) {
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
}

void Validate::Around(Call<&sy_collective_v2::destroy> call, sy_communicator* communicator) {
  Checked check(*this, "destroy", kNoStatus);
  check.Live(communicators_, communicator);
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

// A live request of a live communicator.
Objects<RequestState>::Entry* Validate::CheckRequest(Checked& check, sy_communicator* communicator,
                                                     sy_request* request) {
  check.Live(communicators_, communicator);
  auto* const entry = check.Live(requests_, request);
  if (entry != nullptr) {
    check.Expect(entry->record.communicator == communicator, requests_.Describe(request), " belongs to ",
                 communicators_.Describe(entry->record.communicator));
  }
  return check.good() ? entry : nullptr;
}

sy_status Validate::Around(Call<&sy_collective_v2::request_poll> call, sy_communicator* communicator,
                           sy_request* request, sy_error* error) {
  Checked check(*this, "request_poll");
  auto* entry = CheckRequest(check, communicator, request);
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Refuse(error);
  const sy_status before = entry->record.status;
  check.Leave();
  const sy_status status = Forward(call, communicator, request, error);
  check.Return();
  check.Promised(before == SY_IN_PROGRESS || status == before, requests_.Describe(request), " had ended with ", before,
                 ", and a later poll answered ", status);
  if (entry = requests_.Find(request); entry != nullptr) entry->record.status = status;
  return status;
}

void Validate::Around(Call<&sy_collective_v2::request_release> call, sy_communicator* communicator,
                      sy_request* request) {
  Checked check(*this, "request_release", kNoStatus);
  CheckRequest(check, communicator, request);
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Report();
  requests_.Remove(request, check.Here());  // before the call: afterwards the handle may be another request's
  check.Leave();
  Forward(call, communicator, request);
}

sy_status Validate::Around(Call<&sy_collective_v2::send_recv_batch> call, sy_communicator* communicator,
                           const sy_call* details, const sy_transfer* transfers, uint32_t count, sy_request** request,
                           sy_error* error) {
  Checked check(*this, "send_recv_batch");
  const auto* entry = CheckCall(check, communicator, details);
  check.Expect(transfers != nullptr || count == 0, "there are no transfers where ", count, " are counted");
  for (uint32_t i = 0; entry != nullptr && check.good() && i < count; ++i) {
    check.Expect(transfers[i].peer >= 0 && transfers[i].peer < entry->record.size, "transfer ", i, " names rank ",
                 transfers[i].peer, " of ", entry->record.size);
    check.Expect(transfers[i].address != nullptr || transfers[i].bytes == 0, "transfer ", i, " has no memory");
  }
  return Begin(check, true, call, communicator, details, transfers, count, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::all_reduce> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           int32_t reduction, sy_request** request, sy_error* error) {
  Checked check(*this, "all_reduce");
  CheckCall(check, communicator, details);
  CheckData(check, send, receive, count, count, dtype);
  if (check.good()) {
    const uint64_t bytes = sy_dtype_bytes(dtype, count);
    check.Expect(send == receive || !Overlap(send, bytes, receive, bytes),
                 "send and receive overlap without being equal");
  }
  return Begin(check, KnowsDtype(dtype) && KnowsReduction(reduction), call, communicator, details, send, receive, count,
               dtype, reduction, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::reduce_scatter> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           int32_t reduction, sy_request** request, sy_error* error) {
  Checked check(*this, "reduce_scatter");
  const auto* entry = CheckCall(check, communicator, details);
  if (entry != nullptr)
    CheckData(check, send, receive, count * static_cast<uint64_t>(entry->record.size), count, dtype);
  return Begin(check, KnowsDtype(dtype) && KnowsReduction(reduction), call, communicator, details, send, receive, count,
               dtype, reduction, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::all_gather> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "all_gather");
  const auto* entry = CheckCall(check, communicator, details);
  if (entry != nullptr)
    CheckData(check, send, receive, count, count * static_cast<uint64_t>(entry->record.size), dtype);
  return Begin(check, KnowsDtype(dtype), call, communicator, details, send, receive, count, dtype, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::broadcast> call, sy_communicator* communicator,
                           const sy_call* details, void* address, uint64_t count, sy_dtype dtype, int32_t root,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "broadcast");
  const auto* entry = CheckCall(check, communicator, details);
  CheckData(check, address, address, count, count, dtype);
  if (entry != nullptr) {
    check.Expect(root >= 0 && root < entry->record.size, "the root is rank ", root, " of ", entry->record.size);
  }
  return Begin(check, KnowsDtype(dtype), call, communicator, details, address, count, dtype, root, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::all_to_all> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "all_to_all");
  const auto* entry = CheckCall(check, communicator, details);
  if (entry != nullptr) {
    const uint64_t all = count * static_cast<uint64_t>(entry->record.size);
    CheckData(check, send, receive, all, all, dtype);
  }
  return Begin(check, KnowsDtype(dtype), call, communicator, details, send, receive, count, dtype, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::barrier> call, sy_communicator* communicator, const sy_call* details,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "barrier");
  CheckCall(check, communicator, details);
  return Begin(check, true, call, communicator, details, request, error);
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
  --open;
  check.Leave();
  return Forward(call, instance, error);
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
  owned_.Add(*address, {communicator}, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

void Validate::Around(Call<&sy_collective_v2::buffer_free> call, sy_communicator* communicator, void* address) {
  Checked check(*this, "buffer_free", kNoStatus);
  check.Live(communicators_, communicator);
  const auto* entry = address == nullptr ? nullptr : check.Live(owned_, address);
  if (entry != nullptr) {
    check.Expect(entry->record.communicator == communicator, owned_.Describe(address), " belongs to ",
                 communicators_.Describe(entry->record.communicator));
  }
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Report();
  owned_.Remove(address, check.Here());
  check.Leave();
  Forward(call, communicator, address);
}

}  // namespace switchyard
