// What a warm step costs beside computing: no heap allocation of ours, and no byte of device memory that the planner
// did not announce.
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace {

thread_local bool counting = false;
thread_local int64_t allocations = 0;

// The addresses at which oneDNN is loaded: what it allocates inside its own calls is not ours.
struct AddressRange {
  uintptr_t begin = 0, end = 0;
} onednn;

int RememberOneDnn(dl_phdr_info* library, size_t, void*) {
  if (std::strstr(library->dlpi_name, "libdnnl") == nullptr) return 0;
  onednn.begin = onednn.end = library->dlpi_addr;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD) onednn.end = std::max(onednn.end, onednn.begin + segment.p_vaddr + segment.p_memsz);
  }
  return 1;
}

}  // namespace

// Every C++ allocation of this program, its libraries and its plugins is seen here.
void* operator new(std::size_t bytes) {
  const auto caller = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  if (counting && (caller < onednn.begin || caller >= onednn.end)) ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace switchyard {
namespace {

TrainConfig MicroConfig() {
  TrainConfig config = SmallConfig();
  config.own.clear();  // vit_micro's own
  config.optimizer = "adamw";
  config.clip = 1;
  config.own["dropout"] = 0.1;
  return config;
}

TEST(WarmStep, MakesNoHeapAllocation) {
  for (const int accumulation : {1, 2}) {
    TrainConfig config = MicroConfig();
    config.accumulation = accumulation;
    config.train_size = 96;
    auto run = MakeRun(config, SharedWorld());
    ASSERT_TRUE(run.ok()) << Message(run.status());
    dl_iterate_phdr(RememberOneDnn, nullptr);
    HostBatch batch;
    for (int i = 0; i < config.batch_size * accumulation; ++i) batch.Append(run->setup, "batch", i);
    for (int update = 0; update < 5; ++update) {
      allocations = 0;
      counting = update >= 2;
      const auto result = run->trainer->Step(batch.tensors());
      counting = false;
      ASSERT_TRUE(result.ok()) << Message(result.status());
      EXPECT_EQ(allocations, 0) << "in update " << update << " with accumulation " << accumulation;
    }
  }
}

class DeviceMemory : public ::testing::TestWithParam<const char*> {};  // recompute
INSTANTIATE_TEST_SUITE_P(Recompute, DeviceMemory, ::testing::Values("none", "blocks", "every:3"), [](const auto& info) {
  return std::string(info.param).substr(0, info.param[0] == 'e' ? 5 : 6);
});

TEST_P(DeviceMemory, IsExactlyWhatWasPlanned) {
  World& world = SharedWorld();
  const uint64_t before = world.device->allocated_bytes(), held = world.device->held_bytes();
  TrainConfig config = MicroConfig();
  config.recompute = GetParam();
  const auto run = MakeRun(config, world);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  EXPECT_EQ(world.device->held_bytes() - held, run->trainer->planned_bytes()) << "with what the collective owns";
  const PlanReport& report = run->trainer->report();
  EXPECT_EQ(run->trainer->planned_bytes(), run->trainer->allocated_bytes());
  // Gradients lie in memory of the collective where it has some that the device can use.
  const bool shared = world.size() > 1 && world.communicator->AllocateShared(64).ok();
  const uint64_t gradients = report.memory[kGradientsArena].bytes;
  EXPECT_GT(gradients, 0u);
  EXPECT_EQ(world.device->allocated_bytes() - before + (shared ? gradients : 0), run->trainer->planned_bytes());
}

// A small model of each family.
struct Small {
  const char *model, *dataset;
  int image_size;
  SettingValues own;
};
const std::vector<Small> kModels = {
    {"vit_micro", "shapes", 28, {}},
    {"swin_tiny_cifar", "synthetic", 32, {}},
    {"resnet18", "synthetic", 32, {}},
    {"deeplabv3plus_resnet50", "synthetic", 64, {}},
    {"unet3d", "synthetic", 16, {{"width", 8}, {"levels", 3}}},
    {"mlp", "shapes", 28, {}},
};

class ModelMemory : public ::testing::TestWithParam<std::tuple<Small, std::string>> {};
INSTANTIATE_TEST_SUITE_P(Models, ModelMemory,
                         ::testing::Combine(::testing::ValuesIn(kModels), ::testing::Values("none", "blocks")),
                         [](const auto& info) {
                           return std::get<0>(info.param).model + ("_" + std::get<1>(info.param));
                         });

// The most that the plugin was ever asked for at once, kernels' and inputs' memory included, while the step runs.
TEST_P(ModelMemory, PeaksWherePlanned) {
  const auto& [small, recompute] = GetParam();
  const auto world = LoneWorld();
  ASSERT_NE(world->device, nullptr);
  TrainConfig config = SmallConfig();
  config.model = small.model;
  config.dataset = small.dataset;
  config.image_size = small.image_size;
  config.own = small.own;
  config.optimizer = "adamw";
  config.batch_size = 2;
  config.recompute = recompute;
  const auto run = MakeRun(config, *world);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  std::vector<std::vector<std::byte>> zeros;
  for (const SampleTensor& tensor : run->trainer->task().tensors())
    zeros.emplace_back(static_cast<size_t>(config.batch_size * tensor.row.bytes()));
  const std::vector<std::span<const std::byte>> tensors(zeros.begin(), zeros.end());
  for (int update = 0; update < 2; ++update) {
    const auto result = run->trainer->Step(tensors);
    ASSERT_TRUE(result.ok()) << Message(result.status());
  }
  EXPECT_EQ(world->device->peak_allocated_bytes(), run->trainer->planned_bytes());
}

}  // namespace
}  // namespace switchyard
