#include "core/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/train/file_calls.h"

namespace switchyard {
namespace {

constexpr size_t kLargestLog = size_t{4} << 30;

std::string Line(const MetricsRecord& record) {
  return record.dump(-1, ' ', false, MetricsRecord::error_handler_t::replace) + "\n";
}

}  // namespace

StatusOr<MetricsWriter> MetricsWriter::Open(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) SY_RETURN_IF_ERROR(MakeFolders(folder));
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return FileError("open", path, errno);
  MetricsWriter writer(path, descriptor);
  // Cut off a torn last line.
  const off_t size = ::lseek(descriptor, 0, SEEK_END);
  off_t whole = size;
  char last = '\0';
  while (whole > 0 && ::pread(descriptor, &last, 1, whole - 1) == 1 && last != '\n') --whole;
  if (whole < size && ::ftruncate(descriptor, whole) < 0) return FileError("cut the torn last line of", path, errno);
  return writer;
}

Status MetricsWriter::Write(const MetricsRecord& record) {
  const std::string line = Line(record);
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(descriptor_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("write", path_, errno);
    done += static_cast<size_t>(written);
  }
  return OkStatus();
}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

MetricsWriter& MetricsWriter::operator=(MetricsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

MetricsWriter::~MetricsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

StatusOr<std::vector<MetricsRecord>> ReadMetrics(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kLargestLog));
  std::vector<MetricsRecord> records;
  size_t line_number = 1;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1, ++line_number) {
    MetricsRecord record = MetricsRecord::parse(text.begin() + static_cast<ptrdiff_t>(begin),
                                                text.begin() + static_cast<ptrdiff_t>(end), nullptr, false);
    if (!record.is_object()) return DataLoss("{}:{}: expected a JSON object on this line", path, line_number);
    records.push_back(std::move(record));
  }
  return records;
}

Status DropMetricsAfter(const std::string& path, int64_t step) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return OkStatus();
  SY_ASSIGN_OR_RETURN(const std::vector<MetricsRecord> records, ReadMetrics(path));
  std::string kept;
  for (const MetricsRecord& record : records) {
    const auto found = record.find("step");
    const bool later = found != record.end() && found->is_number() && found->get<double>() > static_cast<double>(step);
    if (!later) kept += Line(record);
  }
  const std::string temporary = path + ".tmp";
  std::filesystem::remove(temporary, error);
  SY_RETURN_IF_ERROR(WriteDurably(temporary, {BytesOf(kept)}));
  return RenamePath(temporary, path);
}

}  // namespace switchyard
