// Checks every call against the contracts of core/abi, on both sides.
//
// Before the plugin sees it, the caller's: handles (NULL, unknown, ended, of another device), lifetimes (use after
// free, double free, memory, bindings, events and semaphores that end under unfinished work or under a graph that names
// them, objects alive at close), headers of structs, places (outside their buffer, misaligned, of no multiple of what
// the device copies, host to host), order (an event that the host waits for before it was recorded, a stream of another
// device, a capture that was not begun, a semaphore lowered, constants that nobody has written, two launches of one
// binding that nothing orders), threads (two calls at the same time that may not run beside each other) and, for
// collectives, arguments, requests and communicators that have not finished init. A call that breaks a contract is not
// passed on: it answers SY_INVALID with the call, the handle, and where that was made. A function without a status is
// logged as an error, and the next call that has one returns the message.
//
// Afterwards, the plugin's: the error filled where it must be and untouched where it must not, statuses that the call
// may answer, required extensions refused, strings that end, counts and sizes inside what was asked for, semaphores
// that only grow, requests, streams, events and communicators that repeat their first error, and streams that fail
// though they had no work. Such a call has been made and answers what it did; it is logged, and the next call returns
// the message.
//
// Thread-safe; one mutex around the bookkeeping, never around a call to the plugin.
#pragma once

#include <algorithm>
#include <array>
#include <thread>

#include "backends/interposers/around.h"
#include "backends/interposers/validate/records.h"

namespace switchyard {

// What an error said before a call. Mostly it said nothing, and a launch is quick.
class ErrorBefore {
 public:
  explicit ErrorBefore(const sy_error* error)
      : error_(error != nullptr && SY_HAS(sy_error, error, location) ? error : nullptr) {
    if (error_ == nullptr) return;
    native_code_ = error_->native_code;
    if (SaysSomething()) texts_ = Texts();
  }
  bool IsUntouched() const {
    return error_ == nullptr || (error_->native_code == native_code_ && (SaysSomething() ? Texts() : "") == texts_);
  }

 private:
  bool SaysSomething() const { return error_->message[0] != '\0' || error_->location[0] != '\0'; }
  std::string Texts() const;

  const sy_error* const error_;
  int64_t native_code_ = 0;
  std::string texts_;
};

// True if the array holds a zero.
template <size_t N>
bool Ends(const char (&text)[N]) {
  return std::memchr(text, '\0', N) != nullptr;
}

// True for NULL and for text of at least one character in one line.
inline bool IsOneLine(const char* text) {
  return text == nullptr || (*text != '\0' && std::strpbrk(text, "\r\n") == nullptr);
}

// True if two places share a byte.
inline bool Overlap(const sy_place& one, uint64_t one_bytes, const sy_place& other, uint64_t other_bytes) {
  return one.buffer == other.buffer && one.offset < other.offset + other_bytes && other.offset < one.offset + one_bytes;
}

inline bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

class Validate : public Wrapped {
 public:
  Validate(const sy_instance& interposer, const sy_plugin& inner);

  // Whoever made the handle, also after its end; for one that nobody made the first of all, which says so.
  static Wrapped* MakerOf(const void* handle);
  // A launch, which is often: a guess. Around asks the above where it was wrong.
  static Wrapped* MakerOf(sy_bound* bound) {
    if (guess == nullptr) guess = static_cast<Validate*>(MakerOf(static_cast<const void*>(bound)));
    return guess;
  }

  // Every call: the headers of its structs, and what the plugin did with the error.
  template <auto Function, typename... Arguments>
  auto Enter(Call<Function> call, Arguments... arguments) {
    if constexpr (!kCanFail<Function>) {
      Around(call, arguments...);
    } else {
      sy_error* const error = ErrorOf(arguments...);
      Headers headers;
      (headers.Check(arguments), ...);
      if (!headers.problem.empty()) return RefuseHeader(kName<Function>, headers.problem, error);
      const ErrorBefore before(error);
      const sy_status status = Around(call, arguments...);
      constexpr bool polls = std::is_same_v<Call<Function>, Call<&sy_device_v2::event_query>> ||
                             std::is_same_v<Call<Function>, Call<&sy_collective_v2::poll>> ||
                             std::is_same_v<Call<Function>, Call<&sy_collective_v2::request_poll>>;
      constexpr bool gathers = kIsOf<Function, sy_collective_v2>;
      constexpr bool has_limit = gathers || std::is_same_v<Call<Function>, Call<&sy_semaphore_v1::wait>>;
      if ((status == SY_TIMEOUT && !has_limit) || (status == SY_ABORTED && !gathers))
        BlameStatus(kName<Function>, status);
      CheckAnswer(kName<Function>, polls, status, error, before, headers.required);
      return status;
    }
  }

