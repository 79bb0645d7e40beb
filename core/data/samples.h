// What a Loader fills its batches from: samples by index, each a row in every one of some named tensors. What the
// tensors mean is between the source and the graph that reads them (core/train/task.h). Thread-safe: any number of
// threads may fill rows at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/types.h"

namespace switchyard {

struct SampleTensor {
  std::string name;  // of the graph's input
  TensorType row;    // of one sample; a batch is (B, row.shape…)
  // Behind the others: who brings batches of their own may leave it out, and it is zero then.
  bool optional = false;
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual std::string name() const = 0;
  virtual int64_t size() const = 0;
  virtual std::string Path(int64_t index) const = 0;  // where a sample lives, for messages
  virtual std::vector<SampleTensor> tensors() const = 0;
  // Samples that are parts of one whole, as the windows of a volume, follow each other, and evaluation gives them to
  // one rank: the first sample of each whole, ascending from 0. Empty: each sample is a whole.
  virtual std::vector<int64_t> wholes() const { return {}; }

  // Writes the sample's rows, in the order of tensors(): a pure function of (epoch, index). Errors name the file.
  virtual Status Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const = 0;
  // Writes what stands where no sample is: padding, or one that cannot be read.
  virtual void FillEmpty(std::span<void* const> rows) const = 0;
  // What samples of a training batch have in common, once all their rows are written: tensors are (B, …), positions
  // those of the samples in the global batch. A pure function of what is there, (epoch, batch) and the positions.
  virtual void FinishBatch(int64_t /*epoch*/, int64_t /*batch*/, std::span<const int32_t> /*positions*/,
                           std::span<void* const> /*tensors*/) const {}
};

}  // namespace switchyard
