// The life of a call that completes by poll, by the plugin's own interface: its request is the caller's until it is
// released, answers again and again, may be polled on another thread, and may be given up at any time, after which the
// plugin leaves its memory alone whatever the other rank does. Both ranks run this program; rank 0 says at the end
// whether both have passed, for mpirun does not where MPI was given up.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "core/abi/collective.h"
#include "core/base/environment.h"
#include "core/runtime/plugins/registry.h"
#include "core/runtime/processes/rendezvous.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLimitMs = 20000;
constexpr auto kAWhile = std::chrono::milliseconds(300);
constexpr uint64_t kLarge = 8 << 20;  // elements of f32: more than rings, slots and sockets hold

struct World {
  ProcessMap processes;
  std::unique_ptr<Rendezvous> rendezvous;
  std::shared_ptr<Plugin> plugin;
};
std::unique_ptr<World> world;

class JoinedWorld : public testing::Environment {
 public:
  void SetUp() override {
    world = std::make_unique<World>();
    world->processes = *ProcessMap::FromEnvironment();
    world->rendezvous = std::move(*Rendezvous::Connect(world->processes, kLimitMs, {}));
    world->plugin = *Registry::Get().Find(PluginKind::kCollective,
                                          switchyard::Environment("SWITCHYARD_COLLECTIVE").value_or("shm"));
  }
  void TearDown() override {
    const bool passed = testing::UnitTest::GetInstance()->Passed();
    if (world->processes.rank == 1) {
      static_cast<void>(world->rendezvous->Put("passed", passed ? "yes" : "no"));
    } else if (const auto theirs = world->rendezvous->Get("passed", kLimitMs);
               theirs.ok() && *theirs == "yes" && passed) {
      puts("both ranks have passed");
    }
    world.reset();
  }
};
[[maybe_unused]] testing::Environment* const environment = testing::AddGlobalTestEnvironment(new JoinedWorld);

