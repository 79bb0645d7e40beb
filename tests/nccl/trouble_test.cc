// What the nccl plugin does when NCCL, a peer or the machine fails: every wait ends, and the text says what happened.
#include <chrono>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/nccl/ranks.h"

namespace switchyard::nccl_testing {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool Contains(const char* text, const char* part) { return std::string(text).find(part) != std::string::npos; }

// Polls until something has failed; SY_OK after `limit_ms`.
sy_status FirstFailure(Rank& self, int limit_ms, sy_error* error) {
  for (const auto start = Clock::now(); MillisecondsSince(start) < limit_ms;) {
    const sy_status status = self.api->poll(self.communicator, error);
    if (status != SY_OK && status != SY_IN_PROGRESS) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return SY_OK;
}

void ExpectAborted(Rank& self, char* memory) {
  sy_error error{SY_HEADER(sy_error)};
  sy_request* request = nullptr;
  const sy_call call = self.Call();
  const sy_status status =
      self.api->all_reduce(self.communicator, &call, memory, memory, 10, SY_F32, SY_SUM, &request, &error);
  Require(status == SY_ABORTED, "a call after abort answered {}: {}", status, error.message);
}

// An all_reduce in a graph, which lives until this does.
class CapturedAllReduce {
 public:
  CapturedAllReduce(Rank& self, void* memory, uint64_t count) {
    cudaGraph_t graph = nullptr;
    RequireOk(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeRelaxed), "begin");
    self.AllReduce(self.communicator, memory, memory, count);
    RequireOk(cudaStreamEndCapture(self.stream, &graph), "end");
    RequireOk(cudaGraphInstantiate(&executable_, graph, 0), "instantiate");
    RequireOk(cudaGraphDestroy(graph), "destroy");
  }
  CapturedAllReduce(const CapturedAllReduce&) = delete;
  ~CapturedAllReduce() { cudaGraphExecDestroy(executable_); }
  void Replay(Rank& self) const { RequireOk(cudaGraphLaunch(executable_, self.stream), "launch"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

void Destroy(Rank& self, double limit_ms) {
  const auto start = Clock::now();
  self.api->destroy(std::exchange(self.communicator, nullptr));
  Require(MillisecondsSince(start) < limit_ms, "destroy took {} ms", MillisecondsSince(start));
}

// 400 bytes of it, without an error behind the answer.
void* OwnedMemory(Rank& self) {
  sy_error error{SY_HEADER(sy_error)};
  void* owned = nullptr;
  self.Ok(self.api->buffer_alloc(self.communicator, 400, &owned, &error), "buffer_alloc", error);
  Require(error.message[0] == '\0', "an error of a call that succeeded: {}", error.message);
  return owned;
}

// Memory that NCCL knows by ncclCommRegister alone: works, and is given back.
void UseAsBuffer(Rank& self, void* owned) {
  Require(CountInDouble("windows") == 0 && CountInDouble("registrations") == 1, "{} windows, {} registrations",
          CountInDouble("windows"), CountInDouble("registrations"));
  RequireOk(cudaMemset(owned, 0, 400), "cudaMemset");
  self.AllReduce(self.communicator, owned, owned, 100);
  RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
  self.api->buffer_free(self.communicator, owned);
  Require(CountInDouble("registrations") == 0, "the registration is left");
}

void ExpectNoneLeft(Rank& self) {
  Destroy(self, 2000);
  Require(CountInDouble("communicators") == 0, "{} communicators are left", CountInDouble("communicators"));
}

// A split that does not end well, as `expected` says; it leaves no communicator, whole or half made.
void ExpectFailedSplit(Rank& self, sy_status expected, const char* text) {
  sy_error error{SY_HEADER(sy_error)};
  sy_communicator* part = nullptr;
  const auto start = Clock::now();
  const sy_status status = self.api->split(self.communicator, 0, self.rank, "part", &part, &error);
  Require(status == expected && part == nullptr && Contains(error.message, text), "answered {}: {}", status,
          error.message);
  Require(MillisecondsSince(start) < 5000, "took {} ms", MillisecondsSince(start));
  ExpectNoneLeft(self);
}

TEST(NcclTrouble, MissingLibraryIsNamedByQuery) {
  EXPECT_EQ(RunRanks({.size = 1, .environment = {{"SWITCHYARD_NCCL_LIBRARY", "/nowhere/libnccl.so.2"}}},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       const sy_status status = self.TryJoin(&error);
                       Require(status == SY_UNSUPPORTED && Contains(error.message, "no NCCL: /nowhere/libnccl.so.2"),
                               "answered {}: {}", status, error.message);
                     }),
            "");
}

TEST(NcclTrouble, TheVersionIsTheOneThatTheLibraryAnswers) {
  EXPECT_EQ(RunRanks({.size = 1, .environment = {{"NCCL_DOUBLE_VERSION", "77605"}}},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       Require(self.api->query(self.instance, &self.info, &error) == SY_OK, "query: {}", error.message);
                       Require(self.info.libraries == std::string("NCCL 7.76.5"), "it says {}", self.info.libraries);
                     }),
            "");
  EXPECT_EQ(RunRanks({.size = 1, .environment = {{"NCCL_DOUBLE_VERSION", "21805"}}},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       const sy_status status = self.TryJoin(&error);
                       Require(status == SY_UNSUPPORTED && Contains(error.message, "NCCL 2.18.5 is too old"),
                               "answered {}: {}", status, error.message);
                     }),
            "");
}

TEST(NcclTrouble, RankThatNeverStartsIsNamedAtTheDeadline) {
  EXPECT_EQ(RunRanks({.size = 3, .absent = {1}, .timeout_ms = 700},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       const auto start = Clock::now();
                       const sy_status status = self.TryJoin(&error);
                       Require(status == SY_TIMEOUT, "answered {}: {}", status, error.message);
                       Require(Contains(error.message, "700 ms for the 3 ranks of \"world\"") &&
                                   Contains(error.message, "absent: rank 1;"),
                               "said: {}", error.message);
                       Require(MillisecondsSince(start) < 5000, "took {} ms", MillisecondsSince(start));
                     }),
            "");
}

