#include "core/train/shards.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/json.h"
#include "core/train/tensor_file_header.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

constexpr char kPiece[] = "piece:";
constexpr size_t kMostCuts = 8, kLongestList = 64;

std::vector<int64_t> ToVector(const Shape& shape) { return {shape.begin(), shape.end()}; }
Part WholeOf(const std::vector<int64_t>& shape) {
  const Shape whole(shape.begin(), shape.end());
  return {whole, {DividedAxis::kAllElements, 1, Elements(whole), 1}, 0, Elements(whole)};
}

// From the tensor to the piece. A cut that leaves everything is none.
Json CutsOf(const Part& part) {
  Json cuts = part.of ? CutsOf(*part.of) : Json::array();
  if (part.begin == 0 && part.end == part.axis.extent) return cuts;
  cuts.push_back({{"shape", ToVector(part.whole)},
                  {"axis", {part.axis.dimension, part.axis.outer, part.axis.extent, part.axis.inner}},
                  {"range", {part.begin, part.end}}});
  return cuts;
}

// A list of `count` numbers, or of at most kLongestList where that is 0. least: below which they are none.
bool NumbersIn(const Json& json, size_t count, int64_t least, std::vector<int64_t>* numbers) {
  if (!json.is_array() || json.size() > kLongestList || (count > 0 && json.size() != count)) return false;
  numbers->assign(json.size(), 0);
  for (size_t i = 0; i < json.size(); ++i) {
    if (!FromJson(json[i], &(*numbers)[i]) || (*numbers)[i] < least) return false;
  }
  return true;
}

int64_t ElementsIn(const Part& part) {
  int64_t elements = 0;
  for (const PartRun& run : RunsOf(part)) elements += run.elements;
  return elements;
}

// The part that `cut` leaves of `of`, or of a tensor of `elements`; nothing where it can be none.
std::optional<Part> PartIn(const Json& cut, std::optional<Part> of, int64_t elements) {
  if (!cut.is_object()) return std::nullopt;
  std::vector<int64_t> shape, axis, range;
  if (!NumbersIn(cut.value("shape", Json()), 0, 1, &shape) || !NumbersIn(cut.value("axis", Json()), 4, -1, &axis) ||
      !NumbersIn(cut.value("range", Json()), 2, 0, &range))
    return std::nullopt;
  int64_t of_shape = 0;
  if (!PayloadBytes(shape, 1, &of_shape) || of_shape != elements) return std::nullopt;
  const auto dimension = static_cast<size_t>(axis[0]);
  const bool all = axis[0] == DividedAxis::kAllElements;
  if (!all && dimension >= shape.size()) return std::nullopt;
  const int64_t size = all ? elements : shape[dimension];
  int64_t of_axis = 0;
  if (axis[1] < 1 || axis[2] < 1 || axis[3] < 1 || (all && axis[2] != size) ||
      !PayloadBytes({axis[1], axis[2], axis[3]}, 1, &of_axis) || of_axis != size || range[0] > range[1] ||
      range[1] > axis[2])
    return std::nullopt;
  Part part{
      Shape(shape.begin(), shape.end()), {static_cast<int>(axis[0]), axis[1], axis[2], axis[3]}, range[0], range[1]};
  if (of) part.of = std::make_shared<const Part>(std::move(*of));
  return part;
}

// What a piece is of a tensor, in the metadata of its file.
std::string DescriptionOf(const Json& shape, const Json& cuts) { return Json{{"shape", shape}, {"cuts", cuts}}.dump(); }

}  // namespace

std::string ShardName(int file, int files) { return fmt::format("state-{:05}-of-{:05}.safetensors", file + 1, files); }

StatusOr<TensorFileSummary> WriteShard(const Folder& folder, const std::string& name,
                                       const std::vector<TensorPiece>& pieces) {
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> metadata;
  for (const TensorPiece& piece : pieces) {
    tensors.push_back(piece.values);
    metadata[kPiece + piece.values.name] = DescriptionOf(piece.shape, piece.part ? CutsOf(*piece.part) : Json::array());
  }
  return WriteTensorFile(folder, name, tensors, metadata);
}

bool IsShard(const TensorFile& file) {
  const auto piece = file.metadata().lower_bound(kPiece);
  return piece != file.metadata().end() && piece->first.starts_with(kPiece);
}

