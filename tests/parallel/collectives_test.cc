// Every rank runs this program. Values are small integers, so that sums are exact in every dtype and order, and the
// expected result is known.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/abi/collective.h"
#include "core/base/environment.h"
#include "core/base/random.h"
#include "core/runtime/collectives/communicator.h"
#include "core/runtime/collectives/composition.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard {
namespace {

// The communicator of all ranks, joined once.
struct World {
  ProcessMap processes;
  std::unique_ptr<Rendezvous> rendezvous;
  std::shared_ptr<Plugin> plugin;
  std::unique_ptr<Communicator> communicator;
};

StatusOr<World> Join() {
  World world;
  SY_ASSIGN_OR_RETURN(world.processes, ProcessMap::FromEnvironment());
  SY_ASSIGN_OR_RETURN(world.rendezvous, Rendezvous::Connect(world.processes, 20000, {}));
  SY_ASSIGN_OR_RETURN(world.plugin, Registry::Get().Find(PluginKind::kCollective,
                                                         Environment("SWITCHYARD_COLLECTIVE").value_or("shm")));
  SY_ASSIGN_OR_RETURN(world.communicator,
                      Communicator::Join(world.plugin, world.processes, *world.rendezvous, nullptr, "test", 20000));
  return world;
}

std::unique_ptr<World> world;

// What the ranks that print nothing else say.
class FailuresAlone : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fprintf(stderr, "rank %d: %s:%d: %s\n", world->processes.rank, result.file_name(), result.line_number(),
            result.message());
  }
};

class JoinedWorld : public testing::Environment {
 public:
  void SetUp() override {
    auto joined = Join();
    if (!joined.ok()) {
      fprintf(stderr, "%s\n", Message(joined.status()).c_str());
      _exit(1);
    }
    world = std::make_unique<World>(std::move(*joined));
    if (world->processes.rank == 0) return;
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresAlone);
  }
  void TearDown() override {
    world->communicator.reset();
    world.reset();
  }
};
[[maybe_unused]] testing::Environment* const environment = testing::AddGlobalTestEnvironment(new JoinedWorld);

Communicator& World0() { return *world->communicator; }
#define ASSERT_OK(expression)                                                            \
  do {                                                                                   \
    const Status assert_status = (expression);                                           \
    if (!assert_status.ok()) {                                                           \
      fprintf(stderr, "rank %d: %s\n", World0().rank(), Message(assert_status).c_str()); \
      FAIL() << Message(assert_status);                                                  \
    }                                                                                    \
  } while (false)
// Failures of other ranks than 0 must be seen as well.
#define ASSERT_SAME(expected, actual, what)                                                 \
  do {                                                                                      \
    if ((expected) != (actual)) {                                                           \
      fprintf(stderr, "rank %d: %s differs\n", World0().rank(), std::string(what).c_str()); \
      FAIL() << what;                                                                       \
    }                                                                                       \
  } while (false)

// Values as bytes of a dtype.
std::vector<char> Encode(const std::vector<double>& values, sy_dtype dtype) {
  std::vector<char> bytes(values.size() * BytesOf(dtype));
  const auto put = [&](size_t i, auto value) { std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value); };
  for (size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case SY_F32:
        put(i, static_cast<float>(values[i]));
        break;
      case SY_BF16:
        put(i, static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(values[i])) >> 16));
        break;
      case SY_F16:
        put(i, static_cast<_Float16>(values[i]));
        break;
      case SY_F64:
        put(i, values[i]);
        break;
      case SY_I32:
        put(i, static_cast<int32_t>(values[i]));
        break;
      case SY_I64:
        put(i, static_cast<int64_t>(values[i]));
        break;
      default:
        put(i, static_cast<uint8_t>(values[i]));
        break;
    }
  }
  return bytes;
}

bool Holds(const void* data, const std::vector<char>& expected) {
  return std::equal(expected.begin(), expected.end(), static_cast<const char*>(data));
}

double Value(int rank, uint64_t i, int reduction) {
  // Products stay below 2^8, the integers that bf16 holds exactly.
  return reduction == SY_PRODUCT ? static_cast<double>(1 + (rank + i) % 3)
                                 : static_cast<double>((rank * 7 + i * 3) % 31);
}

double Expected(uint64_t i, int reduction) {
  double result = Value(0, i, reduction);
  for (int rank = 1; rank < World0().size(); ++rank) {
    const double next = Value(rank, i, reduction);
    if (reduction == SY_SUM) result += next;
    if (reduction == SY_PRODUCT) result *= next;
    if (reduction == SY_MAX) result = std::max(result, next);
    if (reduction == SY_MIN) result = std::min(result, next);
  }
  return result;
}

std::vector<double> Values(int rank, uint64_t from, uint64_t count, int reduction = SY_SUM) {
  std::vector<double> values;
  for (uint64_t i = 0; i < count; ++i) values.push_back(Value(rank, from + i, reduction));
  return values;
}
std::vector<double> Results(uint64_t from, uint64_t count, int reduction = SY_SUM) {
  std::vector<double> values;
  for (uint64_t i = 0; i < count; ++i) values.push_back(Expected(from + i, reduction));
  return values;
}

