#include "backends/interposers/trace/trace.h"

#include <algorithm>

namespace switchyard {
namespace {

constexpr uint32_t kSpansAtOnce = 256;

}  // namespace

Trace::Trace(const sy_instance& interposer, const sy_plugin& inner, bool wait)
    : Wrapped(interposer, inner), wait_(wait) {
  if (!wait_) return;
  Hide("capture/2");
  Hide("semaphore/1");
}

sy_status Trace::Finish(sy_device* device, sy_stream* stream, sy_error* error) {
  if (stream == nullptr) return SY_OK;  // it has finished
  return Forward(Call<&sy_device_v2::synchronize>(), device, stream,
                 static_cast<const sy_synchronize_options*>(nullptr), error);
}

void Trace::Describe(TraceSpan& span, const sy_call* call) {
  if (call != nullptr && call->tag != nullptr) span.what = Recorder::Get().Keep(call->tag);
}

void Trace::Describe(TraceSpan& span, const sy_prepare_request* request) {
  if (request != nullptr && request->op != nullptr) span.what = Recorder::Get().Keep(request->op);
}

void Trace::Describe(TraceSpan& span, sy_bound* bound) {
  if (bound != nullptr) span.what = Recorder::Get().Keep(RecordOf(bound)->kernel->tag);
}

sy_status Trace::Around(Call<&sy_device_v2::open> call, sy_instance* instance, int32_t index,
                        const sy_open_options* options, sy_device** device, sy_error* error) {
  TraceSpan span = Begin(call);
  const sy_status status = Forward(call, instance, index, options, device, error);
  End(span, status);
  if (status != SY_OK) return status;
  Recorder::Get().Opened();
  OpenDevice opened;
  opened.profiles = Offers("profiler/2") &&
                    Forward(Call<&sy_profiler_v2::start>(), *device, static_cast<sy_error*>(nullptr)) == SY_OK;
  const std::lock_guard lock(mutex_);
  devices_[*device] = opened;
  return SY_OK;
}

void Trace::Around(Call<&sy_device_v2::close> call, sy_device* device) {
  Drain(device);
  bool profiles = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(device);
    if (found != devices_.end()) {
      profiles = found->second.profiles;
      devices_.erase(found);
    }
  }
  if (profiles) Forward(Call<&sy_profiler_v2::stop>(), device, static_cast<sy_error*>(nullptr));
  TraceSpan span = Begin(call);
  Forward(call, device);
  End(span, SY_OK);
  Recorder::Get().Closed();
}

sy_status Trace::Around(Call<&sy_device_v2::synchronize> call, sy_device* device, sy_stream* stream,
                        const sy_synchronize_options* options, sy_error* error) {
  TraceSpan span = Begin(call);
  const sy_status status = Forward(call, device, stream, options, error);
  End(span, status);
  Drain(device);
  return status;
}

sy_status Trace::Around(Call<&sy_device_v2::event_synchronize> call, sy_device* device, sy_event* event,
                        sy_error* error) {
  TraceSpan span = Begin(call);
  const sy_status status = Forward(call, device, event, error);
  End(span, status);
  Drain(device);
  return status;
}

sy_status Trace::Around(Call<&sy_device_v2::stream_create> call, sy_device* device, const sy_stream_options* options,
                        sy_stream** stream, sy_error* error) {
  TraceSpan span = Begin(call);
  const sy_status status = Forward(call, device, options, stream, error);
  End(span, status);
  if (status != SY_OK) return status;
  const std::lock_guard lock(mutex_);
  OpenDevice& owner = devices_[device];
  stream_tracks_[*stream] =
      Recorder::Get().Track(Text(plugin_name(), " device ", RecordOf(device)->index, " stream ", owner.streams++));
  return SY_OK;
}

// The track stays known: spans of its last work may be drained later.
void Trace::Around(Call<&sy_device_v2::stream_destroy> call, sy_device* device, sy_stream* stream) {
  Drain(device);
  TraceSpan span = Begin(call);
  Forward(call, device, stream);
  End(span, SY_OK);
}

// The engine's own use of the profiler: it runs already, and what the engine drains is recorded too.
sy_status Trace::Around(Call<&sy_profiler_v2::start> call, sy_device* device, sy_error* error) {
  bool profiles = false;
  {
    const std::lock_guard lock(mutex_);
    devices_[device].engine_profiles = true;
    profiles = devices_[device].profiles;
  }
  return profiles ? SY_OK : Forward(call, device, error);
}

sy_status Trace::Around(Call<&sy_profiler_v2::drain> call, sy_device* device, sy_span* spans, uint32_t capacity,
                        uint32_t* count, uint64_t* host_minus_device_ns, sy_error* error) {
  const sy_status status = Forward(call, device, spans, capacity, count, host_minus_device_ns, error);
  if (status == SY_OK) AddDeviceSpans(device, spans, *count, *host_minus_device_ns);
  return status;
}

