// Weights wherever they come from. Known are
//
//   a run folder or checkpoint of ours           with its record (checkpoint.h)
//   FILE.safetensors                             one file
//   FOLDER with model.safetensors                as Hugging Face and timm keep a model, or with one other .safetensors
//   FOLDER with model.safetensors.index.json     the same in several files (also the index itself)
//
// config.json and preprocessor_config.json beside the weights come along as they are; models/hugging_face.h reads them.
// Nothing in a folder is trusted: a file that an index names lies beside it, and what is not as expected is an error
// that names file and field. The JSON files have 8 MiB at most, four times what the largest need: names of 22,000
// classes, each twice, are 2 MB, and so is an index of 20,000 tensors. Pickled weights (.pth, .bin) can run code and
// are refused, with the way to convert them.
//
// Thread-safe: an open WeightSource is only read.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/host_tensor.h"
#include "core/train/checkpoint.h"
#include "core/train/trainable_model.h"

namespace switchyard {

// Every tensor, of F32, F16, BF16 or F64, as f32, and single numbers of I64 (counters). Other types are an error.
StatusOr<HostTensors> ReadWeights(const TensorFile& file);

// Writes a folder that WeightSource, and others, read: model.safetensors, and the configs but for those that are null.
// What of it is in the folder already is an error. Once it returns, a crash keeps all of it.
Status WriteWeightFolder(const std::string& path, const std::vector<NamedTensor>& tensors, const nlohmann::json& config,
                         const nlohmann::json& preprocessor);

class WeightSource {
 public:
  static StatusOr<WeightSource> Open(const std::string& path);

  const std::string& path() const { return path_; }  // of the file, or the folder that holds them
  // With its record and state where the weights are a checkpoint of ours, else null.
  const LoadedCheckpoint* checkpoint() const { return checkpoint_ ? &*checkpoint_ : nullptr; }
  const nlohmann::json& config() const { return config_; }              // an object, or null where there is none
  const nlohmann::json& preprocessor() const { return preprocessor_; }  // the same

  size_t size() const { return places_.size(); }                 // tensors
  std::vector<std::string> names() const;                        // of all of them, in order
  const TensorFile::Entry* Find(const std::string& name) const;  // null if there is none
  StatusOr<HostTensors> Read() const;                            // every tensor, as ReadWeights
  // The averaged weights, under names of files. from_file and to_file: of the model (TrainableModel), for averages that
  // a checkpoint has in the layout of the graph. NotFound where there are none: weights of others, or a run without
  // --ema_decay.
  StatusOr<HostTensors> ReadAverages(const Renaming& from_file, const Renaming& to_file) const;

 private:
  Status OpenFile(const std::string& path);
  Status OpenIndex(const std::string& path);
  Status OpenCompanions(const std::string& folder);
  // The file that holds an entry, for each name.
  struct Place {
    size_t file = 0;
    TensorFile::Entry entry;
  };
  const TensorFile& file(size_t i) const { return checkpoint_ ? checkpoint_->weights : files_[i]; }

  std::string path_;
  std::optional<LoadedCheckpoint> checkpoint_;
  std::vector<TensorFile> files_;  // empty with a checkpoint, whose file is its own
  std::map<std::string, Place> places_;
  nlohmann::json config_, preprocessor_;
};

}  // namespace switchyard