// It is there, but NCCL in it never comes.
TEST(NcclTrouble, RankThatHangsInInitEndsAtTheDeadline) {
  EXPECT_EQ(RunRanks({.size = 2, .environment_of = {{1, {{"NCCL_DOUBLE_FAULT", "join@1"}}}}, .timeout_ms = 500},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       const sy_status status = self.TryJoin(&error);
                       Require(status == SY_TIMEOUT && Contains(error.message, "waited 500 ms"), "answered {}: {}",
                               status, error.message);
                     }),
            "");
}

TEST(NcclTrouble, AbortEndsInit) {
  EXPECT_EQ(RunRanks({.size = 2, .absent = {0}},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       std::thread aborter([&] {
                         std::this_thread::sleep_for(std::chrono::milliseconds(100));
                         self.api->abort(self.communicator);
                       });
                       const sy_status status = self.TryJoin(&error);
                       aborter.join();
                       Require(status == SY_ABORTED, "answered {}: {}", status, error.message);
                     }),
            "");
}

// The first to join is the world, the second the part of it.
TEST(NcclTrouble, SplitThatARankHangsInEndsAtTheDeadline) {
  EXPECT_EQ(RunRanks({.size = 2, .environment_of = {{1, {{"NCCL_DOUBLE_FAULT", "join@2"}}}}, .timeout_ms = 500},
                     [](Rank& self) {
                       self.Join();
                       ExpectFailedSplit(self, SY_TIMEOUT, "ncclCommSplit: NCCL has not taken it up after 500 ms");
                     }),
            "");
}