const uint64_t kCounts[] = {0, 1, 7, 1000, 70001};
constexpr uint64_t kLarge = 1000003;  // more than one staging slot

TEST(AllReduce, EveryDtypeAndReductionIsExactInPlaceOrNot) {
  for (sy_dtype dtype = 0; dtype < SY_DTYPE_COUNT; ++dtype) {
    for (int reduction = 0; reduction < SY_REDUCTION_COUNT; ++reduction) {
      for (const uint64_t count : kCounts) {
        const std::string what = fmt::format("{} reduction {} count {}", sy_dtype_name(dtype), reduction, count);
        const auto send = Encode(Values(World0().rank(), 0, count, reduction), dtype),
                   expected = Encode(Results(0, count, reduction), dtype);
        std::vector<char> receive(send.size() + 8, 0x5A);
        ASSERT_OK(World0().AllReduce("out of place", send.data(), receive.data(), count, dtype, reduction));
        ASSERT_SAME(true, Holds(receive.data(), expected), what);
        ASSERT_SAME(receive[send.size()], 0x5A, what + " sentinel");
        receive = send;
        ASSERT_OK(World0().AllReduce("in place", receive.data(), receive.data(), count, dtype, reduction));
        ASSERT_SAME(receive, expected, what + " in place");
      }
    }
  }
}

TEST(AllReduce, LargeCounts) {
  for (const sy_dtype dtype : {SY_F32, SY_BF16}) {
    auto data = Encode(Values(World0().rank(), 0, kLarge), dtype);
    ASSERT_OK(World0().AllReduce("large", data.data(), data.data(), kLarge, dtype, SY_SUM));
    ASSERT_SAME(data, Encode(Results(0, kLarge), dtype), "large");
  }
}

TEST(AllReduce, NotANumberReachesEveryRank) {
  if (World0().plugin_name() == "mpi") GTEST_SKIP() << "MPI_MAX does not say what becomes of NaN";
  for (const int reduction : {SY_SUM, SY_MAX, SY_MIN}) {
    std::vector<float> data(100, 1.0f);
    if (World0().rank() == World0().size() - 1) data[50] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_OK(World0().AllReduce("nan", data.data(), data.data(), data.size(), SY_F32, reduction));
    ASSERT_SAME(true, data[50] != data[50], "NaN");
    ASSERT_SAME(true, data[49] == data[49], "the rest");
  }
}

TEST(AllReduce, AllRanksGetTheSameBitsOfInexactSums) {
  std::vector<float> data(50021);
  for (size_t i = 0; i < data.size(); ++i) data[i] = 1.0f / static_cast<float>(1 + i + 31 * World0().rank());
  ASSERT_OK(World0().AllReduce("inexact", data.data(), data.data(), data.size(), SY_F32, SY_SUM));
  std::vector<float> zero = data;
  ASSERT_OK(World0().Broadcast("of rank 0", zero.data(), zero.size(), SY_F32, 0));
  ASSERT_SAME(0, std::memcmp(zero.data(), data.data(), data.size() * 4), "bits");
}

// Of numbers whose sum depends on the order: that of the ranks, in f32 and rounded once where halves are added. Long
// ones take another way than short ones.
TEST(AllReduce, AddsInTheOrderOfTheRanks) {
  if ((World0().info().flags & SY_COLLECTIVE_DETERMINISTIC) == 0) GTEST_SKIP() << "promises no order";
  const auto number = [](int rank, uint64_t i) {
    return static_cast<float>(
        std::ldexp(static_cast<double>(1 + (i * 37 + static_cast<uint64_t>(rank) * 11) % 251) / 64,
                   static_cast<int>(i + static_cast<uint64_t>(rank) * 5) % 9));
  };
  const auto to_bf16 = [](float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  };
  for (const uint64_t count : {uint64_t{1000}, uint64_t{70001}, kLarge}) {
    std::vector<float> own(count), sums(count);
    std::vector<uint16_t> own_bf16(count), sums_bf16(count);
    std::vector<_Float16> own_f16(count), sums_f16(count);
    for (uint64_t i = 0; i < count; ++i) {
      // In f32 the last bits differ from rank to rank; in halves all of these numbers are exact.
      const float tail = 1e-7f * static_cast<float>(i % 7 + 1);
      float sum = 0, sum_of_halves = 0;
      for (int rank = 0; rank < World0().size(); ++rank) {
        const float value = number(rank, i), odd = value * (1 + tail);
        sum = rank == 0 ? odd : sum + odd;
        sum_of_halves = rank == 0 ? value : sum_of_halves + value;
        if (rank != World0().rank()) continue;
        own[i] = odd;
        own_bf16[i] = to_bf16(value);
        own_f16[i] = static_cast<_Float16>(value);
      }
      sums[i] = sum;
      sums_bf16[i] = to_bf16(sum_of_halves);
      sums_f16[i] = static_cast<_Float16>(sum_of_halves);
    }
    std::vector<float> sent = own;
    ASSERT_OK(World0().AllReduce("f32", sent.data(), own.data(), count, SY_F32, SY_SUM));
    ASSERT_SAME(0, std::memcmp(own.data(), sums.data(), 4 * count), fmt::format("f32, {} elements", count));
    ASSERT_OK(World0().AllReduce("bf16", own_bf16.data(), own_bf16.data(), count, SY_BF16, SY_SUM));
    ASSERT_SAME(own_bf16, sums_bf16, fmt::format("bf16, {} elements", count));
    ASSERT_OK(World0().AllReduce("f16", own_f16.data(), own_f16.data(), count, SY_F16, SY_SUM));
    ASSERT_SAME(0, std::memcmp(own_f16.data(), sums_f16.data(), 2 * count), fmt::format("f16, {} elements", count));
  }
}

