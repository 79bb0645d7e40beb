// A model's weights on the device of a rank, parameters and state of its own (InputInfo::of_model): their start, and
// host copies by the graph's names. Collective where it says so; not thread-safe.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/graph/host_tensor.h"
#include "core/nn/initialize.h"
#include "core/train/engine.h"

namespace switchyard {

// Every rank must have the same parameters as rank 0. All ranks come to the same verdict, so that none goes on alone;
// it names the first difference. Needs plans, no memory. Collective.
Status VerifyParameters(const Engine& engine);

// What is uploaded here is also the start of a parameter's average, where the run keeps averages.
// Starting weights from the seed of rank 0, equal on all ranks: each rank draws by itself the elements that it holds;
// 24 bytes a weight say what it holds and whether all that hold the same have drawn the same, and what differs is taken
// from the first of them, with a warning that names the others. `draw` is another one in tests. Collective.
using DrawWeight = std::function<std::vector<float>(const std::string& name, const std::vector<PartRun>& runs,
                                                    const Initializer& initializer, uint64_t seed)>;
Status InitializeParameters(Engine& engine, uint64_t seed, const DrawWeight& draw = nn::InitialElements);

// Weights that each rank has read from `path` by itself: FailedPrecondition, on all ranks, names the first rank and
// weight that are not as on rank 0. Collective.
Status VerifyReadWeights(const Engine& engine, const HostTensors& weights, const std::string& path);

// State that is not the model's own and does not start at zero: f32, filled with its initializer's constant. Local.
Status InitializeStates(Engine& engine);

// A named tensor of the state, whole: each rank uploads the part that it holds; parts are gathered from all ranks that
// share the model, for each of them. Download is collective where the tensor is divided.
Status UploadWhole(const Engine& engine, const std::string& name, const void* whole);
Status DownloadWhole(const Engine& engine, const std::string& name, void* whole);

// Collective where ranks share a model.
StatusOr<HostTensors> DownloadParameters(const Engine& engine);

// InvalidArgument lists what does not fit the model called `model`; then nothing is uploaded. partial: parameters that
// are missing keep their value.
Status UploadParameters(Engine& engine, const std::string& model, const HostTensors& values, bool partial);

}  // namespace switchyard
