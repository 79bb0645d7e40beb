#include "core/train/parameters.h"

#include <mutex>

#include "core/base/parallel.h"
#include "core/nn/initialize.h"

namespace switchyard {
namespace {

// The first line in which two lists differ, in words.
std::string FirstDifference(const std::string& list, const std::string& of_rank_0) {
  size_t line = 0;
  const auto at = [&line](const std::string& text) {
    return line < text.size() ? text.substr(line, text.find('\n', line) - line) : "none";
  };
  while (line < list.size() && line < of_rank_0.size() && at(list) == at(of_rank_0)) line = list.find('\n', line) + 1;
  return fmt::format("\"{}\" there, \"{}\" on rank 0", at(list), at(of_rank_0));
}

}  // namespace

Status VerifyParameters(const Engine& engine) {
  World& world = engine.world();
  if (world.size() == 1) return OkStatus();
  std::string list;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (entry.is_weight()) list += fmt::format("{} {}\n", name, ToString(entry.type));
  }
  std::string theirs = list;
  SY_RETURN_IF_ERROR(world.BroadcastText(theirs, 0));
  int32_t first = theirs == list ? world.size() : world.rank();
  SY_RETURN_IF_ERROR(world.communicator->AllReduce("parameters/compare", &first, &first, 1, SY_I32, SY_MIN));
  if (first == world.size()) return OkStatus();
  std::string difference = world.rank() == first ? FirstDifference(list, theirs) : "";
  SY_RETURN_IF_ERROR(world.BroadcastText(difference, first));
  return FailedPrecondition(
      "rank {} has other parameters than rank 0; the first difference: {}; start all ranks with the same model", first,
      difference);
}

Status InitializeParameters(Engine& engine, uint64_t seed) {
  struct Parameter {
    const std::string* name;
    const Layout::Entry* entry;
    std::vector<float> values;
  };
  World& world = engine.world();
  std::vector<Parameter> parameters;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (entry.is_weight()) parameters.push_back({&name, &entry, {}});
  }
  const auto upload = [&](Parameter& p) {
    const std::vector<float> values = std::move(p.values);
    return engine.memory().Upload(*p.name, values.data(), p.entry->bytes);
  };
  // Each rank draws every so many-th tensor, for all; one that is alone lets each go as soon as it is drawn.
  const int ranks = world.size();
  if (ranks > 1) SY_RETURN_IF_ERROR(world.communicator->Broadcast("seed", &seed, sizeof seed, SY_U8, 0));
  std::mutex mutex;
  Status status;
  ParallelFor(world.host_threads, static_cast<int64_t>(parameters.size()), [&](int64_t i) {
    Parameter& p = parameters[i];
    if (i % ranks != world.rank()) return;
    p.values = nn::InitialValues(*p.name, p.entry->type, p.entry->initializer, seed);
    if (ranks > 1) return;
    const std::lock_guard lock(mutex);
    status.Update(upload(p));
  });
  SY_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < parameters.size() && ranks > 1; ++i) {
    Parameter& p = parameters[i];
    p.values.resize(p.entry->bytes / sizeof(float));
    SY_RETURN_IF_ERROR(world.communicator->Broadcast(("broadcast/" + *p.name).c_str(), p.values.data(), p.entry->bytes,
                                                     SY_U8, static_cast<int>(i) % ranks));
    SY_RETURN_IF_ERROR(upload(p));
  }
  return OkStatus();
}

StatusOr<HostTensors> DownloadParameters(const Engine& engine) {
  HostTensors tensors;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!entry.is_weight()) continue;
    HostTensor tensor{entry.type.shape, std::vector<float>(static_cast<size_t>(entry.type.elements()))};
    SY_RETURN_IF_ERROR(engine.memory().Download(name, tensor.values.data(), entry.bytes));
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

Status UploadParameters(Engine& engine, const std::string& model, const HostTensors& values, bool partial) {
  std::string problems;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!entry.is_weight()) continue;
    const auto found = values.find(name);
    if (found == values.end()) {
      if (!partial) problems += fmt::format("\n  {} {} is missing", name, ToString(entry.type.shape));
    } else if (found->second.shape != entry.type.shape) {
      problems +=
          fmt::format("\n  {}: expected {}, found {}", name, ToString(entry.type.shape), ToString(found->second.shape));
    }
  }
  for (const auto& [name, tensor] : values) {
    const Layout::Entry* entry = engine.layout().Find(name);
    if (entry == nullptr || !entry->is_weight())
      problems += fmt::format("\n  {} {} is not a parameter of {}", name, ToString(tensor.shape), model);
  }
  if (!problems.empty()) return InvalidArgument("the weights do not fit the model {}:{}", model, problems);
  for (const auto& [name, tensor] : values)
    SY_RETURN_IF_ERROR(engine.memory().Upload(name, tensor.values.data(), tensor.values.size() * sizeof(float)));
  return OkStatus();
}

}  // namespace switchyard
