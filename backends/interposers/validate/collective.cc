// collective/1.
#include "backends/interposers/validate/validate.h"

namespace switchyard {
namespace {

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto* const first = static_cast<const char*>(a);
  const auto* const second = static_cast<const char*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

}  // namespace

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

// Counts are in elements. In place is legal; a partial overlap is not.
void Validate::CheckData(Checked& check, const void* send, const void* receive, uint64_t send_count,
                         uint64_t receive_count, sy_dtype dtype) {
  check.Expect(dtype >= 0 && dtype < SY_DTYPE_COUNT, "there is no dtype ", dtype);
  if (!check.good()) return;
  const uint64_t send_bytes = send_count * ElementBytes(dtype), receive_bytes = receive_count * ElementBytes(dtype);
  check.Expect(send != nullptr || send_bytes == 0, "there is no memory to send from");
  check.Expect(receive != nullptr || receive_bytes == 0, "there is no memory to receive into");
}

// Passes on a call that may leave a request.
template <auto Function, typename... Arguments>
sy_status Validate::Begin(Checked& check, Call<Function> call, Arguments... arguments) {
  const auto all = std::make_tuple(arguments...);
  sy_communicator* const communicator = std::get<0>(all);
  const sy_call* const details = std::get<1>(all);
  sy_request** const request = std::get<sy_request**>(all);
  if (!check.good()) return check.Refuse(ErrorOf(arguments...));
  check.Leave();
  const sy_status status = Forward(call, arguments...);
  if (status != SY_OK || request == nullptr || *request == nullptr) return status;
  check.Return();
  requests_.Add(*request, {communicator}, check.Here(" of ", details->tag == nullptr ? "no tag" : details->tag));
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_collective_v1::init> call, const sy_init_request* given,
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
    if (check.good()) {
      state.rank = request.rank;
      state.size = request.size;
      name = request.name;
    }
  }
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, given, communicator, error);
  if (status != SY_OK) return status;
  check.Return();
  communicators_.Add(*communicator, state, check.Here(" of ", name));
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_collective_v1::poll> call, sy_communicator* communicator, sy_error* error) {
  Checked check(*this, "poll");
  check.Live(communicators_, communicator);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, communicator, error);
  if (status != SY_OK) return status;
  check.Return();
  if (auto* const entry = communicators_.Find(communicator)) entry->record.ready = true;
  return SY_OK;
}

void Validate::Around(Call<&sy_collective_v1::abort> call, sy_communicator* communicator) {
  Checked check(*this, "abort", kNoStatus);
  check.Live(communicators_, communicator);
  if (!check.good()) return check.Report();
  check.Leave();
  Forward(call, communicator);
}

void Validate::Around(Call<&sy_collective_v1::destroy> call, sy_communicator* communicator) {
  Checked check(*this, "destroy", kNoStatus);
  check.Live(communicators_, communicator);
  if (!check.good()) return check.Report();
  // What belongs to it goes with it.
  for (auto* const objects : {&requests_, &owned_, &registrations_}) {
    std::vector<const void*> gone;
    for (const auto& [handle, entry] : objects->live()) {
      if (entry.record.communicator == communicator) gone.push_back(handle);
    }
    for (const void* handle : gone) objects->Remove(handle, check.Here());
  }
  communicators_.Remove(communicator, check.Here());
  check.Leave();
  Forward(call, communicator);
}

sy_status Validate::Around(Call<&sy_collective_v1::request_poll> call, sy_request* request, sy_error* error) {
  Checked check(*this, "request_poll");
  auto* const entry = check.Live(requests_, request);
  if (!check.good()) return check.Refuse(error);
  const Objects<OfCommunicator>::Entry held = *entry;
  requests_.Remove(request, check.Here());  // before the call: afterwards the handle may be another request's
  check.Leave();
  const sy_status status = Forward(call, request, error);
  if (status != SY_IN_PROGRESS) return status;
  check.Return();
  requests_.Add(request, held.record, held.born);
  return status;
}