StatusOr<Json> IndexOf(const std::vector<std::string>& names, const std::vector<TensorFile>& files) {
  Json tensors = Json::object();
  for (size_t i = 0; i < files.size(); ++i) {
    for (const TensorFile::Entry& entry : files[i].entries()) {
      const auto described = files[i].metadata().find(kPiece + entry.name);
      StatusOr<Json> piece = NotFound("");
      if (described != files[i].metadata().end()) piece = ParseJson(described->second);
      if (!piece.ok() || !piece->is_object() || !piece->contains("shape") || !piece->contains("cuts"))
        return DataLoss("{}: {}{}: expected what it is of the tensor", files[i].path(), kPiece, Printable(entry.name));
      Json& tensor = tensors[entry.name];
      if (tensor.is_null()) tensor = {{"dtype", entry.dtype}, {"shape", (*piece)["shape"]}, {"pieces", Json::array()}};
      if (tensor["dtype"] != entry.dtype || tensor["shape"] != (*piece)["shape"])
        return DataLoss("{}: {}: {} of shape {}, but {} of shape {} in another file", files[i].path(),
                        Printable(entry.name), entry.dtype, Excerpt((*piece)["shape"]), Excerpt(tensor["dtype"]),
                        Excerpt(tensor["shape"]));
      const bool known = std::any_of(tensor["pieces"].begin(), tensor["pieces"].end(),
                                     [&](const Json& other) { return other["cuts"] == (*piece)["cuts"]; });
      if (!known) tensor["pieces"].push_back({{"file", i}, {"cuts", std::move((*piece)["cuts"])}});
    }
  }
  return Json{{"files", names}, {"tensors", std::move(tensors)}};
}

struct SavedTensors::Files {
  OpenFile open;
  std::mutex mutex;
  std::vector<std::unique_ptr<TensorFile>> opened;  // by file; null: not yet

  StatusOr<const TensorFile*> Get(size_t file, const std::string& name) {
    const std::lock_guard lock(mutex);
    if (opened[file] == nullptr) {
      SY_ASSIGN_OR_RETURN(TensorFile found, open(name));
      opened[file] = std::make_unique<TensorFile>(std::move(found));
    }
    return opened[file].get();
  }
};

SavedTensors::SavedTensors(TensorFile whole) : path_(whole.path()), names_{whole.path()}, entries_(whole.entries()) {
  for (size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].name] = i;
  pieces_.assign(entries_.size(), {Piece{}});
  files_ = std::make_shared<Files>();
  files_->opened.push_back(std::make_unique<TensorFile>(std::move(whole)));
}

StatusOr<SavedTensors> SavedTensors::Of(const Json& index, const std::string& path, int64_t most_bytes, OpenFile open) {
  SavedTensors saved;
  saved.in_pieces_ = true;
  saved.path_ = path;
  const auto field = [&](const char* key) { return index.is_object() ? index.value(key, Json()) : Json(); };
  if (!FromJson(field("files"), &saved.names_)) return DataLoss("{}: files: expected a list of names", path);
  for (const std::string& name : saved.names_) {
    // No part of another folder: the index may be anybody's.
    if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos || name[0] == '.')
      return DataLoss("{}: files: expected names of .safetensors files beside the index, found {}", path,
                      Printable(name));
  }
  saved.files_ = std::make_shared<Files>();
  saved.files_->open = std::move(open);
  saved.files_->opened.resize(saved.names_.size());
  const Json tensors = field("tensors");
  if (!tensors.is_object()) return DataLoss("{}: tensors: expected an object", path);
  for (const auto& [name, description] : tensors.items()) SY_RETURN_IF_ERROR(saved.Add(name, description, most_bytes));
  return saved;
}

Status SavedTensors::Add(const std::string& name, const Json& description, int64_t most_bytes) {
  const auto refused = [&](const std::string& what) {
    return DataLoss("{}: tensor {}: {}", path_, Quoted(name), what);
  };
  const auto field = [](const Json& object, const char* key) {
    return object.is_object() ? object.value(key, Json()) : Json();
  };
  TensorFile::Entry entry{.name = name};
  const Json dtype = field(description, "dtype"), pieces = field(description, "pieces");
  if (!FromJson(dtype, &entry.dtype) || ElementBytes(entry.dtype) == 0)
    return refused(fmt::format("dtype: {} is not one that can be read", Excerpt(dtype)));
  if (!NumbersIn(field(description, "shape"), 0, 0, &entry.shape) ||
      !PayloadBytes(entry.shape, ElementBytes(entry.dtype), &entry.bytes))
    return refused(
        fmt::format("shape: expected whole numbers from 0 up, found {}", Excerpt(field(description, "shape"))));
  if (entry.bytes > most_bytes)
    return refused(fmt::format("shape: {} bytes, and the files have {}", entry.bytes, most_bytes));
  if (!pieces.is_array()) return refused("pieces: expected a list");
  const int64_t elements = entry.bytes / ElementBytes(entry.dtype);
  std::vector<Piece> found;
  int64_t held = 0;
  for (const Json& json : pieces) {
    Piece piece;
    const Json file = field(json, "file"), cuts = field(json, "cuts");
    if (!FromJson(file, &piece.file) || piece.file >= names_.size() || !cuts.is_array() || cuts.size() > kMostCuts)
      return refused(fmt::format("pieces: expected one of {} files and cuts, found {}", names_.size(), Excerpt(json)));
    int64_t left = elements;
    for (const Json& cut : cuts) {
      piece.part = PartIn(cut, std::move(piece.part), left);
      if (!piece.part) return refused(fmt::format("pieces: no part of {} elements is {}", left, Excerpt(cut)));
      left = Elements(ShapeOf(*piece.part));
    }
    piece.description = DescriptionOf(entry.shape, cuts);
    held += left;
    if (held > elements) break;
    found.push_back(std::move(piece));
  }
  if (held != elements)
    return refused(
        fmt::format("pieces: {} than the {} elements of the tensor", held > elements ? "more" : "fewer", elements));
  index_[name] = entries_.size();
  entries_.push_back(std::move(entry));
  pieces_.push_back(std::move(found));
  return OkStatus();
}