TEST(NcclTrouble, AbortEndsASplit) {
  EXPECT_EQ(RunRanks({.size = 2, .environment = {{"NCCL_DOUBLE_FAULT", "join@2"}}},
                     [](Rank& self) {
                       self.Join();
                       std::thread aborter([&] {
                         std::this_thread::sleep_for(std::chrono::milliseconds(100));
                         self.api->abort(self.communicator);
                       });
                       sy_error error{SY_HEADER(sy_error)};
                       sy_communicator* part = nullptr;
                       const auto start = Clock::now();
                       const sy_status status = self.api->split(self.communicator, 0, 0, "part", &part, &error);
                       aborter.join();
                       Require(status == SY_ABORTED && part == nullptr, "answered {}: {}", status, error.message);
                       Require(MillisecondsSince(start) < 5000, "took {} ms", MillisecondsSince(start));
                       ExpectNoneLeft(self);
                     }),
            "");
}

TEST(NcclTrouble, DeadRankEndsASplit) {
  EXPECT_EQ(RunRanks({.size = 3},
                     [](Rank& self) {
                       self.Join();
                       if (self.rank == 2) ranks::Die(self.rank);
                       ExpectFailedSplit(self, SY_ABORTED, "a rank left while splitting");
                     }),
            "");
}

// Its result would come at the end of the group, after the answer.
TEST(NcclTrouble, SplitInsideAGroupIsRefused) {
  EXPECT_EQ(RunRanks({.size = 2},
                     [](Rank& self) {
                       self.Join();
                       sy_error error{SY_HEADER(sy_error)};
                       sy_communicator* part = nullptr;
                       self.Ok(self.api->group_begin(self.instance, &error), "group_begin", error);
                       const sy_status status = self.api->split(self.communicator, 0, 0, "part", &part, &error);
                       Require(status == SY_INVALID && Contains(error.message, "inside a group"), "answered {}: {}",
                               status, error.message);
                       self.Ok(self.api->group_end(self.instance, &error), "group_end", error);
                       self.Ok(self.api->split(self.communicator, 0, 0, "part", &part, &error), "split", error);
                       self.api->destroy(part);
                     }),
            "");
}

TEST(NcclTrouble, TwoRanksOnOneDeviceAreRefused) {
  EXPECT_EQ(RunRanks({.size = 2, .devices = {1, 1}},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       const sy_status status = self.TryJoin(&error);
                       Require(status == SY_INVALID && Contains(error.message, "Duplicate GPU detected"),
                               "answered {}: {}", status, error.message);
                       Require(self.info.flags & SY_COLLECTIVE_DISTINCT_DEVICES, "the flag is not set");
                     }),
            "");
}

TEST(NcclTrouble, MemoryOfAnotherKindIsRefused) {
  EXPECT_EQ(RunRanks({.size = 1, .memory_kind = "npu"},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       const sy_status status = self.TryJoin(&error);
                       Require(status == SY_UNSUPPORTED && Contains(error.message, "\"npu\"") &&
                                   Contains(error.message, "\"cuda-like\""),
                               "answered {}: {}", status, error.message);
                     }),
            "");
}

TEST(NcclTrouble, HostMemoryWithoutADeviceIsRefused) {
  EXPECT_EQ(RunRanks({.size = 1},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       sy_init_request request{SY_HEADER(sy_init_request)};
                       request.size = 1;
                       request.name = "world";
                       const sy_status status = self.api->init(self.instance, &request, &self.communicator, &error);
                       Require(status == SY_UNSUPPORTED && Contains(error.message, "host memory"), "answered {}: {}",
                               status, error.message);
                     }),
            "");
}

TEST(NcclTrouble, FailedUniqueIdIsReportedWithNcclsWords) {
  EXPECT_EQ(RunRanks({.size = 1, .environment = {{"NCCL_DOUBLE_FAULT", "id@1"}}},
                     [](Rank& self) {
                       sy_error error{SY_HEADER(sy_error)};
                       const sy_status status = self.TryJoin(&error);
                       Require(status == SY_INTERNAL &&
                                   Contains(error.message, "ncclGetUniqueId: unhandled system error") &&
                                   Contains(error.message, "no socket interface found") && error.native_code == 2,
                               "answered {}: {}", status, error.message);
                     }),
            "");
}

