#include "core/train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/base/environment.h"
#include "core/train/event.pb.h"
#include "core/train/file_calls.h"

namespace switchyard {
namespace {

constexpr char kNameBegins[] = "events.out.tfevents.";
constexpr size_t kLargestFile = size_t{4} << 30;

constexpr std::array<uint32_t, 256> Crc32cTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82F63B78u : 0u);
    table[byte] = remainder;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = Crc32cTable();

double WallTime() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

template <typename Number>
void AppendNumber(std::string* text, Number number) {
  text->append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <typename Number>
Number NumberAt(const std::string& text, size_t at) {
  Number number;
  std::memcpy(&number, text.data() + at, sizeof number);
  return number;
}

// The records of a file up to `step`, as they stand there; ends at the first that is torn or damaged.
std::string RecordsUntil(const std::string& text, int64_t step) {
  constexpr size_t kHead = 12, kTail = 4;
  std::string kept;
  for (size_t at = 0; text.size() - at >= kHead + kTail;) {
    const auto length = NumberAt<uint64_t>(text, at);
    if (NumberAt<uint32_t>(text, at + 8) != MaskedCrc32c(text.data() + at, 8) ||
        length > text.size() - at - kHead - kTail)
      break;
    const char* payload = text.data() + at + kHead;
    if (NumberAt<uint32_t>(text, at + kHead + length) != MaskedCrc32c(payload, length)) break;
    event::Event event;
    if (!event.ParseFromArray(payload, static_cast<int>(length))) break;
    if (event.step() <= step) kept.append(text, at, kHead + length + kTail);
    at += kHead + length + kTail;
  }
  return kept;
}

event::Event EventAt(int64_t step) {
  event::Event event;
  event.set_wall_time(WallTime());
  event.set_step(step);
  return event;
}

}  // namespace

uint32_t MaskedCrc32c(const void* data, size_t bytes) {
  uint32_t crc = ~0u;
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTable[(crc ^ at[i]) & 0xFF];
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

StatusOr<EventFile> EventFile::Create(const std::string& folder) {
  static std::atomic<int> created{0};
  SY_RETURN_IF_ERROR(MakeFolders(folder));
  const std::string path = fmt::format("{}/{}{:010}.{}.{}.{}", folder, kNameBegins, static_cast<int64_t>(WallTime()),
                                       HostName(), getpid(), created++);
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return FileError("create", path, errno);
  EventFile file(path, descriptor);
  event::Event version = EventAt(0);
  version.set_file_version("brain.Event:2");
  SY_RETURN_IF_ERROR(file.WriteRecord(version.SerializeAsString()));
  return file;
}

Status EventFile::Scalar(const std::string& tag, int64_t step, double value) {
  event::Event event = EventAt(step);
  event::Summary::Value* summary = event.mutable_summary()->add_value();
  summary->set_tag(tag);
  summary->set_simple_value(static_cast<float>(value));
  return WriteRecord(event.SerializeAsString());
}

Status EventFile::Picture(const std::string& tag, int64_t step, const Raster& image) {
  SY_ASSIGN_OR_RETURN(const std::string png, EncodePng(image));
  event::Event event = EventAt(step);
  event::Summary::Value* summary = event.mutable_summary()->add_value();
  summary->set_tag(tag);
  summary->mutable_image()->set_height(image.height);
  summary->mutable_image()->set_width(image.width);
  summary->mutable_image()->set_colorspace(3);
  summary->mutable_image()->set_encoded_image_string(png);
  return WriteRecord(event.SerializeAsString());
}

Status EventFile::WriteRecord(const std::string& payload) {
  std::string record;
  AppendNumber(&record, static_cast<uint64_t>(payload.size()));
  AppendNumber(&record, MaskedCrc32c(record.data(), record.size()));
  record += payload;
  AppendNumber(&record, MaskedCrc32c(payload.data(), payload.size()));
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t written = ::write(descriptor_, record.data() + done, record.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("write", path_, errno);
    done += static_cast<size_t>(written);
  }
  return OkStatus();
}

Status DropEventsAfter(const std::string& folder, int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) return OkStatus();
  std::vector<std::string> paths;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kNameBegins) && !name.ends_with(".tmp")) paths.push_back(at->path().string());
  }
  if (error) return FileError("list the folder", folder, error.value());
  for (const std::string& path : paths) {
    SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kLargestFile));
    const std::string kept = RecordsUntil(text, step);
    if (kept.size() == text.size()) continue;
    const std::string temporary = path + ".tmp";
    std::filesystem::remove(temporary, error);
    SY_RETURN_IF_ERROR(WriteDurably(temporary, {BytesOf(kept)}));
    SY_RETURN_IF_ERROR(RenamePath(temporary, path));
  }
  return OkStatus();
}

EventFile::EventFile(EventFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

EventFile& EventFile::operator=(EventFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

EventFile::~EventFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace switchyard