sy_status Validate::Around(Call<&sy_collective_v1::send_recv_batch> call, sy_communicator* communicator,
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
  return Begin(check, call, communicator, details, transfers, count, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::all_reduce> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           int32_t reduction, sy_request** request, sy_error* error) {
  Checked check(*this, "all_reduce");
  CheckCall(check, communicator, details);
  CheckData(check, send, receive, count, count, dtype);
  check.Expect(reduction >= 0 && reduction < SY_REDUCTION_COUNT, "there is no reduction ", reduction);
  if (check.good()) {
    const uint64_t bytes = count * ElementBytes(dtype);
    check.Expect(send == receive || !Overlap(send, bytes, receive, bytes),
                 "send and receive overlap without being equal");
  }
  return Begin(check, call, communicator, details, send, receive, count, dtype, reduction, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::reduce_scatter> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           int32_t reduction, sy_request** request, sy_error* error) {
  Checked check(*this, "reduce_scatter");
  const auto* entry = CheckCall(check, communicator, details);
  if (entry != nullptr)
    CheckData(check, send, receive, count * static_cast<uint64_t>(entry->record.size), count, dtype);
  check.Expect(reduction >= 0 && reduction < SY_REDUCTION_COUNT, "there is no reduction ", reduction);
  return Begin(check, call, communicator, details, send, receive, count, dtype, reduction, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::all_gather> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "all_gather");
  const auto* entry = CheckCall(check, communicator, details);
  if (entry != nullptr)
    CheckData(check, send, receive, count, count * static_cast<uint64_t>(entry->record.size), dtype);
  return Begin(check, call, communicator, details, send, receive, count, dtype, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::broadcast> call, sy_communicator* communicator,
                           const sy_call* details, void* address, uint64_t count, sy_dtype dtype, int32_t root,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "broadcast");
  const auto* entry = CheckCall(check, communicator, details);
  CheckData(check, address, address, count, count, dtype);
  if (entry != nullptr) {
    check.Expect(root >= 0 && root < entry->record.size, "the root is rank ", root, " of ", entry->record.size);
  }
  return Begin(check, call, communicator, details, address, count, dtype, root, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::all_to_all> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "all_to_all");
  const auto* entry = CheckCall(check, communicator, details);
  if (entry != nullptr) {
    const uint64_t all = count * static_cast<uint64_t>(entry->record.size);
    CheckData(check, send, receive, all, all, dtype);
  }
  return Begin(check, call, communicator, details, send, receive, count, dtype, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::barrier> call, sy_communicator* communicator, const sy_call* details,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "barrier");
  CheckCall(check, communicator, details);
  return Begin(check, call, communicator, details, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::split> call, sy_communicator* communicator, int32_t color,
                           int32_t key, const char* name, sy_communicator** result, sy_error* error) {
  Checked check(*this, "split");
  check.Live(communicators_, communicator);
  check.Expect(name != nullptr && result != nullptr, "an argument is NULL");
  check.Expect(color >= -1, "expected a color from 0, or -1 for none, found ", color);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, communicator, color, key, name, result, error);
  if (status != SY_OK || *result == nullptr) return status;
  check.Return();
  // It is ready at once. Its rank and size are the plugin's to know; those of the parent bound them.
  const auto* parent = communicators_.Find(communicator);
  CommunicatorState state = parent == nullptr ? CommunicatorState{} : parent->record;
  communicators_.Add(*result, state, check.Here(" of ", name));
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_collective_v1::group_begin> call, sy_error* error) {
  Checked check(*this, "group_begin");
  if (!check.good()) return check.Refuse(error);
  ++groups_;
  check.Leave();
  return Forward(call, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::group_end> call, sy_error* error) {
  Checked check(*this, "group_end");
  check.Expect(groups_ > 0, "there was no group_begin");
  if (!check.good()) return check.Refuse(error);
  --groups_;
  check.Leave();
  return Forward(call, error);
}

sy_status Validate::Around(Call<&sy_collective_v1::buffer_alloc> call, sy_communicator* communicator, uint64_t bytes,
                           void** address, sy_error* error) {
  Checked check(*this, "buffer_alloc");
  check.Live(communicators_, communicator);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, communicator, bytes, address, error);
  if (status != SY_OK) return status;
  check.Return();
  owned_.Add(*address, {communicator}, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

void Validate::Around(Call<&sy_collective_v1::buffer_free> call, sy_communicator* communicator, void* address) {
  Checked check(*this, "buffer_free", kNoStatus);
  check.Live(communicators_, communicator);
  const auto* entry = address == nullptr ? nullptr : check.Live(owned_, address);
  if (entry != nullptr) {
    check.Expect(entry->record.communicator == communicator, owned_.Describe(address), " belongs to ",
                 communicators_.Describe(entry->record.communicator));
  }
  if (!check.good()) return check.Report();
  owned_.Remove(address, check.Here());
  check.Leave();
  Forward(call, communicator, address);
}

sy_status Validate::Around(Call<&sy_collective_v1::register_memory> call, sy_communicator* communicator, void* address,
                           uint64_t bytes, void** registration, sy_error* error) {
  Checked check(*this, "register_memory");
  check.Live(communicators_, communicator);
  check.Expect(address != nullptr && bytes > 0, "expected memory, found ", bytes, " bytes at ", address);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, communicator, address, bytes, registration, error);
  if (status != SY_OK) return status;
  check.Return();
  registrations_.Add(*registration, {communicator}, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

void Validate::Around(Call<&sy_collective_v1::deregister_memory> call, sy_communicator* communicator,
                      void* registration) {
  Checked check(*this, "deregister_memory", kNoStatus);
  check.Live(communicators_, communicator);
  check.Live(registrations_, registration);
  if (!check.good()) return check.Report();
  registrations_.Remove(registration, check.Here());
  check.Leave();
  Forward(call, communicator, registration);
}

}  // namespace switchyard