TEST(NcclTrouble, FirstErrorOfACallStays) {
  EXPECT_EQ(RunRanks({.size = 1, .environment = {{"NCCL_DOUBLE_FAULT", "call@2"}}},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(40);
                       self.AllReduce(self.communicator, data.data(), data.data(), 10);
                       for (int again = 0; again < 2; ++again) {
                         sy_error error{SY_HEADER(sy_error)};
                         sy_request* request = nullptr;
                         const sy_call call = self.Call();
                         const sy_status status = self.api->all_reduce(
                             self.communicator, &call, data.data(), data.data(), 10, SY_F32, SY_SUM, &request, &error);
                         Require(status == SY_INTERNAL && Contains(error.message, "all_reduce: unhandled cuda error") &&
                                     Contains(error.message, "fault asked for by the test"),
                                 "answered {}: {}", status, error.message);
                       }
                     }),
            "");
}

TEST(NcclTrouble, HostMemoryIsRefusedWithNcclsWords) {
  EXPECT_EQ(RunRanks({.size = 1},
                     [](Rank& self) {
                       self.Join();
                       float host[4] = {};
                       sy_error error{SY_HEADER(sy_error)};
                       sy_request* request = nullptr;
                       const sy_call call = self.Call();
                       const sy_status status = self.api->all_reduce(self.communicator, &call, host, host, 4, SY_F32,
                                                                     SY_SUM, &request, &error);
                       Require(status == SY_INVALID && Contains(error.message, "not a valid pointer"),
                               "answered {}: {}", status, error.message);
                     }),
            "");
}

TEST(NcclTrouble, CallWithoutAStreamIsRefused) {
  EXPECT_EQ(RunRanks({.size = 1},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(40);
                       sy_error error{SY_HEADER(sy_error)};
                       sy_request* request = nullptr;
                       sy_call call = self.Call();
                       call.native_stream = nullptr;
                       const sy_status status = self.api->all_reduce(self.communicator, &call, data.data(), data.data(),
                                                                     4, SY_F32, SY_SUM, &request, &error);
                       Require(status == SY_INVALID && Contains(error.message, "native_stream"), "answered {}: {}",
                               status, error.message);
                     }),
            "");
}

TEST(NcclTrouble, OutOfOwnedMemoryLeavesTheCommunicatorUsable) {
  EXPECT_EQ(RunRanks({.size = 2, .environment = {{"CUDA_DOUBLE_MEMORY_BYTES", "1000000"}}},
                     [](Rank& self) {
                       self.Join();
                       sy_error error{SY_HEADER(sy_error)};
                       void* owned = nullptr;
                       const sy_status status = self.api->buffer_alloc(self.communicator, 2000000, &owned, &error);
                       Require(status == SY_OUT_OF_MEMORY, "answered {}: {}", status, error.message);
                       const DeviceBytes data(40);
                       self.AllReduce(self.communicator, data.data(), data.data(), 10);
                       RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                     }),
            "");
}

// The others learn of it by polling, if not by the call itself, and their streams are free at once.
TEST(NcclTrouble, KilledRankIsFoundByPolling) {
  EXPECT_EQ(RunRanks({.size = 3},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(4000);
                       for (int round = 0; round < 2; ++round)
                         self.AllReduce(self.communicator, data.data(), data.data(), 1000);
                       RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                       if (self.rank == 2) ranks::Die(self.rank);
                       sy_error error{SY_HEADER(sy_error)};
                       sy_request* request = nullptr;
                       const sy_call call = self.Call();
                       self.api->all_reduce(self.communicator, &call, data.data(), data.data(), 1000, SY_F32, SY_SUM,
                                            &request, nullptr);
                       const sy_status status = FirstFailure(self, 5000, &error);
                       Require(status == SY_ABORTED, "answered {}: {}", status, error.message);
                       const auto start = Clock::now();
                       RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                       Require(MillisecondsSince(start) < 2000, "the stream hung for {} ms", MillisecondsSince(start));
                       self.api->abort(self.communicator);
                       ExpectAborted(self, data.data());
                     }),
            "");
}

