// What the validating interposer knows of the objects behind handles: which are alive, where they were made and where
// they ended, what lies in them, and which work that uses them may be unfinished. Not thread-safe: Validate holds its
// mutex.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/abi/boundary.h"
#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"

namespace switchyard {

// Handles of one kind, each with a Record. A plugin may hand out the address of a dead handle again; `id` tells them
// apart.
template <typename Record>
class Objects {
 public:
  struct Entry {
    Record record;
    std::string born;  // "call 12: alloc of 64 bytes"
    uint64_t id = 0;
  };
  explicit Objects(const char* noun) : noun_(noun) {}

  Entry& Add(const void* handle, Record record, const std::string& born) {
    dead_.erase(handle);
    return live_[handle] = Entry{std::move(record), born, ++last_id_};
  }
  Entry* Find(const void* handle) {
    const auto found = live_.find(handle);
    return found == live_.end() ? nullptr : &found->second;
  }
  void Remove(const void* handle, const std::string& died) {
    const auto found = live_.find(handle);
    if (found == live_.end()) return;
    if (dead_.size() >= kMostDead) dead_.clear();
    dead_[handle] = {found->second.born, died};
    live_.erase(found);
  }
  // Printed: "buffer 0x5592 (made by call 12: alloc of 64 bytes)", with its end if it has ended, or "0x17, which never
  // was a buffer".
  struct Description {
    const Objects& objects;
    const void* handle;
    friend std::ostream& operator<<(std::ostream& out, const Description& d) { return d.objects.Print(out, d.handle); }
  };
  Description Describe(const void* handle) const { return {*this, handle}; }
  std::ostream& Print(std::ostream& out, const void* handle) const {
    if (const auto found = live_.find(handle); found != live_.end()) {
      return out << noun_ << ' ' << handle << " (made by " << found->second.born << ')';
    }
    if (const auto found = dead_.find(handle); found != dead_.end()) {
      const auto& [born, died] = found->second;
      return out << noun_ << ' ' << handle << " (made by " << born << ", ended by " << died << ')';
    }
    if (handle == nullptr) return out << "a NULL " << noun_;
    return out << handle << ", which never was a " << noun_;
  }
  const char* noun() const { return noun_; }
  std::unordered_map<const void*, Entry>& live() { return live_; }

 private:
  static constexpr size_t kMostDead = 1 << 11;  // half a MiB; with more, host memory grows as if the plugin leaked
  const char* const noun_;
  uint64_t last_id_ = 0;
  std::unordered_map<const void*, Entry> live_;
  std::unordered_map<const void*, std::pair<std::string, std::string>> dead_;
};

// Shared with the one call that is at it: two calls that may not run beside each other share a turn.
using Turn = std::shared_ptr<void>;
inline Turn NewTurn() { return std::make_shared<int>(); }

struct DeviceState {
  uint64_t alignment = 1, copy_granularity = 1;
  int communicators = 0;  // that name it
  bool profiles = false, captures_streams = false;
  bool lost = false;         // SY_DEVICE_LOST was answered: none of its work runs any more
  Turn kernels = NewTurn();  // of prepare, partition and release of a kernel
};

// The order of a stream's work: item k is finished once completed ≥ k. A wait makes everything after it later than
// another timeline's item.
class Timelines {
 public:
  uint64_t New() {
    lines_.emplace_back();
    return lines_.size() - 1;
  }
  uint64_t Submit(uint64_t line) { return ++lines_[line].submitted; }
  uint64_t submitted(uint64_t line) const { return lines_[line].submitted; }
  bool Finished(uint64_t line, uint64_t item) const { return lines_[line].completed >= item; }
  // The item `at` of `line` is later than `item` of `other`.
  void Order(uint64_t line, uint64_t at, uint64_t other, uint64_t item);
  void Complete(uint64_t line, uint64_t item);
  // What has certainly finished once `item` of `line` has: the last item of each line.
  std::map<uint64_t, uint64_t> Before(uint64_t line, uint64_t item) const;
  // Something that was submitted to the line so far has failed: so has all that is submitted later.
  void Fail(uint64_t line) { lines_[line].failed = std::min(lines_[line].failed, lines_[line].submitted); }
  bool HasFailed(uint64_t line) const { return lines_[line].failed != kNever; }
  bool IsBehindFailure(uint64_t line, uint64_t item) const { return item > lines_[line].failed; }

