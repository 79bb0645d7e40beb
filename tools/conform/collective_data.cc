#include <algorithm>
#include <thread>

#include "core/runtime/collectives/composition.h"
#include "tools/conform/collective_run.h"
#include "tools/conform/rounding.h"

namespace switchyard::conform {
namespace {

// Odd counts, no multiples of the number of ranks; 0 is legal. The long list for f32, the short one for the other
// dtypes.
constexpr uint64_t kCounts[] = {0, 1, 3, 257, 65537}, kFewCounts[] = {0, 1, 259, 8191};
constexpr uint64_t kLargeCount = 3 << 20;  // more than any staging area holds
const char* const kReductionNames[] = {"sum", "max", "min", "product"};

std::vector<uint64_t> Counts(sy_dtype dtype) {
  if (dtype == SY_F32) return {std::begin(kCounts), std::end(kCounts)};
  return {std::begin(kFewCounts), std::end(kFewCounts)};
}

std::string Context(uint64_t count, bool in_place) {
  return fmt::format("{} elements{}", count, in_place ? " in place" : "");
}

class DataChecks {
 public:
  explicit DataChecks(Link& link)
      : link_(link),
        rank_(link.rank()),
        api_(rank_.api()),
        place_(static_cast<uint64_t>(link.place())),
        size_(static_cast<uint64_t>(link.size())) {}

  Status AllReduce(sy_dtype dtype, int reduction) {
    for (const uint64_t count : Counts(dtype)) {
      for (const bool in_place : {false, true}) SY_RETURN_IF_ERROR(link_.AllReduce(count, dtype, reduction, in_place));
    }
    return OkStatus();
  }

  Status ReduceScatter(sy_dtype dtype, int reduction) {
    const auto sent_by = [&](int rank, uint64_t i) { return Sent(rank, i, dtype, reduction); };
    for (const uint64_t count : Counts(dtype)) {
      for (const bool in_place : {false, true}) {
        const Bytes sent = Make(count * size_, dtype, [&](uint64_t i) { return sent_by(link_.place(), i); });
        const Bytes expected =
            Make(count, dtype, [&](uint64_t i) { return Reduced(link_.size(), i + count * place_, dtype, reduction); });
        SY_ASSIGN_OR_RETURN(const Area send, rank_.Memory(sent));
        SY_ASSIGN_OR_RETURN(const Area receive, rank_.Empty(expected.size()));
        const uint64_t own = expected.size() * place_;
        SY_RETURN_IF_ERROR(Call("reduce_scatter", [&](const sy_call* call, sy_request** request, sy_error* error) {
          return api_.reduce_scatter(link_.handle(), call, send.at(), in_place ? send.at(own) : receive.at(), count,
                                     dtype, reduction, request, error);
        }));
        const Status right = in_place ? send.ExpectPart(own, expected) : receive.Expect(expected);
        SY_RETURN_IF_ERROR(Annotate(right, Context(count, in_place)));
        if (!in_place) SY_RETURN_IF_ERROR(Annotate(send.Expect(sent), "send buffer"));
      }
    }
    return OkStatus();
  }

  // Sums or products of a half type that have one right answer, whether the plugin rounds once or at every step: of
  // each element two ranks hold a number, and the others what changes nothing.
  Status Rounding(sy_dtype half, int reduction, bool scattered) {
    const std::vector<Pair> pairs = reduction == SY_SUM ? PairsToAdd(half) : PairsToMultiply(half);
    const uint64_t own = (pairs.size() + size_ - 1) / size_, count = scattered ? own * size_ : pairs.size();
    const auto pair = [&](uint64_t i) { return pairs[i % pairs.size()]; };
    const auto sent = [&](uint64_t i) {
      const uint64_t first = i % size_, second = (first + 1 + i / size_ % (size_ - 1)) % size_;
      return place_ == first ? pair(i).a : place_ == second ? pair(i).b : reduction == SY_SUM ? 0.0 : 1.0;
    };
    SY_ASSIGN_OR_RETURN(const Area send, rank_.Memory(Make(count, half, sent)));
    SY_ASSIGN_OR_RETURN(const Area receive, rank_.Empty((scattered ? own : count) * BytesOf(half)));
    if (scattered) {
      SY_RETURN_IF_ERROR(Call("reduce_scatter", [&](const sy_call* call, sy_request** request, sy_error* error) {
        return api_.reduce_scatter(link_.handle(), call, send.at(), receive.at(), own, half, reduction, request, error);
      }));
    } else {
      SY_RETURN_IF_ERROR(Call("all_reduce", [&](const sy_call* call, sy_request** request, sy_error* error) {
        return api_.all_reduce(link_.handle(), call, send.at(), receive.at(), count, half, reduction, request, error);
      }));
    }
    SY_ASSIGN_OR_RETURN(const Bytes bytes, receive.Read());
    std::vector<double> exact(scattered ? own : count);
    for (uint64_t i = 0; i < exact.size(); ++i) {
      const Pair one = pair(scattered ? i + own * place_ : i);
      exact[i] = reduction == SY_SUM ? one.a + one.b : one.a * one.b;
    }
    return ExpectRounded(Decode(bytes, half), exact, half);
  }

