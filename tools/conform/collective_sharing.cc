#include <array>
#include <thread>

#include "core/runtime/collectives/composition.h"
#include "tools/conform/collective_run.h"
#include "tools/conform/own_instance.h"
#include "tools/conform/own_process.h"

namespace switchyard::conform {
namespace {

// A broadcast or an all_reduce in flight, with its data: `salt` tells calls apart.
struct Flight {
  Area area;
  Bytes expected;
  Link::Pending pending;
};

StatusOr<Flight> StartAllReduce(Link& link, uint64_t count, int salt) {
  Rank& rank = link.rank();
  const auto at = [salt](uint64_t i) { return i + static_cast<uint64_t>(salt) * 13; };
  Flight flight;
  SY_ASSIGN_OR_RETURN(
      flight.area,
      rank.Memory(Make(count, SY_F32, [&](uint64_t i) { return Sent(link.place(), at(i), SY_F32, SY_SUM); })));
  flight.expected = Make(count, SY_F32, [&](uint64_t i) { return Reduced(link.size(), at(i), SY_F32, SY_SUM); });
  SY_ASSIGN_OR_RETURN(flight.pending, link.Start(fmt::format("flight/{}", salt), "all_reduce",
                                                 [&](const sy_call* call, sy_request** request, sy_error* error) {
                                                   return rank.api().all_reduce(link.handle(), call, flight.area.at(),
                                                                                flight.area.at(), count, SY_F32, SY_SUM,
                                                                                request, error);
                                                 }));
  return flight;
}

// Looks at all in turn until each has finished, as requests only advance while they are polled; then compares.
Status FinishAll(std::vector<Flight>& flights) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(Rank::kLimitMs + Rank::kGraceMs);
  for (bool all = false; !all;) {
    all = true;
    for (Flight& flight : flights) {
      SY_ASSIGN_OR_RETURN(const bool done, flight.pending.link->Look(flight.pending));
      all = all && done;
    }
    if (!all && std::chrono::steady_clock::now() > limit) {
      for (Flight& flight : flights) flight.pending.link->rank().api().abort(flight.pending.link->handle());
      return DeadlineExceeded("calls in flight did not finish within {} ms", Rank::kLimitMs);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  for (size_t i = 0; i < flights.size(); ++i) {
    SY_RETURN_IF_ERROR(Annotate(flights[i].area.Expect(flights[i].expected), fmt::format("call {} in flight", i)));
  }
  return OkStatus();
}

// Several calls on one communicator before the first is waited for.
Status CheckQueued(Link& link) {
  std::vector<Flight> flights;
  for (int call = 0; call < 5; ++call) {
    SY_ASSIGN_OR_RETURN(Flight flight, StartAllReduce(link, call == 2 ? 300007 : 1001, call));
    flights.push_back(std::move(flight));
  }
  return FinishAll(flights);
}

// Calls that alternate between two communicators of the same ranks, all in flight at once.
Status CheckTwoCommunicators(Link& first) {
  SY_ASSIGN_OR_RETURN(const auto second, first.rank().Join("second"));
  for (int round = 0; round < 3; ++round) {
    std::vector<Flight> flights;
    for (int call = 0; call < 4; ++call) {
      Link& link = call % 2 == 0 ? first : *second;
      SY_ASSIGN_OR_RETURN(Flight flight, StartAllReduce(link, call == 1 ? 70001 : 513, 4 * round + call));
      flights.push_back(std::move(flight));
    }
    SY_RETURN_IF_ERROR(FinishAll(flights));
  }
  return OkStatus();
}

Status CheckGroup(Link& first) {
  const sy_collective_v2& api = first.rank().api();
  SY_ASSIGN_OR_RETURN(const auto second, first.rank().Join("grouped"));
  sy_error error = EmptyError();
  SY_RETURN_IF_ERROR(FromAbi(api.group_begin(first.rank().instance(), &error), error, "group_begin"));
  std::vector<Flight> flights;
  Status started;
  for (int call = 0; call < 4 && started.ok(); ++call) {
    auto flight = StartAllReduce(call % 2 == 0 ? first : *second, 1009, call);
    started = flight.status();
    if (flight.ok()) flights.push_back(*std::move(flight));
  }
  SY_RETURN_IF_ERROR(FromAbi(api.group_end(first.rank().instance(), &error), error, "group_end"));
  SY_RETURN_IF_ERROR(started);
  // Nothing of the group is on a stream before its end.
  for (Flight& flight : flights) {
    if (first.rank().on_stream()) SY_RETURN_IF_ERROR(flight.pending.link->Mark(flight.pending));
  }
  return FinishAll(flights);
}

class OwnedMemory {
 public:
  explicit OwnedMemory(Link& link) : link_(link), rank_(link.rank()) {}

  Status Check() {
    for (int round = 0; round < 3; ++round) {
      SY_ASSIGN_OR_RETURN(Area first, Allocate());
      SY_ASSIGN_OR_RETURN(Area second, Allocate());
      for (const sy_dtype dtype : {SY_F32, SY_BF16}) {
        const uint64_t some = 3 * BytesOf(dtype), other = BytesOf(dtype);  // offsets into the buffers
        SY_RETURN_IF_ERROR(AllReduce(first, some, second, other, dtype, "from one owned buffer to another"));
        SY_RETURN_IF_ERROR(AllReduce(first, some, first, some, dtype, "in place in owned memory"));
        // One rank's memory is its own: the plugin has to notice.
        SY_ASSIGN_OR_RETURN(Area ordinary, rank_.Empty(kBytes));
        Area& mixed = link_.place() == 0 ? ordinary : first;
        SY_RETURN_IF_ERROR(AllReduce(mixed, some, mixed, some, dtype, "owned memory on all ranks but the first"));
      }
      rank_.api().buffer_free(link_.handle(), first.at());
      rank_.api().buffer_free(link_.handle(), second.at());
    }
    return OkStatus();
  }

 private:
  static constexpr uint64_t kCount = 100003, kBytes = (kCount + 3) * 4;

  StatusOr<Area> Allocate() {
    void* address = nullptr;
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(
        FromAbi(rank_.api().buffer_alloc(link_.handle(), kBytes, &address, &error), error, "buffer_alloc"));
    if (address == nullptr) return Internal("buffer_alloc of {} bytes succeeded without memory", kBytes);
    const uint32_t alignment = rank_.info().alignment;
    if (alignment > 0 && reinterpret_cast<uintptr_t>(address) % alignment != 0) {
      return Internal("owned memory at {} is not aligned to {} bytes", address, alignment);
    }
    // It is of the first kind that the plugin reaches: the device's, where these ranks have one.
    const std::string kind = rank_.info().memory_kinds[0];
    const std::string own = rank_.device() == nullptr ? "host" : rank_.device()->info().memory_kind;
    if (kind != own) return Unimplemented("it owns memory of kind \"{}\"; these ranks have \"{}\"", kind, own);
    return Area::Over(rank_.device(), address, kBytes);
  }

  Status AllReduce(Area& from, uint64_t from_at, Area& to, uint64_t to_at, sy_dtype dtype, const char* context) {
    SY_RETURN_IF_ERROR(
        from.Write(from_at, Make(kCount, dtype, [&](uint64_t i) { return Sent(link_.place(), i, dtype, SY_SUM); })));
    const Status status = link_.Do("owned", "all_reduce", [&](auto* call, auto** request, auto* error) {
      return rank_.api().all_reduce(link_.handle(), call, from.at(from_at), to.at(to_at), kCount, dtype, SY_SUM,
                                    request, error);
    });
    SY_RETURN_IF_ERROR(Annotate(status, context));
    const Bytes expected = Make(kCount, dtype, [&](uint64_t i) { return Reduced(link_.size(), i, dtype, SY_SUM); });
    return Annotate(to.ExpectPart(to_at, expected), context);
  }

  Link& link_;
  Rank& rank_;
};

// The ranks of one color, by falling rank.
StatusOr<std::unique_ptr<Link>> SplitOff(Link& link, int color, const std::string& name) {
  Rank& rank = link.rank();
  sy_communicator* part = nullptr;
  sy_error error = EmptyError();
  SY_RETURN_IF_ERROR(
      FromAbi(rank.api().split(link.handle(), color, -link.place(), name.c_str(), &part, &error), error, "split"));
  if ((part == nullptr) != (color < 0))
    return Internal("split with color {}: {}", color, part ? "a communicator" : "none");
  if (part == nullptr) return std::unique_ptr<Link>();
  return std::make_unique<Link>(rank, part, 0, 0, link.limit_ms());
}

// Even and odd ranks in reverse order; then all but the first rank. Parent and part are used in turn.
Status CheckSplit(Link& link) {
  Rank& rank = link.rank();
  for (const bool parity : {true, false}) {
    const auto color_of = [&](int place) { return parity ? place % 2 : place == 0 && link.size() > 1 ? -1 : 7; };
    SY_ASSIGN_OR_RETURN(const auto part,
                        SplitOff(link, color_of(link.place()), parity ? "even-and-odd" : "all-but-one"));
    double sum = 0;
    int members = 0, first = -1;  // the member of the highest rank is the first of the part
    for (int place = 0; place < link.size(); ++place) {
      if (color_of(place) != color_of(link.place())) continue;
      sum += place + 1;
      ++members;
      first = place;
    }
    for (int round = 0; round < 2; ++round) {
      if (part != nullptr) {
        SY_RETURN_IF_ERROR(rank.Await(*part));
        const Bytes own = Make(5, SY_F32, [&](uint64_t) { return link.place() + 1; });
        SY_ASSIGN_OR_RETURN(const Area area, rank.Memory(own));
        SY_RETURN_IF_ERROR(part->Do("part", "all_reduce on a split communicator", [&](auto* call, auto** r, auto* e) {
          return rank.api().all_reduce(part->handle(), call, area.at(), area.at(), 5, SY_F32, SY_SUM, r, e);
        }));
        SY_RETURN_IF_ERROR(Annotate(area.Expect(Make(5, SY_F32, [&](uint64_t) { return sum; })),
                                    fmt::format("all_reduce over {} ranks of a split", members)));
        if (rank.api().broadcast != nullptr) {
          SY_ASSIGN_OR_RETURN(const Area told, rank.Memory(own));
          SY_RETURN_IF_ERROR(part->Do("order", "broadcast on a split communicator", [&](auto* call, auto** r, auto* e) {
            return rank.api().broadcast(part->handle(), call, told.at(), 5, SY_F32, 0, r, e);
          }));
          SY_RETURN_IF_ERROR(Annotate(told.Expect(Make(5, SY_F32, [&](uint64_t) { return first + 1; })),
                                      "the order of the ranks of a split by key"));
        }
      }
      SY_RETURN_IF_ERROR(Annotate(link.AllReduce(257, SY_F32, SY_SUM, true), "on the parent, after split"));
    }
  }
  return OkStatus();
}

// Two threads, each with a communicator of its own.
Status CheckThreads(Link& first) {
  SY_ASSIGN_OR_RETURN(const auto second, first.rank().Join("threads"));
  std::array<Status, 2> results;
  const auto work = [&](Link& link, Status& result) {
    for (int round = 0; round < 60 && result.ok(); ++round) {
      result = link.AllReduce(100 + 997 * static_cast<uint64_t>(round % 7), SY_F32, SY_SUM, round % 2 == 0);
    }
  };
  std::thread other([&] { work(*second, results[1]); });
  work(first, results[0]);
  other.join();
  for (const Status& status : results) SY_RETURN_IF_ERROR(status);
  return OkStatus();
}

// Communicators that come and go leave neither descriptors nor memory behind.
Status CheckLeaks(Link& link) {
  constexpr int kRounds = 24;
  constexpr uint64_t kAllowedBytes = 16 << 20;
  uint64_t descriptors = 0, resident = 0;
  for (int round = 0; round < 2 * kRounds; ++round) {
    if (round == kRounds) {
      descriptors = OpenDescriptors();
      resident = ResidentBytes();
    }
    SY_ASSIGN_OR_RETURN(const auto part, SplitOff(link, 0, fmt::format("passing-{}", round)));
    SY_RETURN_IF_ERROR(link.rank().Await(*part));
    SY_ASSIGN_OR_RETURN(Flight flight, StartAllReduce(link, 101, round));
    std::vector<Flight> flights;
    flights.push_back(std::move(flight));
    SY_RETURN_IF_ERROR(FinishAll(flights));
  }
  if (OpenDescriptors() > descriptors + kRounds / 2) {
    return Internal("{} communicators that were destroyed kept {} file descriptors", kRounds,
                    OpenDescriptors() - descriptors);
  }
  const uint64_t after = ResidentBytes();
  if (after > resident + kAllowedBytes) {
    return Internal("{} communicators that were destroyed kept {} bytes", kRounds, after - resident);
  }
  return OkStatus();
}

}  // namespace

Status CheckInstances(Rank& rank, const Plugin& plugin, const nlohmann::json& task) {
  SY_ASSIGN_OR_RETURN(const auto first_instance, OwnInstance::Make(plugin));
  SY_ASSIGN_OR_RETURN(const auto second_instance, OwnInstance::Make(plugin));
  if (first_instance->Interfaces() != second_instance->Interfaces()) {
    return Internal("one instance offers {}, another {}", first_instance->Interfaces(), second_instance->Interfaces());
  }
  const auto* const first_api = first_instance->Interface<sy_collective_v2>("collective/2");
  const auto* const second_api = second_instance->Interface<sy_collective_v2>("collective/2");
  if (first_api == nullptr || second_api == nullptr) return Internal("an instance lacks collective/2");
  Rank first_rank(*first_api, first_instance->handle(), task),
      second_rank(*second_api, second_instance->handle(), task);
  SY_RETURN_IF_ERROR(first_rank.Open());
  SY_RETURN_IF_ERROR(second_rank.Open());
  if (!rank.Sums()) return Unimplemented("it sums no f32");
  SY_ASSIGN_OR_RETURN(const auto first, first_rank.Join("instance-first"));
  SY_ASSIGN_OR_RETURN(const auto second, second_rank.Join("instance-second"));
  for (int round = 0; round < 5; ++round) {
    std::vector<Flight> flights;
    for (int call = 0; call < 4; ++call) {
      SY_ASSIGN_OR_RETURN(Flight flight, StartAllReduce(call % 2 == 0 ? *first : *second, 10007, 4 * round + call));
      flights.push_back(std::move(flight));
    }
    SY_RETURN_IF_ERROR(FinishAll(flights));
  }
  first_api->abort(first->handle());
  first->Destroy();
  SY_RETURN_IF_ERROR(Annotate(second->AllReduce(10007, SY_F32, SY_SUM, true), "after another instance was aborted"));
  return OwnInstance::HostsAreApart();
}

void CheckSharing(Checklist& list, Link& link) {
  const sy_collective_v2& api = link.rank().api();
  const bool sums = link.rank().Sums();
  list.Run("owned_memory", api.buffer_alloc && sums, [&] { return OwnedMemory(link).Check(); });
  list.Run("queued_calls", sums, [&] { return CheckQueued(link); });
  list.Run("two_communicators", sums, [&] { return CheckTwoCommunicators(link); });
  list.Run("group", api.group_begin && api.group_end && sums, [&] { return CheckGroup(link); });
  list.Run("split", api.split && sums, [&] { return CheckSplit(link); });
  if (link.size() != 2) return;
  list.Run("leaks", api.split && sums, [&] { return CheckLeaks(link); });
  // Work of two threads on one device has no order that all ranks share.
  if (!link.rank().on_stream()) list.Run("threads", sums, [&] { return CheckThreads(link); });
}

}  // namespace switchyard::conform
