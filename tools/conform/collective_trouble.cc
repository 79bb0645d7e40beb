#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "core/abi/collective.h"
#include "tools/conform/collective_run.h"

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kShortLimitMs = 1500;  // for calls that cannot come to an end
constexpr uint64_t kRoom = 8192;          // bytes, for calls whose counts disagree
constexpr auto kPromptly = std::chrono::milliseconds(2000);

bool IsLast(const Link& link) { return link.place() == link.size() - 1; }

// A call that every rank has to make before any can return: all_reduce, or messages around the ring.
Status Step(Link& link, uint64_t count) {
  const sy_collective_v1& api = link.rank().api();
  if (api.all_reduce != nullptr) return link.AllReduce(count, SY_F32, SY_SUM, true);
  SY_ASSIGN_OR_RETURN(const Area send, link.rank().Memory(Bytes(count)));
  SY_ASSIGN_OR_RETURN(const Area receive, link.rank().Empty(count));
  const int size = link.size();
  const sy_transfer transfers[] = {{(link.place() + 1) % size, 1, send.at(), count},
                                   {(link.place() + size - 1) % size, 0, receive.at(), count}};
  return link.Do("ring", "send_recv_batch", [&](const sy_call* call, sy_request** request, sy_error* error) {
    return api.send_recv_batch(link.handle(), call, transfers, 2, request, error);
  });
}

// ---- structs and arguments

Status CheckStructs(Rank& rank) {
  for (const uint32_t size :
       {uint32_t{offsetof(sy_collective_info, reductions)}, uint32_t{sizeof(sy_collective_info)} + 64}) {
    Bytes bytes(sizeof(sy_collective_info) + 64, 0xCD);
    auto* const info = reinterpret_cast<sy_collective_info*>(bytes.data());
    info->header = {size, SY_ABI_MAJOR, 3};
    SY_RETURN_IF_ERROR(FromAbi(rank.api().query(info, nullptr), EmptyError(), "query"));
    for (size_t i = std::min<size_t>(size, sizeof(sy_collective_info)); i < bytes.size(); ++i) {
      if (bytes[i] != 0xCD) return Internal("query wrote byte {}; the header says {} bytes", i, size);
    }
    if (info->memory_kinds != rank.info().memory_kinds)
      return Internal("query of {} bytes left out memory_kinds", size);
  }
  return OkStatus();
}

Status ExpectRefused(const Status& status, const char* what) {
  if (status.code() == absl::StatusCode::kInvalidArgument || status.code() == absl::StatusCode::kUnimplemented) {
    return Message(status).empty() ? Internal("{}: refused without a message", what) : OkStatus();
  }
  return Internal("{}: expected SY_INVALID, found {}", what, status.ok() ? "success" : status.ToString());
}

// Nonsense that all ranks ask for alike is refused at once, and the communicator goes on working.
Status CheckArguments(Rank& rank) {
  const sy_collective_v1& api = rank.api();
  // init may leave it to poll.
  const auto join = [&](const char* name, int place, int size) -> Status {
    SY_ASSIGN_OR_RETURN(const auto link, rank.Begin(name, kShortLimitMs, place, size));
    return rank.Await(*link);
  };
  SY_RETURN_IF_ERROR(ExpectRefused(join("no-such-rank", rank.size(), rank.size()), "init of rank size"));
  SY_RETURN_IF_ERROR(ExpectRefused(join("no-ranks", 0, 0), "init of 0 ranks"));
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join("arguments"));
  SY_ASSIGN_OR_RETURN(const Area area, rank.Empty(kRoom));
  const auto refused = [&](const char* what, const Link::Function& function) {
    return ExpectRefused(link->Do("nonsense", "call", function), what);
  };
  if (api.broadcast != nullptr) {
    SY_RETURN_IF_ERROR(refused("broadcast from rank size", [&](auto* call, auto** request, auto* error) {
      return api.broadcast(link->handle(), call, area.at(), 10, SY_F32, rank.size(), request, error);
    }));
    SY_RETURN_IF_ERROR(refused("broadcast from rank -1", [&](auto* call, auto** request, auto* error) {
      return api.broadcast(link->handle(), call, area.at(), 10, SY_F32, -1, request, error);
    }));
  }
  if (api.all_reduce != nullptr) {
    SY_RETURN_IF_ERROR(refused("all_reduce of dtype 99", [&](auto* call, auto** request, auto* error) {
      return api.all_reduce(link->handle(), call, area.at(), area.at(), 10, 99, SY_SUM, request, error);
    }));
    SY_RETURN_IF_ERROR(refused("all_reduce with reduction 99", [&](auto* call, auto** request, auto* error) {
      return api.all_reduce(link->handle(), call, area.at(), area.at(), 10, SY_F32, 99, request, error);
    }));
  }
  const sy_transfer nobody = {rank.size(), 1, area.at(), 10};
  SY_RETURN_IF_ERROR(refused("a message to rank size", [&](auto* call, auto** request, auto* error) {
    return api.send_recv_batch(link->handle(), call, &nobody, 1, request, error);
  }));
  return Annotate(Step(*link, 1000), "a good call after refused ones");
}

