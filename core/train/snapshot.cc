#include "core/train/snapshot.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "core/parallel/loss_scaling.h"
#include "core/parallel/power_sgd.h"
#include "core/train/each_rank.h"
#include "core/train/parameters.h"
#include "core/train/weight_files.h"

namespace switchyard {
namespace {

bool IsSaved(const Layout::Entry& entry) {
  return entry.role == Role::kState && !entry.of_model && !entry.of_rank && IsStateArena(entry.arena);
}

// Do ranks hold parts of it, which a checkpoint brings together?
bool IsGathered(const Layout::Entry& entry) { return entry.part && (entry.is_weight() || IsSaved(entry)); }

size_t BytesOfWhole(const Layout::Entry& entry) {
  return static_cast<size_t>(Elements(entry.whole_shape()) * SizeOf(entry.type.dtype));
}

const char* SavedType(const Layout::Entry& entry) {
  return entry.type.dtype == DType::kF32 ? "F32" : entry.type.dtype == DType::kI32 ? "I32" : "U8";
}

// "moment1/head.weight" → {"moment1", "head.weight"}; "update" → {"", "update"}.
std::pair<std::string, std::string> KindAndWeight(const std::string& name) {
  const size_t slash = name.find('/');
  return slash == std::string::npos ? std::pair(std::string(), name)
                                    : std::pair(name.substr(0, slash), name.substr(slash + 1));
}

// State of a weight, in the weight's shape: it is kept as the weight is.
bool BelongsToWeight(const Layout& layout, const std::string& name, const Layout::Entry& entry) {
  const Layout::Entry* const weight = layout.Find(KindAndWeight(name).second);
  return weight != nullptr && weight->role == Role::kParameter && entry.whole_shape() == weight->whole_shape() &&
         entry.type.dtype == DType::kF32;
}

// Host memory of a checkpoint's state, read.
struct Storage {
  std::map<std::string, HostTensors> of_weights;  // by what they are: moment1, …
  std::map<std::string, std::vector<char>> others;
};

void AddAll(const HostTensors& tensors, const std::string& prefix, std::vector<NamedTensor>* list) {
  for (const auto& [name, tensor] : tensors)
    list->push_back({prefix + name, "F32", {tensor.shape.begin(), tensor.shape.end()}, tensor.values.data()});
}

// The state of a checkpoint under the names of the graph, but for what ranks have for themselves.
struct SavedState {
  Storage storage;
  std::vector<NamedTensor> tensors;
};

StatusOr<SavedState> ReadState(const SavedTensors& file, const Layout& layout, const TrainableModel& model) {
  std::set<std::string> kinds;
  for (const auto& [name, entry] : layout.entries()) {
    if (IsSaved(entry) && BelongsToWeight(layout, name, entry)) kinds.insert(KindAndWeight(name).first);
  }
  SavedState state;
  for (const TensorFile::Entry& saved : file.entries()) {
    if (saved.name.starts_with(kEachRank)) continue;
    const auto [kind, weight] = KindAndWeight(saved.name);
    if (kinds.contains(kind) && saved.dtype == "F32") {
      HostTensor& tensor = state.storage.of_weights[kind][weight];
      tensor.shape.assign(saved.shape.begin(), saved.shape.end());
      tensor.values.resize(static_cast<size_t>(Elements(tensor.shape)));
      SY_RETURN_IF_ERROR(file.Read(saved, tensor.values.data()));
    } else {
      std::vector<char>& bytes = state.storage.others[saved.name];
      bytes.resize(static_cast<size_t>(saved.bytes));
      SY_RETURN_IF_ERROR(file.Read(saved, bytes.data()));
      state.tensors.push_back({saved.name, saved.dtype, saved.shape, bytes.data()});
    }
  }
  for (auto& [kind, tensors] : state.storage.of_weights) {
    if (model.from_file) tensors = model.from_file(std::move(tensors));
    AddAll(tensors, kind + "/", &state.tensors);
  }
  return state;
}

// Values in blocks of a fixed size, which the compiler takes several at a time.
bool AllFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones: infinite or not a number
  constexpr size_t kBlock = 256;
  for (; values.size() >= kBlock; values = values.subspan(kBlock)) {
    uint32_t found = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      found |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent);
    }
    if (found != 0) return false;
  }
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

