// Every collective of the nccl plugin with data, on 1 to 4 ranks, in device memory and on a stream that runs behind.
#include <deque>

#include "gtest/gtest.h"
#include "tests/nccl/ranks.h"

namespace switchyard::nccl_testing {
namespace {

using conform::BytesOf;
using conform::Encode;

constexpr uint64_t kCounts[] = {0, 1, 257};

// Small, so that sums and products of all ranks are exact in every dtype.
double Sent(int rank, uint64_t i, int reduction) {
  const uint64_t r = static_cast<uint64_t>(rank);
  return reduction == SY_PRODUCT ? 1 + static_cast<double>((i + r) % 2) : 1 + static_cast<double>((i * 7 + r * 5) % 11);
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

void Expect(const Bytes& found, const Bytes& expected, const std::string& what) {
  for (uint64_t i = 0; i < expected.size(); ++i) {
    Require(found[i] == expected[i], "{}: byte {} of {} is {}, expected {}", what, i, expected.size(), found[i],
            expected[i]);
  }
}

class Collectives : public testing::TestWithParam<int> {
 protected:
  void OnAllRanks(const std::function<void(Rank&)>& body, Ranks ranks = {}) {
    ranks.size = GetParam();
    EXPECT_EQ(RunRanks(ranks, body), "");
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3, 4),
                         [](const auto& given) { return std::to_string(given.param); });

TEST_P(Collectives, ReduceEveryTypeByEveryReduction) {
  OnAllRanks([](Rank& self) {
    self.Join();
    for (sy_dtype dtype = 0; dtype < SY_DTYPE_COUNT; ++dtype) {
      for (int reduction = 0; reduction < SY_REDUCTION_COUNT; ++reduction) {
        Require(self.api->reduces(self.instance, reduction, dtype, nullptr) == SY_OK,
                "dtype {} with reduction {} is not offered", dtype, reduction);
        for (const uint64_t count : kCounts) {
          for (const bool in_place : {false, true}) {
            const std::string what =
                fmt::format("dtype {} reduction {} count {} {}", dtype, reduction, count, in_place);
            const Bytes sent = Make(count, dtype, [&](uint64_t i) { return Sent(self.rank, i, reduction); });
            const DeviceBytes send(sent), receive(sent.size());
            char* const to = in_place ? send.data() : receive.data();
            self.AllReduce(self.communicator, send.data(), to, count, dtype, reduction);
            RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
            const Bytes sum = Make(count, dtype, [&](uint64_t i) { return Reduced(self.size, i, reduction); });
            Expect(in_place ? send.Content() : receive.Content(), sum, what);
            if (!in_place) Expect(send.Content(), sent, what + " send buffer");
          }
        }
      }
    }
  });
}

TEST_P(Collectives, UnknownDtypesAndReductionsAreUnsupported) {
  OnAllRanks([](Rank& self) {
    self.Join();
    const DeviceBytes data(16);
    for (const auto& [dtype, reduction] :
         {std::pair(SY_DTYPE_COUNT + 0, 0), std::pair(0, SY_REDUCTION_COUNT + 0), std::pair(-1, 0), std::pair(0, -1)}) {
      Require(self.api->reduces(self.instance, reduction, dtype, nullptr) == SY_UNSUPPORTED, "reduces ({}, {})",
              reduction, dtype);
      sy_request* request = nullptr;
      const sy_call call = self.Call();
      const sy_status status = self.api->all_reduce(self.communicator, &call, data.data(), data.data(), 1, dtype,
                                                    reduction, &request, nullptr);
      Require(status == SY_UNSUPPORTED, "dtype {} with reduction {} answered {}", dtype, reduction, status);
    }
    self.AllReduce(self.communicator, data.data(), data.data(), 4);  // it works on
    RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
  });
}

TEST_P(Collectives, ScatterReductions) {
  OnAllRanks([](Rank& self) {
    self.Join();
    for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16, SY_F64, SY_I32, SY_I64, SY_U8}) {
      for (const uint64_t count : kCounts) {
        for (const bool in_place : {false, true}) {
          const uint64_t block = count * BytesOf(dtype), own = block * static_cast<uint64_t>(self.rank);
          const DeviceBytes send(Make(count * static_cast<uint64_t>(self.size), dtype,
                                      [&](uint64_t i) { return Sent(self.rank, i, SY_SUM); })),
              receive(block);
          char* const to = in_place ? send.data() + own : receive.data();
          self.Do("reduce_scatter", [&](auto* call, auto** request, auto* error) {
            return self.api->reduce_scatter(self.communicator, call, send.data(), to, count, dtype, SY_SUM, request,
                                            error);
          });
          const Bytes expected = Make(count, dtype, [&](uint64_t i) {
            return Reduced(self.size, i + count * static_cast<uint64_t>(self.rank), SY_SUM);
          });
          Bytes found = in_place ? send.Content() : receive.Content();
          if (in_place) found = Bytes(found.begin() + own, found.begin() + own + block);
          Expect(found, expected, fmt::format("dtype {} count {} in place {}", dtype, count, in_place));
        }
      }
    }
  });
}

TEST_P(Collectives, GatherAndExchangeBlocks) {
  OnAllRanks([](Rank& self) {
    self.Join();
    const uint64_t size = self.size, rank = self.rank;
    for (const uint64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        const uint64_t block = count * 4;
        const DeviceBytes send(Make(count, SY_F32, [&](uint64_t i) { return Sent(self.rank, i, SY_SUM); }));
        const DeviceBytes gathered(block * size);
        char* const own = gathered.data() + block * rank;
        if (in_place && block > 0)
          RequireOk(cudaMemcpy(own, send.data(), block, cudaMemcpyDeviceToDevice), "cudaMemcpy");
        self.Do("all_gather", [&](auto* call, auto** request, auto* error) {
          return self.api->all_gather(self.communicator, call, in_place ? own : send.data(), gathered.data(), count,
                                      SY_F32, request, error);
        });
        Expect(gathered.Content(),
               Make(count * size, SY_F32,
                    [&](uint64_t i) { return Sent(static_cast<int>(i / count), i % count, SY_SUM); }),
               fmt::format("all_gather of {}", count));

        const auto element = [&](uint64_t from, uint64_t to, uint64_t i) { return double(from * 3 + to * 5 + i % 7); };
        const DeviceBytes blocks(
            Make(count * size, SY_F32, [&](uint64_t i) { return element(rank, i / count, i % count); }));
        const DeviceBytes exchanged(block * size);
        char* const to = in_place ? blocks.data() : exchanged.data();
        self.Do("all_to_all", [&](auto* call, auto** request, auto* error) {
          return self.api->all_to_all(self.communicator, call, blocks.data(), to, count, SY_F32, request, error);
        });
        Expect(in_place ? blocks.Content() : exchanged.Content(),
               Make(count * size, SY_F32, [&](uint64_t i) { return element(i / count, rank, i % count); }),
               fmt::format("all_to_all of {} in place {}", count, in_place));
      }
    }
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  OnAllRanks([](Rank& self) {
    self.Join();
    for (int root = 0; root < self.size; ++root) {
      const Bytes expected = Make(100, SY_I64, [&](uint64_t i) { return Sent(root, i, SY_SUM); });
      const DeviceBytes data(self.rank == root ? expected : Bytes(expected.size(), 0));
      self.Do("broadcast", [&](auto* call, auto** request, auto* error) {
        return self.api->broadcast(self.communicator, call, data.data(), 100, SY_I64, root, request, error);
      });
      Expect(data.Content(), expected, fmt::format("root {}", root));
    }
  });
}

TEST_P(Collectives, BarrierHoldsEverybody) {
  OnAllRanks([](Rank& self) {
    self.Join();
    for (int late = 0; late < self.size; ++late) {
      if (self.rank == late) ranks::Put(fmt::format("late{}", late), "here");
      self.Do("barrier", [&](auto* call, auto** request, auto* error) {
        return self.api->barrier(self.communicator, call, request, error);
      });
      Require(ranks::Wait(fmt::format("late{}", late), 0), "left the barrier before rank {} came", late);
    }
  });
}

// Around the ring in both directions, of uneven sizes, one empty, and one to oneself.
TEST_P(Collectives, MessagesOfABatchProceedTogether) {
  OnAllRanks([](Rank& self) {
    self.Join();
    const int right = (self.rank + 1) % self.size, left = (self.rank + self.size - 1) % self.size;
    const auto message = [](int from, uint64_t bytes, int which) {
      return Make(bytes, SY_U8, [&](uint64_t i) { return static_cast<double>((i * 3 + from * 11 + which) % 251); });
    };
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{333}, uint64_t{1} << 20}) {
      const DeviceBytes first(message(self.rank, bytes, 0)), second(message(self.rank, bytes / 2 + 1, 1)),
          own(message(self.rank, 77, 3)), from_left(bytes), second_from_left(bytes / 2 + 1), from_self(77);
      const sy_transfer transfers[] = {{right, 1, first.data(), bytes},
                                       {left, 0, from_left.data(), bytes},
                                       {right, 1, first.data(), 0},
                                       {left, 0, from_left.data(), 0},
                                       {right, 1, second.data(), bytes / 2 + 1},
                                       {left, 0, second_from_left.data(), bytes / 2 + 1},
                                       {self.rank, 1, own.data(), 77},
                                       {self.rank, 0, from_self.data(), 77}};
      self.Do("send_recv_batch", [&](auto* call, auto** request, auto* error) {
        return self.api->send_recv_batch(self.communicator, call, transfers, 8, request, error);
      });
      Expect(from_left.Content(), message(left, bytes, 0), "first message");
      Expect(second_from_left.Content(), message(left, bytes / 2 + 1, 1), "second message");
      Expect(from_self.Content(), message(self.rank, 77, 3), "message to oneself");
    }
  });
}

