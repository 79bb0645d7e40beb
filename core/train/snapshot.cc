#include "core/train/snapshot.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/parallel/loss_scaling.h"
#include "core/train/parameters.h"
#include "core/train/weight_files.h"

namespace switchyard {
namespace {

bool IsSaved(const Layout::Entry& entry) {
  return entry.role == Role::kState && !entry.of_model && entry.arena == kStateArena;
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

// Host memory of a Snapshot.
struct Storage {
  HostTensors weights;
  std::map<std::string, HostTensors> of_weights;  // by what they are: moment1, …
  std::map<std::string, std::vector<char>> others;
};

void AddAll(const HostTensors& tensors, const std::string& prefix, std::vector<NamedTensor>* list) {
  for (const auto& [name, tensor] : tensors)
    list->push_back({prefix + name, "F32", {tensor.shape.begin(), tensor.shape.end()}, tensor.values.data()});
}

// The state of a checkpoint under the names of the graph.
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

}  // namespace

StatusOr<WholeTensors> GatherParts(Engine& engine) {
  WholeTensors parts;
  const World& world = engine.world();
  bool synchronized = false;
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!entry.part || (!entry.is_weight() && !IsSaved(entry))) continue;
    const int other_axis = entry.part->group == kTensorGroup ? world.data_rank() : world.tensor_rank();
    if (other_axis != 0 && !entry.part->of) continue;  // parts of parts are all ranks'
    if (!std::exchange(synchronized, true)) SY_RETURN_IF_ERROR(engine.Synchronize());
    std::vector<std::byte>& whole = parts[name];
    whole.resize(static_cast<size_t>(Elements(entry.whole_shape()) * SizeOf(entry.type.dtype)));
    SY_RETURN_IF_ERROR(DownloadWhole(engine, name, whole.data()));
  }
  return parts;
}

StatusOr<Snapshot> TakeSnapshot(StateCopy& copy, const WholeTensors& parts, const Layout& layout,
                                const TrainableModel& model, int64_t data_step) {
  SY_RETURN_IF_ERROR(copy.Wait());
  const auto storage = std::make_shared<Storage>();
  Snapshot snapshot;
  for (const auto& [name, entry] : layout.entries()) {
    if (!entry.is_weight() && !IsSaved(entry)) continue;
    if (entry.arena != kStateArena) return Internal("{} does not lie among the state, so it is not saved", name);
    const auto found = parts.find(name);
    const std::byte* const bytes = found != parts.end() ? found->second.data() : copy.At(entry);
    const auto* const values = reinterpret_cast<const float*>(bytes);
    const Shape& shape = entry.whole_shape();
    const auto elements = static_cast<size_t>(Elements(shape));
    if (entry.is_weight()) {
      if (!std::all_of(values, values + elements, [](float value) { return std::isfinite(value); })) {
        return FailedPrecondition(
            "the parameter {} holds values that are not finite after update {}, so it is not saved; what was saved "
            "before is whole. Lower --lr, or raise --warmup",
            name, data_step);
      }
      storage->weights[name] = {shape, std::vector<float>(values, values + elements)};
    } else if (BelongsToWeight(layout, name, entry)) {
      const auto [kind, weight] = KindAndWeight(name);
      storage->of_weights[kind][weight] = {shape, std::vector<float>(values, values + elements)};
    } else {
      snapshot.state.push_back({name, SavedType(entry), {shape.begin(), shape.end()}, bytes});
    }
  }
  if (model.to_file) {
    storage->weights = model.to_file(std::move(storage->weights));
    for (auto& [kind, tensors] : storage->of_weights) tensors = model.to_file(std::move(tensors));
  }
  AddAll(storage->weights, "", &snapshot.weights);
  for (const auto& [kind, tensors] : storage->of_weights) AddAll(tensors, kind + "/", &snapshot.state);
  snapshot.storage = storage;
  return snapshot;
}

Status RestoreSnapshot(Engine& engine, const TrainableModel& model, const LoadedCheckpoint& checkpoint,
                       const std::string& path) {
  SY_ASSIGN_OR_RETURN(HostTensors weights, ReadWeights(checkpoint.weights));
  if (model.import_weights) {
    SY_ASSIGN_OR_RETURN(weights, model.import_weights(std::move(weights), false));
  }
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
    if (entry == nullptr && IsLossScaleState(tensor.name)) continue;
    if (entry == nullptr || !IsSaved(*entry)) return refused(tensor.name, "is none of this run's");
    found[tensor.name] = &tensor;
  }
  for (const auto& [name, entry] : layout.entries()) {
    if (!IsSaved(entry)) continue;
    if (!found.contains(name) && IsLossScaleState(name)) continue;  // of another precision: it starts
    if (!found.contains(name)) return refused(name, "is missing");
    const NamedTensor& tensor = *found[name];
    const Shape shape(tensor.shape.begin(), tensor.shape.end());
    if (tensor.dtype != SavedType(entry) || shape != entry.whole_shape()) {
      return refused(name, fmt::format("is {} {}, expected {} {}", tensor.dtype, ToString(shape), SavedType(entry),
                                       ToString(entry.whole_shape())));
    }
    SY_RETURN_IF_ERROR(UploadWhole(engine, name, tensor.data));
  }
  return OkStatus();
}

}  // namespace switchyard