  // Functions without a check of their own.
  template <auto Function, typename... Arguments>
  auto Around(Call<Function> call, Arguments... arguments) {
    Checked check(*this, kName<Function>, kCanFail<Function> ? kStatus : kNoStatus);
    if constexpr (kCanFail<Function>) {
      if (!check.good()) return check.Refuse(ErrorOf(arguments...));
      check.Leave();
      return Forward(call, arguments...);
    } else {
      check.Leave();
      Forward(call, arguments...);
    }
  }

  // device.cc
  sy_status Around(Call<&sy_device_v2::count>, sy_instance*, int32_t*, sy_error*);
  sy_status Around(Call<&sy_device_v2::open>, sy_instance*, int32_t, const sy_open_options*, sy_device**, sy_error*);
  void Around(Call<&sy_device_v2::close>, sy_device*);
  sy_status Around(Call<&sy_device_v2::query>, sy_instance*, int32_t, sy_device_info*, sy_error*);
  sy_status Around(Call<&sy_profiler_v2::start>, sy_device*, sy_error*);
  sy_status Around(Call<&sy_profiler_v2::drain>, sy_device*, sy_span*, uint32_t, uint32_t*, uint64_t*, sy_error*);
  sy_status Around(Call<&sy_profiler_v2::stop>, sy_device*, sy_error*);
  // memory.cc
  sy_status Around(Call<&sy_device_v2::alloc>, sy_device*, uint64_t, const sy_alloc_options*, sy_buffer**, sy_error*);
  void Around(Call<&sy_device_v2::free>, sy_device*, sy_buffer*);
  sy_status Around(Call<&sy_device_v2::copy>, sy_device*, sy_stream*, sy_place, sy_place, uint64_t,
                   const sy_copy_options*, sy_error*);
  sy_status Around(Call<&sy_device_v2::fill>, sy_device*, sy_stream*, sy_place, uint8_t, uint64_t,
                   const sy_fill_options*, sy_error*);
  sy_status Around(Call<&sy_memory_ext_v2::native_address>, sy_device*, sy_buffer*, void**, sy_error*);
  sy_status Around(Call<&sy_memory_ext_v2::import_memory>, sy_device*, void*, const char*, uint64_t, sy_buffer**,
                   sy_error*);
  sy_status Around(Call<&sy_memory_ext_v2::host_alloc>, sy_device*, uint64_t, void**, sy_error*);
  void Around(Call<&sy_memory_ext_v2::host_free>, sy_device*, void*);
  sy_status Around(Call<&sy_peer_v1::export_memory>, sy_device*, sy_buffer*, void*, uint32_t, uint32_t*, sy_error*);
  sy_status Around(Call<&sy_peer_v1::import_memory>, sy_device*, const void*, uint32_t, sy_buffer**, sy_error*);
  // stream.cc
  sy_status Around(Call<&sy_device_v2::synchronize>, sy_device*, sy_stream*, const sy_synchronize_options*, sy_error*);
  sy_status Around(Call<&sy_device_v2::stream_create>, sy_device*, const sy_stream_options*, sy_stream**, sy_error*);
  void Around(Call<&sy_device_v2::stream_destroy>, sy_device*, sy_stream*);
  sy_status Around(Call<&sy_device_v2::event_create>, sy_device*, const sy_event_options*, sy_event**, sy_error*);
  void Around(Call<&sy_device_v2::event_destroy>, sy_device*, sy_event*);
  sy_status Around(Call<&sy_device_v2::event_record>, sy_device*, sy_event*, sy_stream*, sy_error*);
  sy_status Around(Call<&sy_device_v2::event_query>, sy_device*, sy_event*, sy_error*);
  sy_status Around(Call<&sy_device_v2::event_synchronize>, sy_device*, sy_event*, sy_error*);
  sy_status Around(Call<&sy_device_v2::stream_wait>, sy_device*, sy_stream*, sy_event*, sy_error*);
  sy_status Around(Call<&sy_memory_ext_v2::native_stream>, sy_device*, sy_stream*, void**, sy_error*);
  // semaphore.cc
  sy_status Around(Call<&sy_semaphore_v1::create>, sy_device*, const sy_semaphore_options*, sy_semaphore**, sy_error*);
  void Around(Call<&sy_semaphore_v1::destroy>, sy_device*, sy_semaphore*);
  sy_status Around(Call<&sy_semaphore_v1::signal>, sy_device*, sy_semaphore*, uint64_t, sy_error*);
  sy_status Around(Call<&sy_semaphore_v1::query>, sy_device*, sy_semaphore*, uint64_t*, sy_error*);
  sy_status Around(Call<&sy_semaphore_v1::wait>, sy_device*, sy_semaphore*, uint64_t, uint64_t, sy_error*);
  sy_status Around(Call<&sy_semaphore_v1::stream_signal>, sy_device*, sy_stream*, sy_semaphore*, uint64_t, sy_error*);
  sy_status Around(Call<&sy_semaphore_v1::stream_wait>, sy_device*, sy_stream*, sy_semaphore*, uint64_t, sy_error*);
  // kernel.cc
  sy_status Around(Call<&sy_kernel_v2::prepare>, sy_device*, const sy_prepare_request*, sy_kernel**, sy_kernel_info*,
                   sy_error*);
  sy_status Around(Call<&sy_kernel_v2::bind>, sy_device*, sy_kernel*, const sy_binding*, sy_bound**, sy_launch*,
                   sy_error*);
  void Around(Call<&sy_kernel_v2::unbind>, sy_device*, sy_bound*);
  void Around(Call<&sy_kernel_v2::release>, sy_device*, sy_kernel*);
  sy_status Around(Call<&sy_kernel_v2::write_constants>, sy_device*, sy_kernel*, sy_stream*, sy_place, sy_error*);
  sy_status Around(Call<&sy_region_v2::partition>, sy_device*, const sy_region*, uint32_t*, sy_error*);
  sy_status Around(Call<&sy_region_v2::prepare>, sy_device*, const sy_region*, uint64_t, sy_kernel**, sy_kernel_info*,
                   sy_error*);
  // launch.cc
  sy_status Around(Call<&sy_launch_table::launch>, sy_bound*, sy_stream*, sy_error*);
  sy_status Around(Call<&sy_capture_v2::begin>, sy_device*, sy_stream*, const sy_capture_options*, sy_error*);
  sy_status Around(Call<&sy_capture_v2::end>, sy_device*, sy_stream*, sy_graph**, sy_error*);
  sy_status Around(Call<&sy_capture_v2::launch>, sy_device*, sy_graph*, sy_stream*, sy_error*);
  void Around(Call<&sy_capture_v2::release>, sy_device*, sy_graph*);
  // communicator.cc
  sy_status Around(Call<&sy_collective_v2::query>, sy_instance*, sy_collective_info*, sy_error*);
  sy_status Around(Call<&sy_collective_v2::init>, sy_instance*, const sy_init_request*, sy_communicator**, sy_error*);
  sy_status Around(Call<&sy_collective_v2::poll>, sy_communicator*, sy_error*);
  void Around(Call<&sy_collective_v2::abort>, sy_communicator*);
  void Around(Call<&sy_collective_v2::destroy>, sy_communicator*);
  sy_status Around(Call<&sy_collective_v2::reduces>, sy_instance*, int32_t, sy_dtype, sy_error*);
  sy_status Around(Call<&sy_collective_v2::split>, sy_communicator*, int32_t, int32_t, const char*, sy_communicator**,
                   sy_error*);
  sy_status Around(Call<&sy_collective_v2::group_begin>, sy_instance*, sy_error*);
  sy_status Around(Call<&sy_collective_v2::group_end>, sy_instance*, sy_error*);
  sy_status Around(Call<&sy_collective_v2::buffer_alloc>, sy_communicator*, uint64_t, void**, sy_error*);
  void Around(Call<&sy_collective_v2::buffer_free>, sy_communicator*, void*);
  // collective.cc
  sy_status Around(Call<&sy_collective_v2::send_recv_batch>, sy_communicator*, const sy_call*, const sy_transfer*,
                   uint32_t, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v2::request_poll>, sy_communicator*, sy_request*, sy_error*);
  void Around(Call<&sy_collective_v2::request_release>, sy_communicator*, sy_request*);
  sy_status Around(Call<&sy_collective_v2::all_reduce>, sy_communicator*, const sy_call*, const void*, void*, uint64_t,
                   sy_dtype, int32_t, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v2::reduce_scatter>, sy_communicator*, const sy_call*, const void*, void*,
                   uint64_t, sy_dtype, int32_t, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v2::all_gather>, sy_communicator*, const sy_call*, const void*, void*, uint64_t,
                   sy_dtype, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v2::broadcast>, sy_communicator*, const sy_call*, void*, uint64_t, sy_dtype,
                   int32_t, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v2::all_to_all>, sy_communicator*, const sy_call*, const void*, void*, uint64_t,
                   sy_dtype, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v2::barrier>, sy_communicator*, const sy_call*, sy_request**, sy_error*);

