#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "core/abi/collective.h"
#include "tools/conform/collective_run.h"
#include "tools/conform/given_struct.h"

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kShortLimitMs = 1500;  // for calls that cannot come to an end
constexpr uint64_t kRoom = 8192;          // bytes, for calls whose counts disagree
constexpr auto kPromptly = std::chrono::milliseconds(2000);

bool IsLast(const Link& link) { return link.place() == link.size() - 1; }

// A call that every rank has to make before any can return: all_reduce of `count` elements, or messages of `count`
// bytes around the ring.
Status Step(Link& link, uint64_t count) {
  const sy_collective_v2& api = link.rank().api();
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

Status ExpectInvalid(const Status& status, const char* what) {
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    return Message(status).empty() ? Internal("{}: refused without a message", what) : OkStatus();
  }
  return Internal("{}: expected SY_INVALID, found {}", what, status.ok() ? "success" : status.ToString());
}

Status ExpectUnsupported(const Status& status, const char* what) {
  if (status.code() == absl::StatusCode::kUnimplemented) return OkStatus();
  return Internal("{}: expected SY_UNSUPPORTED, found {}", what, status.ok() ? "success" : status.ToString());
}

Status CheckStructs(Rank& rank) {
  for (const uint32_t size :
       {uint32_t{offsetof(sy_collective_info, alignment)}, uint32_t{sizeof(sy_collective_info)} + kLongerBy}) {
    Sized<sy_collective_info> info(size);
    WatchedError error;
    const sy_status status = rank.api().query(rank.instance(), info.get(), error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, "query"));
    SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK}, "query"));
    SY_RETURN_IF_ERROR(info.Untouched("sy_collective_info"));
    if (info.get()->memory_kinds != rank.info().memory_kinds)
      return Internal("query of {} bytes left out memory_kinds", size);
  }
  SY_RETURN_IF_ERROR(ExpectLibraries(rank.info().libraries));
  for (const bool required : {false, true}) {
    const UnknownExtension unknown(required);
    Sized<sy_collective_info> info(sizeof(sy_collective_info));
    info.get()->header.next = unknown.chain();
    SY_RETURN_IF_ERROR(
        ExpectStatus(rank.api().query(rank.instance(), info.get(), nullptr), {required ? SY_UNSUPPORTED : SY_OK},
                     fmt::format("query with an unknown {} extension", required ? "required" : "optional")));
  }
  return OkStatus();
}

// Requests to join as other versions of the headers would make them, and then calls: what is longer or has an extension
// that nobody needs is as good as any, what has one that must be known is SY_UNSUPPORTED.
Status CheckExtensions(Rank& rank) {
  const sy_collective_v2& api = rank.api();
  for (const bool required : {false, true}) {
    const UnknownExtension unknown(required);
    const auto link = rank.Begin(required ? "needs-an-extension" : "has-an-extension", kShortLimitMs, rank.rank(),
                                 rank.size(), unknown.chain());
    const Status joined = link.ok() ? rank.Await(**link) : link.status();
    if (!required) SY_RETURN_IF_ERROR(Annotate(joined, "init with an unknown optional extension"));
    if (required) SY_RETURN_IF_ERROR(ExpectUnsupported(joined, "init with an unknown required extension"));
  }
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join("extensions"));
  SY_ASSIGN_OR_RETURN(const Area area, rank.Empty(kRoom));
  SY_ASSIGN_OR_RETURN(const Area result, rank.Empty(kRoom));
  const sy_transfer nothing = {link->place(), 1, area.at(), 0};
  using Function = std::function<sy_status(const sy_call*, sy_request**, sy_error*)>;
  const auto handle = link->handle();
  const std::pair<const char*, Function> functions[] = {
      {"send_recv_batch",
       [&](auto* call, auto** r, auto* e) { return api.send_recv_batch(handle, call, &nothing, 0, r, e); }},
      {"barrier", [&](auto* call, auto** r, auto* e) { return api.barrier(handle, call, r, e); }},
      {"all_reduce",
       [&](auto* call, auto** r, auto* e) {
         return api.all_reduce(handle, call, area.at(), area.at(), 10, SY_F32, SY_SUM, r, e);
       }},
      {"reduce_scatter",
       [&](auto* call, auto** r, auto* e) {
         return api.reduce_scatter(handle, call, area.at(), result.at(), 10, SY_F32, SY_SUM, r, e);
       }},
      {"all_gather", [&](auto* call, auto** r,
                         auto* e) { return api.all_gather(handle, call, area.at(), result.at(), 10, SY_F32, r, e); }},
      {"broadcast",
       [&](auto* call, auto** r, auto* e) { return api.broadcast(handle, call, area.at(), 10, SY_F32, 0, r, e); }},
      {"all_to_all", [&](auto* call, auto** r,
                         auto* e) { return api.all_to_all(handle, call, area.at(), result.at(), 10, SY_F32, r, e); }},
  };
  const bool offered[] = {true,
                          api.barrier != nullptr,
                          rank.Sums(),
                          rank.Sums() && api.reduce_scatter != nullptr,
                          api.all_gather != nullptr,
                          api.broadcast != nullptr,
                          api.all_to_all != nullptr};
  for (size_t f = 0; f < std::size(functions); ++f) {
    if (!offered[f]) continue;
    const auto& [name, function] = functions[f];
    for (const bool required : {true, false}) {
      const UnknownExtension unknown(required);
      const Status status = link->Do("extended", name, [&](const sy_call* call, sy_request** request, sy_error* error) {
        Sized<sy_call> longer(sizeof(sy_call) + kLongerBy, *call);
        longer.get()->header.next = unknown.chain();
        return function(longer.get(), request, error);
      });
      const std::string what = fmt::format("{} with an unknown {} extension", name, required ? "required" : "optional");
      SY_RETURN_IF_ERROR(required ? ExpectUnsupported(status, what.c_str()) : Annotate(status, what));
    }
  }
  return Annotate(Step(*link, 1000), "a good call after refused ones");
}

