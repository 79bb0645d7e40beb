// The log of a run as JSON Lines: one object per line, in the order in which fields were given (step, epoch, loss, lr,
// grad_norm, images_per_s, data_wait_ms, comm_wait_ms, memory_bytes, top1 …). Each line is one write(2), so that a run
// that is killed leaves at most one torn line, the last, which the reader passes over and the next writer cuts off.
// NaN and infinity become null, as JSON has neither.
//
// A MetricsWriter belongs to one thread; different files are independent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace switchyard {

using MetricsRecord = nlohmann::ordered_json;

class MetricsWriter {
 public:
  // Appends to `path`; creates it and its folders where they are missing.
  static StatusOr<MetricsWriter> Open(const std::string& path);

  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&& other) noexcept;
  ~MetricsWriter();

  Status Write(const MetricsRecord& record);

 private:
  MetricsWriter(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
};

// All records. A torn last line is left out; any other line that is not a JSON object is DataLoss naming file and line.
StatusOr<std::vector<MetricsRecord>> ReadMetrics(const std::string& path);

// Drops records whose "step" is greater than `step`: before a run resumes from there. A missing file is fine.
Status DropMetricsAfter(const std::string& path, int64_t step);

}  // namespace switchyard
