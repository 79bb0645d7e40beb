#include "tests/oracles/runs.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/environment.h"
#include "core/base/random.h"
#include "core/runtime/plugins/registry.h"
#include "core/train/checkpoint.h"
#include "core/train/each_rank.h"
#include "gtest/gtest.h"
#include "zlib.h"

namespace switchyard {
namespace {

// Many of these runs save after every update, and each save waits for the disk several times. A folder in memory takes
// the same calls and waits for nothing. Elsewhere only where TMPDIR says so or memory has no room.
std::filesystem::path PlaceOfRuns() {
  constexpr uint64_t kRoom = uint64_t{1} << 30;
  const std::filesystem::path memory = "/dev/shm";
  std::error_code failed;
  const std::filesystem::space_info space = std::filesystem::space(memory, failed);
  const bool serves = !failed && space.available >= kRoom && access(memory.c_str(), W_OK) == 0;
  return serves && !switchyard::Environment("TMPDIR") ? memory : std::filesystem::temp_directory_path();
}

class WorldEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    WorldRequest request;
    request.device = switchyard::Environment("SWITCHYARD_TEST_DEVICE").value_or("cpu");
    request.collective = switchyard::Environment("SWITCHYARD_COLLECTIVE").value_or("auto");
    request.ranks_per_device = switchyard::EnvironmentInt("SWITCHYARD_RANKS_PER_DEVICE");
    request.threads = 1;
    request.computes_on_host = true;  // as a run with --offload has it
    auto joined = World::Join(request);
    ASSERT_TRUE(joined.ok()) << Message(joined.status());
    world = std::move(*joined);
    char path[4096] = {};
    if (world->rank() == 0) {
      const std::string pattern = (PlaceOfRuns() / "switchyard-oracles-XXXXXX").string();
      std::strncpy(path, pattern.c_str(), sizeof path - 1);
      ASSERT_NE(mkdtemp(path), nullptr) << path;
    }
    if (world->communicator) {
      const Status status = world->communicator->Broadcast("folder", path, sizeof path, SY_U8, 0);
      ASSERT_TRUE(status.ok()) << Message(status);
    }
    folder = path;
  }
  void TearDown() override {
    if (!world) return;
    if (world->communicator) {
      EXPECT_TRUE(world->communicator->Barrier("end").ok());
    }
    std::error_code ignored;
    if (world->rank() == 0) std::filesystem::remove_all(folder, ignored);
    world.reset();
  }
  std::unique_ptr<World> world;
  std::string folder;
};

// What differs between two runs: a few of it in words, the rest in number. Whole tensors and files would fill the log.
class Differences {
 public:
  template <typename... T>
  void Add(fmt::format_string<T...> format, T&&... values) {
    constexpr size_t kShown = 5;
    if (count_++ < kShown) text_ += fmt::format(format, std::forward<T>(values)...) + "\n";
    if (count_ > kShown) more_ = fmt::format("and {} more", count_ - kShown);
  }
  void ExpectNone() const { EXPECT_EQ(count_, 0u) << "differ:\n" << text_ << more_; }

 private:
  size_t count_ = 0;
  std::string text_, more_;
};

auto* const environment = static_cast<WorldEnvironment*>(::testing::AddGlobalTestEnvironment(new WorldEnvironment));

}  // namespace

World& SharedWorld() { return *environment->world; }
const std::string& SharedFolder() { return environment->folder; }

std::unique_ptr<World> LoneWorld(uint64_t memory_limit, const std::string& plugin) {
  auto world = std::make_unique<World>();
  const auto open = [](const std::string& name, int index, uint64_t limit) -> std::unique_ptr<Device> {
    OpenOptions options;
    options.threads = 1;
    options.memory_limit = limit;
    const auto plugin = Registry::Get().Find(PluginKind::kBackend, name);
    if (!plugin.ok()) return nullptr;
    auto device = Device::Open(**plugin, index, options);
    EXPECT_TRUE(device.ok()) << Message(device.status());
    return device.ok() ? std::move(*device) : nullptr;
  };
  world->choice = SharedWorld().choice;
  if (!plugin.empty()) world->choice = {.plugin = plugin};
  world->collective = "none";
  world->device = open(world->choice.plugin, world->choice.index, memory_limit);
  world->reference = open("reference", 0, kNoMemoryLimit);
  return world;
}

TrainConfig SmallConfig() {
  TrainConfig c;
  c.model = "vit_micro";
  c.own = {{"width", 32}, {"depth", 2}, {"heads", 2}};
  c.dataset = "shapes";
  c.image_size = 28;
  c.train_size = 48;
  c.validation_size = 16;
  c.batch_size = 4;
  c.steps = 3;
  c.optimizer = "sgd";
  c.lr = 0.05f;
  c.weight_decay = 0.01f;
  c.schedule = "constant";
  c.warmup = "0";
  c.clip = 0;
  c.label_smoothing = 0;
  c.workers = 2;
  c.threads = 1;
  c.eval_every = 0;
  c.log_every = 1000;
  c.tensorboard = false;
  c.output = SharedFolder();
  return c;
}