  Status AllGather(sy_dtype dtype) {
    for (const uint64_t count : Counts(dtype)) {
      for (const bool in_place : {false, true}) {
        const Bytes sent = Make(count, dtype, [&](uint64_t i) { return Sent(link_.place(), i, dtype, SY_SUM); });
        const Bytes expected = Make(count * size_, dtype, [&](uint64_t i) {
          return Sent(static_cast<int>(i / count), i % count, dtype, SY_SUM);
        });
        SY_ASSIGN_OR_RETURN(const Area send, rank_.Memory(sent));
        SY_ASSIGN_OR_RETURN(Area receive, rank_.Empty(expected.size()));
        const uint64_t own = sent.size() * place_;
        if (in_place) SY_RETURN_IF_ERROR(receive.Write(own, sent));
        SY_RETURN_IF_ERROR(Call("all_gather", [&](const sy_call* call, sy_request** request, sy_error* error) {
          return api_.all_gather(link_.handle(), call, in_place ? receive.at(own) : send.at(), receive.at(), count,
                                 dtype, request, error);
        }));
        SY_RETURN_IF_ERROR(Annotate(receive.Expect(expected), Context(count, in_place)));
      }
    }
    return OkStatus();
  }

  Status Broadcast(sy_dtype dtype) {
    for (int root = 0; root < link_.size(); ++root) {
      if (dtype != SY_F32 && root != 0 && root != link_.size() - 1) continue;
      for (const uint64_t count : Counts(dtype)) {
        const Bytes expected = Make(count, dtype, [&](uint64_t i) { return Sent(root, i, dtype, SY_SUM); });
        SY_ASSIGN_OR_RETURN(const Area area,
                            rank_.Memory(link_.place() == root ? expected : Bytes(expected.size(), 0xFF)));
        SY_RETURN_IF_ERROR(Call("broadcast", [&](const sy_call* call, sy_request** request, sy_error* error) {
          return api_.broadcast(link_.handle(), call, area.at(), count, dtype, root, request, error);
        }));
        SY_RETURN_IF_ERROR(Annotate(area.Expect(expected), fmt::format("{} elements from rank {}", count, root)));
      }
    }
    return OkStatus();
  }

  Status AllToAll(sy_dtype dtype) {
    const auto element = [&](int from, int to, uint64_t i) { return Sent(from + 3 * to, i, dtype, SY_SUM); };
    for (const uint64_t count : Counts(dtype)) {
      const Bytes sent = Make(count * size_, dtype, [&](uint64_t i) {
        return element(link_.place(), static_cast<int>(i / count), i % count);
      });
      const Bytes expected = Make(count * size_, dtype, [&](uint64_t i) {
        return element(static_cast<int>(i / count), link_.place(), i % count);
      });
      SY_ASSIGN_OR_RETURN(const Area send, rank_.Memory(sent));
      SY_ASSIGN_OR_RETURN(const Area receive, rank_.Empty(expected.size()));
      SY_RETURN_IF_ERROR(Call("all_to_all", [&](const sy_call* call, sy_request** request, sy_error* error) {
        return api_.all_to_all(link_.handle(), call, send.at(), receive.at(), count, dtype, request, error);
      }));
      SY_RETURN_IF_ERROR(Annotate(receive.Expect(expected), fmt::format("{} elements", count)));
      SY_RETURN_IF_ERROR(Annotate(send.Expect(sent), "send buffer"));
    }
    return OkStatus();
  }

  // Nobody leaves before the last has come.
  Status Barrier() {
    for (int round = 0; round < 3; ++round) {
      const std::string key = fmt::format("barrier-{}", round);
      if (link_.place() == round % link_.size()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        rank_.store().Put(key, "here");
      }
      SY_RETURN_IF_ERROR(Call("barrier", [&](const sy_call* call, sy_request** request, sy_error* error) {
        return api_.barrier(link_.handle(), call, request, error);
      }));
      std::string value;
      if (!rank_.store().Wait(key, value, 0)) {
        return Internal("a rank left the barrier before rank {} came", round % link_.size());
      }
    }
    return OkStatus();
  }

