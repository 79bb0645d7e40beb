// The log of a run as JSON Lines: one object per line, in the order in which fields were given (step, epoch, loss, lr,
// grad_norm, loss_scale, images_per_s, data_wait_ms, comm_wait_ms, memory_bytes, top1 …). Each line is one write(2), so
// that a run that is killed leaves at most one torn line, the last, which the reader passes over and the next writer
// cuts off. NaN and infinity become null, as JSON has neither.
//
// A MetricsWriter belongs to one thread, but for Sync; different files are independent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/train/file_calls.h"
#include "nlohmann/json.hpp"

namespace switchyard {

using MetricsRecord = nlohmann::ordered_json;

inline constexpr char kOfAverages[] = "ema_";  // before the name of a metric: that of the averaged weights

class MetricsWriter {
 public:
  // Appends to a file of the folder, which is created where it is missing.
  static StatusOr<MetricsWriter> Open(const Folder& folder, const std::string& name);

  // An error also where the file was removed or moved since: nobody would read what is written.
  Status Write(const MetricsRecord& record);
  Status Sync() const { return file_.Sync(); }  // as of GrowingFile

 private:
  explicit MetricsWriter(GrowingFile file) : file_(std::move(file)) {}
  GrowingFile file_;
};

// All records. A torn last line is left out, and *torn says whether there is one; any other line that is not a JSON
// object is DataLoss naming file and line.
StatusOr<std::vector<MetricsRecord>> ReadMetrics(const std::string& path, bool* torn = nullptr);

// Drops records whose "step" is greater than `step`: before a run resumes from there. A missing file is fine.
Status DropMetricsAfter(const Folder& folder, const std::string& name, int64_t step);

}  // namespace switchyard