// What a call works on: whole pages, which can be taken away from everybody.
class Memory {
 public:
  explicit Memory(uint64_t bytes)
      : bytes_(bytes),
        at_(static_cast<unsigned char*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Memory() { munmap(at_, bytes_); }
  Memory(const Memory&) = delete;
  void* at() const { return at_; }
  float* floats() const { return reinterpret_cast<float*>(at_); }
  void Fill(unsigned char value) { std::memset(at_, value, bytes_); }
  // The call that used it was given up: whoever touches it now ends the process, or, where he is only told by the
  // kernel that he may not or is another process, is found by what he writes.
  void TakeBack(bool forbidden) {
    Fill(7);
    if (forbidden) mprotect(at_, bytes_, PROT_NONE);
  }
  bool untouched() {
    mprotect(at_, bytes_, PROT_READ | PROT_WRITE);
    return std::all_of(at_, at_ + bytes_, [](unsigned char byte) { return byte == 7; });
  }

 private:
  const uint64_t bytes_;
  unsigned char* const at_;
};

class Requests : public testing::Test {
 protected:
  Requests() : name_(testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  void SetUp() override {
    api_ = world->plugin->Interface<sy_collective_v2>("collective/2");
    ASSERT_NE(api_, nullptr);
    ASSERT_EQ(world->processes.world, 2);
  }
  void TearDown() override {
    for (sy_communicator* communicator : joined_) api_->destroy(communicator);
    Say("end");
    Await("end");
  }

  int rank() const { return world->processes.rank; }
  bool mpi() const { return world->plugin->name() == "mpi"; }
  bool shm() const { return world->plugin->name() == "shm"; }
  void Say(const std::string& what) { ASSERT_TRUE(world->rendezvous->Put(Key(what, rank()), "").ok()); }
  void Await(const std::string& what) {
    ASSERT_TRUE(world->rendezvous->Get(Key(what, 1 - rank()), kLimitMs).ok()) << what;
  }

  sy_communicator* Join(const std::string& name = "") {
    sy_init_request request{SY_HEADER(sy_init_request)};
    const std::string whole = name_ + name;
    const std::vector<int32_t> hosts(2, 0);
    request.rank = rank();
    request.size = 2;
    request.hosts = hosts.data();
    request.name = whole.c_str();
    request.store = world->rendezvous->store();
    sy_communicator* made = nullptr;
    sy_error error{SY_HEADER(sy_error)};
    sy_status status = api_->init(world->plugin->table().instance, &request, &made, &error);
    const auto limit = Clock::now() + std::chrono::milliseconds(kLimitMs);
    if (status == SY_OK) {
      joined_.push_back(made);
      do status = api_->poll(made, &error);
      while (status == SY_IN_PROGRESS && Clock::now() < limit);
    }
    EXPECT_EQ(status, SY_OK) << error.message;
    return made;
  }
  void Destroy(sy_communicator* communicator) {
    std::erase(joined_, communicator);
    api_->destroy(communicator);
  }

  sy_status AllReduce(sy_communicator* on, void* in_place, uint64_t count, sy_request** request) {
    const sy_call call{SY_HEADER(sy_call), "reduced", calls_++, nullptr, nullptr};
    return api_->all_reduce(on, &call, in_place, in_place, count, SY_F32, SY_SUM, request, nullptr);
  }
  sy_status Message(sy_communicator* on, bool is_send, void* address, uint64_t bytes, sy_request** request) {
    const sy_call call{SY_HEADER(sy_call), "sent", calls_++, nullptr, nullptr};
    const sy_transfer transfer{1 - rank(), is_send, address, bytes};
    return api_->send_recv_batch(on, &call, &transfer, 1, request, nullptr);
  }
  // Until it has ended, or for so long.
  sy_status Poll(sy_communicator* on, sy_request* request, Clock::duration most = std::chrono::seconds(20),
                 sy_error* error = nullptr) const {
    const auto limit = Clock::now() + most;
    sy_status status;
    do status = api_->request_poll(on, request, error);
    while (status == SY_IN_PROGRESS && Clock::now() < limit);
    return status;
  }
  // A call after one was given up: refused at once or by poll.
  void ExpectAborted(sy_communicator* on, void* memory) {
    sy_request* request = nullptr;
    sy_status status = AllReduce(on, memory, 10, &request);
    if (status == SY_OK && request != nullptr) {
      status = Poll(on, request);
      api_->request_release(on, request);
    }
    EXPECT_EQ(status, SY_ABORTED);
  }
  // What the other rank does after that: never does it succeed, and abort ends it.
  void ExpectNoSuccess(sy_communicator* on, sy_request* request) {
    EXPECT_NE(Poll(on, request, kAWhile), SY_OK);
    api_->abort(on);
    const sy_status status = Poll(on, request);
    EXPECT_TRUE(status != SY_OK && status != SY_IN_PROGRESS) << status;
    api_->request_release(on, request);
  }
  // The plugin goes on in the process as far as it does: nothing of the call that was given up goes with it.
  void LetThePluginWork(sy_communicator* other) {
    const auto limit = Clock::now() + 2 * kAWhile;
    std::vector<float> one(1, 1);
    sy_request* request = nullptr;
    if (AllReduce(other, one.data(), 1, &request) != SY_OK) return;  // which the peer does not make
    while (Clock::now() < limit) api_->request_poll(other, request, nullptr);
    api_->request_release(other, request);
  }

  const sy_collective_v2* api_ = nullptr;
  uint64_t calls_ = 0;

 private:
  std::string Key(const std::string& what, int of) const { return name_ + "/" + what + "/" + std::to_string(of); }
  const std::string name_;
  std::vector<sy_communicator*> joined_;
};

TEST_F(Requests, AnswerAgainAndAgainUntilTheyAreReleased) {
  sy_communicator* const all = Join();
  constexpr int kCalls = 100;  // all of them kept
  std::vector<float> values(kCalls, 1);
  std::vector<sy_request*> requests(kCalls);
  for (int i = 0; i < kCalls; ++i) ASSERT_EQ(AllReduce(all, &values[i], 1, &requests[i]), SY_OK);
  for (sy_request* request : requests) ASSERT_EQ(Poll(all, request), SY_OK);
  for (const float value : values) EXPECT_EQ(value, 2);
  std::fill(values.begin(), values.end(), 3.0f);
  sy_error error{SY_HEADER(sy_error)};
  std::strcpy(error.message, "untouched");
  for (int i = kCalls - 1; i >= 0; --i) {
    for (int again = 0; again < 3; ++again) EXPECT_EQ(api_->request_poll(all, requests[i], &error), SY_OK);
    api_->request_release(all, requests[i]);
  }
  EXPECT_STREQ(error.message, "untouched");
  for (const float value : values) EXPECT_EQ(value, 3);  // it had ended
}

TEST_F(Requests, AreUsedAgainOnceTheyWereReleased) {
  sy_communicator* const all = Join();
  std::set<sy_request*> seen;
  for (int round = 0; round < 200; ++round) {
    float values[3] = {1, 2, 3};
    sy_request* requests[3] = {};
    for (int i = 0; i < 3; ++i) ASSERT_EQ(AllReduce(all, &values[i], 1, &requests[i]), SY_OK);
    for (sy_request* request : requests) ASSERT_EQ(Poll(all, request), SY_OK);
    for (sy_request* request : requests) api_->request_release(all, request);
    seen.insert(requests, requests + 3);
  }
  EXPECT_LE(seen.size(), 3u);
}

TEST_F(Requests, ArePolledAndReleasedByOtherThreads) {
  sy_communicator* const all = Join();
  for (int round = 0; round < 20; ++round) {
    std::vector<float> values(100000, 1);
    sy_request* request = nullptr;
    ASSERT_EQ(AllReduce(all, values.data(), values.size(), &request), SY_OK);
    sy_status status = SY_INTERNAL;
    std::thread([&] { status = Poll(all, request); }).join();
    ASSERT_EQ(status, SY_OK);
    std::thread([&] { api_->request_release(all, request); }).join();
    EXPECT_EQ(values.back(), 2);
  }
}

TEST_F(Requests, AreEndedByAnAbortOfAnotherThreadAndRepeatThat) {
  sy_communicator* const all = Join();
  if (rank() == 0) {
    std::vector<float> values(1000, 1);
    sy_request* request = nullptr;
    ASSERT_EQ(AllReduce(all, values.data(), values.size(), &request), SY_OK);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      api_->abort(all);
    });
    sy_error first{SY_HEADER(sy_error)}, second{SY_HEADER(sy_error)};
    EXPECT_EQ(Poll(all, request, std::chrono::seconds(5), &first), SY_ABORTED);
    other.join();
    EXPECT_EQ(api_->request_poll(all, request, &second), SY_ABORTED);
    EXPECT_STREQ(first.message, second.message);
    EXPECT_STRNE(first.message, "");
    api_->request_release(all, request);
    ExpectAborted(all, values.data());
  }
}