// Nonsense that all ranks ask for alike is refused at once, and the communicator goes on working. What a later edition
// may know is SY_UNSUPPORTED.
Status CheckArguments(Rank& rank) {
  const sy_collective_v2& api = rank.api();
  // init may leave it to poll.
  const auto join = [&](const char* name, int place, int size) -> Status {
    SY_ASSIGN_OR_RETURN(const auto link, rank.Begin(name, kShortLimitMs, place, size));
    return rank.Await(*link);
  };
  SY_RETURN_IF_ERROR(ExpectInvalid(join("no-such-rank", rank.size(), rank.size()), "init of rank size"));
  SY_RETURN_IF_ERROR(ExpectInvalid(join("no-ranks", 0, 0), "init of 0 ranks"));
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join("arguments"));
  SY_ASSIGN_OR_RETURN(const Area area, rank.Empty(kRoom));
  SY_ASSIGN_OR_RETURN(const Area result, rank.Empty(kRoom));
  const auto handle = link->handle();
  const auto refused = [&](const char* what, const Link::Function& function) {
    return ExpectInvalid(link->Do("nonsense", "call", function), what);
  };
  const auto unsupported = [&](const char* what, const Link::Function& function) {
    return ExpectUnsupported(link->Do("nonsense", "call", function), what);
  };
  if (api.broadcast != nullptr) {
    SY_RETURN_IF_ERROR(refused("broadcast from rank size", [&](auto* call, auto** request, auto* error) {
      return api.broadcast(handle, call, area.at(), 10, SY_F32, rank.size(), request, error);
    }));
    SY_RETURN_IF_ERROR(refused("broadcast from rank -1", [&](auto* call, auto** request, auto* error) {
      return api.broadcast(handle, call, area.at(), 10, SY_F32, -1, request, error);
    }));
    SY_RETURN_IF_ERROR(unsupported("broadcast of dtype 99", [&](auto* call, auto** request, auto* error) {
      return api.broadcast(handle, call, area.at(), 10, 99, 0, request, error);
    }));
  }
  for (const auto& [function, name] : {std::pair(api.all_gather, "all_gather"), {api.all_to_all, "all_to_all"}}) {
    if (function == nullptr) continue;
    SY_RETURN_IF_ERROR(unsupported(fmt::format("{} of dtype 99", name).c_str(), [&](auto* call, auto** r, auto* e) {
      return function(handle, call, area.at(), result.at(), 10, 99, r, e);
    }));
  }
  constexpr std::pair<sy_dtype, int> kUnknown[] = {{99, SY_SUM}, {-1, SY_SUM}, {SY_F32, 99}, {SY_F32, -1}};
  for (const auto& [function, name] :
       {std::pair(api.all_reduce, "all_reduce"), {api.reduce_scatter, "reduce_scatter"}}) {
    if (function == nullptr) continue;
    for (const auto& [dtype, reduction] : kUnknown) {
      const std::string what = fmt::format("{} of dtype {} with reduction {}", name, dtype, reduction);
      SY_RETURN_IF_ERROR(unsupported(what.c_str(), [&](auto* call, auto** request, auto* error) {
        return function(handle, call, area.at(), result.at(), 10, dtype, reduction, request, error);
      }));
    }
  }
  for (const auto& [dtype, reduction] : kUnknown) {
    if (api.reduces == nullptr) continue;
    WatchedError error;
    const sy_status status = api.reduces(rank.instance(), reduction, dtype, error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, "reduces"));
    SY_RETURN_IF_ERROR(
        ExpectStatus(status, {SY_UNSUPPORTED}, fmt::format("reduces of dtype {}, reduction {}", dtype, reduction)));
  }
  const sy_transfer nobody = {rank.size(), 1, area.at(), 10};
  SY_RETURN_IF_ERROR(refused("a message to rank size", [&](auto* call, auto** request, auto* error) {
    return api.send_recv_batch(handle, call, &nobody, 1, request, error);
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
  const sy_collective_v2& api = rank.api();
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
  list.Run("extensions", true, [&] { return CheckExtensions(rank); });
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
  constexpr uint64_t kLarge = 2 << 20;  // elements, or bytes of a message: a call that takes a while
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
        const sy_transfer transfer = {0, 1, area.at(), kLarge};  // as Step sends them
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