Status CheckLiesAmongState(const std::string& name, const Layout::Entry& entry) {
  if (IsStateArena(entry.arena)) return OkStatus();
  return Internal("{} does not lie among the state, so it is not saved", name);
}

// Of some of the values of a parameter.
Status CheckFinite(const std::string& name, std::span<const float> values, int64_t data_step) {
  if (AllFinite(values)) return OkStatus();
  return FailedPrecondition(
      "the parameter {} holds values that are not finite after update {}, so it is not saved; what was saved before is "
      "whole. Lower --lr, or raise --warmup",
      name, data_step);
}

// Lists entries of the copied state as the tensors that they are in a file.
class TensorLister {
 public:
  TensorLister(StateCopy& copy, int64_t data_step) : copy_(copy), data_step_(data_step) {}

  // Bytes of an entry from `begin` on, under a name of its own.
  NamedTensor Tensor(const std::string& in_file, const std::string& name, const Layout::Entry& entry,
                     const Shape& shape, uint64_t begin = 0) const {
    const auto read = [&copy = copy_, name, &entry, begin, data_step = data_step_](size_t from,
                                                                                   std::span<std::byte> to) -> Status {
      SY_RETURN_IF_ERROR(copy.Read(entry, begin + from, to));
      if (!entry.is_weight()) return OkStatus();
      return CheckFinite(name, {reinterpret_cast<const float*>(to.data()), to.size() / sizeof(float)}, data_step);
    };
    copy_.Announce(entry, static_cast<uint64_t>(Elements(shape) * SizeOf(entry.type.dtype)));
    return {in_file, SavedType(entry), {shape.begin(), shape.end()}, nullptr, read};
  }

  // An entry in the shape of the weight `weight`, as files have it.
  Status AddAsPublished(const std::string& prefix, const std::string& weight, const std::string& name,
                        const Layout::Entry& entry, FileLayout& file_layout, std::vector<NamedTensor>* list) const {
    const Shape& shape = entry.whole_shape();
    SY_ASSIGN_OR_RETURN(const FileLayout::Published* const published, file_layout.Of(weight, shape));
    if (!published->moved) {
      for (const auto& [in_file, of_file, begin] : published->tensors)
        list->push_back(Tensor(prefix + in_file, name, entry, of_file, static_cast<uint64_t>(begin) * sizeof(float)));
      return OkStatus();
    }
    SY_ASSIGN_OR_RETURN(std::byte* const bytes, copy_.Take(entry));
    auto* const values = reinterpret_cast<float*>(bytes);
    if (entry.is_weight())
      SY_RETURN_IF_ERROR(CheckFinite(name, {values, static_cast<size_t>(Elements(shape))}, data_step_));
    return AddFromMemory(prefix, weight, shape, values, file_layout, list);
  }

  // Values in memory, which are brought into the order of files there.
  static Status AddFromMemory(const std::string& prefix, const std::string& weight, const Shape& shape, float* values,
                              FileLayout& file_layout, std::vector<NamedTensor>* list) {
    SY_ASSIGN_OR_RETURN(const FileLayout::Published* const published, file_layout.Of(weight, shape));
    if (published->moved) file_layout.Move(weight, shape, values);
    for (const auto& [in_file, of_file, begin] : published->tensors)
      list->push_back({prefix + in_file, "F32", {of_file.begin(), of_file.end()}, values + begin});
    return OkStatus();
  }

 private:
  StateCopy& copy_;
  const int64_t data_step_;
};

