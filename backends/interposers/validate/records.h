// What the validating interposer knows of the objects behind handles: what lies in them, and which work that uses them
// may be unfinished. Not thread-safe: Validate holds its mutex.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/interposers/validate/objects.h"
#include "backends/interposers/validate/timelines.h"
#include "core/abi/boundary.h"
#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"

namespace switchyard {

struct DeviceState {
  uint64_t alignment = 1, copy_granularity = 1;
  int communicators = 0;  // that name it
  bool profiles = false, captures_streams = false, deterministic = false;
  bool lost = false;         // SY_DEVICE_LOST was answered: none of its work runs any more
  Turn kernels = NewTurn();  // of prepare, partition and release of a kernel
  Turn profiler = NewTurn();
  std::vector<uint64_t> destroyed;  // lines of streams that ended before their work
};

// The latest work on one stream that uses an object.
struct Use {
  uint64_t line = 0, item = 0, call = 0;
  const char* function = "";
  const void* graph = nullptr;  // that it replays, as the `replay`th time
  uint64_t graph_id = 0, replay = 0;
};
// Two launches of a binding that a semaphore will order, or not, once it is signalled.
struct Undecided {
  const void* bound = nullptr;
  Use first, second;
};
// What work may be using.
struct Usable {
  sy_device* device = nullptr;
  std::vector<Use> uses;
};

// One object that work, a binding or a graph names.
struct Named {
  enum Kind { kNothing, kBuffer, kBinding, kEvent, kGraph, kSemaphore, kHostMemory } kind;
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
  bool imported = false;     // by peer/1, which does not say how many bytes there are
  std::string description;   // that export_memory wrote
  int importers = 0;         // buffers of this process that import_memory made of it
  const void* of = nullptr;  // the buffer that this one is an import of
  uint64_t of_id = 0;
};

// What is being recorded, on all streams of a capture; each of them has a line for it.
struct Capture {
  struct Launch {
    const void* bound;
    uint64_t line, item;
  };
  std::vector<Named> names;
  std::vector<Launch> launches;
  std::vector<uint64_t> lines;
};

struct StreamRecord {
  sy_device* device = nullptr;
  uint64_t line = 0;
  uint64_t capture = 0;  // the number of the capture that records it; 0: it runs its work
  uint64_t capture_line = 0;
  bool begins_capture = false;  // it was begun there, and what is recorded is in `captured`
  Capture captured;
  Turn turn = NewTurn();  // of calls that queue work
};

// Where an event was recorded last.
struct Recording {
  bool recorded = false;
  bool on_line = false;   // false: recorded where no stream is followed, or in a capture
  bool replayed = false;  // its line is that of an event of a graph
  uint64_t line = 0, item = 0;
  uint64_t capture = 0;  // the number of the capture; 0: outside of any
  bool failed = false;   // the event has answered an error since
};
struct EventRecord : Usable, Recording {};

struct SemaphoreRecord : Usable {
  struct Queued {
    uint64_t value, line, item;
    bool operator==(const Queued&) const = default;
  };
  uint64_t reached = 0;         // the count is that at least
  bool recorded = false;        // a graph may signal it
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

// Memory that one binding has for itself, or that nobody writes again.
struct Reserved {
  const char* role = "";
  sy_place place{};  // its buffer lives as long as the binding
  uint64_t bytes = 0;
  bool is_read = false;  // others may read it
};

struct BindingState : Usable {
  sy_kernel* kernel = nullptr;
  Names names;  // its buffers
  std::vector<Reserved> reserved;
  bool constants_written = false;
  ConstantsPlace constants;
  int running = 0;  // launches without a stream that have not returned
};

// An event that each replay of a graph records: item k of its line is that of the k-th.
struct GraphEvent {
  Named event{};
  uint64_t line = 0;
  std::vector<const void*> bindings;  // whose launches in the graph it stands behind
  bool is_last = false;               // it stands behind all of the graph
};
struct GraphState : Usable {
  Names names;  // what was captured, and itself
  std::vector<GraphEvent> events;
  uint64_t replays = 0;
};

struct HostMemory : Usable {
  uint64_t bytes = 0;
};

struct CommunicatorState {
  int32_t rank = 0, size = 1;
  bool ready = false;
  bool split = false;           // rank and size are those of its parent
  bool aborted = false;         // abort has returned, or SY_ABORTED was answered
  sy_status failed = SY_OK;     // the first error that poll has answered
  sy_device* device = nullptr;  // of the request, also for what was split from it
  Turn turn = NewTurn();        // of all calls but abort
};

struct Range {
  const char* address = nullptr;
  uint64_t bytes = 0;
};
struct RequestState {
  sy_communicator* communicator = nullptr;
  std::vector<Range> memory{};  // of its call
  std::thread::id group{};      // the thread whose group it belongs to, until that ends
  bool is_after_abort = false;
  sy_status status = SY_IN_PROGRESS;  // what the last poll answered
};

struct OwnedMemory {
  sy_communicator* communicator = nullptr;
  uint64_t bytes = 0;
};

}  // namespace switchyard