TEST(NcclTrouble, AbortFromAnotherThreadFreesAHangingStream) {
  EXPECT_EQ(RunRanks({.size = 2, .environment_of = {{1, {{"NCCL_DOUBLE_FAULT", "hang@1"}}}}},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(400);
                       self.AllReduce(self.communicator, data.data(), data.data(), 100);
                       std::this_thread::sleep_for(std::chrono::milliseconds(50));
                       Require(cudaStreamQuery(self.stream) == cudaErrorNotReady,
                               "a collective ended without its peer");
                       const auto start = Clock::now();
                       std::thread aborter([&] { self.api->abort(self.communicator); });
                       RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                       aborter.join();
                       Require(MillisecondsSince(start) < 2000, "abort took {} ms", MillisecondsSince(start));
                       ExpectAborted(self, data.data());
                     }),
            "");
}

// NCCL's own abort waits for the end of the graph, which is this thread's to destroy.
TEST(NcclTrouble, AbortFreesAHangingReplayWhileItsGraphLives) {
  EXPECT_EQ(RunRanks({.size = 2, .environment_of = {{1, {{"NCCL_DOUBLE_FAULT", "hang@1"}}}}},
                     [](Rank& self) {
                       self.Join();
                       void* const owned = OwnedMemory(self);
                       RequireOk(cudaMemset(owned, 0, 400), "cudaMemset");
                       {
                         const CapturedAllReduce captured(self, owned, 100);
                         captured.Replay(self);
                         std::this_thread::sleep_for(std::chrono::milliseconds(50));
                         Require(cudaStreamQuery(self.stream) == cudaErrorNotReady, "a replay ended without its peer");
                         const auto start = Clock::now();
                         self.api->abort(self.communicator);
                         RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                         Require(MillisecondsSince(start) < 2000, "abort took {} ms", MillisecondsSince(start));
                         ExpectAborted(self, static_cast<char*>(owned));
                         // NCCL may still know this memory: the double ends a program that gives it back too early.
                         self.api->buffer_free(self.communicator, owned);
                       }
                       Destroy(self, 2000);
                     }),
            "");
}

TEST(NcclTrouble, KilledRankUnderAReplayIsFoundByPolling) {
  EXPECT_EQ(RunRanks({.size = 3},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(4000);
                       {
                         const CapturedAllReduce captured(self, data.data(), 1000);
                         for (int round = 0; round < 2; ++round) captured.Replay(self);
                         RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                         if (self.rank == 2) ranks::Die(self.rank);
                         captured.Replay(self);
                         sy_error error{SY_HEADER(sy_error)};
                         const sy_status status = FirstFailure(self, 5000, &error);
                         Require(status == SY_ABORTED, "answered {}: {}", status, error.message);
                         const auto start = Clock::now();
                         RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                         self.api->abort(self.communicator);
                         Require(MillisecondsSince(start) < 2000, "hung for {} ms", MillisecondsSince(start));
                         ExpectAborted(self, data.data());
                       }
                       Destroy(self, 2000);
                     }),
            "");
}

// The program promises that there is none; it must not pay for a mistake with a process that never ends.
TEST(NcclTrouble, DestroyReturnsWhileAGraphLives) {
  EXPECT_EQ(RunRanks({.size = 2},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(400);
                       const CapturedAllReduce captured(self, data.data(), 100);
                       captured.Replay(self);
                       RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                       Destroy(self, 10000);
                     }),
            "");
}