TrainConfig FashionMnistConfig() {
  TrainConfig c = SmallConfig();
  c.own = {};
  c.dataset = "fashion-mnist";
  c.image_size.reset();
  c.train_size.reset();
  c.validation_size.reset();
  c.optimizer = "adamw";
  c.lr = 2e-3f;
  c.warmup = "20";
  c.clip = 1;
  c.schedule = "cosine";
  return c;
}

StatusOr<RunSetup> SettledRun(const TrainConfig& config, World& world) {
  Settings settings(RunTable());
  const auto all = ToJson(config, {SettingKind::kProperty, SettingKind::kPlace, SettingKind::kAct});
  for (const auto& [name, value] : all.items())
    SY_RETURN_IF_ERROR(settings.Give(name, nlohmann::json(value), Origin::kFlag, "this test"));
  return SetUpRun(settings, world.processes);
}

StatusOr<Run> MakeRun(const TrainConfig& config, World& world) {
  Run run;
  SY_ASSIGN_OR_RETURN(run.setup, SettledRun(config, world));
  SY_ASSIGN_OR_RETURN(
      run.trainer, Trainer::Create(run.setup.config, run.setup.model, *run.setup.train, *run.setup.validation, world));
  return run;
}

void HostBatch::Append(const RunSetup& setup, const std::string& name, int64_t sample) {
  RandomStream random(Key(HashName(name), static_cast<uint64_t>(sample)));
  const int64_t side = setup.model.image_size;
  for (int64_t i = 0; i < side * side * setup.model.channels; ++i)
    images.push_back(static_cast<uint8_t>(random.Below(256)));
  labels.push_back(static_cast<int32_t>(random.Below(static_cast<uint32_t>(setup.model.classes))));
}

void ExpectEqual(const HostTensors& found, const HostTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  Differences differences;
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    const std::vector<float>& values = found.at(name).values;
    ASSERT_EQ(values.size(), tensor.values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::memcmp(&values[i], &tensor.values[i], sizeof(float)) != 0)
        differences.Add("{}[{}]: {}, expected {}", name, i, values[i], tensor.values[i]);
    }
  }
  differences.ExpectNone();
}

void ExpectClose(const HostTensors& found, const HostTensors& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const std::vector<float>& values = found.at(name).values;
    ASSERT_EQ(values.size(), tensor.values.size()) << name;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{values[i]} - tensor.values[i], 2);
      norm += std::pow(double{tensor.values[i]}, 2);
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name;
  }
}

void ExpectEqualOnAllRanks(const HostTensors& tensors) {
  if (SharedWorld().size() == 1) return;
  for (const auto& [name, tensor] : tensors) {
    const auto sum = static_cast<double>(crc32(0, reinterpret_cast<const Bytef*>(tensor.values.data()),
                                               static_cast<uInt>(tensor.values.size() * sizeof(float))));
    double lowest = sum, highest = sum;
    Communicator& communicator = *SharedWorld().communicator;
    ASSERT_TRUE(communicator.AllReduce("lowest", &lowest, &lowest, 1, SY_F64, SY_MIN).ok());
    ASSERT_TRUE(communicator.AllReduce("highest", &highest, &highest, 1, SY_F64, SY_MAX).ok());
    EXPECT_EQ(lowest, highest) << name << " differs between ranks";
  }
}

double DistanceOfMovements(const HostTensors& found, const HostTensors& expected, const HostTensors& start) {
  double difference = 0, movement = 0;
  for (const auto& [name, tensor] : expected) {
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      difference += std::pow(double{found.at(name).values[i]} - tensor.values[i], 2);
      movement += std::pow(double{tensor.values[i]} - start.at(name).values[i], 2);
    }
  }
  return std::sqrt(difference / movement);
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void ExpectEqualBytes(const std::string& found, const std::string& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  Differences differences;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != expected[i])
      differences.Add("{}, byte {}: {:#04x}, expected {:#04x}", what, i, static_cast<uint8_t>(found[i]),
                      static_cast<uint8_t>(expected[i]));
  }
  differences.ExpectNone();
}

namespace {

template <typename File>
SavedByName ReadAll(const File& file) {
  SavedByName tensors;
  for (const TensorFile::Entry& entry : file.entries()) {
    std::string bytes(static_cast<size_t>(entry.bytes), '\0');
    const Status read = file.Read(entry, bytes.data());
    EXPECT_TRUE(read.ok()) << Message(read);
    tensors[entry.name] = {entry.dtype, {entry.shape.begin(), entry.shape.end()}, std::move(bytes)};
  }
  return tensors;
}

// A weight, or what has a weight's shape, as files of one rank have it: one tensor or several. Nothing where it is
// none.
SavedByName Published(const std::string& name, const SavedTensor& tensor, const TrainableModel& model,
                      const SavedByName& weights) {
  HostTensor whole{tensor.shape, std::vector<float>(tensor.bytes.size() / sizeof(float))};
  std::memcpy(whole.values.data(), tensor.bytes.data(), tensor.bytes.size());
  HostTensors published;
  published[name] = std::move(whole);
  if (model.to_file) published = model.to_file(std::move(published));
  SavedByName tensors;
  for (const auto& [in_file, values] : published) {
    if (!weights.contains(in_file) || weights.at(in_file).shape != values.shape) return {};
    const auto* const bytes = reinterpret_cast<const char*>(values.values.data());
    tensors[in_file] = {"F32", values.shape, std::string(bytes, values.values.size() * sizeof(float))};
  }
  return tensors;
}

}  // namespace