TEST(OwnedMemory, ReducesInPlaceAndBetweenBuffers) {
  const uint64_t bytes = kLarge * 4;
  const auto first = World0().AllocateOwned(bytes);
  if (absl::IsUnimplemented(first.status())) GTEST_SKIP() << Message(first.status());
  ASSERT_OK(first.status());
  const auto second = World0().AllocateOwned(bytes);
  ASSERT_OK(second.status());
  for (const uint64_t count : {uint64_t{1}, uint64_t{17}, uint64_t{70001}, kLarge - 3}) {
    for (sy_dtype dtype = 0; dtype < SY_DTYPE_COUNT; ++dtype) {
      if (BytesOf(dtype) * (count + 3) > bytes) continue;
      // From the middle of the buffer: offsets are elements.
      char* const from = static_cast<char*>(*first) + 3 * BytesOf(dtype);
      char* const to = static_cast<char*>(*second) + BytesOf(dtype);
      const auto send = Encode(Values(World0().rank(), 0, count), dtype), expected = Encode(Results(0, count), dtype);
      std::copy(send.begin(), send.end(), from);
      ASSERT_OK(World0().AllReduce("owned to owned", from, to, count, dtype, SY_SUM));
      ASSERT_SAME(true, Holds(to, expected), "owned to owned");
      ASSERT_SAME(true, Holds(from, send), "the source");
      ASSERT_OK(World0().AllReduce("owned in place", from, from, count, dtype, SY_SUM));
      ASSERT_SAME(true, Holds(from, expected), "owned in place");
    }
  }
}

// One rank's address is its own: all must take the staged way.
TEST(OwnedMemory, MixesWithOrdinaryMemory) {
  const auto owned = World0().AllocateOwned(400000);
  if (absl::IsUnimplemented(owned.status())) GTEST_SKIP() << Message(owned.status());
  std::vector<float> ordinary(100000);
  float* const data = World0().rank() == 0 ? ordinary.data() : static_cast<float*>(*owned);
  const auto send = Encode(Values(World0().rank(), 0, 100000), SY_F32), expected = Encode(Results(0, 100000), SY_F32);
  std::copy(send.begin(), send.end(), reinterpret_cast<char*>(data));
  ASSERT_OK(World0().AllReduce("mixed", data, data, 100000, SY_F32, SY_SUM));
  ASSERT_SAME(true, Holds(data, expected), "mixed");
}

// The other collectives, from ordinary memory and, where the plugin has it, from owned memory.
class DataMovement : public testing::TestWithParam<bool> {
 protected:
  // Room for `bytes`, kept for the whole test.
  char* Room(uint64_t bytes) {
    if (!GetParam()) {
      ordinary_.emplace_back(bytes + 1);
      return ordinary_.back().data();
    }
    const auto owned = World0().AllocateOwned(bytes + 1);
    return owned.ok() ? static_cast<char*>(*owned) : nullptr;
  }
  bool Skips() { return GetParam() && absl::IsUnimplemented(World0().AllocateOwned(64).status()); }
  std::vector<std::vector<char>> ordinary_;
};
INSTANTIATE_TEST_SUITE_P(Memory, DataMovement, testing::Bool(),
                         [](const auto& info) { return info.param ? "Owned" : "Ordinary"; });

TEST_P(DataMovement, AllGather) {
  if (Skips()) GTEST_SKIP() << "no owned memory";
  const uint64_t size = World0().size(), rank = World0().rank();
  char* const receive = Room(size * 300007 * 4);
  for (const uint64_t count : {0, 1, 5, 3000, 300007}) {
    for (const bool in_place : {false, true}) {
      const auto send = Encode(Values(static_cast<int>(rank), 0, count), SY_F32);
      std::memset(receive, 0x5A, size * count * 4 + 1);
      if (in_place) std::copy(send.begin(), send.end(), receive + rank * count * 4);
      ASSERT_OK(
          World0().AllGather("gather", in_place ? receive + rank * count * 4 : send.data(), receive, count, SY_F32));
      for (uint64_t peer = 0; peer < size; ++peer) {
        const auto expected = Encode(Values(static_cast<int>(peer), 0, count), SY_F32);
        ASSERT_SAME(true, Holds(receive + peer * count * 4, expected), "gathered");
      }
      ASSERT_SAME(receive[size * count * 4], 0x5A, "sentinel");
    }
  }
}

