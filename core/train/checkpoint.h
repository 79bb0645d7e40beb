// What a run keeps so that it can go on: a checkpoint is a folder `<run>/checkpoints/step-00000120/` with
//
//   model.safetensors   weights in interchange names
//   state.safetensors   optimizer moments as `moment1/<name of the weight>`, counters, compression state …
//                       or, where ranks have parts of the state, a file of each and their index (shards.h)
//   state.json          the caller's record {epoch, step, arch, best metric …}, and checksums of all files
//   config.json, preprocessor_config.json   where the caller gives them: what Hugging Face needs beside the weights
//
// A published checkpoint is never changed. It is written beside its place, fsynced and renamed, then the links `best`,
// where it is, and `latest` in `checkpoints/` turn to it, in this order and each in one step: at any instant, also when
// the machine stops, a link names a whole checkpoint, and `best` the best of those up to `latest`, or a later one that
// `latest` does not name yet. Saving a step that is there already publishes `step-00000120-2`.
//
// Several ranks write one checkpoint together as SharedWriting says: it is published when all their files are on disk.
//
// SaveCheckpoint and CheckpointWriter: one process per run folder, one at a time. Loading is thread-safe and may happen
// beside saving.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/train/shards.h"
#include "core/train/tensor_file.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// A checkpoint that several ranks write, as the one that publishes it does: the rank of the first file. The functions
// are called once each, in this order.
struct SharedWriting {
  int files = 0;                 // of state, of as many ranks
  std::vector<TensorPiece> own;  // of the first
  // Lets the others write theirs, with WriteShard, into the folder `draft` of <run>/checkpoints.
  std::function<Status(const std::string& draft)> begin;
  // Until they are on disk: of each after the first, what WriteShard said.
  std::function<StatusOr<std::vector<TensorFileSummary>>()> wait;
  // Writes the weights, which ranks have parts of, from what all have written. Empty: `weights` of the contents are
  // all.
  std::function<StatusOr<TensorFileSummary>(const Folder& folder, const std::string& name, const SavedTensors& saved)>
      join_weights;
};

struct CheckpointContents {
  int64_t step = 0;                     // names the folder
  std::vector<NamedTensor> weights;     // → model.safetensors
  std::vector<NamedTensor> state;       // → state.safetensors
  std::optional<SharedWriting> shared;  // instead of `state`: it is written by several ranks
  std::shared_ptr<const void> storage;  // what keeps the tensors' data alive, for a CheckpointWriter
  nlohmann::json record;  // → state.json; an object; the keys "files", "format" and "state_crc32" are taken
  nlohmann::json config, preprocessor;  // → config.json, preprocessor_config.json; null writes none
};

struct SaveOptions {
  bool best = false;  // `best` shall point to it too
  int keep = 3;       // newest checkpoints kept up to this one, beside those that links name; 0 keeps all
  // Brings the run's log to the disk; called before links turn, so that after a crash none names a checkpoint that is
  // newer than its log. Its error is the save's, whose checkpoint is published all the same.
  std::function<Status()> sync_log = nullptr;
};

struct LoadedCheckpoint {
  std::string folder;  // absolute, links resolved
  nlohmann::json record;
  nlohmann::json config, preprocessor;  // null if there is none
  std::string seal;                     // of the record, and by it of all files: equal where these are
  TensorFile weights;
  SavedTensors state;
};

// Returns the folder that was published. An error names the path and the system's reason; then earlier checkpoints
// are whole, and `latest` and `best` each name the old or the new one. A full disk is ResourceExhausted.
StatusOr<std::string> SaveCheckpoint(const std::string& run_folder, const CheckpointContents& contents,
                                     const SaveOptions& options);

// A run goes on from the checkpoint in `folder`, <run>/checkpoints/step-…: those of later steps belong to a future that
// is given up. They are moved to <run>/checkpoints/abandoned/, so that they neither count for `keep` nor are lost;
// `latest` turns to `folder`, and `best` follows the one that it names.
Status SetLaterCheckpointsAside(const std::string& folder);

// Finds the folder that `path` means: a checkpoint, a link to one, a run folder (its latest), `<run>/best` or
// `<run>/latest`. NotFound says what was looked for.
StatusOr<std::string> ResolveCheckpoint(const std::string& path);
// The error with "; another checkpoint beside it: …" where it says that a file of the checkpoint at `path` is damaged
// or missing and the run has another one, the newest.
Status WithOthersBeside(const Status& error, const std::string& path);

// Opens what ResolveCheckpoint finds and checks all but the payloads, which are checked as they are read. Of state in
// several files only the sizes are checked here, headers and payloads when something is read of a file. DataLoss names
// the file and the field that is damaged.
StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& path);

// Saves in a thread of its own, one checkpoint at a time. Not thread-safe: for the training loop.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string run_folder);
  ~CheckpointWriter();  // waits; an error that nobody asked for is logged

  const std::string& run_folder() const { return run_folder_; }

  // Begins and returns; waits first while an earlier checkpoint is still being written. If that one failed, returns its
  // error and saves nothing. Nobody may change the tensors' data, which `contents.storage` owns; it is let go when they
  // are written.
  Status Save(CheckpointContents contents, const SaveOptions& options);
  // The same of what `make` gives; it is called in the writing thread, and its error is the save's.
  using MakeContents = std::function<StatusOr<CheckpointContents>()>;
  Status Save(MakeContents make, const SaveOptions& options);
  // The same of a part of a checkpoint: `work` writes it, in the writing thread, and `end`, where there is one, is told
  // how that went, whatever happens, and says how the save did.
  Status Begin(std::function<Status()> work, std::function<Status(const Status&)> end);

  // Waits for the checkpoint being written, if any, and returns its error.
  Status Finish();

 private:
  struct Job;
  std::string run_folder_;
  std::unique_ptr<Job> job_;
};

}  // namespace switchyard