TEST_P(Collectives, SplitIntoHalvesAndGroupCallsOnBoth) {
  OnAllRanks([](Rank& self) {
    self.Join();
    sy_error error{SY_HEADER(sy_error)};
    sy_communicator *half = nullptr, *none = nullptr;
    self.Ok(self.api->split(self.communicator, self.rank % 2, -self.rank, "half", &half, &error), "split", error);
    Require(half != nullptr, "split gave nothing");
    self.Ok(self.api->poll(half, &error), "poll of the half", error);
    self.Ok(self.api->split(self.communicator, self.rank == 0 ? 0 : -1, 0, "alone", &none, &error), "split", error);
    Require((none != nullptr) == (self.rank == 0), "a rank without color got a communicator, or rank 0 none");

    const DeviceBytes all(Make(5, SY_F32, [&](uint64_t) { return 1 + self.rank; })),
        part(Make(5, SY_F32, [&](uint64_t) { return 1 + self.rank; }));
    self.Ok(self.api->group_begin(self.instance, &error), "group_begin", error);
    self.AllReduce(self.communicator, all.data(), all.data(), 5);
    self.AllReduce(half, part.data(), part.data(), 5);
    self.Ok(self.api->group_end(self.instance, &error), "group_end", error);
    RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
    double sum = 0, half_sum = 0;
    for (int rank = 0; rank < self.size; ++rank) {
      sum += 1 + rank;
      if (rank % 2 == self.rank % 2) half_sum += 1 + rank;
    }
    Expect(all.Content(), Make(5, SY_F32, [&](uint64_t) { return sum; }), "world");
    Expect(part.Content(), Make(5, SY_F32, [&](uint64_t) { return half_sum; }), "half");

    // The order of the keys: the last of the half is its rank 0.
    const int first = self.size - 1 - (self.size - 1 - self.rank) % 2;
    const DeviceBytes told(Make(1, SY_I32, [&](uint64_t) { return self.rank; }));
    self.Do("broadcast", [&](auto* call, auto** request, auto* e) {
      return self.api->broadcast(half, call, told.data(), 1, SY_I32, 0, request, e);
    });
    Expect(told.Content(), Make(1, SY_I32, [&](uint64_t) { return first; }), "rank 0 of the half");
    self.api->destroy(half);
    if (none != nullptr) self.api->destroy(none);
  });
}