TEST_P(DataMovement, ReduceScatter) {
  if (Skips()) GTEST_SKIP() << "no owned memory";
  const uint64_t size = World0().size(), rank = World0().rank();
  char* const send = Room(size * 300007 * 4);
  for (const uint64_t count : {0, 1, 5, 3000, 300007}) {
    for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_I64}) {
      if (dtype == SY_I64 && count > 3000) continue;
      for (const bool in_place : {false, true}) {
        const auto values = Encode(Values(static_cast<int>(rank), 0, size * count), dtype);
        const auto expected = Encode(Results(rank * count, count), dtype);
        std::copy(values.begin(), values.end(), send);
        std::vector<char> apart(expected.size() + 1, 0x5A);
        char* const receive = in_place ? send + rank * count * BytesOf(dtype) : apart.data();
        ASSERT_OK(World0().ReduceScatter("scatter", send, receive, count, dtype, SY_SUM));
        ASSERT_SAME(true, Holds(receive, expected), "scattered");
        ASSERT_SAME(apart.back(), 0x5A, "sentinel");
      }
    }
  }
}

TEST_P(DataMovement, Broadcast) {
  if (Skips()) GTEST_SKIP() << "no owned memory";
  char* const data = Room(kLarge * 4);
  for (int root = 0; root < World0().size(); ++root) {
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{5}, uint64_t{3000}, kLarge}) {
      const auto values = Encode(Values(World0().rank(), 0, count), SY_F32),
                 expected = Encode(Values(root, 0, count), SY_F32);
      std::copy(values.begin(), values.end(), data);
      ASSERT_OK(World0().Broadcast("broadcast", data, count, SY_F32, root));
      ASSERT_SAME(true, Holds(data, expected), "broadcast");
    }
  }
}

TEST_P(DataMovement, AllToAll) {
  if (Skips()) GTEST_SKIP() << "no owned memory";
  const uint64_t size = World0().size(), rank = World0().rank();
  char* const send = Room(size * 300007 * 4);
  char* const apart = Room(size * 300007 * 4);
  for (const uint64_t count : {0, 1, 5, 3000, 300007}) {
    for (const bool in_place : {false, true}) {
      const auto values = Encode(Values(static_cast<int>(rank), 0, size * count), SY_F32);
      std::copy(values.begin(), values.end(), send);
      char* const receive = in_place ? send : apart;
      ASSERT_OK(World0().AllToAll("exchange", send, receive, count, SY_F32));
      for (uint64_t peer = 0; peer < size; ++peer) {
        const auto expected = Encode(Values(static_cast<int>(peer), rank * count, count), SY_F32);
        ASSERT_SAME(true, Holds(receive + peer * count * 4, expected), "exchanged");
      }
    }
  }
}

TEST(SendReceive, BatchesMoveTogetherInOrder) {
  const int size = World0().size(), rank = World0().rank();
  if (size == 1) GTEST_SKIP() << "one rank has no peer";
  // Two messages to every peer, larger than any buffer of the plugin, and an empty one between them.
  const uint64_t counts[] = {200003, 0, 17};
  std::vector<std::vector<char>> sent, received;
  std::vector<sy_transfer> transfers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    for (int part = 0; part < 3; ++part) {
      sent.push_back(Encode(Values(rank * size + peer + part, 0, counts[part]), SY_F64));
      received.emplace_back(sent.back().size());
    }
  }
  size_t next = 0;
  for (int peer = 0; peer < size; ++peer) {
    for (int part = 0; part < 3 && peer != rank; ++part, ++next) {
      transfers.push_back({peer, 1, sent[next].data(), sent[next].size()});
      transfers.push_back({peer, 0, received[next].data(), received[next].size()});
    }
  }
  for (int repeat = 0; repeat < 3; ++repeat) {
    ASSERT_OK(World0().SendReceive("messages", transfers));
    next = 0;
    for (int peer = 0; peer < size; ++peer) {
      for (int part = 0; part < 3 && peer != rank; ++part, ++next) {
        ASSERT_SAME(received[next], Encode(Values(peer * size + rank + part, 0, counts[part]), SY_F64), "message");
        std::fill(received[next].begin(), received[next].end(), 0);
      }
    }
  }
}

TEST(SendReceive, BatchesOfSomeRanksDoNotConfuseTheOthers) {
  if (World0().size() < 3) GTEST_SKIP() << "needs a rank that takes no part";
  float value = 1;
  if (World0().rank() == 0) ASSERT_OK(World0().SendReceive("pair", {{1, 1, &value, 4}}));
  if (World0().rank() == 1) ASSERT_OK(World0().SendReceive("pair", {{0, 0, &value, 4}}));
  ASSERT_OK(World0().AllReduce("all", &value, &value, 1, SY_F32, SY_SUM));
  ASSERT_SAME(value, static_cast<float>(World0().size()), "sum after a batch of two");
}

