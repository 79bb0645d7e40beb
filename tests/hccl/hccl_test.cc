// The hccl plugin when HCCL, a peer or the machine fails: every wait ends, and the text says what happened. Its numbers
// are checked by `switchyard conform`.
#include <chrono>
#include <cstdio>
#include <thread>

#include "backends/npu/acl.h"
#include "core/abi/device.h"
#include "gtest/gtest.h"
#include "tests/ranks/processes.h"

namespace switchyard {
namespace {

using ranks::Processes;
using ranks::Require;
using Clock = std::chrono::steady_clock;

constexpr int kFirstDevice = 2;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool Contains(const char* text, const char* part) { return std::string(text).find(part) != std::string::npos; }

// A backend called "double", each of whose devices has memory of the kind that its instance is.
sy_plugin BackendOf(const char* memory_kind) {
  sy_plugin backend{SY_HEADER(sy_plugin)};
  backend.name = "double";
  backend.instance = reinterpret_cast<sy_instance*>(const_cast<char*>(memory_kind));
  backend.get_interface = [](sy_instance*, const char* name) -> const void* {
    static const sy_device_v2 device = [] {
      sy_device_v2 made{SY_HEADER(sy_device_v2)};
      made.query = [](sy_instance* instance, int32_t, sy_device_info* info, sy_error*) {
        std::snprintf(info->memory_kind, sizeof info->memory_kind, "%s", reinterpret_cast<const char*>(instance));
        return sy_status{SY_OK};
      };
      return made;
    }();
    return std::string(name) == "device/2" ? &device : nullptr;
  };
  return backend;
}

class Rank {
 public:
  Rank(int rank, int size, int device, int timeout_ms) : rank(rank), size(size), device_(device), limit_(timeout_ms) {
    Require(aclInit(nullptr) == ACL_SUCCESS && aclrtSetDevice(device) == ACL_SUCCESS, "device {}", device);
    Require(aclrtCreateStreamWithConfig(&stream, 0, 0) == ACL_SUCCESS, "no stream");
    Require(aclrtMalloc(&memory, 4000, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS, "no memory");
    plugin = ranks::LoadPlugin(HCCL_PLUGIN);
    api = static_cast<const sy_collective_v2*>(plugin->get_interface(plugin->instance, "collective/2"));
  }
  ~Rank() {
    if (communicator != nullptr) api->destroy(communicator);
  }

  // Names a device whose memory is of the kind `memory_kind`, or, where that is NULL, host memory.
  sy_status TryJoin(sy_error* error, const char* memory_kind = "npu") {
    const sy_plugin backend = BackendOf(memory_kind);
    sy_init_request request{SY_HEADER(sy_init_request)};
    request.rank = rank;
    request.size = size;
    request.name = "world";
    request.store = ranks::SharedStore();
    request.timeout_ms = static_cast<uint64_t>(limit_);
    if (memory_kind != nullptr) {
      request.device = reinterpret_cast<sy_device*>(this);  // which hccl does not look into
      request.backend = &backend;
      request.device_index = device_;
    }
    if (const sy_status status = api->init(plugin->instance, &request, &communicator, error); status != SY_OK)
      return status;
    return PollUntil([](sy_status status) { return status != SY_IN_PROGRESS; }, 30000, error);
  }
  void Join() {
    sy_error error{SY_HEADER(sy_error)};
    const sy_status status = TryJoin(&error);
    Require(status == SY_OK, "joining answered {}: {}", status, error.message);
  }
  template <typename Ends>
  sy_status PollUntil(Ends ends, int limit_ms, sy_error* error) {
    for (const auto start = Clock::now(); MillisecondsSince(start) < limit_ms;) {
      if (const sy_status status = api->poll(communicator, error); ends(status)) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return SY_IN_PROGRESS;
  }
  sy_status AllReduce(uint64_t count, sy_dtype dtype, int reduction, sy_error* error) {
    const sy_call call{SY_HEADER(sy_call), "test", sequence_++, nullptr, stream};
    sy_request* request = nullptr;
    return api->all_reduce(communicator, &call, memory, memory, count, dtype, reduction, &request, error);
  }
  void Reduce() {
    sy_error error{SY_HEADER(sy_error)};
    const sy_status status = AllReduce(1000, SY_F32, SY_SUM, &error);
    Require(status == SY_OK, "all_reduce answered {}: {}", status, error.message);
  }

  const int rank, size;
  const sy_plugin* plugin = nullptr;
  const sy_collective_v2* api = nullptr;
  sy_communicator* communicator = nullptr;
  aclrtStream stream = nullptr;
  void* memory = nullptr;

 private:
  const int device_, limit_;
  uint64_t sequence_ = 0;
};

struct Setting {
  int timeout_ms = 20000;
  bool share_device = false;
};

std::string OnRanks(Processes processes, Setting setting, const std::function<void(Rank&)>& body) {
  processes.environment.emplace("SWITCHYARD_NPU_RUNTIME", NPU_SIMULATOR);
  return ranks::RunProcesses(processes, [&](int rank) {
    Rank self(rank, processes.size, kFirstDevice + (setting.share_device ? 0 : rank), setting.timeout_ms);
    body(self);
  });
}

void ExpectJoinFails(Rank& self, sy_status expected, const char* words) {
  sy_error error{SY_HEADER(sy_error)};
  const sy_status status = self.TryJoin(&error);
  Require(status == expected && Contains(error.message, words), "answered {}: {}", status, error.message);
}

TEST(Hccl, MissingLibraryIsNamedByQuery) {
  EXPECT_EQ(OnRanks({.size = 1, .environment = {{"SWITCHYARD_NPU_RUNTIME", "/nowhere/libhccl.so"}}}, {},
                    [](Rank& self) {
                      sy_collective_info info{SY_HEADER(sy_collective_info)};
                      sy_error error{SY_HEADER(sy_error)};
                      const sy_status status = self.api->query(self.plugin->instance, &info, &error);
                      Require(status == SY_UNSUPPORTED && Contains(error.message, "no HCCL: /nowhere/libhccl.so") &&
                                  Contains(error.message, "set_env.sh"),
                              "answered {}: {}", status, error.message);
                    }),
            "");
}

// HCCL has no function that tells its version: the plugin says which file it has bound.
TEST(Hccl, TheLibraryIsNamedByItsFile) {
  EXPECT_EQ(OnRanks({.size = 1}, {},
                    [](Rank& self) {
                      sy_collective_info info{SY_HEADER(sy_collective_info)};
                      sy_error error{SY_HEADER(sy_error)};
                      const sy_status status = self.api->query(self.plugin->instance, &info, &error);
                      Require(status == SY_OK, "answered {}: {}", status, error.message);
                      Require(info.libraries == "HCCL at " + std::filesystem::canonical(NPU_SIMULATOR).string(),
                              "it says {}", info.libraries);
                    }),
            "");
}

TEST(Hccl, RankThatNeverStartsIsNamedAtTheDeadline) {
  EXPECT_EQ(OnRanks({.size = 3, .absent = {1}}, {.timeout_ms = 500},
                    [](Rank& self) {
                      ExpectJoinFails(self, SY_TIMEOUT, "500 ms for the 3 ranks of \"world\" to join; absent: rank 1");
                    }),
            "");
}

TEST(Hccl, RankThatHangsInInitEndsAtTheDeadline) {
  EXPECT_EQ(OnRanks({.size = 2, .environment_of = {{1, {{"SWITCHYARD_NPU_SIMULATOR_HCCL_FAULT", "join@1"}}}}},
                    {.timeout_ms = 500},
                    [](Rank& self) { ExpectJoinFails(self, SY_TIMEOUT, "waited 500 ms for the 2 ranks"); }),
            "");
}

TEST(Hccl, HcclsOwnTimeLimitOfInitIsReported) {
  EXPECT_EQ(OnRanks({.size = 2, .environment = {{"HCCL_CONNECT_TIMEOUT", "1"}}, .absent = {0}}, {},
                    [](Rank& self) {
                      ranks::Put("hccl/world/root", "nobody" + std::string(4102, '\0'));
                      ExpectJoinFails(self, SY_TIMEOUT, "HcclCommInitRootInfo: time out (9); not all ranks came");
                    }),
            "");
}

TEST(Hccl, AbortEndsInit) {
  EXPECT_EQ(OnRanks({.size = 2, .absent = {0}}, {},
                    [](Rank& self) {
                      std::thread aborter([&] {
                        std::this_thread::sleep_for(std::chrono::milliseconds(100));
                        self.api->abort(self.communicator);
                      });
                      ExpectJoinFails(self, SY_ABORTED, "\"world\" was aborted");
                      aborter.join();
                    }),
            "");
}

TEST(Hccl, TwoRanksOnOneDeviceAreRefused) {
  EXPECT_EQ(OnRanks({.size = 2}, {.share_device = true},
                    [](Rank& self) { ExpectJoinFails(self, SY_INVALID, "share device 2"); }),
            "");
}

TEST(Hccl, MemoryThatHcclDoesNotReachIsRefusedByItsKind) {
  EXPECT_EQ(OnRanks({.size = 1}, {},
                    [](Rank& self) {
                      sy_error error{SY_HEADER(sy_error)};
                      Require(self.TryJoin(&error, "cuda") == SY_UNSUPPORTED &&
                                  Contains(error.message, "device 2 of the backend \"double\" is of the kind \"cuda\""),
                              "said: {}", error.message);
                      Require(self.TryJoin(&error, nullptr) == SY_UNSUPPORTED && Contains(error.message, "host memory"),
                              "said: {}", error.message);
                    }),
            "");
}

TEST(Hccl, ReducesWhatItSaysAndRefusesTheRestUnharmed) {
  EXPECT_EQ(OnRanks({.size = 2}, {},
                    [](Rank& self) {
                      self.Join();
                      int offered = 0;
                      for (int32_t reduction = 0; reduction <= SY_REDUCTION_COUNT; ++reduction) {
                        for (sy_dtype dtype = 0; dtype <= SY_DTYPE_COUNT; ++dtype) {
                          sy_error error{SY_HEADER(sy_error)};
                          const sy_status said = self.api->reduces(self.plugin->instance, reduction, dtype, &error);
                          const sy_status found = self.AllReduce(10, dtype, reduction, &error);
                          Require(said == found && (said == SY_OK || said == SY_UNSUPPORTED),
                                  "reduction {} of dtype {}: said {}, all_reduce answers {} ({})", reduction, dtype,
                                  said, found, error.message);
                          offered += said == SY_OK;
                        }
                      }
                      Require(offered == 15, "{} of them are offered", offered);
                      self.Reduce();
                      Require(aclrtSynchronizeStream(self.stream) == ACL_SUCCESS, "the stream failed");
                    }),
            "");
}

TEST(Hccl, FirstErrorOfACallStays) {
  EXPECT_EQ(OnRanks({.size = 1, .environment = {{"SWITCHYARD_NPU_SIMULATOR_HCCL_FAULT", "call@2"}}}, {},
                    [](Rank& self) {
                      self.Join();
                      self.Reduce();
                      for (int again = 0; again < 2; ++again) {
                        sy_error error{SY_HEADER(sy_error)};
                        const sy_status status = self.AllReduce(10, SY_F32, SY_SUM, &error);
                        Require(status == SY_INTERNAL && Contains(error.message, "all_reduce: internal error (4)") &&
                                    Contains(error.message, "as it was told to") && error.native_code == 4,
                                "answered {}: {}", status, error.message);
                      }
                    }),
            "");
}

// The failure stops the stream, so that its memory may be freed.
TEST(Hccl, KilledRankIsFoundByPollingAndFreesTheStream) {
  EXPECT_EQ(OnRanks({.size = 3}, {},
                    [](Rank& self) {
                      self.Join();
                      for (int round = 0; round < 3; ++round) {
                        if (round == 2 && self.rank == 2) ranks::Die(self.rank);
                        self.Reduce();
                      }
                      sy_error error{SY_HEADER(sy_error)};
                      const sy_status status = self.PollUntil([](sy_status now) { return now != SY_OK; }, 5000, &error);
                      Require(status == SY_ABORTED && Contains(error.message, "remote error (21)"), "answered {}: {}",
                              status, error.message);
                      const auto start = Clock::now();
                      Require(aclrtSynchronizeStream(self.stream) != ACL_SUCCESS, "the stream succeeded");
                      Require(MillisecondsSince(start) < 2000, "the stream hung");
                    }),
            "");
}

TEST(Hccl, AbortFromAnotherThreadFreesAHangingStream) {
  EXPECT_EQ(OnRanks({.size = 2, .environment_of = {{1, {{"SWITCHYARD_NPU_SIMULATOR_HCCL_FAULT", "hang@1"}}}}}, {},
                    [](Rank& self) {
                      self.Join();
                      self.Reduce();
                      std::this_thread::sleep_for(std::chrono::milliseconds(30));
                      const auto start = Clock::now();
                      std::thread aborter([&] { self.api->abort(self.communicator); });
                      Require(aclrtSynchronizeStream(self.stream) != ACL_SUCCESS, "the stream succeeded");
                      aborter.join();
                      Require(MillisecondsSince(start) < 2000, "abort took {} ms", MillisecondsSince(start));
                      sy_error error{SY_HEADER(sy_error)};
                      Require(self.AllReduce(10, SY_F32, SY_SUM, &error) == SY_ABORTED, "a call after abort: {}",
                              error.message);
                    }),
            "");
}

TEST(Hccl, AbortAndPollingDoNotWaitForACallThatHcclBlocks) {
  EXPECT_EQ(OnRanks({.size = 1, .environment = {{"SWITCHYARD_NPU_SIMULATOR_HCCL_FAULT", "block@1"}}}, {},
                    [](Rank& self) {
                      self.Join();
                      sy_status called = SY_OK;
                      std::thread caller([&] {
                        sy_error error{SY_HEADER(sy_error)};
                        called = self.AllReduce(10, SY_F32, SY_SUM, &error);
                      });
                      std::this_thread::sleep_for(std::chrono::milliseconds(50));
                      const auto start = Clock::now();
                      sy_error error{SY_HEADER(sy_error)};
                      const sy_status polled = self.api->poll(self.communicator, &error);
                      self.api->abort(self.communicator);
                      caller.join();
                      Require(polled == SY_OK, "poll answered {}: {}", polled, error.message);
                      Require(called != SY_OK, "the call that was blocked succeeded");
                      Require(MillisecondsSince(start) < 2000, "abort took {} ms", MillisecondsSince(start));
                      Require(self.AllReduce(10, SY_F32, SY_SUM, &error) != SY_OK, "a call after abort succeeded");
                    }),
            "");
}

TEST(Hccl, RankThatDoesNotSplitIsNamedAtTheDeadline) {
  EXPECT_EQ(OnRanks({.size = 2}, {.timeout_ms = 400},
                    [](Rank& self) {
                      self.Join();
                      if (self.rank == 1) {
                        Require(ranks::Wait("done", 10000), "rank 0 is still splitting");
                        return;
                      }
                      sy_communicator* part = nullptr;
                      sy_error error{SY_HEADER(sy_error)};
                      const sy_status status = self.api->split(self.communicator, 0, 0, "part", &part, &error);
                      ranks::Put("done", "yes");
                      Require(status == SY_TIMEOUT && Contains(error.message, "rank 1 has not called split(\"part\")"),
                              "answered {}: {}", status, error.message);
                    }),
            "");
}

}  // namespace
}  // namespace switchyard