// ---- ranks that disagree

struct Mutation {
  const char* name;
  bool offered;
  std::vector<std::string> words;  // what a message that tells the ranks apart must contain
  std::function<sy_status(Link&, bool mutated, const Area&, const sy_call*, sy_request**, sy_error*)> call;
};

std::vector<Mutation> Mutations(const Rank& rank) {
  const sy_collective_v1& api = rank.api();
  const int last = rank.size() - 1;
  const std::vector<std::string> ranks = {"rank 0", fmt::format("rank {}", last)};
  const auto all_reduce = [&api](Link& link, const Area& area, uint64_t count, sy_dtype dtype, int reduction,
                                 const sy_call* call, sy_request** request, sy_error* error) {
    return api.all_reduce(link.handle(), call, area.at(), area.at(), count, dtype, reduction, request, error);
  };
  const auto broadcast = [&api](Link& link, const Area& area, int root, auto* call, auto** request, auto* error) {
    return api.broadcast(link.handle(), call, area.at(), 100, SY_F32, root, request, error);
  };
  const bool reduces = api.all_reduce != nullptr, broadcasts = api.broadcast != nullptr;
  return {
      {"op",
       reduces && broadcasts,
       {"all_reduce", "broadcast"},
       [=](Link& link, bool mutated, const Area& area, auto* call, auto** request, auto* error) {
         return mutated ? broadcast(link, area, 0, call, request, error)
                        : all_reduce(link, area, 100, SY_F32, SY_SUM, call, request, error);
       }},
      {"count",
       reduces,
       {"100", "101"},
       [=](Link& link, bool mutated, const Area& area, auto* call, auto** request, auto* error) {
         return all_reduce(link, area, mutated ? 101 : 100, SY_F32, SY_SUM, call, request, error);
       }},
      {"dtype", reduces, ranks,
       [=](Link& link, bool mutated, const Area& area, auto* call, auto** request, auto* error) {
         return all_reduce(link, area, 100, mutated ? SY_I32 : SY_F32, SY_SUM, call, request, error);
       }},
      {"reduction", reduces, ranks,
       [=](Link& link, bool mutated, const Area& area, auto* call, auto** request, auto* error) {
         return all_reduce(link, area, 100, SY_F32, mutated ? SY_MAX : SY_SUM, call, request, error);
       }},
      {"root", broadcasts, ranks,
       [=](Link& link, bool mutated, const Area& area, auto* call, auto** request, auto* error) {
         return broadcast(link, area, mutated ? last : 0, call, request, error);
       }},
      {"tag",
       reduces,
       {"one_node", "another_node"},
       [=](Link& link, bool mutated, const Area& area, auto* call, auto** request, auto* error) {
         sy_call other = *call;
         other.tag = mutated ? "another_node" : "one_node";
         return all_reduce(link, area, 100, SY_F32, SY_SUM, &other, request, error);
       }},
      {"sequence", reduces, ranks,
       [=](Link& link, bool mutated, const Area& area, auto* call, auto** request, auto* error) {
         sy_call other = *call;
         other.sequence += mutated ? 1 : 0;
         return all_reduce(link, area, 100, SY_F32, SY_SUM, &other, request, error);
       }},
      {"message_size",
       true,
       {},
       [&api, last](Link& link, bool mutated, const Area& area, auto* call, auto** request, auto* error) {
         const sy_transfer transfer = {mutated ? 0 : last, mutated, area.at(), mutated ? uint64_t{104} : uint64_t{100}};
         return api.send_recv_batch(link.handle(), call, &transfer, 1, request, error);
       }},
  };
}

