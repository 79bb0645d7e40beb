#include "core/train/parameters.h"

#include <cstring>
#include <mutex>

#include "core/base/parallel.h"
#include "core/nn/initialize.h"
#include "core/optim/optimizer.h"

namespace switchyard {
namespace {

// The average of a weight, where the run keeps one, begins where the weight does.
Status UploadParameter(const Engine& engine, const std::string& name, const std::vector<float>& values) {
  const std::string average = AverageOf(name);
  if (engine.layout().Find(average) != nullptr) SY_RETURN_IF_ERROR(UploadWhole(engine, average, values.data()));
  return UploadWhole(engine, name, values.data());
}

// Broadcasts that go from device to device, in one group. Weight i, and its average, lies on rank i mod the number of
// ranks.
using DeviceBroadcasts = std::vector<std::shared_ptr<Communicator::DeviceCall>>;  // none: they go through the host

StatusOr<DeviceBroadcasts> PrepareBroadcasts(const Engine& engine) {
  Communicator& communicator = *engine.world().communicator;
  DeviceBroadcasts broadcasts;
  if (!communicator.info().completes_on_stream) return broadcasts;
  int weights = 0;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!entry.is_weight()) continue;
    const int root = weights++ % communicator.size();
    if (entry.part) continue;
    for (const std::string& tensor : {name, AverageOf(name)}) {
      const Layout::Entry* const found = engine.layout().Find(tensor);
      if (found == nullptr) continue;
      const Communicator::DevicePlace at{&engine.memory().buffer(found->arena), found->offset};
      SY_ASSIGN_OR_RETURN(auto call,
                          communicator.Prepare("broadcast/" + tensor,
                                               {Collective::kBroadcast, found->bytes, SY_U8, SY_SUM, root}, at, at));
      if (!communicator.GoesInGroups(*call)) return DeviceBroadcasts{};
      broadcasts.push_back(std::move(call));
    }
  }
  return broadcasts;
}

Status LaunchBroadcasts(const Engine& engine, const DeviceBroadcasts& broadcasts) {
  Communicator& communicator = *engine.world().communicator;
  SY_ASSIGN_OR_RETURN(const Stream stream, engine.world().device->NewStream(1));
  std::vector<Communicator::Grouped> group;
  for (const auto& call : broadcasts) group.push_back({&communicator, call.get(), &stream});
  SY_RETURN_IF_ERROR(Communicator::LaunchTogether(group));
  return communicator.Synchronize(stream);
}

// The tensor of which ranks hold parts, this one `held`.
StatusOr<std::vector<std::byte>> Joined(const GroupCommunicators& groups, const std::string& name, const Part& own,
                                        size_t size, std::vector<std::byte> held) {
  Communicator& group = *groups[static_cast<size_t>(own.group)];
  const auto ranks = static_cast<size_t>(group.size());
  struct Range {
    int64_t begin, end, bytes;
  };
  const Range range = {own.begin, own.end, static_cast<int64_t>(held.size())};
  std::vector<Range> ranges(ranks);
  SY_RETURN_IF_ERROR(group.AllGather(("parts/" + name + "/held").c_str(), &range, ranges.data(), sizeof range, SY_U8));
  size_t most = 0;
  for (const Range& r : ranges) most = std::max(most, static_cast<size_t>(r.bytes));
  held.resize(most);
  std::vector<std::byte> all(most * ranks), whole(static_cast<size_t>(Elements(own.whole)) * size);
  SY_RETURN_IF_ERROR(group.AllGather(("parts/" + name).c_str(), held.data(), all.data(), most, SY_U8));
  for (size_t rank = 0; rank < ranks; ++rank) {
    Part part = own;
    part.begin = ranges[rank].begin;
    part.end = ranges[rank].end;
    PutPart(part, size, all.data() + rank * most, whole.data());
  }
  if (own.of) return Joined(groups, name, *own.of, size, std::move(whole));
  return whole;
}

}  // namespace

Status UploadWhole(const Engine& engine, const std::string& name, const void* whole) {
  const Layout::Entry& entry = *engine.layout().Find(name);
  if (!entry.part) return engine.memory().Upload(name, whole, entry.bytes);
  std::vector<std::byte> held(entry.bytes);
  CutPart(*entry.part, static_cast<size_t>(SizeOf(entry.type.dtype)), static_cast<const std::byte*>(whole),
          held.data());
  return engine.memory().Upload(name, held.data(), entry.bytes);
}