// What is sent must outlast what arrives in its place: each call of a group has a copy of its own, also in the next
// group.
TEST_P(Collectives, ExchangesInPlaceWithinAGroup) {
  OnAllRanks([](Rank& self) {
    self.Join();
    sy_error error{SY_HEADER(sy_error)};
    const auto size = static_cast<uint64_t>(self.size);
    const auto element = [](uint64_t from, uint64_t to, int call) { return double(from * 3 + to * 5 + 100 * call); };
    for (int group = 0; group < 2; ++group) {
      std::deque<DeviceBytes> blocks;
      for (int call = 0; call < 3; ++call) {
        blocks.emplace_back(
            Make(100 * size, SY_F32, [&](uint64_t i) { return element(self.rank, i / 100, call + group); }));
      }
      self.Ok(self.api->group_begin(self.instance, &error), "group_begin", error);
      for (const DeviceBytes& block : blocks) {
        self.Enqueue("all_to_all", [&](auto* call, auto** request, auto* e) {
          return self.api->all_to_all(self.communicator, call, block.data(), block.data(), 100, SY_F32, request, e);
        });
      }
      self.Ok(self.api->group_end(self.instance, &error), "group_end", error);
      RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
      for (int call = 0; call < 3; ++call) {
        Expect(blocks[static_cast<size_t>(call)].Content(),
               Make(100 * size, SY_F32, [&](uint64_t i) { return element(i / 100, self.rank, call + group); }),
               fmt::format("group {}, call {}", group, call));
      }
    }
  });
}