// Rank 0 queues work behind a call, and only then lets the others take part in it: a host that waited for the call
// would wait for ever.
TEST(StartedCalls, HoldStreamsUpAndNotTheHostWhereTheDeviceHasSemaphores) {
  if (World0().size() == 1) GTEST_SKIP() << "needs a rank that comes later";
  const auto backend = Registry::Get().Find(PluginKind::kBackend, "null");
  if (!backend.ok()) GTEST_SKIP() << "backend null was not built";
  auto device = Device::Open(**backend, 0, {});
  ASSERT_OK(device.status());
  auto joined =
      Communicator::Join(world->plugin, world->processes, *world->rendezvous, device->get(), "started calls", 20000);
  ASSERT_OK(joined.status());
  auto stream = (*device)->NewStream(), communication = (*device)->NewStream();
  ASSERT_OK(stream.status());
  ASSERT_OK(communication.status());
  constexpr uint64_t kCount = 5003;
  auto buffer = (*device)->Allocate(kCount * 4);
  ASSERT_OK(buffer.status());
  const Communicator::DevicePlace at{&*buffer, 0};
  const auto reduce = (*joined)->Prepare("reduce", {Collective::kAllReduce, kCount}, at, at);
  ASSERT_OK(reduce.status());
  std::vector<char> result(kCount * 4);
  for (int round = 0; round < 3; ++round) {
    const auto send = Encode(Values(World0().rank(), round, kCount), SY_F32);
    ASSERT_OK((*device)->Upload(buffer->at(0), send.data(), send.size()));
    const std::string key = fmt::format("rank 0 goes on {}", round);
    if (World0().rank() != 0) ASSERT_OK(world->rendezvous->Get(key, 20000).status());
    ASSERT_OK((*joined)->Start(**reduce, nullptr, *communication));
    ASSERT_OK((*joined)->Before(**reduce, *stream));
    ASSERT_OK((*device)->Copy(*stream, HostPlace(result.data()), buffer->at(0), result.size()));
    if (World0().rank() == 0) ASSERT_OK(world->rendezvous->Put(key, "now"));
    ASSERT_OK((*device)->Synchronize(*stream));
    ASSERT_SAME(result, Encode(Results(round, kCount), SY_F32), "what the stream read behind the call");
    if (round != 1) ASSERT_OK((*joined)->Finish(**reduce));  // Start finishes the one before itself
  }
}

// Host-readable memory (reference) is reduced where it lies, opaque memory (null) through staging; both with owned
// memory where it exists.
class DeviceCalls : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, DeviceCalls, testing::Values("reference", "null"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceCalls, ReduceAndBroadcastDeviceMemory) {
  const auto backend = Registry::Get().Find(PluginKind::kBackend, GetParam());
  if (!backend.ok()) GTEST_SKIP() << "backend " << GetParam() << " was not built";
  auto device = Device::Open(**backend, 0, {});
  ASSERT_OK(device.status());
  auto joined = Communicator::Join(world->plugin, world->processes, *world->rendezvous, device->get(),
                                   std::string("device ") + GetParam(), 20000);
  ASSERT_OK(joined.status());
  auto stream = (*device)->NewStream();
  ASSERT_OK(stream.status());
  constexpr uint64_t kCount = 5003, kOffset = 256;
  auto shared = (*joined)->AllocateShared(kOffset + kCount * 4);
  for (const bool owned : {false, true}) {
    if (owned && !shared.ok()) continue;
    auto allocated = owned ? StatusOr<Buffer>(std::move(*shared)) : (*device)->Allocate(kOffset + kCount * 4);
    ASSERT_OK(allocated.status());
    const Buffer& buffer = *allocated;
    const auto send = Encode(Values(World0().rank(), 0, kCount), SY_F32);
    ASSERT_OK((*device)->Upload(buffer.at(kOffset), send.data(), send.size()));
    const Communicator::DevicePlace at{&buffer, kOffset}, too_far{&buffer, kOffset + 4};
    const auto reduce = (*joined)->Prepare("reduce", {Collective::kAllReduce, kCount}, at, at);
    ASSERT_OK(reduce.status());
    ASSERT_OK((*joined)->Launch(**reduce, *stream));
    std::vector<char> result(send.size());
    ASSERT_OK((*device)->Download(result.data(), buffer.at(kOffset), result.size()));
    ASSERT_SAME(result, Encode(Results(0, kCount), SY_F32), "all_reduce on the device");
    ASSERT_OK((*device)->Upload(buffer.at(kOffset), send.data(), send.size()));
    const int root = World0().size() - 1;
    const auto broadcast =
        (*joined)->Prepare("broadcast", {Collective::kBroadcast, kCount, SY_F32, SY_SUM, root}, at, at);
    ASSERT_OK(broadcast.status());
    ASSERT_OK((*joined)->Launch(**broadcast, *stream));
    ASSERT_OK((*device)->Download(result.data(), buffer.at(kOffset), result.size()));
    ASSERT_SAME(result, Encode(Values(root, 0, kCount), SY_F32), "broadcast on the device");
    ASSERT_SAME(false, (*joined)->Prepare("too far", {Collective::kAllReduce, kCount}, too_far, too_far).ok(),
                "a call beyond the buffer");
  }
}