// One that waits behind others has not begun.
TEST_F(Requests, AreGivenUpInTheQueue) {
  sy_communicator* const all = Join();
  if (rank() == 1) return Await("given up");
  float one = 1;
  Memory memory(4096);
  sy_request *first = nullptr, *behind = nullptr;
  ASSERT_EQ(AllReduce(all, &one, 1, &first), SY_OK);
  ASSERT_EQ(AllReduce(all, memory.at(), 10, &behind), SY_OK);
  api_->request_release(all, behind);
  memory.TakeBack(shm());
  EXPECT_EQ(Poll(all, first), SY_ABORTED);
  api_->request_release(all, first);
  Say("given up");
  EXPECT_TRUE(memory.untouched());
}

// A part of the message has come; the rest comes later.
TEST_F(Requests, AreGivenUpHalfWay) {
  if (mpi()) GTEST_SKIP() << "a rank fetches all of a message by itself";
  sy_communicator *const all = Join(), *const other = Join("/other");
  constexpr uint64_t kBytes = kLarge * sizeof(float);
  Memory memory(kBytes);
  sy_request* request = nullptr;
  if (rank() == 1) {
    memory.Fill(1);
    ASSERT_EQ(Message(all, true, memory.at(), kBytes, &request), SY_OK);
    EXPECT_EQ(Poll(all, request, std::chrono::milliseconds(20)), SY_IN_PROGRESS);
    Say("begun");
    Await("given up");
    ExpectNoSuccess(all, request);
    return Say("came late");
  }
  memory.Fill(0);
  Await("begun");
  ASSERT_EQ(Message(all, false, memory.at(), kBytes, &request), SY_OK);
  const sy_status status = Poll(all, request, std::chrono::milliseconds(50));
  const auto* const bytes = static_cast<const unsigned char*>(memory.at());
  ASSERT_EQ(status, SY_IN_PROGRESS);
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(bytes[kBytes - 1], 0);
  api_->request_release(all, request);
  memory.TakeBack(shm());
  Say("given up");
  float one = 1;
  ExpectAborted(all, &one);
  LetThePluginWork(other);
  Await("came late");
  EXPECT_TRUE(memory.untouched());
}

// With mpi these end all of MPI in a process of theirs: each has a start of its own.
class LastRequests : public Requests {};

// The other rank has not even begun the call.
TEST_F(LastRequests, AreGivenUpBeforeThePeerHasCome) {
  sy_communicator *const all = Join(), *const other = Join("/other");
  Memory memory(kLarge * sizeof(float)), waiting(4096);
  memory.Fill(0);
  sy_request *request = nullptr, *behind = nullptr;
  if (rank() == 1) {
    Await("given up");
    ASSERT_EQ(AllReduce(all, memory.at(), kLarge, &request), SY_OK);
    ExpectNoSuccess(all, request);
    return Say("came late");
  }
  ASSERT_EQ(AllReduce(all, memory.at(), kLarge, &request), SY_OK);
  ASSERT_EQ(Message(all, false, waiting.at(), 4096, &behind), SY_OK);
  ASSERT_EQ(Poll(all, request, std::chrono::milliseconds(20)), SY_IN_PROGRESS);
  const auto began = Clock::now();
  api_->request_release(all, request);
  EXPECT_LT(Clock::now() - began, kAWhile);
  memory.TakeBack(shm());
  Say("given up");
  for (int again = 0; again < 2; ++again) EXPECT_EQ(Poll(all, behind), SY_ABORTED);
  api_->request_release(all, behind);
  waiting.TakeBack(shm());
  float one = 1;
  ExpectAborted(all, &one);
  LetThePluginWork(other);
  Await("came late");
  EXPECT_TRUE(memory.untouched() && waiting.untouched());
}