 private:
  enum Kind { kStatus, kNoStatus };
  // One call under examination; holds the mutex until Leave, and again after Return. One with a status takes over what
  // an earlier one had to say.
  class Checked {
   public:
    Checked(Validate& owner, const char* function, Kind kind = kStatus);
    bool good() const { return problem_.empty(); }
    // The first problem is the one that is told. True if `condition` holds.
    template <typename... Parts>
    bool Expect(bool condition, const Parts&... parts) {
      if (!condition && good()) problem_ = Text(parts...);
      return condition;
    }
    // The object behind a handle, or NULL and a problem. NULL also after an earlier problem.
    template <typename Record>
    typename Objects<Record>::Entry* Live(Objects<Record>& objects, const void* handle) {
      auto* const entry = objects.Find(handle);
      if (entry == nullptr) Expect(false, "expected a live ", objects.noun(), ", found ", objects.Describe(handle));
      if (!good()) return nullptr;
      if (holding_ < held_.size()) held_[holding_++] = entry->in_use;
      return entry;
    }
    // The call ends what it names, which no other call names meanwhile.
    template <typename Record>
    void Alone(Objects<Record>& objects, const void* handle) {
      constexpr long kOwn = 2;  // that of the object, and that of this call
      const auto* const entry = objects.Find(handle);
      Expect(entry == nullptr || entry->in_use.use_count() <= kOwn, objects.Describe(handle),
             " is named in a call in another thread at the same time; expected one call after the other");
    }
    // The same for an object of `device`.
    template <typename Record>
    typename Objects<Record>::Entry* LiveOn(Objects<Record>& objects, const void* handle, sy_device* device) {
      auto* const entry = Live(objects, handle);
      if (entry != nullptr && entry->record.device != device) {
        Expect(false, objects.Describe(handle), " belongs to ", owner_.devices_.Describe(entry->record.device),
               ", not to ", owner_.devices_.Describe(device));
      }
      return good() ? entry : nullptr;
    }
    void Leave() { lock_.unlock(); }
    void Return() { lock_.lock(); }
    uint64_t number() const { return number_; }
    // "call 12: alloc of 64 bytes"
    template <typename... Parts>
    std::string Here(const Parts&... parts) const {
      return Text("call ", number_, ": ", function_, parts...);
    }
    sy_status Refuse(sy_error* error) const;
    void Report();  // instead, for a function without a status
    // After Return, unless `condition` holds: the plugin broke a promise.
    template <typename... Parts>
    void Promised(bool condition, const Parts&... parts) {
      if (!condition) owner_.Blame(Text("call ", number_, ", ", function_, ": ", parts...));
    }

