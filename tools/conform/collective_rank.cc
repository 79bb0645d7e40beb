#include "tools/conform/collective_rank.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/runtime/composition.h"
#include "tools/conform/file_store.h"
#include "tools/conform/values.h"

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimeoutMs = 20000;
constexpr uint64_t kGuard = 64;
constexpr uint64_t kCounts[] = {0, 1, 3, 257, 65537};
constexpr uint64_t kLargeCount = 3 << 20;
const char* const kReductionNames[] = {"sum", "max", "min", "product"};

// Element i of what `rank` sends: small, so that sums and products of all ranks are exact in every dtype.
double Sent(int rank, uint64_t i, int reduction) {
  const uint64_t r = static_cast<uint64_t>(rank);
  return reduction == SY_PRODUCT ? 1 + static_cast<double>((i + r) % 2) : 1 + static_cast<double>((i * 7 + r * 5) % 4);
}

double Reduced(int size, uint64_t i, int reduction) {
  double result = Sent(0, i, reduction);
  for (int rank = 1; rank < size; ++rank) {
    const double next = Sent(rank, i, reduction);
    if (reduction == SY_SUM) result += next;
    if (reduction == SY_PRODUCT) result *= next;
    if (reduction == SY_MAX) result = std::max(result, next);
    if (reduction == SY_MIN) result = std::min(result, next);
  }
  return result;
}

template <typename F>
Bytes Make(uint64_t count, sy_dtype dtype, F element) {
  std::vector<double> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = element(i);
  return Encode(values, dtype);
}

// Memory between guard bytes.
class Area {
 public:
  explicit Area(const Bytes& payload) : image_(payload.size() + 2 * kGuard, 0xA5) {
    std::copy(payload.begin(), payload.end(), image_.begin() + kGuard);
  }
  explicit Area(uint64_t bytes) : Area(Bytes(bytes, 0xFF)) {}
  uint8_t* data() { return image_.data() + kGuard; }
  Status Expect(const Bytes& expected) const {
    for (uint64_t i = 0; i < image_.size(); ++i) {
      const bool inside = i >= kGuard && i < image_.size() - kGuard;
      if (!inside && image_[i] != 0xA5) return Internal("wrote outside of the receive buffer");
      if (inside && image_[i] != expected[i - kGuard]) {
        return Internal("byte {} of {} is {}, expected {}", i - kGuard, expected.size(), image_[i],
                        expected[i - kGuard]);
      }
    }
    return OkStatus();
  }

 private:
  Bytes image_;
};

class Rank {
 public:
  Rank(const Plugin& plugin, const nlohmann::json& task)
      : api_(*plugin.Interface<sy_collective_v1>("collective/1")),
        store_(task.value("folder", "")),
        rank_(task.value("rank", 0)),
        size_(task.value("size", 1)) {}
  ~Rank() {
    if (communicator_ != nullptr) api_.destroy(communicator_);
  }

  Status Join() {
    info_.header = SY_HEADER(sy_collective_info);
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(FromAbi(api_.query(&info_, &error), error, "query"));
    if (!(info_.memory_kinds & (1u << SY_MEMORY_HOST)) || info_.completion != SY_COMPLETES_BY_POLL) {
      return Unimplemented("it takes no host memory: only a backend of its kind can drive it");
    }
    const std::vector<int32_t> hosts(size_, 0);
    sy_init_request request{};
    request.header = SY_HEADER(sy_init_request);
    request.rank = rank_;
    request.size = size_;
    request.hosts = hosts.data();
    request.name = "conform";
    request.store = store_.interface();
    request.timeout_ms = kTimeoutMs;
    SY_RETURN_IF_ERROR(FromAbi(api_.init(&request, &communicator_, &error), error, "init"));
    return WaitFor([&](sy_error* e) { return api_.poll(communicator_, e); }, "init");
  }

