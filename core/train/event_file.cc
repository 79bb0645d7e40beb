#include "core/train/event_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/train/event.pb.h"

namespace switchyard {
namespace {

constexpr char kNameBegins[] = "events.out.tfevents.";
constexpr size_t kHead = 12, kTail = 4;  // bytes of a record around its payload

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
Number NumberAt(std::string_view text, size_t at) {
  Number number;
  std::memcpy(&number, text.data() + at, sizeof number);
  return number;
}

bool IsHead(std::string_view text) {
  return text.size() >= kHead && NumberAt<uint32_t>(text, 8) == MaskedCrc32c(text.data(), 8);
}

// Whether the whole record holds an event, and its step.
bool StepOf(std::string_view record, int64_t* step) {
  const std::string_view payload = record.substr(kHead, record.size() - kHead - kTail);
  event::EventStep event;
  if (NumberAt<uint32_t>(record, kHead + payload.size()) != MaskedCrc32c(payload.data(), payload.size()) ||
      !event.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
    return false;
  *step = event.step();
  return true;
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

StatusOr<KeptEvents> EventsUntil(LogFile& file, int64_t step) {
  KeptEvents kept;
  size_t end = 0;  // of the last whole record
  const auto note_gap = [&](size_t until) {
    if (until == end) return;
    if (kept.damaged == 0) kept.first_damaged = end;
    kept.damaged += until - end;
  };
  for (size_t at = 0; file.bytes() - at >= kHead + kTail;) {
    SY_ASSIGN_OR_RETURN(const std::string_view head, file.Read(at, kHead));
    const auto length = NumberAt<uint64_t>(head, 0);
    if (!IsHead(head) || length > file.bytes() - at - kHead - kTail) {
      ++at;  // the next record may begin anywhere
      continue;
    }
    const size_t bytes = kHead + length + kTail;
    int64_t of_record = 0;
    bool is_event = false;
    if (length <= kLargestEvent) {
      SY_ASSIGN_OR_RETURN(const std::string_view record, file.Read(at, bytes));
      is_event = StepOf(record, &of_record);
    }
    if (is_event) {
      note_gap(at);
      if (of_record <= step) kept.parts.Add(at, bytes);
      end = at + bytes;
    }
    at += bytes;
  }
  // A torn end begins as a record does.
  const size_t left = file.bytes() - end;
  SY_ASSIGN_OR_RETURN(const std::string_view rest, file.Read(end, kHead));
  const bool torn =
      left < kHead || (IsHead(rest) && (left < kHead + kTail || NumberAt<uint64_t>(rest, 0) > left - kHead - kTail));
  if (!torn) note_gap(file.bytes());
  return kept;
}

Status DropEventsAfter(const Folder& folder, int64_t step) {
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.Names());
  for (const std::string& name : names) {
    struct stat about = {};
    if (!name.starts_with(kNameBegins) ||
        ::fstatat(folder.descriptor(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode))
      continue;
    SY_ASSIGN_OR_RETURN(LogFile file, LogFile::Open(folder.PathOf(name)));
    SY_ASSIGN_OR_RETURN(const KeptEvents kept, EventsUntil(file, step));
    if (kept.damaged > 0) {
      LogWarning("{}: {} bytes, the first of them at byte {}, are in no whole record and are dropped; the others stay",
                 Printable(file.path(), 4096), kept.damaged, kept.first_damaged);
    }
    if (kept.parts.bytes() != file.bytes()) SY_RETURN_IF_ERROR(kept.parts.Replace(folder, name, file));
  }
  return OkStatus();
}

}  // namespace switchyard