// Sums of which the order can be told by their bits, and parts of calls that are more than one, or uneven.
TEST(PeerMemory, GivesTheBitsOfStagingThroughTheHost) {
  const int size = World0().size(), rank = World0().rank();
  if (size == 1) GTEST_SKIP() << "one rank has no peer";
  const auto backend = Registry::Get().Find(PluginKind::kBackend, "null");
  if (!backend.ok()) GTEST_SKIP() << "backend null was not built";
  auto device = Device::Open(**backend, 0, {});
  ASSERT_OK(device.status());
  const auto join = [&](const char* name, bool through_peers) {
    setenv("SWITCHYARD_PEER_MEMORY", through_peers ? "1" : "0", 1);
    auto joined = Communicator::Join(world->plugin, world->processes, *world->rendezvous, device->get(), name, 20000);
    unsetenv("SWITCHYARD_PEER_MEMORY");
    return joined;
  };
  auto staged = join("staged", false);
  ASSERT_OK(staged.status());
  const uint64_t before = (*device)->allocated_bytes();
  auto peers = join("peers", true);
  ASSERT_OK(peers.status());
  ASSERT_SAME((*staged)->peer_memory_bytes(), uint64_t{0}, "it has no windows");
  ASSERT_SAME((*peers)->peer_memory_bytes(), (*device)->allocated_bytes() - before, "what its windows take");
  ASSERT_SAME((*staged)->goes_through_peer_memory(), false, "staging was asked for");
  ASSERT_SAME((*peers)->goes_through_peer_memory(), true, "all ranks are on one host, and null has peer/1");
  // MPI adds in an order of its own.
  const bool same_order = ((*peers)->info().flags & SY_COLLECTIVE_DETERMINISTIC) != 0;
  auto stream = (*device)->NewStream();
  ASSERT_OK(stream.status());
  // What buffers hold before a call: drawn once for each count and dtype, which takes longer than the calls do.
  std::map<std::pair<uint64_t, sy_dtype>, std::vector<char>> drawn;
  const auto start = [&](uint64_t count, sy_dtype dtype) {
    std::vector<char>& bytes = drawn[{count, dtype}];
    if (!bytes.empty()) return bytes;
    RandomStream random(Key(HashName(fmt::format("{} {} {}", rank, count, dtype))));
    std::vector<float> values(2 * count * static_cast<uint64_t>(size));
    for (float& value : values) value = std::ldexp(random.Uniform(-1, 1), static_cast<int>(random.Uniform(0, 12)));
    bytes.resize(values.size() * BytesOf(dtype));
    const auto halves = [](float value) { return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16); };
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == SY_F32) std::memcpy(&bytes[4 * i], &values[i], 4);
      const uint16_t half = halves(values[i]);
      if (dtype == SY_BF16) std::memcpy(&bytes[2 * i], &half, 2);
    }
    return bytes;
  };
  const auto result = [&](Communicator& by, const Collective& what, bool in_place) -> StatusOr<std::vector<char>> {
    const uint64_t one = what.count * BytesOf(what.dtype), all = one * static_cast<uint64_t>(size);
    SY_ASSIGN_OR_RETURN(const Buffer buffer, (*device)->Allocate(2 * all + 256));
    std::vector<char> bytes = start(what.count, what.dtype);
    SY_RETURN_IF_ERROR((*device)->Upload(buffer.at(0), bytes.data(), bytes.size()));
    const uint64_t own = one * static_cast<uint64_t>(rank);
    Communicator::DevicePlace from{&buffer, 0}, to{&buffer, in_place ? 0 : all};
    if (in_place && what.kind == Collective::kAllGather) from.offset = own;
    if (in_place && what.kind == Collective::kReduceScatter) to.offset = own;
    if (what.kind == Collective::kBroadcast) to.offset = 0;
    SY_ASSIGN_OR_RETURN(const auto call, by.Prepare("compared", what, from, to));
    for (int again = 0; again < 2; ++again) SY_RETURN_IF_ERROR(by.Launch(*call, *stream));
    SY_RETURN_IF_ERROR((*device)->Download(bytes.data(), buffer.at(0), bytes.size()));
    return bytes;
  };
  using C = Collective;
  for (const C::Kind kind : {C::kAllReduce, C::kReduceScatter, C::kAllGather, C::kBroadcast, C::kAllToAll}) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{1003}, uint64_t{1200007}}) {
      for (const sy_dtype dtype : {SY_F32, SY_BF16}) {
        const bool adds = kind == C::kAllReduce || kind == C::kReduceScatter;
        if ((adds && !same_order) || (count > 10000 && dtype != SY_F32)) continue;
        for (const bool in_place : {false, true}) {
          if (count > 10000 && !in_place) continue;  // they take their time
          const Collective what{kind, count, dtype, SY_SUM, kind == C::kBroadcast ? size - 1 : 0};
          const auto expected = result(**staged, what, in_place), found = result(**peers, what, in_place);
          ASSERT_OK(expected.status());
          ASSERT_OK(found.status());
          ASSERT_SAME(*found == *expected, true,
                      fmt::format("kind {} of {} elements of dtype {}, in place: {}", static_cast<int>(kind), count,
                                  dtype, in_place));
        }
      }
    }
  }
  ASSERT_OK(World0().Barrier("compared"));
}

// The null backend, with a fault on the last rank only. Null where it was not built.
std::shared_ptr<Plugin> NullWithFaultOnTheLastRank(const char* fault) {
  const auto base = Registry::Get().Find(PluginKind::kBackend, "null");
  const std::string path = ProgramFolder() + "/faulty_plugin.so";
  if (!base.ok() || access(path.c_str(), R_OK) != 0) return nullptr;
  setenv("SWITCHYARD_FAULT_BASE", (*base)->path().c_str(), 1);
  setenv("SWITCHYARD_FAULT", World0().rank() == World0().size() - 1 ? fault : "none", 1);
  const auto faulty = Plugin::Load(path);
  return faulty.ok() ? *faulty : nullptr;
}