void SortByName(std::vector<NamedTensor>* list) {
  std::sort(list->begin(), list->end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

// Is it `rank` that writes what it has of a tensor? Along an axis of the mesh that does not divide the tensor, all
// ranks have the same, and the first one writes it. of_each_rank: along the data axis each has its own.
bool Owns(const Part* part, bool of_each_rank, const Mesh& mesh, int rank) {
  bool data = of_each_rank, pipeline = false, tensor = false;
  for (; part != nullptr; part = part->of.get()) {
    if (part->begin == part->end) return false;
    data |= part->group == kDataGroup || part->group == kNodeGroup || part->group == kAcrossGroup;
    pipeline |= part->group == kPipelineGroup;
    tensor |= part->group == kTensorGroup;
  }
  return (data || mesh.DataRankOf(rank) == 0) && (pipeline || mesh.StageOf(rank) == 0) &&
         (tensor || rank % mesh.tensor == 0);
}

// Row `row` of a tensor of `rows` tensors.
Part RowOf(Shape shape, int rows, int row) {
  shape.insert(shape.begin(), rows);
  return {std::move(shape), {0, 1, rows, 1}, row, row + 1, kDataGroup};
}

// `part`, of a tensor that is itself `of`.
Part PartWithin(Part part, const Part& of) {
  part.of = std::make_shared<const Part>(part.of ? PartWithin(*part.of, of) : of);
  return part;
}

}  // namespace

uint64_t GatheredBytes(const Layout& layout, bool each_rank, int data_ranks) {
  uint64_t total = BytesOfEachRank(layout, each_rank, data_ranks);
  for (const auto& [name, entry] : layout.entries()) total += IsGathered(entry) ? BytesOfWhole(entry) : 0;
  return total;
}

StatusOr<Gathered> GatherTensors(Engine& engine, bool each_rank) {
  Gathered gathered;
  const World& world = engine.world();
  bool synchronized = false;
  const auto synchronize = [&] { return std::exchange(synchronized, true) ? OkStatus() : engine.Synchronize(); };
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!IsGathered(entry)) continue;
    const int group = entry.part->group;
    const int other_axis = group == kTensorGroup ? world.data_rank() : group == kDataGroup ? world.tensor_rank() : 0;
    if (other_axis != 0 && !entry.part->of)
      continue;  // parts of parts are all ranks', and what stages hold may be such
    SY_RETURN_IF_ERROR(synchronize());
    std::vector<std::byte> whole(BytesOfWhole(entry));
    SY_RETURN_IF_ERROR(DownloadWhole(engine, name, whole.data()));
    if (world.rank() == 0) gathered.parts[name] = std::move(whole);
  }
  if (BytesOfEachRank(engine.layout(), each_rank, world.data_size()) > 0) {
    SY_RETURN_IF_ERROR(synchronize());
    SY_ASSIGN_OR_RETURN(gathered.each_rank, GatherEachRank(engine, each_rank));
  }
  return gathered;
}

StatusOr<Snapshot> TakeSnapshot(StateCopy& copy, Gathered gathered, const Layout& layout, FileLayout& file_layout,
                                int64_t data_step) {
  const TensorLister lister(copy, data_step);
  SY_RETURN_IF_ERROR(copy.Wait());
  const auto storage = std::make_shared<Gathered>(std::move(gathered));
  Snapshot snapshot;
  for (const auto& [name, entry] : layout.entries()) {
    if (!entry.is_weight() && !IsSaved(entry)) continue;
    SY_RETURN_IF_ERROR(CheckLiesAmongState(name, entry));
    const bool as_published = entry.is_weight() || BelongsToWeight(layout, name, entry);
    const auto [kind, weight] = entry.is_weight() ? std::pair(std::string(), name) : KindAndWeight(name);
    const std::string prefix = kind.empty() ? "" : kind + "/";
    std::vector<NamedTensor>* const list = entry.is_weight() ? &snapshot.weights : &snapshot.state;
    const Shape& shape = entry.whole_shape();
    const auto found = storage->parts.find(name);
    if (found == storage->parts.end()) {
      if (as_published) SY_RETURN_IF_ERROR(lister.AddAsPublished(prefix, weight, name, entry, file_layout, list));
      if (!as_published) list->push_back(lister.Tensor(name, name, entry, shape));
      continue;
    }
    std::byte* const bytes = found->second.data();
    auto* const values = reinterpret_cast<float*>(bytes);
    if (entry.is_weight())
      SY_RETURN_IF_ERROR(CheckFinite(name, {values, static_cast<size_t>(Elements(shape))}, data_step));
    if (as_published) SY_RETURN_IF_ERROR(TensorLister::AddFromMemory(prefix, weight, shape, values, file_layout, list));
    if (!as_published) list->push_back({name, SavedType(entry), {shape.begin(), shape.end()}, bytes});
  }
  AddAll(storage->each_rank, kEachRank, &snapshot.state);
  SortByName(&snapshot.weights);
  SortByName(&snapshot.state);
  snapshot.storage = storage;
  return snapshot;
}

