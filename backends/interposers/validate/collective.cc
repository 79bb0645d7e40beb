// collective/2: calls, and their requests.
#include "backends/interposers/validate/validate.h"

namespace switchyard {
namespace {

// Does every partner know the dtype, and the reduction where there is one?
bool KnowsDtype(sy_dtype dtype) { return dtype >= 0 && dtype < SY_DTYPE_COUNT; }
bool KnowsReduction(int32_t reduction) { return reduction >= 0 && reduction < SY_REDUCTION_COUNT; }

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

// Counts are in elements. In place is legal; a partial overlap is not. Nothing is known of an unknown dtype's memory,
// nor of how many ranks there are after a split.
std::vector<Range> Validate::CheckData(Checked& check, const Objects<CommunicatorState>::Entry* on, const void* send,
                                       uint64_t send_blocks, const void* receive, uint64_t receive_blocks,
                                       uint64_t count, sy_dtype dtype) {
  if (on == nullptr) return {};
  const CommunicatorState& state = on->record;
  const uint64_t ranks = state.split ? 1 : static_cast<uint64_t>(state.size);
  const uint64_t block = sy_dtype_bytes(dtype, count);
  const Range from{static_cast<const char*>(send), block * (send_blocks == 0 ? ranks : send_blocks)};
  const Range to{static_cast<const char*>(receive), block * (receive_blocks == 0 ? ranks : receive_blocks)};
  check.Expect(send != nullptr || from.bytes == 0, "there is no memory to send from");
  check.Expect(receive != nullptr || to.bytes == 0, "there is no memory to receive into");
  const uint64_t own = block * static_cast<uint64_t>(state.rank);  // where this rank's block of the longer side begins
  const char* const first = from.address + (send_blocks == 0 && receive_blocks != 0 ? own : 0);
  const char* const second = to.address + (receive_blocks == 0 && send_blocks != 0 ? own : 0);
  check.Expect(state.split || first == second || !Overlap(send, from.bytes, receive, to.bytes),
               "send and receive overlap without being in place");
  return {from, to};
}

// Passes on a call that may leave a request. `known`: every partner knows its dtype and its reduction.
template <auto Function, typename... Arguments>
sy_status Validate::Begin(Checked& check, bool known, std::vector<Range> memory, Call<Function> call,
                          Arguments... arguments) {
  const auto all = std::make_tuple(arguments...);
  sy_communicator* const communicator = std::get<0>(all);
  const sy_call* const details = std::get<1>(all);
  sy_request** const request = std::get<sy_request**>(all);
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Refuse(ErrorOf(arguments...));
  const auto group = groups_.find(std::this_thread::get_id());
  const bool in_group = group != groups_.end() && group->second > 0;
  const bool was_aborted = !in_group && communicators_.Find(communicator)->record.aborted;
  check.Leave();
  const sy_status status = Forward(call, arguments...);
  check.Return();
  if (auto* const now = communicators_.Find(communicator)) now->record.aborted |= status == SY_ABORTED;
  check.Promised(known || status != SY_INVALID,
                 "it answered SY_INVALID to a dtype or reduction that it does not know: expected SY_UNSUPPORTED");
  if (status != SY_OK || request == nullptr || *request == nullptr) return status;
  check.Promised(requests_.Find(*request) == nullptr, "it answered ", requests_.Describe(*request),
                 " again, which was not released yet");
  RequestState state{communicator, std::move(memory)};
  if (in_group) state.group = std::this_thread::get_id();
  state.is_after_abort = was_aborted;
  requests_.Add(*request, std::move(state), check.Here(" of ", details->tag == nullptr ? "no tag" : details->tag));
  return SY_OK;
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
  if (entry != nullptr) {
    check.Expect(entry->record.group == std::thread::id{}, requests_.Describe(request),
                 " belongs to a group that has not ended");
  }
  const Turn turn = TakeTurn(check, communicator);
  if (!check.good()) return check.Refuse(error);
  const sy_status before = entry->record.status;
  check.Leave();
  const sy_status status = Forward(call, communicator, request, error);
  check.Return();
  check.Promised(before == SY_IN_PROGRESS || status == before, requests_.Describe(request), " had ended with ", before,
                 ", and a later poll answered ", status);
  if (entry = requests_.Find(request); entry != nullptr) {
    check.Promised(!entry->record.is_after_abort || status != SY_OK, requests_.Describe(request),
                   " was made after its communicator was aborted, and has ended with SY_OK");
    entry->record.status = status;
  }
  if (auto* const now = communicators_.Find(communicator)) now->record.aborted |= status == SY_ABORTED;
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
  std::vector<Range> memory;
  check.Expect(transfers != nullptr || count == 0, "there are no transfers where ", count, " are counted");
  for (uint32_t i = 0; entry != nullptr && check.good() && i < count; ++i) {
    check.Expect(transfers[i].peer >= 0 && transfers[i].peer < entry->record.size, "transfer ", i, " names rank ",
                 transfers[i].peer, " of ", entry->record.size);
    check.Expect(transfers[i].address != nullptr || transfers[i].bytes == 0, "transfer ", i, " has no memory");
    memory.push_back({static_cast<const char*>(transfers[i].address), transfers[i].bytes});
  }
  return Begin(check, true, std::move(memory), call, communicator, details, transfers, count, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::all_reduce> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           int32_t reduction, sy_request** request, sy_error* error) {
  Checked check(*this, "all_reduce");
  const auto* entry = CheckCall(check, communicator, details);
  auto memory = CheckData(check, entry, send, 1, receive, 1, count, dtype);
  return Begin(check, KnowsDtype(dtype) && KnowsReduction(reduction), std::move(memory), call, communicator, details,
               send, receive, count, dtype, reduction, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::reduce_scatter> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           int32_t reduction, sy_request** request, sy_error* error) {
  Checked check(*this, "reduce_scatter");
  const auto* entry = CheckCall(check, communicator, details);
  auto memory = CheckData(check, entry, send, 0, receive, 1, count, dtype);
  return Begin(check, KnowsDtype(dtype) && KnowsReduction(reduction), std::move(memory), call, communicator, details,
               send, receive, count, dtype, reduction, request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::all_gather> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "all_gather");
  const auto* entry = CheckCall(check, communicator, details);
  auto memory = CheckData(check, entry, send, 1, receive, 0, count, dtype);
  return Begin(check, KnowsDtype(dtype), std::move(memory), call, communicator, details, send, receive, count, dtype,
               request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::broadcast> call, sy_communicator* communicator,
                           const sy_call* details, void* address, uint64_t count, sy_dtype dtype, int32_t root,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "broadcast");
  const auto* entry = CheckCall(check, communicator, details);
  auto memory = CheckData(check, entry, address, 1, address, 1, count, dtype);
  if (entry != nullptr) {
    check.Expect(root >= 0 && root < entry->record.size, "the root is rank ", root, " of ", entry->record.size);
  }
  return Begin(check, KnowsDtype(dtype), std::move(memory), call, communicator, details, address, count, dtype, root,
               request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::all_to_all> call, sy_communicator* communicator,
                           const sy_call* details, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "all_to_all");
  const auto* entry = CheckCall(check, communicator, details);
  auto memory = CheckData(check, entry, send, 0, receive, 0, count, dtype);
  return Begin(check, KnowsDtype(dtype), std::move(memory), call, communicator, details, send, receive, count, dtype,
               request, error);
}

sy_status Validate::Around(Call<&sy_collective_v2::barrier> call, sy_communicator* communicator, const sy_call* details,
                           sy_request** request, sy_error* error) {
  Checked check(*this, "barrier");
  CheckCall(check, communicator, details);
  return Begin(check, true, {}, call, communicator, details, request, error);
}

}  // namespace switchyard
