// TensorBoard event files: what `tensorboard --logdir=<run>` shows. The file is a sequence of TFRecords, each
// {uint64 length, masked CRC32C of it, payload, masked CRC32C of the payload}, little-endian; a payload is an Event
// message (event.proto). Each record is one write(2), so that a viewer never waits for it and a crash tears at most
// the last.
//
// An EventFile belongs to one thread, but for Sync.
#pragma once

#include <cstdint>
#include <string>

#include "core/train/file_calls.h"
#include "core/train/log_file.h"
#include "core/train/picture.h"

namespace switchyard {

// CRC32C (Castagnoli, polynomial 0x1EDC6F41 reflected) as TFRecord stores it: rotated right by 15 plus 0xA282EAD8.
uint32_t MaskedCrc32c(const void* data, size_t bytes);

class EventFile {
 public:
  // Creates a file "events.out.tfevents.<seconds>.<host>.<process>.<n>" in the folder.
  static StatusOr<EventFile> Create(const Folder& folder);

  const std::string& path() const { return file_.path(); }
  Status Sync() const { return file_.Sync(); }  // as of GrowingFile

  // Tags with slashes are grouped by their first part: "Loss/training/train_loss", "Metrics/validation/top1".
  Status Scalar(const std::string& tag, int64_t step, double value);
  Status Picture(const std::string& tag, int64_t step, const Raster& image);

 private:
  explicit EventFile(GrowingFile file) : file_(std::move(file)) {}
  Status WriteRecord(const std::string& payload);

  GrowingFile file_;
};

// What of an event file stays where a run resumes.
struct KeptEvents {
  KeptParts parts;
  // Bytes that are in no whole record, and where the first of them lies: torn or damaged, which no reader gets past, or
  // a record of more bytes than kLargestEvent. A torn end is none: a run that is killed leaves one.
  size_t damaged = 0, first_damaged = 0;
};
// Two hundred times the largest record that we write: a sheet of eight examples has 320 kB of pixels. A record that
// says to be longer is not read into memory.
inline constexpr size_t kLargestEvent = size_t{64} << 20;
// The records of steps up to `step`; what lies between whole records is passed over.
StatusOr<KeptEvents> EventsUntil(LogFile& file, int64_t step);

// Drops the records of steps greater than `step` from every event file of `folder`: before a run resumes from there.
// What is damaged goes too, with a warning, and what follows it stays and is read again. A folder, a pipe or a link of
// such a name is passed over.
Status DropEventsAfter(const Folder& folder, int64_t step);

}  // namespace switchyard