bool WeightsAreDivided(const Layout& layout) {
  return std::any_of(layout.entries().begin(), layout.entries().end(),
                     [](const auto& named) { return named.second.is_weight() && named.second.part; });
}

StatusOr<std::vector<TensorPiece>> TakePieces(StateCopy* copy, const Layout& layout, const Mesh& mesh, int rank,
                                              bool each_rank, int64_t data_step) {
  std::optional<TensorLister> lister;
  if (copy != nullptr) {
    lister.emplace(*copy, data_step);
    SY_RETURN_IF_ERROR(copy->Wait());
  }
  const bool weights = WeightsAreDivided(layout);
  std::vector<TensorPiece> pieces;
  const auto add = [&](const std::string& in_file, const std::string& name, const Layout::Entry& entry,
                       const Shape& whole, std::optional<Part> part) {
    const Shape shape = part ? ShapeOf(*part) : whole;
    NamedTensor values = lister ? lister->Tensor(in_file, name, entry, shape)
                                : NamedTensor{in_file, SavedType(entry), {shape.begin(), shape.end()}};
    pieces.push_back({std::move(values), {whole.begin(), whole.end()}, std::move(part)});
  };
  for (const auto& [name, entry] : layout.entries()) {
    const bool is_piece = IsSaved(entry) || (weights && entry.is_weight());
    const bool of_each_rank = IsOfEachRank(entry, each_rank, mesh.data);
    if (!is_piece && !of_each_rank) continue;
    SY_RETURN_IF_ERROR(CheckLiesAmongState(name, entry));
    const Part* const part = entry.part ? &*entry.part : nullptr;
    if (is_piece && Owns(part, false, mesh, rank)) add(name, name, entry, entry.whole_shape(), entry.part);
    if (of_each_rank && Owns(part, true, mesh, rank)) {
      const Part row = RowOf(entry.whole_shape(), mesh.data, mesh.DataRankOf(rank));
      add(kEachRank + name, name, entry, row.whole, part != nullptr ? PartWithin(*part, row) : row);
    }
  }
  return pieces;
}

StatusOr<std::vector<NamedTensor>> TakeWeights(StateCopy& copy, const Layout& layout, FileLayout& file_layout,
                                               int64_t data_step) {
  const TensorLister lister(copy, data_step);
  std::vector<NamedTensor> weights;
  for (const auto& [name, entry] : layout.entries()) {
    if (!entry.is_weight()) continue;
    SY_RETURN_IF_ERROR(CheckLiesAmongState(name, entry));
    SY_RETURN_IF_ERROR(lister.AddAsPublished("", name, name, entry, file_layout, &weights));
  }
  SortByName(&weights);
  return weights;
}