   private:
    Validate& owner_;
    const char* const function_;
    std::unique_lock<std::mutex> lock_;
    uint64_t number_ = 0;
    std::string problem_;
    std::array<Turn, 4> held_;  // until the call has returned: bind alone names more, and counts its buffers
    size_t holding_ = 0;
  };

  // What the headers of a call's structs say.
  struct Headers {
    std::string problem;
    const sy_extension* required = nullptr;  // the first link that must be understood
    void CheckOne(const sy_header& header);
    template <typename T>
    void Check(T* given) {
      if (given == nullptr) return;
      if constexpr (requires { given->header.next; }) CheckOne(given->header);
      if constexpr (requires { CheckMore(given); }) CheckMore(given);
    }
    void Check(sy_error* error) {  // never refused for its chain
      if (error != nullptr) CheckOne({error->header.size, error->header.major, error->header.minor, nullptr});
    }
    template <typename T>
    void Check(const T&) {}
    void CheckMore(const sy_init_request* request);
  };
  // check.cc
  sy_status RefuseHeader(const char* function, const std::string& problem, sy_error* error);
  void CheckAnswer(const char* function, bool polls, sy_status status, const sy_error* error, const ErrorBefore& before,
                   const sy_extension* required);
  void Blame(const std::string& text);  // of the plugin; with the mutex held
  void BlameStatus(const char* function, sy_status status);
  static void Make(const void* handle, Validate* maker);
  static Validate* FindMaker(const void* handle);  // null where nobody made it

