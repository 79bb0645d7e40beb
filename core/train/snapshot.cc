#include "core/train/snapshot.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
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

StatusOr<SavedState> ReadState(const TensorFile& file, const Layout& layout, const TrainableModel& model) {
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

// Brings tensors into the layout of files one by one, each in the memory where it lies: a second copy of the state
// would cost more than all else that saving does, most of it for memory that was not touched before.
class FileLayout {
 public:
  explicit FileLayout(const TrainableModel& model) : model_(model) {}

  // Adds what `values`, which has the shape of the parameter `name`, is in a file: one tensor or several.
  void Add(const std::string& prefix, const std::string& name, const Shape& shape, float* values,
           std::vector<NamedTensor>* list) {
    const auto add = [&](const std::string& in_file, const Shape& shape_in_file) {
      list->push_back({prefix + in_file, "F32", {shape_in_file.begin(), shape_in_file.end()}, values});
    };
    if (!model_.to_file) return add(name, shape);
    scratch_.assign(values, values + Elements(shape));
    HostTensors whole;
    whole[name] = {shape, std::move(scratch_)};
    for (auto& [in_file, tensor] : model_.to_file(std::move(whole))) {
      add(in_file, tensor.shape);
      values = std::copy(tensor.values.begin(), tensor.values.end(), values);
      scratch_ = std::move(tensor.values);  // warm memory for the next
    }
  }

 private:
  const TrainableModel& model_;
  std::vector<float> scratch_;
};

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

StatusOr<Snapshot> TakeSnapshot(StateCopy& copy, Gathered gathered, const Layout& layout, const TrainableModel& model,
                                int64_t data_step) {
  SY_RETURN_IF_ERROR(copy.Wait());
  const auto storage = std::make_shared<Gathered>(std::move(gathered));
  FileLayout file_layout(model);
  Snapshot snapshot;
  for (const auto& [name, entry] : layout.entries()) {
    if (!entry.is_weight() && !IsSaved(entry)) continue;
    if (!IsStateArena(entry.arena)) return Internal("{} does not lie among the state, so it is not saved", name);
    const auto found = storage->parts.find(name);
    std::byte* const bytes = found != storage->parts.end() ? found->second.data() : copy.At(entry);
    auto* const values = reinterpret_cast<float*>(bytes);
    const Shape& shape = entry.whole_shape();
    if (entry.is_weight()) {
      if (!AllFinite({values, static_cast<size_t>(Elements(shape))})) {
        return FailedPrecondition(
            "the parameter {} holds values that are not finite after update {}, so it is not saved; what was saved "
            "before is whole. Lower --lr, or raise --warmup",
            name, data_step);
      }
      file_layout.Add("", name, shape, values, &snapshot.weights);
    } else if (BelongsToWeight(layout, name, entry)) {
      const auto [kind, weight] = KindAndWeight(name);
      file_layout.Add(kind + "/", weight, shape, values, &snapshot.state);
    } else {
      snapshot.state.push_back({name, SavedType(entry), {shape.begin(), shape.end()}, bytes});
    }
  }
  AddAll(storage->each_rank, kEachRank, &snapshot.state);
  for (std::vector<NamedTensor>* list : {&snapshot.weights, &snapshot.state})
    std::sort(list->begin(), list->end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  snapshot.storage = storage;
  return snapshot;
}

Status RestoreSnapshot(Engine& engine, const TrainableModel& model, const LoadedCheckpoint& checkpoint,
                       const std::string& path, bool each_rank) {
  SY_ASSIGN_OR_RETURN(HostTensors weights, ReadWeights(checkpoint.weights));
  if (model.import_weights) {
    SY_ASSIGN_OR_RETURN(weights, model.import_weights(std::move(weights), false));
  }
  SY_RETURN_IF_ERROR(VerifyReadWeights(engine, weights, path));
  SY_RETURN_IF_ERROR(UploadParameters(engine, model.name, weights, false));
  const Layout& layout = engine.layout();
  SY_ASSIGN_OR_RETURN(const SavedState state, ReadState(checkpoint.state, layout, model));
  const auto refused = [&](const std::string& name, const std::string& what) {
    return InvalidArgument(
        "{}: state {} {}; it was saved with other settings of the optimizer: leave those out that you changed, or "
        "start a new run from the weights with --pretrained={}",
        checkpoint.folder, name, what, path);
  };
  std::map<std::string, const NamedTensor*> found;
  for (const NamedTensor& tensor : state.tensors) {
    const Layout::Entry* const entry = layout.Find(tensor.name);
    if (entry == nullptr && (IsLossScaleState(tensor.name) || IsPowerSgdState(tensor.name))) continue;
    if (entry == nullptr || !IsSaved(*entry)) return refused(tensor.name, "is none of this run's");
    found[tensor.name] = &tensor;
  }
  for (const auto& [name, entry] : layout.entries()) {
    if (!IsSaved(entry)) continue;
    // Of another precision, or without compression, or of another rank: it starts.
    if (!found.contains(name) && (IsLossScaleState(name) || IsPowerSgdState(name))) continue;
    if (!found.contains(name)) return refused(name, "is missing");
    const NamedTensor& tensor = *found[name];
    const Shape shape(tensor.shape.begin(), tensor.shape.end());
    if (IsPowerSgdState(name) && shape != entry.whole_shape()) continue;
    if (tensor.dtype != SavedType(entry) || shape != entry.whole_shape()) {
      return refused(name, fmt::format("is {} {}, expected {} {}", tensor.dtype, ToString(shape), SavedType(entry),
                                       ToString(entry.whole_shape())));
    }
    SY_RETURN_IF_ERROR(UploadWhole(engine, name, tensor.data));
  }
  return RestoreEachRank(engine, checkpoint.state, each_rank, checkpoint.folder);
}

}  // namespace switchyard