StatusOr<TensorFileSummary> JoinWeights(const Folder& folder, const std::string& name, const SavedTensors& saved,
                                        const Layout& layout, FileLayout& file_layout) {
  // Weights of which a tensor has been written, until the last one has.
  struct Begun {
    std::vector<float> values;
    size_t to_write = 0;  // bytes
  };
  std::map<std::string, Begun> begun;
  const auto begin_weight = [&](const std::string& weight) -> Status {
    const TensorFile::Entry* const entry = saved.Find(weight);
    if (entry == nullptr) return Internal("{}: {} is missing", saved.path(), weight);
    const Shape& shape = layout.Find(weight)->whole_shape();
    std::vector<float> values(static_cast<size_t>(Elements(shape)));
    SY_RETURN_IF_ERROR(saved.Read(*entry, values.data()));
    SY_ASSIGN_OR_RETURN(const FileLayout::Published* const published, file_layout.Of(weight, shape));
    if (published->moved) file_layout.Move(weight, shape, values.data());
    const size_t bytes = values.size() * sizeof(float);
    begun[weight] = {std::move(values), bytes};
    return OkStatus();
  };
  std::vector<NamedTensor> tensors;
  for (const auto& [weight, entry] : layout.entries()) {
    if (!entry.is_weight()) continue;
    SY_ASSIGN_OR_RETURN(const FileLayout::Published* const published, file_layout.Of(weight, entry.whole_shape()));
    for (const auto& [in_file, shape, begin] : published->tensors) {
      const auto read = [&, weight = weight, begin = begin](size_t from, std::span<std::byte> to) -> Status {
        if (!begun.contains(weight)) SY_RETURN_IF_ERROR(begin_weight(weight));
        Begun& of_weight = begun[weight];
        std::memcpy(to.data(), reinterpret_cast<const std::byte*>(&of_weight.values[static_cast<size_t>(begin)]) + from,
                    to.size());
        of_weight.to_write -= to.size();
        if (of_weight.to_write == 0) begun.erase(weight);
        return OkStatus();
      };
      tensors.push_back({in_file, "F32", {shape.begin(), shape.end()}, nullptr, read});
    }
  }
  SortByName(&tensors);
  return WriteTensorFile(folder, name, tensors);
}

namespace {

// Of a checkpoint whose state or weights are not those of the run.
class Refusal {
 public:
  Refusal(const LoadedCheckpoint& checkpoint, const std::string& path) : checkpoint_(checkpoint), path_(path) {}
  Status operator()(const std::string& name, const std::string& what) const {
    return InvalidArgument(
        "{}: state {} {}; it was saved with other settings of the optimizer: leave those out that you changed, or "
        "start a new run from the weights with --pretrained={}",
        checkpoint_.folder, name, what, path_);
  }