  // memory.cc
  void CheckPlace(Checked& check, const char* role, sy_device* device, const sy_place& place, uint64_t bytes);
  const void* HostMemoryAt(const sy_place& place);  // the allocation; null: it is the program's own
  void CheckGranularity(Checked& check, const char* role, sy_device* device, const sy_place& place, uint64_t bytes);
  // stream.cc
  // The stream may be NULL: the call then has finished on return. Null also where there is a problem.
  Objects<StreamRecord>::Entry* CheckStream(Checked& check, sy_device* device, sy_stream* stream);
  void CheckEvent(Checked& check, sy_event* event, const Recording& at, bool failed, bool cannot_fail,
                  sy_status status);
  void CheckFailure(Checked& check, uint64_t line, bool cannot_fail, sy_status status);
  // order.cc
  StreamRecord* BeganCapture(uint64_t capture);  // the stream on which it was begun; null: it has ended, or is 0
  std::vector<Use>* UsesOf(const Named& named);  // null for what has ended
  // Notes that work on `stream` uses what is named, and `self`, whose uses are given.
  Submission Uses(Checked& check, Objects<StreamRecord>::Entry* stream, const char* function, Names names,
                  const Named& self = {}, std::vector<Use>* uses_of_self = nullptr);
  void Note(std::vector<Use>& uses, const Use& use);
  Use Replay(Use use, const void* graph);  // the use by the next replay of the graph
  // After the call: a device may be lost, and what failed was not queued.
  sy_status Heed(sy_device* device, sy_status status, const Submission& work = {});
  // Takes the turn until what it answers ends; null and a problem where another call has it.
  template <typename... Parts>
  static Turn Take(Checked& check, const Turn& turn, const Parts&... what) {
    CheckTurn(check, turn, what...);
    return check.good() ? turn : nullptr;
  }
  template <typename... Parts>
  static void CheckTurn(Checked& check, const Turn& turn, const Parts&... what) {
    check.Expect(turn.use_count() == 1, what...,
                 " in another thread at the same time; expected one call after the other");
  }
  using Waits = std::vector<SemaphoreRecord::Queued>;
  void CheckLaunch(Checked& check, const void* bound, Use launch, const Objects<StreamRecord>::Entry* stream);
  void CheckCaptured(Checked& check, const void* bound, const StreamRecord& stream);
  bool IsBehindReplay(const Timelines::Past& past, const Use& use, const void* bound);
  // Is there a wait in the past for what nobody has signalled yet, and `but` does not list?
  bool IsHeld(const Timelines::Past& past, const Waits& but = {});
  void CheckSignal(Checked& check, const SemaphoreRecord& semaphore, uint64_t value, const StreamRecord* on);
  std::vector<GraphEvent> EventsOf(uint64_t number, const Capture& capture);
  void RecordAnew(GraphState& graph, const Submission& replay);
  bool MustFail(const Recording& at) const {
    return at.on_line && (at.failed || timelines_.IsBehindFailure(at.line, at.item));
  }
  // device.cc
  Turn TakeProfiler(Checked& check, sy_device* device);  // null also where there is a problem
  template <typename Record>
  void CheckNoneLeft(Checked& check, Objects<Record>& objects, sy_device* device);
  // kernel.cc
  KernelState CheckKernel(Checked& check, sy_device* device, const sy_kernel_info* given, const char* op,
                          uint64_t limit, uint32_t inputs, uint32_t outputs);
  Turn TakeTurn(Checked& check, sy_device* device);  // of kernels; null also where there is a problem
  // binding.cc
  void CountBinding(const std::vector<Named>& names, int change);
  std::vector<Reserved> CheckParts(Checked& check, sy_device* device, const KernelRecord& kernel,
                                   const sy_binding& binding);
  // semaphore.cc
  bool Reached(SemaphoreRecord& semaphore, uint64_t value);  // true where that lets go who waits
  // communicator.cc
  static void CountCommunicator(sy_device* device, int change);
  Turn TakeTurn(Checked& check, sy_communicator* communicator);  // null also where there is a problem
  // collective.cc
  Objects<CommunicatorState>::Entry* CheckCall(Checked& check, sy_communicator* communicator, const sy_call* call);
  Objects<RequestState>::Entry* CheckRequest(Checked& check, sy_communicator* communicator, sy_request* request);
  // `send_blocks`, `receive_blocks`: how often `count` elements; 0: as many as there are ranks. Answers the memory.
  std::vector<Range> CheckData(Checked& check, const Objects<CommunicatorState>::Entry* on, const void* send,
                               uint64_t send_blocks, const void* receive, uint64_t receive_blocks, uint64_t count,
                               sy_dtype dtype);
  template <auto Function, typename... Arguments>
  sy_status Begin(Checked& check, bool known, std::vector<Range> memory, Call<Function> call, Arguments... arguments);

