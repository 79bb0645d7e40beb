// Memory of other devices and processes (peer/1) inside the npu plugin. The runtime reaches it by queued copies inside
// the device alone; what else is asked for goes by way of memory of the stream's own.
#pragma once

#include <cstdint>
#include <memory>

#include "backends/npu/device.h"

namespace switchyard {

// Another device's or process's memory, as long as a buffer names it: ends the import when it goes.
class Borrowed {
 public:
  struct Import;  // of a key, shared by all buffers of this process that name it
  explicit Borrowed(std::shared_ptr<const Import> import);  // null: of this process
  ~Borrowed();
  // SY_INVALID where the process that exported it has ended: nobody says what its memory is then.
  sy_status Check(sy_error* error) const;

 private:
  std::shared_ptr<const Import> import_;
};

inline bool IsBorrowed(const sy_place& place) { return place.buffer != nullptr && place.buffer->borrowed != nullptr; }

// What an exportable allocation of `bytes` takes: pages are shared as a whole, which are of 2 MiB in large allocations.
uint64_t WholePages(uint64_t bytes);

// Copy and Fill of checked places, of which one is borrowed, in the context of the device; stream null: waits.
sy_status CopyBorrowed(sy_device& device, sy_stream* stream, const sy_place& destination, const sy_place& source,
                       uint64_t bytes, sy_error* error);
sy_status FillBorrowed(sy_device& device, sy_stream* stream, const sy_place& destination, uint8_t value, uint64_t bytes,
                       sy_error* error);

// Before the memory of an exportable buffer is freed. Every importer has ended its import, as peer/1 demands.
void EndExport(const sy_device& device, const sy_buffer& buffer);

}  // namespace switchyard
