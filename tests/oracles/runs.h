// Runs for tests that compare training with training: the world that all ranks of this process's launcher form, a world
// of this rank alone, and trainers in either, set up as the command does. Collective unless said otherwise; not
// thread-safe.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/train/trainer.h"
#include "tools/switchyard/run_setup.h"

namespace switchyard {

// Joined before the first test and left after the last. The collective is the plugin named by SWITCHYARD_COLLECTIVE
// (auto), the device the one named by SWITCHYARD_TEST_DEVICE (cpu), with one thread.
World& SharedWorld();

// A world of one rank on a device of its own: what a run without the other ranks would be. Local.
// plugin: of the device; "": that of the others.
std::unique_ptr<World> LoneWorld(uint64_t memory_limit = kNoMemoryLimit, const std::string& plugin = "");

// A folder that all ranks see, removed after the last test.
const std::string& SharedFolder();

// A ViT of two narrow layers on 28-pixel shapes: SGD at a constant rate, no clipping, batch 4 per rank, no log, no
// augmentation left out.
TrainConfig SmallConfig();
// vit_micro on Fashion-MNIST, of SWITCHYARD_DATA: AdamW to 2e-3 and back; batch and updates are the test's own.
TrainConfig FashionMnistConfig();

struct Run {
  RunSetup setup;
  std::unique_ptr<Trainer> trainer;
};
StatusOr<RunSetup> SettledRun(const TrainConfig& config, World& world);  // as the command does
StatusOr<Run> MakeRun(const TrainConfig& config, World& world);

// Images and labels that depend on (name, sample) alone: of samples first, first + stride, …
struct HostBatch {
  std::vector<uint8_t> images;
  std::vector<int32_t> labels;
  std::array<std::span<const std::byte>, 2> tensors() const {
    return {std::as_bytes(std::span(images)), std::as_bytes(std::span(labels))};
  }
  void Append(const RunSetup& setup, const std::string& name, int64_t sample);
};

// Test failures that name the tensor, and of what differs a few elements and how many more. Local, but for the last.
void ExpectEqual(const HostTensors& found, const HostTensors& expected);                    // bit for bit
void ExpectClose(const HostTensors& found, const HostTensors& expected, double tolerance);  // of each tensor's norm
void ExpectEqualOnAllRanks(const HostTensors& tensors);                                     // bit for bit

// ‖found − expected‖ / ‖expected − start‖ over all tensors: of how far training went.
double DistanceOfMovements(const HostTensors& found, const HostTensors& expected, const HostTensors& start);

std::string Bytes(const std::string& path);  // of a file
// A test failure that names `what` and, of the bytes that differ, a few and how many more. Local.
void ExpectEqualBytes(const std::string& found, const std::string& expected, const std::string& what);
// What a file or a checkpoint has of a tensor.
struct SavedTensor {
  std::string dtype;
  Shape shape;
  std::string bytes;
  friend bool operator==(const SavedTensor&, const SavedTensor&) = default;
};
using SavedByName = std::map<std::string, SavedTensor>;
SavedByName WeightsOf(const std::string& checkpoint);
// The state of a checkpoint, written by one rank or by several, under the names and in the layout that it has where one
// rank writes it. Weights that are among its pieces have to be those of its file of weights, and are left out.
SavedByName StateOf(const std::string& checkpoint, const TrainableModel& model);
// Test failures that name the tensors and of each the first byte that differs. Local.
void ExpectEqualTensors(const SavedByName& found, const SavedByName& expected);
// All ranks have come here, and what they wrote is there.
void TakeTurns();
// Four updates an epoch with the batch that `config` has, six in all, each saved; and with all that a run takes from
// one update to the next: moments, averages of the weights, a schedule, places in the data.
void SaveEveryUpdate(TrainConfig* config);
// A run that saves after every update, in epochs of four, taken up in the middle of the first epoch, between two, and
// in the middle of the second: the same parameters and the same files as without.
void ExpectToGoOnAnywhere(const TrainConfig& config);

}  // namespace switchyard