Status DownloadWhole(const Engine& engine, const std::string& name, void* whole) {
  const Layout::Entry& entry = *engine.layout().Find(name);
  if (!entry.part) return engine.memory().Download(name, whole, entry.bytes);
  std::vector<std::byte> held(entry.bytes);
  SY_RETURN_IF_ERROR(engine.memory().Download(name, held.data(), entry.bytes));
  const auto size = static_cast<size_t>(SizeOf(entry.type.dtype));
  SY_ASSIGN_OR_RETURN(const auto joined, Joined(engine.groups(), name, *entry.part, size, std::move(held)));
  std::memcpy(whole, joined.data(), joined.size());
  return OkStatus();
}

Status VerifyParameters(const Engine& engine) {
  World& world = engine.world();
  if (world.size() == 1) return OkStatus();
  std::string list;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (entry.is_weight()) list += fmt::format("{} {}\n", name, ToString({entry.type.dtype, entry.whole_shape()}));
  }
  SY_ASSIGN_OR_RETURN(const std::string difference, world.FirstDifference(list));
  if (difference.empty()) return OkStatus();
  return FailedPrecondition("the parameters are not the same on all ranks: {}; start all ranks with the same model",
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
    return UploadParameter(engine, *p.name, values);
  };
  // Each rank draws every so many-th tensor, for all; one that is alone lets each go as soon as it is drawn.
  const int ranks = world.size();
  if (ranks > 1) SY_RETURN_IF_ERROR(world.communicator->Broadcast("seed", &seed, sizeof seed, SY_U8, 0));
  DeviceBroadcasts broadcasts;
  if (ranks > 1) {
    SY_ASSIGN_OR_RETURN(broadcasts, PrepareBroadcasts(engine));
  }
  const bool through_host = ranks > 1 && broadcasts.empty();
  std::mutex mutex;
  Status status;
  ParallelFor(world.host_threads, static_cast<int64_t>(parameters.size()), [&](int64_t i) {
    Parameter& p = parameters[i];
    const bool part = p.entry->part.has_value();  // every rank draws the whole and keeps its own
    if (part ? p.entry->part->begin == p.entry->part->end : i % ranks != world.rank()) return;
    p.values = nn::InitialValues(*p.name, {p.entry->type.dtype, p.entry->whole_shape()}, p.entry->initializer, seed);
    if (through_host && !part) return;
    const std::lock_guard lock(mutex);
    status.Update(upload(p));
  });
  SY_RETURN_IF_ERROR(status);
  if (!broadcasts.empty()) SY_RETURN_IF_ERROR(LaunchBroadcasts(engine, broadcasts));
  for (size_t i = 0; i < parameters.size() && through_host; ++i) {
    Parameter& p = parameters[i];
    if (p.entry->part) continue;
    p.values.resize(p.entry->bytes / sizeof(float));
    SY_RETURN_IF_ERROR(world.communicator->Broadcast(("broadcast/" + *p.name).c_str(), p.values.data(), p.entry->bytes,
                                                     SY_U8, static_cast<int>(i) % ranks));
    SY_RETURN_IF_ERROR(upload(p));
  }
  return engine.RefreshHalves();
}

Status InitializeStates(Engine& engine) {
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (entry.role != Role::kState || entry.of_model || entry.initializer.kind != Initializer::kConstant) continue;
    const std::vector<float> values(static_cast<size_t>(entry.type.elements()), entry.initializer.value);
    SY_RETURN_IF_ERROR(engine.memory().Upload(name, values.data(), entry.bytes));
  }
  return OkStatus();
}

StatusOr<HostTensors> DownloadParameters(const Engine& engine) {
  HostTensors tensors;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!entry.is_weight()) continue;
    HostTensor tensor{entry.whole_shape(), std::vector<float>(static_cast<size_t>(Elements(entry.whole_shape())))};
    SY_RETURN_IF_ERROR(DownloadWhole(engine, name, tensor.values.data()));
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
      if (!partial) problems += fmt::format("\n  {} {} is missing", name, ToString(entry.whole_shape()));
    } else if (found->second.shape != entry.whole_shape()) {
      problems += fmt::format("\n  {}: expected {}, found {}", name, ToString(entry.whole_shape()),
                              ToString(found->second.shape));
    }
  }
  for (const auto& [name, tensor] : values) {
    const Layout::Entry* entry = engine.layout().Find(name);
    if (entry == nullptr || !entry->is_weight())
      problems += fmt::format("\n  {} {} is not a parameter of {}", name, ToString(tensor.shape), model);
  }
  if (!problems.empty()) return InvalidArgument("the weights do not fit the model {}:{}", model, problems);
  for (const auto& [name, tensor] : values) SY_RETURN_IF_ERROR(UploadParameter(engine, name, tensor.values));
  return engine.RefreshHalves();
}

}  // namespace switchyard
