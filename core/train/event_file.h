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

// Drops the records of steps greater than `step` from every event file of `folder`: before a run resumes from there.
// What follows a torn or damaged record, which no reader gets past, goes too.
Status DropEventsAfter(const Folder& folder, int64_t step);

}  // namespace switchyard
