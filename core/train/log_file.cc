#include "core/train/log_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "core/base/text.h"

namespace switchyard {
namespace {

constexpr size_t kWindow = size_t{1} << 20;  // bytes that are read at once

}  // namespace

StatusOr<LogFile> LogFile::Open(const std::string& path) {
  SY_ASSIGN_OR_RETURN(Descriptor file, OpenRegularFile(path));
  SY_ASSIGN_OR_RETURN(const size_t bytes, FileBytes(file, path));
  return LogFile(path, std::move(file), bytes);
}

StatusOr<std::string_view> LogFile::Read(size_t at, size_t bytes) {
  at = std::min(at, bytes_);
  bytes = std::min(bytes, bytes_ - at);
  if (at < window_at_ || at + bytes > window_at_ + window_.size()) {
    window_at_ = at;
    window_.resize(std::min(std::max(bytes, kWindow), bytes_ - at));
    for (size_t done = 0; done < window_.size();) {
      const ssize_t got =
          ::pread(file_.get(), window_.data() + done, window_.size() - done, static_cast<off_t>(at + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return FileError("read", path_, errno);
      if (got == 0) {
        return DataLoss("{} ends after {} bytes, expected {}: does another program write to it?",
                        Printable(path_, 4096), at + done, bytes_);
      }
      done += static_cast<size_t>(got);
    }
  }
  return std::string_view(window_).substr(at - window_at_, bytes);
}

void KeptParts::Add(size_t at, size_t bytes) {
  bytes_ += bytes;
  const bool goes_on = !parts_.empty() && parts_.back().at + parts_.back().bytes == at;
  if (goes_on && parts_.back().bytes + bytes <= kWindow) {
    parts_.back().bytes += bytes;
  } else {
    parts_.push_back({at, bytes});
  }
}

Status KeptParts::Replace(const Folder& folder, const std::string& name, LogFile& log) const {
  Pieces pieces;
  for (const auto& [at, bytes] : parts_) {
    const auto read = [&log, at = at](size_t begin, std::span<std::byte> to) -> Status {
      SY_ASSIGN_OR_RETURN(const std::string_view part, log.Read(at + begin, to.size()));
      std::memcpy(to.data(), part.data(), part.size());
      return OkStatus();
    };
    pieces.pieces.push_back({bytes, read});
  }
  return folder.Replace(name, pieces);
}

}  // namespace switchyard