// Rank 0 and the last disagree. All must come to an end, and one of them, where the plugin compares calls, has to name
// both sides.
Status CheckMutation(Rank& rank, const Mutation& mutation) {
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join(std::string("mismatch-") + mutation.name, kShortLimitMs));
  SY_ASSIGN_OR_RETURN(const Area area, rank.Memory(Bytes(kRoom)));
  const bool messages = std::string(mutation.name) == "message_size";
  Status status;
  if (!messages || link->place() == 0 || IsLast(*link)) {
    status = link->Do("node", mutation.name, [&](const sy_call* call, sy_request** request, sy_error* error) {
      return mutation.call(*link, IsLast(*link), area, call, request, error);
    });
  }
  if (status.code() == absl::StatusCode::kInternal) return status;
  // What all ranks saw is judged by all alike.
  const auto key = [&](int of) { return fmt::format("said/{}/{}", mutation.name, of); };
  rank.store().Put(key(rank.rank()), fmt::format("{}\n{}", static_cast<int>(status.code()), Message(status)));
  std::string told, seen;
  for (int of = 0; of < rank.size(); ++of) {
    std::string text;
    if (!rank.store().Wait(key(of), text, Rank::kLimitMs)) return DeadlineExceeded("rank {} did not return", of);
    const auto code = static_cast<absl::StatusCode>(std::stoi(text));
    const std::string message = text.substr(text.find('\n') + 1);
    seen += fmt::format("{}rank {}: {}", of == 0 ? "" : "; ", of, code == absl::StatusCode::kOk ? "success" : message);
    if (code == absl::StatusCode::kInvalidArgument && told.empty()) told = message;
  }
  if (told.empty()) return Unimplemented("calls that disagree were not told apart ({})", seen);
  for (const std::string& word : mutation.words) {
    if (told.find(word) == std::string::npos)
      return Internal("the disagreement is not named: no \"{}\" in: {}", word, told);
  }
  return OkStatus();
}

// ---- waits that must end

// A call that the last rank never makes, on all others.
Status BlockedCall(Link& link, bool messages) {
  if (!messages) return Step(link, 1000);
  SY_ASSIGN_OR_RETURN(const Area area, link.rank().Empty(1000));
  const sy_transfer transfer = {link.size() - 1, 0, area.at(), 1000};
  return link.Do("message", "send_recv_batch", [&](const sy_call* call, sy_request** request, sy_error* error) {
    return link.rank().api().send_recv_batch(link.handle(), call, &transfer, 1, request, error);
  });
}

Status CheckAbort(Rank& rank, bool messages) {
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join(messages ? "abort-messages" : "abort", 4000));
  if (IsLast(*link)) return OkStatus();
  Clock::time_point aborted;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    aborted = Clock::now();
    rank.api().abort(link->handle());
  });
  const Status status = BlockedCall(*link, messages);
  const auto ended = Clock::now();
  other.join();
  if (status.code() != absl::StatusCode::kAborted) {
    return Internal("a call aborted by another thread ended with: {}", status.ok() ? "success" : status.ToString());
  }
  if (ended > aborted + kPromptly)
    return Internal("a call returned only {} ms after abort", (ended - aborted) / std::chrono::milliseconds(1));
  const auto again = Clock::now();
  const Status next = BlockedCall(*link, messages);
  if (next.code() != absl::StatusCode::kAborted) {
    return Internal("a call after abort ended with: {}", next.ok() ? "success" : next.ToString());
  }
  rank.api().abort(link->handle());
  link->Destroy();
  if (Clock::now() > again + kPromptly) return Internal("after abort, a call and destroy took longer than 2 s");
  return OkStatus();
}