  ChildResults CheckData() {
    for (sy_dtype dtype = 0; dtype < SY_DTYPE_COUNT; ++dtype) {
      for (int reduction = 0; reduction < SY_REDUCTION_COUNT; ++reduction) {
        const std::string name = fmt::format("{}/{}", DtypeName(dtype), kReductionNames[reduction]);
        if (!(info_.reductions[reduction] & (1u << dtype))) continue;
        Add("all_reduce/" + name, api_.all_reduce, [&] { return AllReduce(dtype, reduction); });
        Add("reduce_scatter/" + name, api_.reduce_scatter, [&] { return ReduceScatter(dtype, reduction); });
      }
      Add(fmt::format("all_gather/{}", DtypeName(dtype)), api_.all_gather, [&] { return AllGather(dtype); });
    }
    Add("all_reduce/large", api_.all_reduce,
        [&] { return OneAllReduce(communicator_, kLargeCount, SY_F32, SY_SUM, true); });
    Add("broadcast", api_.broadcast, [&] { return Broadcast(); });
    Add("all_to_all", api_.all_to_all, [&] { return AllToAll(); });
    Add("barrier", api_.barrier, [&] { return Barrier(); });
    Add("send_recv_batch", api_.send_recv_batch, [&] { return SendAndReceive(); });
    Add("owned_memory", api_.buffer_alloc, [&] { return OwnedMemory(); });
    Add("split", api_.split, [&] { return Split(); });
    return std::move(results_);
  }

  // Ranks that call different things: told apart, or at least ended by abort.
  Status CheckMismatch() {
    Bytes data(400);
    const Status status =
        Do(rank_ == 0 ? "one_node" : "another_node", "all_reduce",
           [&](const sy_call* call, sy_request** request, sy_error* error) {
             return api_.all_reduce(communicator_, call, data.data(), data.data(), 100, SY_F32, SY_SUM, request, error);
           });
    if (status.ok()) return Unimplemented("calls of different nodes were not told apart");
    return status.code() == absl::StatusCode::kInvalidArgument ? OkStatus() : status;
  }

  // The last rank dies between collectives; the others are told as the core tells them, by abort from another thread.
  Status CheckDeath() {
    std::atomic<bool> finished{false};
    std::atomic<int64_t> told{0};
    std::thread watch([&] {
      std::string who;
      while (!finished && !store_.Wait("dead", who, 1)) {
      }
      if (finished) return;
      told = Clock::now().time_since_epoch().count();
      api_.abort(communicator_);
    });
    Status status;
    for (int round = 0; status.ok(); ++round) {
      if (round == 3 && rank_ == size_ - 1) kill(getpid(), SIGKILL);
      status = OneAllReduce(communicator_, 1000, SY_F32, SY_SUM, true);
    }
    const int64_t ended = Clock::now().time_since_epoch().count();
    finished = true;
    watch.join();
    if (told != 0 && ended - told > std::chrono::nanoseconds(std::chrono::seconds(2)).count()) {
      return Internal("a waiting call returned only {} ms after abort", (ended - told) / 1000000);
    }
    const auto code = status.code();
    if (code != absl::StatusCode::kAborted && code != absl::StatusCode::kUnavailable) {
      return Internal("a call whose peer is dead ended with: {}", status.ToString());
    }
    return OkStatus();
  }

 private:
  template <typename Function, typename F>
  void Add(const std::string& name, Function function, F check) {
    if (!broken_.ok()) {
      results_.emplace_back(name, Aborted("not tried after an earlier failure"));
    } else if (function == nullptr) {
      results_.emplace_back(name, Unimplemented("not offered: the core composes it from send_recv_batch"));
    } else {
      const Status status = check();
      results_.emplace_back(name, status.code() == absl::StatusCode::kUnimplemented
                                      ? status
                                      : Annotate(status, fmt::format("rank {}", rank_)));
      // After an error the ranks no longer agree on which call comes next.
      if (!status.ok() && status.code() != absl::StatusCode::kUnimplemented) broken_ = status;
    }
  }

