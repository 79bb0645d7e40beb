#include "core/train/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/json.h"

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

// damaged: gets the errors of lines that are none, which are left out; null: the first of them is returned.
StatusOr<std::vector<MetricsRecord>> ReadRecords(const std::string& path, std::vector<Status>* damaged, bool* torn) {
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kLargestLog));
  if (torn != nullptr) *torn = !text.empty() && text.back() != '\n';
  std::vector<MetricsRecord> records;
  JsonRules rules;
  rules.bytes = kLargestLine;
  size_t line_number = 1;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1, ++line_number) {
    auto record = ParseJson<MetricsRecord>(std::string_view(text).substr(begin, end - begin), rules);
    Status status;
    if (!record.ok()) {
      status = DataLoss("{}:{}: {}", path, line_number, Message(record.status()));
    } else if (!record->is_object()) {
      status = DataLoss("{}:{}: expected a JSON object on this line", path, line_number);
    } else {
      records.push_back(std::move(*record));
      continue;
    }
    if (damaged == nullptr) return status;
    damaged->push_back(std::move(status));
  }
  return records;
}

}  // namespace

StatusOr<std::vector<MetricsRecord>> ReadMetrics(const std::string& path, bool* torn) {
  return ReadRecords(path, nullptr, torn);
}

Status DropMetricsAfter(const Folder& folder, const std::string& name, int64_t step) {
  if (!folder.Has(name)) return OkStatus();
  std::vector<Status> damaged;
  SY_ASSIGN_OR_RETURN(const std::vector<MetricsRecord> records, ReadRecords(folder.PathOf(name), &damaged, nullptr));
  if (!damaged.empty()) LogWarning("{}; {} such lines of the log are dropped", Message(damaged[0]), damaged.size());
  std::string kept;
  for (const MetricsRecord& record : records) {
    const auto found = record.find("step");
    const bool later = found != record.end() && found->is_number() && found->get<double>() > static_cast<double>(step);
    if (!later) kept += Line(record);
  }
  return folder.Replace(name, {BytesOf(kept)});
}

}  // namespace switchyard
