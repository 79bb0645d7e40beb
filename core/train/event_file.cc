#include "core/train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/base/environment.h"
#include "core/train/event.pb.h"

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

StatusOr<EventFile> EventFile::Create(const Folder& folder) {
  static std::atomic<int> created{0};
  const std::string name =
      fmt::format("{}{:010}.{}.{}.{}", kNameBegins, static_cast<int64_t>(WallTime()), HostName(), getpid(), created++);
  SY_ASSIGN_OR_RETURN(GrowingFile growing, GrowingFile::Open(folder, name, O_EXCL));
  EventFile file(std::move(growing));
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
  return file_.Append(record);
}

Status DropEventsAfter(const Folder& folder, int64_t step) {
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.Names());
  for (const std::string& name : names) {
    if (!name.starts_with(kNameBegins)) continue;
    SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(folder.PathOf(name), kLargestFile));
    const std::string kept = RecordsUntil(text, step);
    if (kept.size() != text.size()) SY_RETURN_IF_ERROR(folder.Replace(name, {BytesOf(kept)}));
  }
  return OkStatus();
}

}  // namespace switchyard