// Every rank gets `count` elements of the sum of ones and of rank numbers.
Status ReduceScatterOnDevice(Communicator& communicator, Device& device, uint64_t count) {
  const auto size = static_cast<uint64_t>(World0().size());
  const std::vector<float> ones(count * size, 1 + static_cast<float>(World0().rank()));
  std::vector<float> found(count);
  SY_ASSIGN_OR_RETURN(const Buffer from, device.Allocate(4 * ones.size()));
  SY_ASSIGN_OR_RETURN(const Buffer to, device.Allocate(4 * count));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_RETURN_IF_ERROR(device.Upload(from.at(0), ones.data(), 4 * ones.size()));
  SY_ASSIGN_OR_RETURN(const auto call, communicator.Prepare(fmt::format("of {}", count),
                                                            {Collective::kReduceScatter, count}, {&from, 0}, {&to, 0}));
  SY_RETURN_IF_ERROR(communicator.Launch(*call, stream));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  SY_RETURN_IF_ERROR(device.Download(found.data(), to.at(0), 4 * count));
  const float sum = static_cast<float>(size * (size + 1) / 2);
  for (const float one : found) {
    if (one != sum) return Internal("found {} in a sum of {} elements, expected {}", one, count, sum);
  }
  return OkStatus();
}

TEST(PeerMemory, IsGivenUpByAllWhereOneReadsOtherBytes) {
  if (World0().size() == 1) GTEST_SKIP() << "one rank has no peer";
  const auto backend = NullWithFaultOnTheLastRank("imports_something_else");
  if (backend == nullptr) GTEST_SKIP() << "the faulty backend was not built";
  auto device = Device::Open(*backend, 0, {});
  ASSERT_OK(device.status());
  auto joined = Communicator::Join(world->plugin, world->processes, *world->rendezvous, device->get(), "other", 20000);
  ASSERT_OK(joined.status());
  ASSERT_SAME((*joined)->goes_through_peer_memory(), false, "the last rank reads other bytes");
  ASSERT_SAME((*joined)->peer_memory_bytes(), uint64_t{0}, "it has no windows");
  ASSERT_OK(ReduceScatterOnDevice(**joined, **device, 1003));
  ASSERT_OK(World0().Barrier("given up"));
}

TEST(PeerMemory, IsGivenBackWhereAllLeaveIt) {
  if (World0().size() == 1) GTEST_SKIP() << "one rank has no peer";
  const auto backend = Registry::Get().Find(PluginKind::kBackend, "null");
  if (!backend.ok()) GTEST_SKIP() << "backend null was not built";
  auto device = Device::Open(**backend, 0, {});
  ASSERT_OK(device.status());
  auto joined = Communicator::Join(world->plugin, world->processes, *world->rendezvous, device->get(), "left", 20000);
  ASSERT_OK(joined.status());
  ASSERT_SAME((*joined)->goes_through_peer_memory(), true, "all ranks are on one host, and null has peer/1");
  (*joined)->LeavePeerMemory();
  ASSERT_SAME((*joined)->goes_through_peer_memory(), false, "it has left them");
  ASSERT_SAME((*device)->held_bytes(), uint64_t{0}, "windows are given back");
  ASSERT_OK(ReduceScatterOnDevice(**joined, **device, 1003));
  auto split = (*joined)->Split(0, World0().rank(), "of_left");
  ASSERT_OK(split.status());
  ASSERT_SAME((*split)->goes_through_peer_memory(), false, "nor has what is split from it");
  ASSERT_OK(World0().Barrier("left"));
}

TEST(PeerMemory, CallsThatOneRankHasNoKernelForGoThroughTheHostOnAll) {
  if (World0().size() == 1) GTEST_SKIP() << "one rank has no peer";
  const auto backend = NullWithFaultOnTheLastRank("refuses_501_elements");
  if (backend == nullptr) GTEST_SKIP() << "the faulty backend was not built";
  auto device = Device::Open(*backend, 0, {});
  ASSERT_OK(device.status());
  auto joined = Communicator::Join(world->plugin, world->processes, *world->rendezvous, device->get(), "later", 20000);
  ASSERT_OK(joined.status());
  ASSERT_SAME((*joined)->goes_through_peer_memory(), true, "nothing is wrong yet");
  for (const uint64_t count : {uint64_t{500}, uint64_t{501}, uint64_t{501}, uint64_t{502}})
    ASSERT_OK(ReduceScatterOnDevice(**joined, **device, count));
  ASSERT_OK(World0().Barrier("went through the host"));
}