  // One batch: to every other rank two messages, of sizes that differ from pair to pair, some of them empty.
  Status SendAndReceive() {
    if (link_.size() == 1) return OkStatus();
    const auto bytes_of = [](int from, int to, int which, uint64_t scale) {
      return which == 0 && (from + to) % 3 == 0
                 ? 0
                 : scale * static_cast<uint64_t>(1 + from + 2 * to) + static_cast<uint64_t>(which);
    };
    const auto message = [&](int from, int to, int which, uint64_t scale) {
      return Make(bytes_of(from, to, which, scale), SY_U8,
                  [&](uint64_t i) { return static_cast<double>((i * 3 + from * 11 + to * 5 + which) % 251); });
    };
    for (const uint64_t scale : {uint64_t{1}, uint64_t{333}, uint64_t{100003}}) {
      std::vector<Area> areas;
      std::vector<sy_transfer> transfers;
      std::vector<Bytes> expected;  // per area; empty: a sent one
      for (int peer = 0; peer < link_.size(); ++peer) {
        for (int which = 0; which < 2 && peer != link_.place(); ++which) {
          const Bytes out = message(link_.place(), peer, which, scale), in = message(peer, link_.place(), which, scale);
          SY_ASSIGN_OR_RETURN(Area send, rank_.Memory(out));
          SY_ASSIGN_OR_RETURN(Area receive, rank_.Empty(in.size()));
          transfers.push_back({peer, 1, send.at(), out.size()});
          transfers.push_back({peer, 0, receive.at(), in.size()});
          expected.push_back(out);
          expected.push_back(in);
          areas.push_back(std::move(send));
          areas.push_back(std::move(receive));
        }
      }
      SY_RETURN_IF_ERROR(Call("send_recv_batch", [&](const sy_call* call, sy_request** request, sy_error* error) {
        return api_.send_recv_batch(link_.handle(), call, transfers.data(), static_cast<uint32_t>(transfers.size()),
                                    request, error);
      }));
      for (size_t i = 0; i < areas.size(); ++i) {
        SY_RETURN_IF_ERROR(Annotate(areas[i].Expect(expected[i]),
                                    fmt::format("{} rank {}, {} bytes", transfers[i].is_send ? "to" : "from",
                                                transfers[i].peer, transfers[i].bytes)));
      }
    }
    return OkStatus();
  }

 private:
  Status Call(const char* what, const Link::Function& function) { return link_.Do(what, what, function); }

  Link& link_;
  Rank& rank_;
  const sy_collective_v2& api_;
  const uint64_t place_, size_;
};

}  // namespace

void CheckData(Checklist& list, Link& link) {
  const sy_collective_v2& api = link.rank().api();
  DataChecks checks(link);
  for (sy_dtype dtype = 0; dtype < SY_DTYPE_COUNT; ++dtype) {
    for (int reduction = 0; reduction < SY_REDUCTION_COUNT; ++reduction) {
      if (api.reduces == nullptr || api.reduces(link.rank().instance(), reduction, dtype, nullptr) != SY_OK) continue;
      const std::string name = fmt::format("{}/{}", sy_dtype_name(dtype), kReductionNames[reduction]);
      list.Run("all_reduce/" + name, api.all_reduce, [&] { return checks.AllReduce(dtype, reduction); });
      list.Run("reduce_scatter/" + name, api.reduce_scatter, [&] { return checks.ReduceScatter(dtype, reduction); });
      if (!IsHalf(dtype) || (reduction != SY_SUM && reduction != SY_PRODUCT) || link.size() == 1) continue;
      list.Run("all_reduce/" + name + "_rounding", api.all_reduce,
               [&] { return checks.Rounding(dtype, reduction, false); });
      list.Run("reduce_scatter/" + name + "_rounding", api.reduce_scatter,
               [&] { return checks.Rounding(dtype, reduction, true); });
    }
    const std::string name = sy_dtype_name(dtype);
    list.Run("all_gather/" + name, api.all_gather, [&] { return checks.AllGather(dtype); });
    list.Run("broadcast/" + name, api.broadcast, [&] { return checks.Broadcast(dtype); });
    list.Run("all_to_all/" + name, api.all_to_all, [&] { return checks.AllToAll(dtype); });
  }
  const bool sums = link.rank().Sums();
  list.Run("all_reduce/large", sums, [&] { return link.AllReduce(kLargeCount, SY_F32, SY_SUM, true); });
  list.Run("barrier", api.barrier, [&] { return checks.Barrier(); });
  list.Run("send_recv_batch", true, [&] { return checks.SendAndReceive(); });
}

}  // namespace switchyard::conform