  template <typename Record>
  static constexpr Named::Kind kKind = std::is_same_v<Record, BufferRecord>   ? Named::kBuffer
                                       : std::is_same_v<Record, BindingState> ? Named::kBinding
                                       : std::is_same_v<Record, EventRecord>  ? Named::kEvent
                                       : std::is_same_v<Record, GraphState>   ? Named::kGraph
                                       : std::is_same_v<Record, HostMemory>   ? Named::kHostMemory
                                                                              : Named::kSemaphore;
  template <typename Record>
  static Named NameOf(Objects<Record>& objects, const void* handle) {
    const auto* entry = objects.Find(handle);
    return {kKind<Record>, handle, entry == nullptr ? 0 : entry->id};
  }
  static Names Naming(std::vector<Named> names) { return std::make_shared<const std::vector<Named>>(std::move(names)); }
  // An object that is about to end: its work has finished, and no graph names it.
  template <typename Record>
  void CheckIdle(Checked& check, Objects<Record>& objects, const void* handle) {
    const auto* const entry = objects.Find(handle);
    const auto* const owner = entry == nullptr ? nullptr : devices_.Find(entry->record.device);
    if (owner == nullptr || owner->record.lost) return;
    for (const Use& use : entry->record.uses) {
      check.Expect(timelines_.Finished(use.line, use.item), objects.Describe(handle), " is used by call ", use.call,
                   ", ", use.function, ", which nobody has waited for");
    }
    const auto names = [&](const std::vector<Named>& list) {
      return std::any_of(list.begin(), list.end(),
                         [&](const Named& one) { return one.kind == kKind<Record> && one.id == entry->id; });
    };
    if constexpr (kKind<Record> == Named::kHostMemory) return;  // a graph that is not replayed again does not copy
    if constexpr (kKind<Record> != Named::kGraph) {
      for (const auto& [graph, state] : graphs_.live()) {
        check.Expect(!names(*state.record.names), objects.Describe(handle), " is named by ", graphs_.Describe(graph));
      }
    }
    for (const auto& [stream, state] : streams_.live()) {
      check.Expect(!names(state.record.captured.names), objects.Describe(handle), " is named by what ",
                   streams_.Describe(stream), " captures");
    }
  }

  static inline thread_local Validate* guess = nullptr;  // where this thread's last launch went
  const std::string vendor_;                             // of the plugin
  std::mutex mutex_;
  uint64_t calls_ = 0, captures_ = 0;
  std::string pending_;  // what nobody was told yet
  std::map<std::thread::id, int> groups_;
  Turn opening_ = NewTurn();  // of open and close
  Timelines timelines_;
  std::vector<Undecided> undecided_;
  Objects<DeviceState> devices_{"device"};
  Objects<BufferRecord> buffers_{"buffer"};
  Objects<StreamRecord> streams_{"stream"};
  Objects<EventRecord> events_{"event"};
  Objects<SemaphoreRecord> semaphores_{"semaphore"};
  Objects<KernelState> kernels_{"kernel"};
  Objects<BindingState> bindings_{"binding"};
  Objects<GraphState> graphs_{"graph"};
  Objects<HostMemory> host_memory_{"host allocation"};
  Objects<CommunicatorState> communicators_{"communicator"};
  Objects<RequestState> requests_{"request"};
  Objects<OwnedMemory> owned_{"allocation of a collective"};
};

}  // namespace switchyard