// The sender's side: half of it is with the peer, who fetches more of it when the memory has gone.
TEST_F(LastRequests, AreGivenUpWhileTheyAreSent) {
  sy_communicator *const all = Join(), *const other = Join("/other");
  constexpr uint64_t kBytes = kLarge * sizeof(float);
  Memory memory(kBytes);
  sy_request* request = nullptr;
  if (rank() == 1) {
    Await("given up");
    ASSERT_EQ(Message(all, false, memory.at(), kBytes, &request), SY_OK);
    if (mpi()) {
      Poll(all, request, kAWhile);
      api_->request_release(all, request);
    } else {
      ExpectNoSuccess(all, request);
    }
    return Say("came late");
  }
  memory.Fill(1);
  ASSERT_EQ(Message(all, true, memory.at(), kBytes, &request), SY_OK);
  ASSERT_EQ(Poll(all, request, std::chrono::milliseconds(20)), SY_IN_PROGRESS);
  api_->request_release(all, request);
  memory.TakeBack(shm());
  Say("given up");
  float one = 1;
  ExpectAborted(all, &one);
  LetThePluginWork(other);
  Await("came late");
}

// MPI has begun to work on the memory and cannot cancel that.
TEST_F(LastRequests, AreGivenUpWhileMpiWorksOnThem) {
  if (!mpi()) GTEST_SKIP() << "the others need no such thing";
  setenv("SWITCHYARD_CHECK_COLLECTIVES", "0", 1);  // the peer is not waited for
  sy_communicator *const all = Join(), *const other = Join("/other");
  Memory memory(kLarge * sizeof(float));
  sy_request* request = nullptr;
  if (rank() == 1) {
    std::fill_n(memory.floats(), kLarge, 1.0f);
    Await("given up");
    ASSERT_EQ(AllReduce(all, memory.at(), kLarge, &request), SY_OK);
    ExpectNoSuccess(all, request);
    return Say("came late");
  }
  memory.Fill(0);
  ASSERT_EQ(AllReduce(all, memory.at(), kLarge, &request), SY_OK);
  ASSERT_EQ(Poll(all, request, std::chrono::milliseconds(20)), SY_IN_PROGRESS);
  const auto began = Clock::now();
  api_->request_release(all, request);
  EXPECT_LT(Clock::now() - began, kAWhile);
  memory.TakeBack(false);
  Say("given up");
  float one = 1;
  ExpectAborted(all, &one);
  LetThePluginWork(other);
  EXPECT_TRUE(memory.untouched());
  ExpectAborted(other, &one);
  Await("came late");
}

// The same, where the call that is given up is another, behind the one that MPI works on.
TEST_F(LastRequests, EndWithOneBehindThemWhileMpiWorksOnThem) {
  if (!mpi()) GTEST_SKIP() << "the others need no such thing";
  setenv("SWITCHYARD_CHECK_COLLECTIVES", "0", 1);
  sy_communicator *const all = Join(), *const other = Join("/other");
  Memory memory(kLarge * sizeof(float));
  sy_request *first = nullptr, *behind = nullptr;
  float one = 1;
  if (rank() == 1) {
    std::fill_n(memory.floats(), kLarge, 1.0f);
    Await("given up");
    ASSERT_EQ(AllReduce(all, memory.at(), kLarge, &first), SY_OK);
    ExpectNoSuccess(all, first);
    return Say("came late");
  }
  memory.Fill(0);
  ASSERT_EQ(AllReduce(all, memory.at(), kLarge, &first), SY_OK);
  ASSERT_EQ(AllReduce(all, &one, 1, &behind), SY_OK);
  ASSERT_EQ(Poll(all, first, std::chrono::milliseconds(20)), SY_IN_PROGRESS);
  api_->request_release(all, behind);
  EXPECT_EQ(Poll(all, first), SY_ABORTED);
  api_->request_release(all, first);
  memory.TakeBack(false);
  Say("given up");
  ExpectAborted(all, &one);
  LetThePluginWork(other);
  EXPECT_TRUE(memory.untouched());
  ExpectAborted(other, &one);
  Await("came late");
}

}  // namespace
}  // namespace switchyard