  template <typename Poll>
  Status WaitFor(Poll poll, const char* what) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
    for (int spins = 0;; ++spins) {
      sy_error error = EmptyError();
      const sy_status status = poll(&error);
      if (status != SY_IN_PROGRESS) return FromAbi(status, error, what);
      if (Clock::now() > deadline) {
        api_.abort(communicator_);
        return DeadlineExceeded("{} did not finish within {} ms", what, kTimeoutMs);
      }
      if (spins > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  template <typename F>
  Status Do(const char* tag, const char* what, F function) {
    sy_call call{};
    call.header = SY_HEADER(sy_call);
    call.tag = tag;
    call.sequence = sequence_++;
    sy_request* request = nullptr;
    sy_error error = EmptyError();
    const sy_status status = function(&call, &request, &error);
    if (status != SY_OK) return FromAbi(status, error, what);
    if (request == nullptr) return OkStatus();
    return WaitFor([&](sy_error* e) { return api_.request_poll(request, e); }, what);
  }

  Status OneAllReduce(sy_communicator* on, uint64_t count, sy_dtype dtype, int reduction, bool in_place) {
    const Bytes sent = Make(count, dtype, [&](uint64_t i) { return Sent(rank_, i, reduction); });
    Area send(sent), receive(in_place ? sent : Bytes(sent.size(), 0xFF));
    SY_RETURN_IF_ERROR(Do("all_reduce", "all_reduce", [&](auto* call, auto** request, auto* error) {
      return api_.all_reduce(on, call, in_place ? receive.data() : send.data(), receive.data(), count, dtype, reduction,
                             request, error);
    }));
    if (!in_place) SY_RETURN_IF_ERROR(Annotate(send.Expect(sent), "send buffer"));
    return Annotate(receive.Expect(Make(count, dtype, [&](uint64_t i) { return Reduced(size_, i, reduction); })),
                    fmt::format("{} elements{}", count, in_place ? " in place" : ""));
  }

  Status AllReduce(sy_dtype dtype, int reduction) {
    for (const uint64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        SY_RETURN_IF_ERROR(OneAllReduce(communicator_, count, dtype, reduction, in_place));
      }
    }
    return OkStatus();
  }

  Status ReduceScatter(sy_dtype dtype, int reduction) {
    for (const uint64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        const Bytes sent = Make(count * size_, dtype, [&](uint64_t i) { return Sent(rank_, i, reduction); });
        const Bytes expected = Make(count, dtype, [&](uint64_t i) {
          return Reduced(size_, i + count * static_cast<uint64_t>(rank_), reduction);
        });
        Area send(sent), receive(expected.size());
        uint8_t* const own = send.data() + expected.size() * static_cast<uint64_t>(rank_);
        SY_RETURN_IF_ERROR(Do("reduce_scatter", "reduce_scatter", [&](auto* call, auto** request, auto* error) {
          return api_.reduce_scatter(communicator_, call, send.data(), in_place ? own : receive.data(), count, dtype,
                                     reduction, request, error);
        }));
        const Status status =
            in_place ? (Bytes(own, own + expected.size()) == expected ? OkStatus() : Internal("wrong numbers"))
                     : receive.Expect(expected);
        SY_RETURN_IF_ERROR(Annotate(status, fmt::format("{} elements{}", count, in_place ? " in place" : "")));
      }
    }
    return OkStatus();
  }