TEST(NcclTrouble, AnAbortInsideAGroupWaitsForItsEnd) {
  EXPECT_EQ(RunRanks({.size = 2},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(400);
                       sy_error error{SY_HEADER(sy_error)};
                       self.Ok(self.api->group_begin(self.instance, &error), "group_begin", error);
                       self.AllReduce(self.communicator, data.data(), data.data(), 100);
                       std::thread([&] { self.api->abort(self.communicator); }).join();
                       const sy_status ended = self.api->group_end(self.instance, &error);
                       Require(ended == SY_ABORTED, "group_end answered {}: {}", ended, error.message);
                       RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                       ExpectAborted(self, data.data());
                     }),
            "");
}

// Of a communicator that the group does not know, by the thread that has the group open.
TEST(NcclTrouble, NothingIsAbortedInsideAnOpenGroup) {
  EXPECT_EQ(RunRanks({.size = 2},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(400);
                       sy_error error{SY_HEADER(sy_error)};
                       self.Ok(self.api->group_begin(self.instance, &error), "group_begin", error);
                       self.api->abort(self.communicator);
                       ExpectAborted(self, data.data());
                       self.Ok(self.api->group_end(self.instance, &error), "group_end", error);
                       ExpectAborted(self, data.data());
                     }),
            "");
}

TEST(NcclTrouble, MemoryWhoseWindowIsRefusedIsRegisteredAsABuffer) {
  EXPECT_EQ(RunRanks({.size = 2, .environment = {{"NCCL_DOUBLE_FAULT", "window@1"}}},
                     [](Rank& self) {
                       self.Join();
                       void* const owned = OwnedMemory(self);
                       UseAsBuffer(self, owned);
                     }),
            "");
}

// As where ranks do not reach each other's memory: NCCL has nothing against a window, and gives none.
TEST(NcclTrouble, MemoryWithoutAWindowIsRegisteredAsABuffer) {
  EXPECT_EQ(RunRanks({.size = 2, .environment = {{"NCCL_DOUBLE_WINDOWS", "0"}}},
                     [](Rank& self) {
                       self.Join();
                       void* const owned = OwnedMemory(self);
                       UseAsBuffer(self, owned);
                     }),
            "");
}

// A window would come at the end of the group, after the answer.
TEST(NcclTrouble, MemoryInsideAGroupIsRegisteredAsABuffer) {
  EXPECT_EQ(RunRanks({.size = 2},
                     [](Rank& self) {
                       self.Join();
                       sy_error error{SY_HEADER(sy_error)};
                       self.Ok(self.api->group_begin(self.instance, &error), "group_begin", error);
                       void* const owned = OwnedMemory(self);
                       self.Ok(self.api->group_end(self.instance, &error), "group_end", error);
                       UseAsBuffer(self, owned);
                     }),
            "");
}

// The communicator goes on, and the memory is NCCL's until it is destroyed.
TEST(NcclTrouble, MemoryThatNcclDoesNotGiveBackIsKept) {
  EXPECT_EQ(RunRanks({.size = 2, .environment = {{"NCCL_DOUBLE_FAULT", "release@1"}}},
                     [](Rank& self) {
                       self.Join();
                       void* const owned = OwnedMemory(self);
                       self.api->buffer_free(self.communicator, owned);
                       Require(CountInDouble("windows") == 1, "the window is gone");
                       RequireOk(cudaMemset(owned, 0, 400), "cudaMemset");
                       self.AllReduce(self.communicator, owned, owned, 100);
                       RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
                       Destroy(self, 3000);
                       Require(CountInDouble("windows") == 0, "destroy has not freed the memory");
                     }),
            "");
}

