// Tensors of a checkpoint as pieces, each in the file of the rank that owns it, and an index of them:
//
//   state-00001-of-00004.safetensors …   one file for each rank that owns something: its pieces under the names of the
//                                        tensors, and beside each in the metadata, as "piece:<name>", what it is of it
//   state.index.json                     {"files": [names], "tensors": {name: {"dtype", "shape", "pieces": […]}}}
//
// A piece is {"file": index into "files", "cuts": […]}: elements [begin, end) of an axis of the tensor, or of what the
// cut before has left of it. A cut is {"shape", "axis": [dimension, outer, extent, inner], "range": [begin, end]} as in
// core/graph/part.h; no cuts: the whole tensor. Names, shapes and the order of elements are those of the graph, not
// those in which weights are published, of which a piece would be scattered elements.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/part.h"
#include "core/graph/part_runs.h"
#include "core/train/tensor_file.h"
#include "nlohmann/json.hpp"

namespace switchyard {

inline constexpr char kShardIndex[] = "state.index.json";
std::string ShardName(int file, int files);  // file: from 0

// What a rank owns of a tensor. values: of the piece, under the tensor's name; its shape may be any of as many
// elements.
struct TensorPiece {
  NamedTensor values;
  std::vector<int64_t> shape;  // of the tensor
  std::optional<Part> part;    // none: all of it
};

// A rank's file, as WriteTensorFile.
StatusOr<TensorFileSummary> WriteShard(const Folder& folder, const std::string& name,
                                       const std::vector<TensorPiece>& pieces);

// Has WriteShard written it?
bool IsShard(const TensorFile& file);

// The index of files that WriteShard has written. Where two have the same piece, the first counts. DataLoss where a
// file is none of those, or files do not agree about a tensor.
StatusOr<nlohmann::json> IndexOf(const std::vector<std::string>& names, const std::vector<TensorFile>& files);

// Tensors wherever they lie: whole in one file, or in pieces. Files of pieces are opened when something is read of
// them, and only those that hold some of it.
class SavedTensors {
 public:
  using OpenFile = std::function<StatusOr<TensorFile>(const std::string& name)>;

  explicit SavedTensors(TensorFile whole);
  // index: JSON from outside, which may be anything; path: its own, for messages; most_bytes: of all files together.
  // DataLoss names what is wrong with it.
  static StatusOr<SavedTensors> Of(const nlohmann::json& index, const std::string& path, int64_t most_bytes,
                                   OpenFile open);

  bool in_pieces() const { return in_pieces_; }  // then under the names and in the shapes of the graph
  const std::string& path() const { return path_; }
  const std::vector<std::string>& files() const { return names_; }            // of pieces, beside the index
  const std::vector<TensorFile::Entry>& entries() const { return entries_; }  // of whole tensors; offset: 0 of pieces
  const TensorFile::Entry* Find(const std::string& name) const;               // nullptr if there is none

  // Of `entries`: all of it; or of `part`, whose whole tensor has as many elements. What is read is checked against the
  // checksums of the pieces that hold some of it, which are read to their end for that.
  Status Read(const TensorFile::Entry& entry, void* destination) const;
  Status Read(const TensorFile::Entry& entry, const Part& part, void* destination) const;

 private:
  struct Piece {
    size_t file = 0;
    std::optional<Part> part;
    std::string description = "";  // as its file has it
  };
  struct Files;
  SavedTensors() = default;
  Status Add(const std::string& name, const nlohmann::json& description, int64_t most_bytes);
  Status ReadRuns(const TensorFile::Entry& entry, const std::vector<PartRun>& wanted, int64_t elements,
                  std::byte* destination) const;

  bool in_pieces_ = false;
  std::string path_;
  std::vector<std::string> names_;
  std::vector<TensorFile::Entry> entries_;
  std::map<std::string, size_t> index_;     // name → entries_
  std::vector<std::vector<Piece>> pieces_;  // by entry
  std::shared_ptr<Files> files_;
};

}  // namespace switchyard