  Status AllGather(sy_dtype dtype) {
    for (const uint64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        const Bytes sent = Make(count, dtype, [&](uint64_t i) { return Sent(rank_, i, SY_SUM); });
        const Bytes expected = Make(count * size_, dtype,
                                    [&](uint64_t i) { return Sent(static_cast<int>(i / count), i % count, SY_SUM); });
        Area send(sent), receive(expected.size());
        uint8_t* const own = receive.data() + sent.size() * static_cast<uint64_t>(rank_);
        if (in_place) std::copy(sent.begin(), sent.end(), own);
        SY_RETURN_IF_ERROR(Do("all_gather", "all_gather", [&](auto* call, auto** request, auto* error) {
          return api_.all_gather(communicator_, call, in_place ? own : send.data(), receive.data(), count, dtype,
                                 request, error);
        }));
        SY_RETURN_IF_ERROR(
            Annotate(receive.Expect(expected), fmt::format("{} elements{}", count, in_place ? " in place" : "")));
      }
    }
    return OkStatus();
  }

  Status Broadcast() {
    for (int root = 0; root < size_; ++root) {
      for (const uint64_t count : kCounts) {
        const Bytes expected = Make(count, SY_F32, [&](uint64_t i) { return Sent(root, i, SY_SUM); });
        Area area(rank_ == root ? expected : Bytes(expected.size(), 0xFF));
        SY_RETURN_IF_ERROR(Do("broadcast", "broadcast", [&](auto* call, auto** request, auto* error) {
          return api_.broadcast(communicator_, call, area.data(), count, SY_F32, root, request, error);
        }));
        SY_RETURN_IF_ERROR(Annotate(area.Expect(expected), fmt::format("{} elements from rank {}", count, root)));
      }
    }
    return OkStatus();
  }

  Status AllToAll() {
    for (const uint64_t count : kCounts) {
      const auto element = [&](int from, int to, uint64_t i) { return Sent(from + 3 * to, i, SY_SUM); };
      Area send(Make(count * size_, SY_F32,
                     [&](uint64_t i) { return element(rank_, static_cast<int>(i / count), i % count); }));
      const Bytes expected = Make(count * size_, SY_F32,
                                  [&](uint64_t i) { return element(static_cast<int>(i / count), rank_, i % count); });
      Area receive(expected.size());
      SY_RETURN_IF_ERROR(Do("all_to_all", "all_to_all", [&](auto* call, auto** request, auto* error) {
        return api_.all_to_all(communicator_, call, send.data(), receive.data(), count, SY_F32, request, error);
      }));
      SY_RETURN_IF_ERROR(Annotate(receive.Expect(expected), fmt::format("{} elements", count)));
    }
    return OkStatus();
  }

  // Nobody leaves before the last has come.
  Status Barrier() {
    for (int round = 0; round < 3; ++round) {
      const std::string key = fmt::format("barrier-{}", round);
      if (rank_ == round % size_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        store_.Put(key, "here");
      }
      SY_RETURN_IF_ERROR(Do("barrier", "barrier", [&](auto* call, auto** request, auto* error) {
        return api_.barrier(communicator_, call, request, error);
      }));
      std::string value;
      if (!store_.Wait(key, value, 0)) return Internal("a rank left the barrier before rank {} came", round % size_);
    }
    return OkStatus();
  }

  // Messages of uneven sizes around the ring in both directions, two to the right neighbour, in one batch.
  Status SendAndReceive() {
    if (size_ == 1) return OkStatus();
    const int right = (rank_ + 1) % size_, left = (rank_ + size_ - 1) % size_;
    const auto message = [](int from, uint64_t bytes, int which) {
      return Make(bytes, SY_U8, [&](uint64_t i) { return static_cast<double>((i * 3 + from * 11 + which) % 251); });
    };
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{333}, uint64_t{100003}, uint64_t{2} << 20}) {
      Bytes first = message(rank_, bytes, 0), second = message(rank_, bytes / 2 + 1, 1),
            back = message(rank_, bytes + 5, 2);
      Area from_left(bytes), second_from_left(bytes / 2 + 1), from_right(bytes + 5);
      const sy_transfer transfers[] = {
          {right, 1, first.data(), first.size()},   {left, 0, from_left.data(), bytes},
          {right, 1, second.data(), second.size()}, {left, 0, second_from_left.data(), bytes / 2 + 1},
          {left, 1, back.data(), back.size()},      {right, 0, from_right.data(), bytes + 5}};
      // With two ranks both neighbours are one: the order of the batch then pairs right with left.
      const uint32_t count = size_ == 2 ? 4 : 6;
      SY_RETURN_IF_ERROR(Do("send_recv_batch", "send_recv_batch", [&](auto* call, auto** request, auto* error) {
        return api_.send_recv_batch(communicator_, call, transfers, count, request, error);
      }));
      SY_RETURN_IF_ERROR(from_left.Expect(message(left, bytes, 0)));
      SY_RETURN_IF_ERROR(second_from_left.Expect(message(left, bytes / 2 + 1, 1)));
      if (count == 6) SY_RETURN_IF_ERROR(from_right.Expect(message(right, bytes + 5, 2)));
    }
    return OkStatus();
  }

  Status OwnedMemory() {
    constexpr uint64_t kCount = 100003;
    void* address = nullptr;
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(FromAbi(api_.buffer_alloc(communicator_, kCount * 4, &address, &error), error, "buffer_alloc"));
    if (info_.alignment > 0 && reinterpret_cast<uintptr_t>(address) % info_.alignment != 0) {
      return Internal("owned memory is not aligned to {} bytes", info_.alignment);
    }
    auto* const bytes = static_cast<uint8_t*>(address);
    for (int round = 0; round < 3; ++round) {
      const Bytes sent = Make(kCount, SY_F32, [&](uint64_t i) { return Sent(rank_, i + round, SY_SUM); });
      std::copy(sent.begin(), sent.end(), bytes);
      SY_RETURN_IF_ERROR(Do("owned", "all_reduce", [&](auto* call, auto** request, auto* e) {
        return api_.all_reduce(communicator_, call, address, address, kCount, SY_F32, SY_SUM, request, e);
      }));
      const Bytes expected = Make(kCount, SY_F32, [&](uint64_t i) { return Reduced(size_, i + round, SY_SUM); });
      if (!std::equal(expected.begin(), expected.end(), bytes))
        return Internal("all_reduce in owned memory: wrong numbers");
    }
    api_.buffer_free(communicator_, address);
    return OkStatus();
  }

  // Even and odd ranks, in reverse order.
  Status Split() {
    sy_communicator* half = nullptr;
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(FromAbi(api_.split(communicator_, rank_ % 2, -rank_, "half", &half, &error), error, "split"));
    if (half == nullptr) return Internal("split gave no communicator");
    SY_RETURN_IF_ERROR(WaitFor([&](sy_error* e) { return api_.poll(half, e); }, "split"));
    const Bytes sent = Make(5, SY_F32, [&](uint64_t) { return rank_; });
    Area area(sent);
    const Status status = Do("half", "all_reduce on a split communicator", [&](auto* call, auto** request, auto* e) {
      return api_.all_reduce(half, call, area.data(), area.data(), 5, SY_F32, SY_SUM, request, e);
    });
    double sum = 0;
    for (int rank = rank_ % 2; rank < size_; rank += 2) sum += rank;
    Status result = status.ok() ? area.Expect(Make(5, SY_F32, [&](uint64_t) { return sum; })) : status;
    api_.destroy(half);
    return result;
  }

  const sy_collective_v1& api_;
  FileStore store_;
  const int rank_, size_;
  sy_collective_info info_{};
  sy_communicator* communicator_ = nullptr;
  uint64_t sequence_ = 0;
  Status broken_;
  ChildResults results_;
};

}  // namespace

ChildResults RunRank(const Plugin& plugin, const nlohmann::json& task) {
  if (plugin.Interface<sy_collective_v1>("collective/1") == nullptr) {
    return {{"", FailedPrecondition("{} has no collective/1", plugin.name())}};
  }
  Rank rank(plugin, task);
  if (const Status joined = rank.Join(); !joined.ok()) return {{"", joined}};
  const std::string mode = task.value("mode", "");
  if (mode == "mismatch") return {{"mismatch", rank.CheckMismatch()}};
  if (mode == "death") return {{"death", rank.CheckDeath()}};
  return rank.CheckData();
}

}  // namespace switchyard::conform