TEST(NcclTrouble, RegistrationThatRuinsTheCommunicatorSaysHowToDoWithout) {
  EXPECT_EQ(RunRanks({.size = 2, .environment = {{"NCCL_DOUBLE_FAULT", "ruin@1"}}},
                     [](Rank& self) {
                       self.Join();
                       sy_error error{SY_HEADER(sy_error)};
                       void* owned = nullptr;
                       const sy_status status = self.api->buffer_alloc(self.communicator, 400, &owned, &error);
                       Require(status == SY_INTERNAL && Contains(error.message, "mapping the window failed") &&
                                   Contains(error.message, "SWITCHYARD_NCCL_OWNED_MEMORY=0") && error.native_code != 0,
                               "answered {} ({}): {}", status, error.native_code, error.message);
                       // From here on every call ends with that error, whatever memory it is for.
                       const sy_status again = self.api->buffer_alloc(self.communicator, 400, &owned, &error);
                       Require(again == SY_INTERNAL && Contains(error.message, "mapping the window failed") &&
                                   !Contains(error.message, "SWITCHYARD_NCCL_OWNED_MEMORY=0"),
                               "answered {}: {}", again, error.message);
                     }),
            "");
}

// NCCL joins and allocates on the device of the calling thread: the double ends a process that has not chosen one.
TEST(NcclTrouble, EachCallChoosesTheDeviceOfItsThread) {
  EXPECT_EQ(
      RunRanks({.size = 2, .fresh_threads = true},
               [](Rank& self) {
                 self.Join();
                 sy_error error{SY_HEADER(sy_error)};
                 void* owned = nullptr;
                 sy_status status = SY_INTERNAL;
                 std::thread([&] { status = self.api->buffer_alloc(self.communicator, 400, &owned, &error); }).join();
                 self.Ok(status, "buffer_alloc", error);
                 const int peer = 1 - self.rank;
                 char* const half = static_cast<char*>(owned) + 200;
                 const sy_transfer messages[] = {{peer, 1, owned, 200}, {peer, 0, half, 200}};
                 sy_request* request = nullptr;
                 const std::pair<const char*, std::function<sy_status(const sy_call*)>> calls[] = {
                     {"all_reduce",
                      [&](const sy_call* call) {
                        return self.api->all_reduce(self.communicator, call, owned, owned, 100, SY_F32, SY_SUM,
                                                    &request, &error);
                      }},
                     {"all_to_all in place",
                      [&](const sy_call* call) {
                        return self.api->all_to_all(self.communicator, call, owned, owned, 50, SY_F32, &request,
                                                    &error);
                      }},
                     {"send_recv_batch", [&](const sy_call* call) {
                        return self.api->send_recv_batch(self.communicator, call, messages, 2, &request, &error);
                      }}};
                 for (const auto& [what, body] : calls) {
                   const sy_call call = self.Call(what);
                   std::thread([&] { status = body(&call); }).join();
                   self.Ok(status, what, error);
                 }
                 self.AllReduce(self.communicator, owned, owned, 100);
                 RequireOk(cudaStreamSynchronize(self.stream), "synchronize");
               }),
      "");
}

// A call that NCCL never takes up: one rank makes the call of another.
TEST(NcclTrouble, CallThatIsNotTakenUpEndsAtTheDeadline) {
  EXPECT_EQ(RunRanks({.size = 1, .environment = {{"NCCL_DOUBLE_LOOKS", "1000000"}}, .timeout_ms = 300},
                     [](Rank& self) {
                       self.Join();
                       const DeviceBytes data(40);
                       sy_error error{SY_HEADER(sy_error)};
                       sy_request* request = nullptr;
                       const sy_call call = self.Call();
                       const sy_status status = self.api->all_reduce(self.communicator, &call, data.data(), data.data(),
                                                                     10, SY_F32, SY_SUM, &request, &error);
                       Require(status == SY_TIMEOUT && Contains(error.message, "300 ms"), "answered {}: {}", status,
                               error.message);
                     }),
            "");
}

TEST(NcclTrouble, DestroyWaitsForNobody) {
  EXPECT_EQ(RunRanks({.size = 2},
                     [](Rank& self) {
                       self.Join();
                       if (self.rank == 1) Require(ranks::Wait("destroyed", 10000), "rank 0 is still in destroy");
                       Destroy(self, 3000);
                       if (self.rank == 0) ranks::Put("destroyed", "yes");
                     }),
            "");
}

}  // namespace
}  // namespace switchyard::nccl_testing