 private:
  const LoadedCheckpoint& checkpoint_;
  const std::string& path_;
};

// What an entry of the layout takes up from the saved tensor of its name.
enum class Fit { kTakenUp, kBegins, kRefused };
struct Fitting {
  Fit fit = Fit::kTakenUp;
  std::string why = "";  // of a refusal
};
Fitting FitOf(const std::string& name, const Layout::Entry& entry, const std::string* dtype,
              const std::vector<int64_t>* saved_shape) {
  // Of another precision, or without compression, or of another rank: it starts.
  if (dtype == nullptr && (IsLossScaleState(name) || IsPowerSgdState(name))) return {Fit::kBegins};
  if (dtype == nullptr) return {Fit::kRefused, "is missing"};
  const Shape shape(saved_shape->begin(), saved_shape->end());
  if (IsPowerSgdState(name) && shape != entry.whole_shape()) return {Fit::kBegins};
  if (*dtype == SavedType(entry) && shape == entry.whole_shape()) return {};
  return {Fit::kRefused, fmt::format("is {} {}, expected {} {}", *dtype, ToString(shape), SavedType(entry),
                                     ToString(entry.whole_shape()))};
}

bool IsOfNoUse(const Layout::Entry* entry, const std::string& name) {
  return entry == nullptr && (IsLossScaleState(name) || IsPowerSgdState(name));
}

Status RestoreWeights(Engine& engine, const TrainableModel& model, const LoadedCheckpoint& checkpoint,
                      const std::string& path) {
  SY_ASSIGN_OR_RETURN(HostTensors weights, ReadWeights(checkpoint.weights));
  if (model.import_weights) {
    SY_ASSIGN_OR_RETURN(weights, model.import_weights(std::move(weights), false));
  }
  SY_RETURN_IF_ERROR(VerifyReadWeights(engine, weights, path));
  return UploadParameters(engine, model.name, weights, false);
}

Status RestoreState(Engine& engine, const TrainableModel& model, const LoadedCheckpoint& checkpoint,
                    const Refusal& refused) {
  const Layout& layout = engine.layout();
  SY_ASSIGN_OR_RETURN(const SavedState state, ReadState(checkpoint.state, layout, model));
  std::map<std::string, const NamedTensor*> found;
  for (const NamedTensor& tensor : state.tensors) {
    const Layout::Entry* const entry = layout.Find(tensor.name);
    if (IsOfNoUse(entry, tensor.name)) continue;
    if (entry == nullptr || !IsSaved(*entry)) return refused(tensor.name, "is none of this run's");
    found[tensor.name] = &tensor;
  }
  for (const auto& [name, entry] : layout.entries()) {
    if (!IsSaved(entry)) continue;
    const auto tensor = found.find(name);
    const bool there = tensor != found.end();
    const Fitting fitting =
        FitOf(name, entry, there ? &tensor->second->dtype : nullptr, there ? &tensor->second->shape : nullptr);
    if (fitting.fit == Fit::kRefused) return refused(name, fitting.why);
    if (fitting.fit == Fit::kTakenUp) SY_RETURN_IF_ERROR(UploadWhole(engine, name, tensor->second->data));
  }
  return OkStatus();
}

// State, and weights where they are among them, of which this rank reads what it has.
Status RestorePieces(Engine& engine, const SavedTensors& saved, const Refusal& refused) {
  const Layout& layout = engine.layout();
  bool weights = false;
  for (const TensorFile::Entry& tensor : saved.entries()) {
    if (tensor.name.starts_with(kEachRank)) continue;
    const Layout::Entry* const entry = layout.Find(tensor.name);
    if (IsOfNoUse(entry, tensor.name)) continue;
    if (entry == nullptr || !(IsSaved(*entry) || entry->is_weight()))
      return refused(tensor.name, "is none of this run's");
    weights |= entry->is_weight();
  }
  std::vector<std::byte> held;
  for (const auto& [name, entry] : layout.entries()) {
    if (!IsSaved(entry) && !(weights && entry.is_weight())) continue;
    const TensorFile::Entry* const tensor = saved.Find(name);
    const bool there = tensor != nullptr;
    const Fitting fitting = FitOf(name, entry, there ? &tensor->dtype : nullptr, there ? &tensor->shape : nullptr);
    if (fitting.fit == Fit::kRefused) return refused(name, fitting.why);
    if (fitting.fit == Fit::kBegins) continue;
    held.assign(entry.bytes, std::byte{0});
    SY_RETURN_IF_ERROR(entry.part ? saved.Read(*tensor, *entry.part, held.data()) : saved.Read(*tensor, held.data()));
    SY_RETURN_IF_ERROR(engine.memory().Upload(name, held.data(), entry.bytes));
  }
  return weights ? engine.RefreshHalves() : OkStatus();
}

}  // namespace

Status RestoreSnapshot(Engine& engine, const TrainableModel& model, const LoadedCheckpoint& checkpoint,
                       const std::string& path, bool each_rank) {
  SY_ASSIGN_OR_RETURN(const std::string difference,
                      engine.world().FirstDifference(fmt::format("state.json {}\n", checkpoint.seal)));
  if (!difference.empty())
    return FailedPrecondition(
        "{} is not the same on all ranks: {}; name and digest. Is it the same folder on all hosts?", path, difference);
  const Refusal refused(checkpoint, path);
  const Layout& layout = engine.layout();
  const auto is_weight = [&](const TensorFile::Entry& saved) {
    const Layout::Entry* const entry = layout.Find(saved.name);
    return entry != nullptr && entry->is_weight();
  };
  const SavedTensors& state = checkpoint.state;
  if (!state.in_pieces() || std::none_of(state.entries().begin(), state.entries().end(), is_weight))
    SY_RETURN_IF_ERROR(RestoreWeights(engine, model, checkpoint, path));
  SY_RETURN_IF_ERROR(state.in_pieces() ? RestorePieces(engine, state, refused)
                                       : RestoreState(engine, model, checkpoint, refused));
  return RestoreEachRank(engine, state, each_rank, checkpoint.folder);
}

}  // namespace switchyard