const TensorFile::Entry* SavedTensors::Find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

Status SavedTensors::Read(const TensorFile::Entry& entry, void* destination) const {
  if (!in_pieces_) return files_->opened[0]->Read(entry, destination);
  const int64_t elements = entry.bytes / ElementBytes(entry.dtype);
  return ReadRuns(entry, {{0, 0, elements}}, elements, static_cast<std::byte*>(destination));
}

Status SavedTensors::Read(const TensorFile::Entry& entry, const Part& part, void* destination) const {
  return ReadRuns(entry, RunsOf(part), Elements(ShapeOf(part)), static_cast<std::byte*>(destination));
}

// Goes through what is wanted and what each piece has side by side, both of which are in the order of the tensor.
Status SavedTensors::ReadRuns(const TensorFile::Entry& entry, const std::vector<PartRun>& wanted, int64_t elements,
                              std::byte* destination) const {
  const int64_t size = ElementBytes(entry.dtype);
  std::vector<PartRun> filled;                      // `whole`: in the piece; `at`: in the destination
  std::vector<std::pair<int64_t, int64_t>> ranges;  // of the destination, from all pieces
  std::vector<std::byte> scratch;
  for (const Piece& piece : pieces_[index_.at(entry.name)]) {
    const std::vector<PartRun> held = RunsOf(piece.part ? *piece.part : WholeOf(entry.shape));
    filled.clear();
    for (size_t w = 0, h = 0; w < wanted.size() && h < held.size();) {
      const int64_t begin = std::max(wanted[w].whole, held[h].whole);
      const int64_t wanted_end = wanted[w].whole + wanted[w].elements, held_end = held[h].whole + held[h].elements;
      const int64_t end = std::min(wanted_end, held_end);
      if (begin < end)
        filled.push_back({held[h].at + begin - held[h].whole, wanted[w].at + begin - wanted[w].whole, end - begin});
      if (wanted_end == end) ++w;
      if (held_end == end) ++h;
    }
    if (filled.empty()) continue;
    SY_ASSIGN_OR_RETURN(const TensorFile* const file, files_->Get(piece.file, names_[piece.file]));
    const TensorFile::Entry* const payload = file->Find(entry.name);
    const int64_t bytes = piece.part ? ElementsIn(*piece.part) * size : entry.bytes;
    const auto described = file->metadata().find(kPiece + entry.name);
    const bool is_it = !in_pieces_ || (described != file->metadata().end() && described->second == piece.description);
    if (payload == nullptr || payload->dtype != entry.dtype || payload->bytes != bytes || !is_it)
      return DataLoss("{}: tensor {}: expected {} bytes of {} that are the piece {}, as {} says", file->path(),
                      Quoted(entry.name), bytes, entry.dtype, piece.description, path_);
    if (filled.size() == 1 && filled[0].elements * size == bytes) {
      SY_RETURN_IF_ERROR(file->Read(*payload, destination + filled[0].at * size));
    } else {
      scratch.resize(static_cast<size_t>(bytes));
      SY_RETURN_IF_ERROR(file->Read(*payload, scratch.data()));
      for (const PartRun& run : filled)
        std::memcpy(destination + run.at * size, scratch.data() + run.whole * size,
                    static_cast<size_t>(run.elements * size));
    }
    for (const PartRun& run : filled) ranges.emplace_back(run.at, run.elements);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& [at, count] : ranges) {
    if (at != end) break;
    end += count;
  }
  if (end != elements)
    return DataLoss("{}: tensor {}: pieces: element {} of what is read is in none of them, or in several", path_,
                    Quoted(entry.name), end);
  return OkStatus();
}

}  // namespace switchyard
