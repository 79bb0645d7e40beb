#include "core/train/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/train/log_file.h"

namespace switchyard {
namespace {

constexpr size_t kLargestLog = size_t{1} << 30;
constexpr size_t kLargestLine = size_t{64} << 10;

std::string Line(const MetricsRecord& record) {
  return record.dump(-1, ' ', false, MetricsRecord::error_handler_t::replace) + "\n";
}

}  // namespace

StatusOr<MetricsWriter> MetricsWriter::Open(const Folder& folder, const std::string& name) {
  SY_ASSIGN_OR_RETURN(GrowingFile file, GrowingFile::Open(folder, name));
  // Cut off a torn last line.
  const off_t size = ::lseek(file.descriptor(), 0, SEEK_END);
  off_t whole = size;
  char last = '\0';
  while (whole > 0 && ::pread(file.descriptor(), &last, 1, whole - 1) == 1 && last != '\n') --whole;
  if (whole < size && ::ftruncate(file.descriptor(), whole) < 0) {
    return FileError("cut the torn last line of", file.path(), errno);
  }
  return MetricsWriter(std::move(file));
}

Status MetricsWriter::Write(const MetricsRecord& record) { return file_.Append(Line(record)); }

namespace {

struct DamagedLines {
  size_t count = 0;
  Status first;
};

// Of the line that begins there, with its end; 0 where it has none.
StatusOr<size_t> LineBytes(LogFile& file, size_t begin) {
  for (size_t at = begin; at < file.bytes();) {
    SY_ASSIGN_OR_RETURN(const std::string_view piece, file.Read(at, kLargestLine + 1));
    const size_t end = piece.find('\n');
    if (end != std::string_view::npos) return at + end + 1 - begin;
    at += piece.size();
  }
  return 0;
}

// Hands each record to `take`, with where its line begins and the bytes that it has. damaged: gets lines that are none,
// which are left out; null: the first of them is the error.
template <typename Take>
Status ReadRecords(LogFile& file, const Take& take, DamagedLines* damaged, bool* torn) {
  if (torn != nullptr) *torn = false;
  size_t line_number = 1;
  for (size_t begin = 0, bytes = 0; begin < file.bytes(); begin += bytes, ++line_number) {
    SY_ASSIGN_OR_RETURN(bytes, LineBytes(file, begin));
    if (bytes == 0) {
      if (torn != nullptr) *torn = true;
      break;
    }
    StatusOr<MetricsRecord> record = MetricsRecord();
    if (bytes - 1 <= kLargestLine) {
      SY_ASSIGN_OR_RETURN(const std::string_view line, file.Read(begin, bytes - 1));
      record = ParseJson<MetricsRecord>(line);
    } else {
      record = InvalidArgument("JSON of more than {} bytes on one line", kLargestLine);
    }
    if (record.ok() && record->is_object()) {
      take(std::move(*record), begin, bytes);
      continue;
    }
    if (damaged != nullptr && damaged->count++ > 0) continue;
    const Status status = DataLoss("{}:{}: {}", Printable(file.path(), 4096), line_number,
                                   record.ok() ? "expected a JSON object on this line" : Message(record.status()));
    if (damaged == nullptr) return status;
    damaged->first = status;
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::vector<MetricsRecord>> ReadMetrics(const std::string& path, bool* torn) {
  SY_ASSIGN_OR_RETURN(LogFile file, LogFile::Open(path));
  if (file.bytes() > kLargestLog)
    return DataLoss("{} has {} bytes, expected at most {} of a log that is held in memory", Printable(path, 4096),
                    file.bytes(), kLargestLog);
  std::vector<MetricsRecord> records;
  SY_RETURN_IF_ERROR(ReadRecords(
      file, [&](MetricsRecord record, size_t, size_t) { records.push_back(std::move(record)); }, nullptr, torn));
  return records;
}

Status DropMetricsAfter(const Folder& folder, const std::string& name, int64_t step) {
  if (!folder.Has(name)) return OkStatus();
  SY_ASSIGN_OR_RETURN(LogFile file, LogFile::Open(folder.PathOf(name)));
  KeptParts kept;
  DamagedLines damaged;
  const auto keep = [&](const MetricsRecord& record, size_t begin, size_t bytes) {
    const auto found = record.find("step");
    const bool later = found != record.end() && found->is_number() && found->get<double>() > static_cast<double>(step);
    if (!later) kept.Add(begin, bytes);
  };
  SY_RETURN_IF_ERROR(ReadRecords(file, keep, &damaged, nullptr));
  if (damaged.count > 0) LogWarning("{}; {} such lines of the log are dropped", Message(damaged.first), damaged.count);
  return kept.Replace(folder, name, file);
}

}  // namespace switchyard