 private:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  struct Waiting {
    uint64_t at, other, item;
  };
  struct Line {
    uint64_t submitted = 0, completed = 0, failed = kNever;
    std::vector<Waiting> waits;
  };
  std::vector<Line> lines_;
};

// The latest work on one stream that uses an object.
struct Use {
  uint64_t line = 0, item = 0, call = 0;
  const char* function = "";
  bool is_replay = false;  // of a graph that names the object
};
// What work may be using.
struct Usable {
  sy_device* device = nullptr;
  std::vector<Use> uses;
};

// One object that work, a binding or a graph names.
struct Named {
  enum Kind { kNothing, kBuffer, kBinding, kEvent, kGraph, kSemaphore } kind;
  const void* handle;
  uint64_t id;
  auto operator<=>(const Named&) const = default;
};
using Names = std::shared_ptr<const std::vector<Named>>;

// Work that a call queued.
struct Submission {
  uint64_t line = 0, item = 0;
  Names names{};  // null: nothing was queued
  Named self{};
  Turn turn{};  // the stream's, until the call returns
};

struct BufferRecord : Usable {
  uint64_t bytes = 0;
  int bindings = 0;  // that name it
  bool exportable = false;
  bool imported = false;  // by peer/1, which does not say how many bytes there are
};

struct StreamRecord {
  sy_device* device = nullptr;
  uint64_t line = 0;
  uint64_t capture = 0;         // the number of the capture that records it; 0: it runs its work
  bool begins_capture = false;  // it was begun there: what all its streams name is in `captured`
  std::vector<Named> captured;
  Turn turn = NewTurn();  // of calls that queue work
};

// Where an event was recorded last.
struct Recording {
  bool recorded = false;
  bool on_line = false;  // false: recorded where no stream is followed
  uint64_t line = 0, item = 0;
  uint64_t capture = 0;  // the number of the capture; 0: outside of any
  bool failed = false;   // the event has answered an error since
};
struct EventRecord : Usable, Recording {};

struct SemaphoreRecord : Usable {
  struct Queued {
    uint64_t value, line, item;
  };
  uint64_t reached = 0;         // the count is that at least
  std::vector<Queued> signals;  // that may not have run, by value
  std::vector<Queued> waits;    // for a value that nobody has signalled yet
};

// Where write_constants wrote, or a binding reads.
struct ConstantsPlace {
  const sy_buffer* buffer = nullptr;
  uint64_t id = 0, offset = 0;
  bool operator==(const ConstantsPlace&) const = default;
};

struct KernelState {
  sy_device* device = nullptr;
  int bindings = 0;
  bool capturable = false;
  std::vector<int32_t> inplace;  // by output, as the plugin said
  std::vector<ConstantsPlace> constants;
};

struct BindingState : Usable {
  sy_kernel* kernel = nullptr;
  Names names;  // its buffers
  bool constants_written = false;
  ConstantsPlace constants;
  int running = 0;  // launches without a stream that have not returned
};

struct GraphState : Usable {
  Names names;  // what was captured, and itself
};

struct HostMemory {
  sy_device* device = nullptr;
};

struct CommunicatorState {
  int32_t rank = 0, size = 1;
  bool ready = false;
  sy_status failed = SY_OK;     // the first error that poll has answered
  sy_device* device = nullptr;  // of the request, also for what was split from it
  Turn turn = NewTurn();        // of all calls but abort
};

struct RequestState {
  sy_communicator* communicator = nullptr;
  sy_status status = SY_IN_PROGRESS;  // what the last poll answered
};

struct OwnedMemory {
  sy_communicator* communicator = nullptr;
};

}  // namespace switchyard