// Nor is it overwritten by a call on another stream, in a group or not: that waits until it was sent. Each operation of
// a stream comes 20 ms late.
TEST_P(Collectives, ExchangesInPlaceOnSeveralStreams) {
  OnAllRanks(
      [](Rank& self) {
        self.Join();
        sy_error error{SY_HEADER(sy_error)};
        const auto size = static_cast<uint64_t>(self.size);
        const auto element = [](uint64_t from, uint64_t to, int call) {
          return double(from * 3 + to * 5 + 100 * call);
        };
        cudaStream_t streams[2] = {self.stream};
        RequireOk(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking), "create");
        for (const bool grouped : {false, true}) {
          std::deque<DeviceBytes> blocks;
          for (int call = 0; call < 4; ++call)
            blocks.emplace_back(
                Make(100 * size, SY_F32, [&](uint64_t i) { return element(self.rank, i / 100, call); }));
          for (size_t call = 0; call < 4; ++call) {
            self.stream = streams[call % 2];
            if (grouped) self.Ok(self.api->group_begin(self.instance, &error), "group_begin", error);
            char* const data = blocks[call].data();
            self.Enqueue("all_to_all", [&](auto* given, auto** request, auto* e) {
              return self.api->all_to_all(self.communicator, given, data, data, 100, SY_F32, request, e);
            });
            if (grouped) self.Ok(self.api->group_end(self.instance, &error), "group_end", error);
          }
          for (int call = 0; call < 4; ++call) {
            Expect(blocks[static_cast<size_t>(call)].Content(),
                   Make(100 * size, SY_F32, [&](uint64_t i) { return element(i / 100, self.rank, call); }),
                   fmt::format("grouped {}, call {}", grouped, call));
          }
        }
      },
      {.environment = {{"CUDA_DOUBLE_DELAY_US", "20000"}}});
}

// A graph sends from memory of its own, however the call before was made, and whatever is exchanged between its
// replays.
TEST_P(Collectives, ExchangesInPlaceWithinAGraph) {
  OnAllRanks([](Rank& self) {
    self.Join();
    const auto size = static_cast<uint64_t>(self.size);
    const auto element = [](uint64_t from, uint64_t to) { return double(from * 3 + to * 5); };
    const Bytes sent = Make(100 * size, SY_F32, [&](uint64_t i) { return element(self.rank, i / 100); });
    const Bytes received = Make(100 * size, SY_F32, [&](uint64_t i) { return element(i / 100, self.rank); });
    const DeviceBytes captured(sent), eager(sent);
    const auto exchange = [&](const DeviceBytes& data) {
      self.Enqueue("all_to_all", [&](auto* call, auto** request, auto* e) {
        return self.api->all_to_all(self.communicator, call, data.data(), data.data(), 100, SY_F32, request, e);
      });
    };
    cudaStream_t other = self.stream;
    exchange(eager);
    RequireOk(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking), "create");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    RequireOk(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeRelaxed), "begin");
    exchange(captured);
    exchange(captured);
    exchange(captured);
    RequireOk(cudaStreamEndCapture(self.stream, &graph), "end");
    RequireOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    RequireOk(cudaGraphDestroy(graph), "destroy");
    for (int replay = 0; replay < 2; ++replay) {
      RequireOk(cudaGraphLaunch(executable, self.stream), "launch");
      Expect(captured.Content(), replay == 0 ? received : sent, "replayed");
      std::swap(self.stream, other);
      exchange(eager);
      Expect(eager.Content(), replay == 0 ? sent : received, "exchanged in between");
      std::swap(self.stream, other);
    }
    RequireOk(cudaGraphExecDestroy(executable), "destroy");
  });
}

