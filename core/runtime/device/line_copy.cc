#include "core/runtime/device/line_copy.h"

#include <cstring>
#include <vector>

#include "core/runtime/device/device.h"

namespace switchyard {
namespace {

// The whole lines of device memory that hold `bytes` bytes at `place`, on the host.
class HostLines {
 public:
  HostLines(Device& device, const Stream& stream, const sy_place& place, uint64_t bytes)
      : device_(device), stream_(stream), place_(place), ahead_(place.offset % device.info().copy_granularity) {
    const uint64_t line = device.info().copy_granularity;
    place_.offset -= ahead_;
    lines_.resize((ahead_ + bytes + line - 1) / line * line);
  }
  char* data() { return lines_.data() + ahead_; }
  Status Read() {
    SY_RETURN_IF_ERROR(device_.CopyWhole(stream_, HostPlace(lines_.data()), place_, lines_.size()));
    return Wait();
  }
  Status Write() {
    SY_RETURN_IF_ERROR(device_.CopyWhole(stream_, place_, HostPlace(lines_.data()), lines_.size()));
    return Wait();
  }

 private:
  Status Wait() { return device_.async() ? device_.Synchronize(stream_) : OkStatus(); }
  Device& device_;
  const Stream& stream_;
  sy_place place_;
  uint64_t ahead_;
  std::vector<char> lines_;
};

sy_place Advanced(sy_place place, uint64_t bytes) {
  if (place.buffer != nullptr)
    place.offset += bytes;
  else
    place.host = static_cast<char*>(place.host) + bytes;
  return place;
}

// How many of `bytes` bytes at this place lie on whole lines from its start.
uint64_t OnLines(const Device& device, const sy_place& place, uint64_t bytes) {
  const uint64_t line = device.info().copy_granularity;
  if (place.buffer == nullptr) return bytes;
  return place.offset % line == 0 ? bytes / line * line : 0;
}

}  // namespace

Status CopyLines(Device& device, const Stream& stream, sy_place destination, sy_place source, uint64_t bytes) {
  const uint64_t whole = std::min(OnLines(device, destination, bytes), OnLines(device, source, bytes));
  if (whole > 0) SY_RETURN_IF_ERROR(device.CopyWhole(stream, destination, source, whole));
  if (whole == bytes) return OkStatus();
  const uint64_t rest = bytes - whole;
  destination = Advanced(destination, whole), source = Advanced(source, whole);
  const char* from = static_cast<const char*>(source.host);
  HostLines read(device, stream, source, source.buffer == nullptr ? 0 : rest);
  if (source.buffer != nullptr) {
    SY_RETURN_IF_ERROR(read.Read());
    from = read.data();
  }
  if (destination.buffer == nullptr) {
    std::memcpy(destination.host, from, rest);
    return OkStatus();
  }
  HostLines merged(device, stream, destination, rest);
  SY_RETURN_IF_ERROR(merged.Read());
  std::memcpy(merged.data(), from, rest);
  return merged.Write();
}

Status FillLines(Device& device, const Stream& stream, sy_place destination, uint8_t value, uint64_t bytes) {
  const uint64_t whole = OnLines(device, destination, bytes);
  if (whole > 0) SY_RETURN_IF_ERROR(device.FillWhole(stream, destination, value, whole));
  if (whole == bytes) return OkStatus();
  HostLines merged(device, stream, Advanced(destination, whole), bytes - whole);
  SY_RETURN_IF_ERROR(merged.Read());
  std::memset(merged.data(), value, bytes - whole);
  return merged.Write();
}

}  // namespace switchyard