Status CheckDeadline(Rank& rank) {
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join("deadline", kShortLimitMs));
  if (IsLast(*link)) return OkStatus();
  const Status status = BlockedCall(*link, false);
  if (status.ok()) return Internal("a call succeeded that the last rank did not make");
  if (status.code() == absl::StatusCode::kInternal) return status;
  if (!link->gave_up())
    return status.code() == absl::StatusCode::kDeadlineExceeded || status.code() == absl::StatusCode::kAborted
               ? OkStatus()
               : status;
  if (rank.on_stream()) return Unimplemented("{}", Message(status));
  return Internal("{}", Message(status));
}

Status CheckDeadlineInInit(Rank& rank) {
  if (rank.rank() == rank.size() - 1) return OkStatus();
  SY_ASSIGN_OR_RETURN(const auto link, rank.Begin("missing-rank", kShortLimitMs, rank.rank(), rank.size()));
  const Status status = rank.Await(*link);
  if (status.ok()) return Internal("it joined without the last rank");
  if (status.code() == absl::StatusCode::kInternal) return status;
  return link->gave_up() ? Unimplemented("{}", Message(status)) : OkStatus();
}

}  // namespace

void CheckTrouble(Checklist& list, Rank& rank) {
  list.Run("structs", true, [&] { return CheckStructs(rank); });
  list.Run("arguments", true, [&] { return CheckArguments(rank); });
  for (const Mutation& mutation : Mutations(rank)) {
    list.Run(std::string("mismatch/") + mutation.name, mutation.offered, [&] { return CheckMutation(rank, mutation); });
  }
  list.Run("abort/call", true, [&] { return CheckAbort(rank, false); });
  list.Run("abort/messages", true, [&] { return CheckAbort(rank, true); });
  list.Run("deadline/call", true, [&] { return CheckDeadline(rank); });
  // Last: a rank that did not come may be out of step with the others from here on.
  list.Run("deadline/init", true, [&] { return CheckDeadlineInInit(rank); });
}

Status CheckDeath(Rank& rank, const std::string& mode) {
  constexpr uint64_t kLarge = 2 << 20;  // elements: a call that takes a while
  const bool victim = rank.rank() == rank.size() - 1;
  const auto die = [&] {
    rank.store().Put("victim", std::to_string(getpid()));
    kill(getpid(), SIGKILL);
  };
  SY_ASSIGN_OR_RETURN(const auto link, rank.Begin("death", Rank::kLimitMs, rank.rank(), rank.size()));
  if (mode == "death/in_init" && victim) die();
  Status status = rank.Await(*link);
  if (mode != "death/in_init") SY_RETURN_IF_ERROR(status);
  for (int round = 0; status.ok(); ++round) {
    if (victim && round == 3) {
      if (mode == "death/in_call") {
        // The others are inside of the call, and this rank, too, has begun it.
        SY_ASSIGN_OR_RETURN(const Area area, rank.Memory(Bytes(kLarge * 4)));
        const sy_transfer transfer = {0, 1, area.at(), kLarge * 4};
        auto pending =
            link->Start("all_reduce", "a call", [&](const sy_call* call, sy_request** request, sy_error* error) {
              return rank.api().all_reduce != nullptr
                         ? rank.api().all_reduce(link->handle(), call, area.at(), area.at(), kLarge, SY_F32, SY_SUM,
                                                 request, error)
                         : rank.api().send_recv_batch(link->handle(), call, &transfer, 1, request, error);
            });
        if (pending.ok()) (void)link->Look(*pending);
      }
      die();
    }
    status = Step(*link, round >= 3 && mode == "death/in_call" ? kLarge : 1000);
  }
  const auto code = status.code();
  if (code == absl::StatusCode::kAborted || code == absl::StatusCode::kUnavailable) return OkStatus();
  return Internal("what waits for a dead rank ended with: {}", status.ToString());
}

}  // namespace switchyard::conform
