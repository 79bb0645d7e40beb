#include "core/train/parameters.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "core/base/logging.h"
#include "core/base/parallel.h"
#include "core/graph/part_runs.h"
#include "core/optim/optimizer.h"

namespace switchyard {
namespace {

// The average of a weight, where the run keeps one, begins where the weight does.
Status UploadParameter(const Engine& engine, const std::string& name, const std::vector<float>& values) {
  const std::string average = AverageOf(name);
  if (engine.layout().Find(average) != nullptr) SY_RETURN_IF_ERROR(UploadWhole(engine, average, values.data()));
  return UploadWhole(engine, name, values.data());
}

// FNV-1a over words, whose upper half is mixed into the lower.
class Digest {
 public:
  void Add(uint64_t word) {
    digest_ = (digest_ ^ word) * 0x100000001B3ull;
    digest_ ^= digest_ >> 32;
  }
  uint64_t value() const { return std::max<uint64_t>(digest_, 1); }  // never 0

 private:
  uint64_t digest_ = 0xCBF29CE484222325ull;
};

// Of all bits of all values.
uint64_t DigestOf(const std::vector<float>& values) {
  Digest digest;
  for (const float value : values) digest.Add(std::bit_cast<uint32_t>(value));
  return digest.value();
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

namespace {

struct Weight {
  const std::string* name;
  const Layout::Entry* entry;
  std::vector<PartRun> held;  // by this rank
};

// What a rank holds of a weight and has drawn of it; zeros: nothing.
struct Drawn {
  uint64_t held = 0, elements = 0, digest = 0;
};

uint64_t DigestOf(const std::vector<PartRun>& runs) {
  Digest digest;
  for (const PartRun& run : runs) {
    for (const int64_t number : {run.whole, run.at, run.elements}) digest.Add(static_cast<uint64_t>(number));
  }
  return digest.value();
}

Drawn DrawnOf(const Weight& weight, const std::vector<float>& values) {
  return {DigestOf(weight.held), values.size(), DigestOf(values)};
}

// `values` of what this rank holds of a weight, of which it holds as much of the average.
Status UploadHeld(const Engine& engine, const Weight& weight, std::vector<float> values) {
  for (const std::string& name : {*weight.name, AverageOf(*weight.name)}) {
    const Layout::Entry* const entry = engine.layout().Find(name);
    if (entry == nullptr) continue;
    values.resize(entry->bytes / sizeof(float));  // zeros behind the last one
    SY_RETURN_IF_ERROR(engine.memory().Upload(name, values.data(), entry->bytes));
  }
  return OkStatus();
}

// Of ranks that hold the same of a weight, those that have drawn something else than the first of them take what that
// one has drawn. Collective.
Status AgreeOnWeights(Engine& engine, const std::vector<Weight>& weights, const std::vector<Drawn>& own,
                      const std::function<std::vector<float>(const Weight&)>& draw) {
  Communicator& communicator = *engine.world().communicator;
  const auto ranks = static_cast<size_t>(communicator.size());
  const auto rank = static_cast<size_t>(communicator.rank());
  std::vector<Drawn> all(own.size() * ranks);
  SY_RETURN_IF_ERROR(
      communicator.AllGather("weights/digests", own.data(), all.data(), own.size() * sizeof(Drawn), SY_U8));
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto of = [&](size_t r) -> const Drawn& { return all[r * own.size() + i]; };
    std::map<uint64_t, size_t> firsts;             // by what they hold
    std::map<size_t, std::vector<size_t>> others;  // that have drawn something else, by the first
    for (size_t r = 0; r < ranks; ++r) {
      if (of(r).held == 0) continue;
      const size_t first = firsts.try_emplace(of(r).held, r).first->second;
      if (of(r).digest != of(first).digest) others[first].push_back(r);
    }
    for (const auto& [first, differing] : others) {
      if (rank == 0) {
        LogWarning(
            "{} as rank{} {} draw{} it from the seed differs from that of rank {}, which all take (is there another "
            "processor or another version on their host?)",
            *weights[i].name, differing.size() > 1 ? "s" : "", fmt::join(differing, ", "),
            differing.size() > 1 ? "" : "s", first);
      }
      std::vector<float> values(of(first).elements);
      if (rank == first) values = draw(weights[i]);
      SY_RETURN_IF_ERROR(communicator.Broadcast(("weights/" + *weights[i].name).c_str(), values.data(), values.size(),
                                                SY_F32, static_cast<int>(first)));
      if (own[i].held == of(first).held) SY_RETURN_IF_ERROR(UploadHeld(engine, weights[i], std::move(values)));
    }
  }
  return OkStatus();
}

}  // namespace

Status InitializeParameters(Engine& engine, uint64_t seed, const DrawWeight& draw) {
  World& world = engine.world();
  std::vector<Weight> weights;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!entry.is_weight()) continue;
    const std::vector<PartRun> all = {{0, 0, entry.type.elements()}};
    weights.push_back({&name, &entry, entry.part ? RunsOf(*entry.part) : all});
  }
  if (world.size() > 1) SY_RETURN_IF_ERROR(world.communicator->Broadcast("seed", &seed, sizeof seed, SY_U8, 0));
  const auto drawn = [&](const Weight& w) { return draw(*w.name, w.held, w.entry->initializer, seed); };
  // Each tensor is let go as soon as it is drawn and uploaded.
  std::vector<Drawn> own(weights.size());
  std::mutex mutex;
  Status status;
  ParallelFor(world.host_threads, static_cast<int64_t>(weights.size()), [&](int64_t i) {
    const Weight& weight = weights[static_cast<size_t>(i)];
    if (weight.held.empty()) return;
    std::vector<float> values = drawn(weight);
    if (world.size() > 1) own[static_cast<size_t>(i)] = DrawnOf(weight, values);
    const std::lock_guard lock(mutex);
    status.Update(UploadHeld(engine, weight, std::move(values)));
  });
  SY_RETURN_IF_ERROR(status);
  if (world.size() > 1) SY_RETURN_IF_ERROR(AgreeOnWeights(engine, weights, own, drawn));
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

Status VerifyReadWeights(const Engine& engine, const HostTensors& weights, const std::string& path) {
  World& world = engine.world();
  if (world.size() == 1) return OkStatus();
  std::string list;
  for (const auto& [name, tensor] : weights)
    list += fmt::format("{} {} {:016x}\n", name, ToString(tensor.shape), DigestOf(tensor.values));
  SY_ASSIGN_OR_RETURN(const std::string difference, world.FirstDifference(list));
  if (difference.empty()) return OkStatus();
  return FailedPrecondition(
      "the weights read from {} are not the same on all ranks: {}; name, shape and digest. Is it the same file on all "
      "hosts?",
      path, difference);
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
