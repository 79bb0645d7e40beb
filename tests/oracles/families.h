// A small model of each family but mlp and the levels of precision that a run may have, for oracles that must hold for
// all of them; and runs on batches that the model's own task makes. Collective; not thread-safe.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/oracles/runs.h"

namespace switchyard {

// --precision and --amp, and how many bits a product's operands keep.
struct Level {
  const char* name;
  const char* precision;
  const char* amp;
  int bits;
  bool half() const { return bits < 24; }
  bool fp16() const { return bits == 11; }
};
inline constexpr Level kLevels[] = {{"f32", "fp32", "O0", 24},
                                    {"fp16_O1", "fp16", "O1", 11},
                                    {"fp16_O2", "fp16", "O2", 11},
                                    {"bf16_O1", "bf16", "O1", 8},
                                    {"bf16_O2", "bf16", "O2", 8}};
// What a rank does with its own gradients is the same on 3 and 4 ranks as on 2, where all levels are tried: on 3 fp16
// O2 is, on 4 bf16 O1 too.
bool IsTriedHere(const Level& level);
inline constexpr char kTriedElsewhere[] = "tried on 1 and 2 ranks; in fp16 O2 on 3 and 4, in bf16 O1 on 4";
inline void PrintTo(const Level& level, std::ostream* out) { *out << level.name; }
// Of config->model. In fp16 the loss is scaled by a static 1024, which moves no gradient of these models out of the
// type's range; deeplab's, whose norm is 265, by 128.
void Use(const Level& level, TrainConfig* config);

// Dropout and drop path where the family has them, batch norms synchronised, synthetic data of the task's kind: SGD
// with momentum, two samples per rank and micro-step.
inline constexpr const char* kFamilies[] = {"vit", "swin", "resnet", "deeplab", "unet3d"};
TrainConfig FamilyConfig(const std::string& family);

// The tensors of a rank's samples of update `update`, (A, B, …) each: rank r of `world` takes samples r, r + W, … of
// each micro-step.
std::vector<std::vector<std::byte>> OwnSamples(const RunSetup& setup, const Task& task, int64_t update, int rank,
                                               int world);
StatusOr<Trainer::StepResult> StepOn(Run& run, const std::vector<std::vector<std::byte>>& tensors);

struct Trained {
  HostTensors start, parameters;
  std::vector<Trainer::StepResult> results;  // of each update
};
Trained TrainOn(const TrainConfig& config, World& world, int64_t updates);
// Parameters, losses and norms, bit for bit. Local.
void ExpectSameTraining(const Trained& found, const Trained& expected);

}  // namespace switchyard