sy_status Trace::Around(Call<&sy_profiler_v2::stop> call, sy_device* device, sy_error* error) {
  bool profiles = false;
  {
    const std::lock_guard lock(mutex_);
    devices_[device].engine_profiles = false;
    profiles = devices_[device].profiles;
  }
  return profiles ? SY_OK : Forward(call, device, error);
}

void Trace::Drain(sy_device* device) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(device);
    if (found == devices_.end() || !found->second.profiles || found->second.engine_profiles) return;
  }
  sy_span spans[kSpansAtOnce];
  for (uint32_t count = kSpansAtOnce; count > 0;) {
    uint64_t host_minus_device_ns = 0;
    count = 0;
    if (Forward(Call<&sy_profiler_v2::drain>(), device, static_cast<sy_span*>(spans), kSpansAtOnce, &count,
                &host_minus_device_ns, static_cast<sy_error*>(nullptr)) != SY_OK) {
      return;
    }
    AddDeviceSpans(device, spans, std::min(count, kSpansAtOnce), host_minus_device_ns);
  }
}

void Trace::AddDeviceSpans(sy_device* device, const sy_span* spans, uint32_t count, uint64_t host_minus_device_ns) {
  Recorder& recorder = Recorder::Get();
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < count; ++i) {
    TraceSpan span;
    span.category = "device";
    span.name = recorder.Keep(spans[i].tag == nullptr ? "launch" : spans[i].tag);
    const auto track = stream_tracks_.find(spans[i].stream);
    span.track = track != stream_tracks_.end()
                     ? track->second
                     : recorder.Track(Text(plugin_name(), " device ", RecordOf(device)->index));
    span.start_ns = spans[i].start_ns + host_minus_device_ns;
    span.end_ns = spans[i].end_ns + host_minus_device_ns;
    recorder.Add(span);
  }
}

void Trace::AddCommunicator(sy_communicator* communicator, const char* name) {
  if (communicator == nullptr) return;  // a rank that split left out
  Recorder::Get().Opened();
  const std::lock_guard lock(mutex_);
  communicator_tracks_[communicator] = Recorder::Get().Track(Text(plugin_name(), " communicator ", name));
}

sy_status Trace::Around(Call<&sy_collective_v2::init> call, sy_instance* instance, const sy_init_request* request,
                        sy_communicator** communicator, sy_error* error) {
  TraceSpan span = Begin(call);
  const sy_status status = Forward(call, instance, request, communicator, error);
  End(span, status);
  if (status != SY_OK) return status;
  Recorder::Get().set_rank(request->rank);
  AddCommunicator(*communicator, request->name);
  return SY_OK;
}

sy_status Trace::Around(Call<&sy_collective_v2::split> call, sy_communicator* communicator, int32_t color, int32_t key,
                        const char* name, sy_communicator** result, sy_error* error) {
  TraceSpan span = Begin(call);
  const sy_status status = Forward(call, communicator, color, key, name, result, error);
  End(span, status);
  if (status == SY_OK) AddCommunicator(*result, name);
  return status;
}

void Trace::Around(Call<&sy_collective_v2::destroy> call, sy_communicator* communicator) {
  TraceSpan span = Begin(call);
  Forward(call, communicator);
  End(span, SY_OK);
  {
    const std::lock_guard lock(mutex_);
    if (communicator_tracks_.erase(communicator) == 0) return;
  }
  Recorder::Get().Closed();
}

void Trace::Follow(TraceSpan span, sy_communicator* communicator, sy_request* request) {
  const std::lock_guard lock(mutex_);
  span.track = communicator_tracks_[communicator];
  span.end_ns = Recorder::Now();
  if (request == nullptr) {  // finished already, or device work
    Recorder::Get().Add(span);
  } else {
    requests_[request] = span;
  }
}

sy_status Trace::Around(Call<&sy_collective_v2::request_poll> call, sy_communicator* communicator, sy_request* request,
                        sy_error* error) {
  const sy_status status = Forward(call, communicator, request, error);
  if (status != SY_IN_PROGRESS) Ended(request, status);
  return status;
}

void Trace::Around(Call<&sy_collective_v2::request_release> call, sy_communicator* communicator, sy_request* request) {
  Ended(request, SY_ABORTED);  // before the call: afterwards the handle may be another request's
  Forward(call, communicator, request);
}

void Trace::Ended(sy_request* request, sy_status status) {
  std::unique_lock lock(mutex_);
  auto held = requests_.extract(request);
  lock.unlock();
  if (!held.empty()) End(held.mapped(), status);
}

}  // namespace switchyard
