// Records every call to a plugin as a span of the calling thread; where the plugin has profiler/2, the device's own
// spans on a track per stream; and collectives that complete by poll from the call to their end, on a track per
// communicator. The profiler is started when a device is opened and drained when the host waits for it; an engine that
// uses profiler/2 itself still gets its spans. Polls that are answered with SY_IN_PROGRESS are left out.
//
// With `wait`, each call that queues work on a stream (launch, copy, fill, write_constants) ends when that work has
// finished, so that its span is the time of that work alone. Then capture/2 and semaphore/1, by which one call stands
// for many or the device waits for a later call, are hidden. Thread-safe.
#pragma once

#include "backends/interposers/around.h"
#include "backends/interposers/trace/recorder.h"

namespace switchyard {

// Does the call queue work on a stream?
template <auto Function>
inline constexpr bool kQueues =
    std::is_same_v<Call<Function>, Call<&sy_device_v2::copy>> ||
    std::is_same_v<Call<Function>, Call<&sy_device_v2::fill>> ||
    std::is_same_v<Call<Function>, Call<&sy_kernel_v2::write_constants>> || kIsOf<Function, sy_launch_table>;

class Trace : public Wrapped {
 public:
  Trace(const sy_instance& interposer, const sy_plugin& inner, bool wait);

  template <auto Function, typename... Arguments>
  auto Around(Call<Function> call, Arguments... arguments) {
    TraceSpan span = Begin(call, arguments...);
    if constexpr (kCanFail<Function>) {
      sy_status status = Forward(call, arguments...);
      if constexpr (kQueues<Function>) {
        if (status == SY_OK && wait_) status = Finish(arguments...);
      }
      if constexpr ((std::is_same_v<Arguments, sy_request**> || ...)) {
        const auto all = std::make_tuple(arguments...);
        if (status == SY_OK) Follow(span, std::get<sy_communicator*>(all), *std::get<sy_request**>(all));
      }
      End(span, status);
      return status;
    } else {
      Forward(call, arguments...);
      End(span, SY_OK);
    }
  }
  sy_status Around(Call<&sy_device_v2::open>, sy_instance*, int32_t, const sy_open_options*, sy_device**, sy_error*);
  void Around(Call<&sy_device_v2::close>, sy_device*);
  sy_status Around(Call<&sy_device_v2::synchronize>, sy_device*, sy_stream*, const sy_synchronize_options*, sy_error*);
  sy_status Around(Call<&sy_device_v2::event_synchronize>, sy_device*, sy_event*, sy_error*);
  sy_status Around(Call<&sy_device_v2::stream_create>, sy_device*, const sy_stream_options*, sy_stream**, sy_error*);
  void Around(Call<&sy_device_v2::stream_destroy>, sy_device*, sy_stream*);
  sy_status Around(Call<&sy_profiler_v2::start>, sy_device*, sy_error*);
  sy_status Around(Call<&sy_profiler_v2::drain>, sy_device*, sy_span*, uint32_t, uint32_t*, uint64_t*, sy_error*);
  sy_status Around(Call<&sy_profiler_v2::stop>, sy_device*, sy_error*);
  sy_status Around(Call<&sy_collective_v2::init>, sy_instance*, const sy_init_request*, sy_communicator**, sy_error*);
  sy_status Around(Call<&sy_collective_v2::split>, sy_communicator*, int32_t, int32_t, const char*, sy_communicator**,
                   sy_error*);
  void Around(Call<&sy_collective_v2::destroy>, sy_communicator*);
  sy_status Around(Call<&sy_collective_v2::request_poll>, sy_communicator*, sy_request*, sy_error*);
  void Around(Call<&sy_collective_v2::request_release>, sy_communicator*, sy_request*);

 private:
  struct OpenDevice {
    bool profiles = false;         // its profiler runs
    bool engine_profiles = false;  // the engine drains it
    int streams = 0;               // made so far, for their names
  };
  template <auto Function, typename... Arguments>
  TraceSpan Begin(Call<Function>, Arguments... arguments) {
    TraceSpan span;
    span.name = kName<Function>;
    using Table = typename Signature<Function>::TableType;
    span.category = kIsOf<Function, sy_launch_table> ? "kernel/2" : kInterface<Table>;
    span.track = Recorder::Get().HostTrack();
    (Describe(span, arguments), ...);
    span.start_ns = Recorder::Now();
    return span;
  }
  static void End(TraceSpan& span, sy_status status) {
    span.end_ns = Recorder::Now();
    span.status = status;
    if (status == SY_IN_PROGRESS) return;
    Recorder::Get().Add(span);
    if (status != SY_OK && status != SY_UNSUPPORTED) Recorder::Get().Write();  // the process may not come to its end
  }
  // What an argument tells of a call.
  static void Describe(TraceSpan& span, uint64_t size) {
    if (span.size == 0) span.size = size;
  }
  static void Describe(TraceSpan& span, const sy_call* call);
  static void Describe(TraceSpan& span, const sy_prepare_request* request);
  static void Describe(TraceSpan& span, sy_bound* bound);
  // Waits for the stream on which the work was queued.
  sy_status Finish(sy_device* device, sy_stream* stream, sy_error* error);
  template <typename... Rest>
  sy_status Finish(sy_device* device, sy_stream* stream, Rest... rest) {
    return Finish(device, stream, ErrorOf(rest...));
  }
  template <typename... Rest>
  sy_status Finish(sy_device* device, sy_kernel*, sy_stream* stream, Rest... rest) {
    return Finish(device, stream, ErrorOf(rest...));
  }
  sy_status Finish(sy_bound* bound, sy_stream* stream, sy_error* error) {
    return Finish(RecordOf(bound)->kernel->device, stream, error);
  }
  template <typename Other>
  static void Describe(TraceSpan&, Other) {}

  // A call that ends later: its span on the communicator's track is added when request_poll says so.
  void Follow(TraceSpan span, sy_communicator* communicator, sy_request* request);
  // Once for each request: by the poll that says so, or by a release that gives the call up.
  void Ended(sy_request* request, sy_status status);
  void AddCommunicator(sy_communicator* communicator, const char* name);

  void Drain(sy_device* device);
  void AddDeviceSpans(sy_device* device, const sy_span* spans, uint32_t count, uint64_t host_minus_device_ns);

  const bool wait_;
  std::mutex mutex_;
  std::map<sy_device*, OpenDevice> devices_;
  std::map<const sy_stream*, int> stream_tracks_;
  std::map<sy_communicator*, int> communicator_tracks_;
  std::map<sy_request*, TraceSpan> requests_;
};

}  // namespace switchyard