SavedByName WeightsOf(const std::string& checkpoint) {
  const auto loaded = LoadCheckpoint(checkpoint);
  EXPECT_TRUE(loaded.ok()) << Message(loaded.status());
  return loaded.ok() ? ReadAll(loaded->weights) : SavedByName();
}

SavedByName StateOf(const std::string& checkpoint, const TrainableModel& model) {
  const auto loaded = LoadCheckpoint(checkpoint);
  EXPECT_TRUE(loaded.ok()) << Message(loaded.status());
  if (!loaded.ok()) return {};
  SavedByName saved = ReadAll(loaded->state);
  if (!loaded->state.in_pieces()) return saved;
  const SavedByName weights = ReadAll(loaded->weights);
  SavedByName state;
  for (auto& [name, tensor] : saved) {
    const size_t slash = name.find('/');
    const std::string kind = slash == std::string::npos ? "" : name.substr(0, slash + 1);
    const bool of_weight = tensor.dtype == "F32" && !kind.starts_with("power_sgd") && kind != kEachRank;
    const SavedByName published =
        of_weight ? Published(name.substr(kind.size()), tensor, model, weights) : SavedByName();
    for (const auto& [in_file, values] : published) {
      if (kind.empty()) {
        EXPECT_TRUE(values == weights.at(in_file)) << in_file;
      } else {
        state[kind + in_file] = values;
      }
    }
    if (published.empty()) state[name] = std::move(tensor);
  }
  return state;
}

void ExpectEqualTensors(const SavedByName& found, const SavedByName& expected) {
  Differences differences;
  for (const auto& [name, tensor] : expected) {
    const auto other = found.find(name);
    if (other == found.end()) {
      differences.Add("{} is missing", name);
    } else if (other->second.dtype != tensor.dtype || other->second.shape != tensor.shape) {
      differences.Add("{}: {} {}, expected {} {}", name, other->second.dtype, ToString(other->second.shape),
                      tensor.dtype, ToString(tensor.shape));
    } else if (other->second.bytes != tensor.bytes) {
      const auto at = std::mismatch(tensor.bytes.begin(), tensor.bytes.end(), other->second.bytes.begin()).first;
      differences.Add("{} differs from byte {} of {} on", name, at - tensor.bytes.begin(), tensor.bytes.size());
    }
  }
  for (const auto& [name, tensor] : found) {
    if (!expected.contains(name)) differences.Add("{} is too much", name);
  }
  differences.ExpectNone();
}

void TakeTurns() {
  if (SharedWorld().communicator) {
    ASSERT_TRUE(SharedWorld().communicator->Barrier("turns").ok());
  }
}

void SaveEveryUpdate(TrainConfig* config) {
  config->optimizer = "adamw";
  config->lr = 1e-3f;
  config->schedule = "cosine";
  config->warmup = "2";
  config->clip = 1;
  config->ema_decay = 0.9f;
  config->augmentation = "crop_flip";
  config->train_size = int64_t{4} * config->batch_size * config->accumulation * SharedWorld().size();
  config->steps = 6;
  config->save_every = 1;
  config->keep = 0;
}

void ExpectToGoOnAnywhere(const TrainConfig& config) {
  auto whole = MakeRun(config, SharedWorld());
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  const auto result = whole->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  const HostTensors expected = *whole->trainer->Parameters();
  ExpectEqualOnAllRanks(expected);
  const std::string checkpoints = result->run_folder + "/checkpoints/";
  const std::string last = fmt::format("{}step-{:08}", checkpoints, *config.steps);
  const bool reads = SharedWorld().rank() == 0;
  const SavedByName state = reads ? StateOf(last, whole->setup.model) : SavedByName();
  const std::string model = reads ? Bytes(last + "/model.safetensors") : "";

  for (const int from : {1, 4, 5}) {  // in the middle of the first epoch, between two, in the middle of the second
    SCOPED_TRACE(fmt::format("resumed after update {}", from));
    TakeTurns();
    TrainConfig on = config;
    on.resume = fmt::format("{}step-{:08}", checkpoints, from);
    auto resumed = MakeRun(on, SharedWorld());
    ASSERT_TRUE(resumed.ok()) << Message(resumed.status());
    const auto again = resumed->trainer->Train();
    ASSERT_TRUE(again.ok()) << Message(again.status());
    EXPECT_EQ(again->updates, config.steps);
    EXPECT_EQ(again->run_folder, std::filesystem::canonical(result->run_folder));
    ExpectEqual(*resumed->trainer->Parameters(), expected);
    if (!reads) continue;
    ExpectEqualTensors(StateOf(last, whole->setup.model), state);
    ExpectEqualBytes(Bytes(last + "/model.safetensors"), model, "the model");
  }
}

}  // namespace switchyard