TEST(Composition, EqualsThePluginsOwnCollectives) {
  const int size = World0().size(), rank = World0().rank();
  if (size == 1) GTEST_SKIP() << "one rank has no peer";
  Composition composed(rank, size, [](const std::vector<sy_transfer>& transfers) {
    return World0().SendReceive("composed", transfers);
  });
  for (const uint64_t count : kCounts) {
    for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16, SY_U8}) {
      auto data = Encode(Values(rank, 0, count), dtype);
      ASSERT_OK(composed.AllReduce(data.data(), data.data(), count, dtype, SY_SUM));
      ASSERT_SAME(data, Encode(Results(0, count), dtype), "composed all_reduce");
    }
    std::vector<char> all(count * size * 4), own = Encode(Values(rank, 0, count), SY_F32);
    ASSERT_OK(composed.AllGather(own.data(), all.data(), count, SY_F32));
    for (int peer = 0; peer < size; ++peer) {
      const auto expected = Encode(Values(peer, 0, count), SY_F32);
      ASSERT_SAME(true, Holds(all.data() + peer * count * 4, expected), "composed all_gather");
    }
    ASSERT_OK(composed.ReduceScatter(all.data(), own.data(), count, SY_F32, SY_MAX));
    ASSERT_SAME(own, Encode(Values(rank, 0, count), SY_F32), "composed reduce_scatter of equal data");
    ASSERT_OK(composed.Broadcast(own.data(), count, SY_F32, size - 1));
    ASSERT_SAME(own, Encode(Values(size - 1, 0, count), SY_F32), "composed broadcast");
    ASSERT_OK(composed.Barrier());
  }
  std::vector<char> blocks = Encode(Values(rank, 0, 3 * size), SY_F32);
  ASSERT_OK(composed.AllToAll(blocks.data(), blocks.data(), 3, SY_F32));
  for (int peer = 0; peer < size; ++peer) {
    const auto expected = Encode(Values(peer, 3 * rank, 3), SY_F32);
    ASSERT_SAME(0, std::memcmp(blocks.data() + peer * 12, expected.data(), 12), "composed all_to_all");
  }
}

TEST(Split, GroupsByColorAndOrdersByKey) {
  const int size = World0().size(), rank = World0().rank();
  // Even ranks in reverse order, odd ranks in none.
  auto split = World0().Split(rank % 2 == 0 ? 0 : -1, -rank, "even");
  ASSERT_OK(split.status());
  const int evens = (size + 1) / 2;
  if (rank % 2 == 1) {
    ASSERT_SAME(true, *split == nullptr, "no group");
  } else {
    Communicator& group = **split;
    ASSERT_SAME(group.size(), evens, "size of the group");
    ASSERT_SAME(group.rank(), evens - 1 - rank / 2, "rank in the group");
    int32_t sum = rank;
    ASSERT_OK(group.AllReduce("in group", &sum, &sum, 1, SY_I32, SY_SUM));
    ASSERT_SAME(sum, evens * (evens - 1), "sum over the group");
    int32_t first = rank;
    ASSERT_OK(group.Broadcast("of the group's first", &first, 1, SY_I32, 0));
    ASSERT_SAME(first, 2 * (evens - 1), "first of the group");
  }
  ASSERT_OK(World0().Barrier("after split"));
}

TEST(Barrier, NoRankPassesBeforeAllHaveCome) {
  for (int repeat = 0; repeat < 200; ++repeat) ASSERT_OK(World0().Barrier("again"));
  if (World0().rank() == 0) usleep(50000);
  ASSERT_OK(World0().Barrier("late"));
}

TEST(Counters, CountPayloadAndWaiting) {
  World0().TakeWaitMilliseconds();
  const uint64_t before = World0().bytes_sent();
  float value = 1;
  ASSERT_OK(World0().AllReduce("counted", &value, &value, 1, SY_F32, SY_SUM));
  EXPECT_EQ(World0().bytes_sent() - before, 4u);
  EXPECT_GT(World0().TakeWaitMilliseconds(), 0);
  EXPECT_EQ(World0().TakeWaitMilliseconds(), 0);
}

// The core that a waiting rank does not use is somebody else's: the late rank's, where ranks outnumber cores.
void WaitForALateRank() {
  const auto cpu_seconds = [] {
    timespec used{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  };
  int32_t value = 1;
  ASSERT_OK(World0().Barrier("before"));
  const double before = cpu_seconds();
  if (World0().rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  ASSERT_OK(World0().AllReduce("late", &value, &value, 1, SY_I32, SY_SUM));
  EXPECT_EQ(value, World0().size());
  EXPECT_LT(cpu_seconds() - before, 0.1) << "of 0.4 s of waiting";
}

TEST(Waiting, ForALateRankTakesLittleOfACore) {
  if (World0().size() == 1) GTEST_SKIP() << "a single rank waits for nobody";
  WaitForALateRank();
}

// A rank that has to wait for its core has not found anything to do meanwhile.
TEST(Waiting, ForALateRankTakesLittleOfACoreBesideBusyProcesses) {
  if (World0().size() == 1) GTEST_SKIP() << "a single rank waits for nobody";
  std::vector<pid_t> busy;
  const char* const command[] = {"sh", "-c", "while :; do :; done", nullptr};
  for (unsigned i = 0; World0().rank() == 0 && i < 2 * std::thread::hardware_concurrency(); ++i) {
    pid_t started = 0;
    if (posix_spawnp(&started, "sh", nullptr, nullptr, const_cast<char**>(command), environ) == 0)
      busy.push_back(started);
  }
  WaitForALateRank();
  for (const pid_t process : busy) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
}

}  // namespace
}  // namespace switchyard