TEST_P(Collectives, OwnedMemory) {
  OnAllRanks([](Rank& self) {
    self.Join();
    sy_error error{SY_HEADER(sy_error)};
    void* owned = nullptr;
    self.Ok(self.api->buffer_alloc(self.communicator, 4000, &owned, &error), "buffer_alloc", error);
    const Bytes sent = Make(1000, SY_F32, [&](uint64_t i) { return Sent(self.rank, i, SY_SUM); });
    RequireOk(cudaMemcpy(owned, sent.data(), 4000, cudaMemcpyHostToDevice), "cudaMemcpy");
    self.AllReduce(self.communicator, owned, owned, 1000);
    RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
    Bytes found(4000);
    RequireOk(cudaMemcpy(found.data(), owned, 4000, cudaMemcpyDeviceToHost), "cudaMemcpy");
    Expect(found, Make(1000, SY_F32, [&](uint64_t i) { return Reduced(self.size, i, SY_SUM); }), "sum");
    self.api->buffer_free(self.communicator, owned);
    void* left = nullptr;  // destroy gives it back
    self.Ok(self.api->buffer_alloc(self.communicator, 100, &left, &error), "buffer_alloc", error);
  });
}

// NCCL maps each on a thread of its own, and refuses what comes before that has ended.
TEST_P(Collectives, OwnedMemoryIsTakenAndGivenBackInARow) {
  for (const char* const version : {"22705", "22809", "23007"}) {
    OnAllRanks(
        [](Rank& self) {
          self.Join();
          sy_error error{SY_HEADER(sy_error)};
          void* owned[4] = {};
          for (void*& one : owned)
            self.Ok(self.api->buffer_alloc(self.communicator, 4000, &one, &error), "buffer_alloc", error);
          Require(CountInDouble("windows") == 4, "{} windows", CountInDouble("windows"));
          for (void* const one : owned) {
            RequireOk(cudaMemset(one, 0, 4000), "cudaMemset");
            self.AllReduce(self.communicator, one, one, 1000);
          }
          RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
          for (void* const one : owned) self.api->buffer_free(self.communicator, one);
          Require(CountInDouble("windows") == 0, "{} windows are left", CountInDouble("windows"));
        },
        {.environment = {{"NCCL_DOUBLE_VERSION", version}}});
  }
}

TEST_P(Collectives, CapturedCallsReplay) {
  OnAllRanks([](Rank& self) {
    self.Join();
    const DeviceBytes data(Make(3, SY_F32, [](uint64_t) { return 1; }));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    RequireOk(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal), "begin");
    self.AllReduce(self.communicator, data.data(), data.data(), 3);
    self.AllReduce(self.communicator, data.data(), data.data(), 3);
    RequireOk(cudaStreamEndCapture(self.stream, &graph), "end");
    RequireOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    Expect(data.Content(), Make(3, SY_F32, [](uint64_t) { return 1; }), "nothing runs while it is captured");
    for (int replay = 0; replay < 2; ++replay) RequireOk(cudaGraphLaunch(executable, self.stream), "launch");
    RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
    const double expected = self.size * self.size * self.size * self.size;
    Expect(data.Content(), Make(3, SY_F32, [&](uint64_t) { return expected; }), "four sums");
    RequireOk(cudaGraphExecDestroy(executable), "destroy");
    RequireOk(cudaGraphDestroy(graph), "destroy");
  });
}

}  // namespace
}  // namespace switchyard::nccl_testing
