// Checks every call against the contracts of core/abi before the plugin sees it: handles (NULL, unknown, ended, of
// another device), lifetimes (use after free, double free, memory freed under unfinished work, kernels released before
// their bindings, objects alive at close), places (outside their buffer, misaligned, host to host), order (an event
// waited for before it was recorded, a stream of another device, a capture that was not begun) and, for collectives,
// arguments, requests and communicators that have not finished init. A call that breaks a contract is not passed on: it
// answers SY_INVALID with the call, the handle, and where that was made. A function without a status is logged as an
// error, and the next call that has one returns the message.
//
// Thread-safe; one mutex around the bookkeeping, never around a call to the plugin.
#pragma once

#include "backends/interposers/around.h"
#include "backends/interposers/validate/objects.h"

namespace switchyard {

class Validate : public Wrapped {
 public:
  using Wrapped::Wrapped;

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
  sy_status Around(Call<&sy_device_v1::open>, int32_t, const sy_open_options*, sy_device**, sy_error*);
  void Around(Call<&sy_device_v1::close>, sy_device*);
  sy_status Around(Call<&sy_device_v1::alloc>, sy_device*, uint64_t, sy_buffer**, sy_error*);
  void Around(Call<&sy_device_v1::free>, sy_device*, sy_buffer*);
  sy_status Around(Call<&sy_device_v1::copy>, sy_device*, sy_stream*, sy_place, sy_place, uint64_t, sy_error*);
  sy_status Around(Call<&sy_device_v1::fill>, sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, sy_error*);
  sy_status Around(Call<&sy_device_v1::synchronize>, sy_device*, sy_stream*, sy_error*);
  sy_status Around(Call<&sy_device_v1::stream_create>, sy_device*, const sy_stream_options*, sy_stream**, sy_error*);
  void Around(Call<&sy_device_v1::stream_destroy>, sy_device*, sy_stream*);
  sy_status Around(Call<&sy_device_v1::event_create>, sy_device*, sy_event**, sy_error*);
  void Around(Call<&sy_device_v1::event_destroy>, sy_device*, sy_event*);
  sy_status Around(Call<&sy_device_v1::event_record>, sy_device*, sy_event*, sy_stream*, sy_error*);
  sy_status Around(Call<&sy_device_v1::event_query>, sy_device*, sy_event*, sy_error*);
  sy_status Around(Call<&sy_device_v1::event_synchronize>, sy_device*, sy_event*, sy_error*);
  sy_status Around(Call<&sy_device_v1::stream_wait>, sy_device*, sy_stream*, sy_event*, sy_error*);
  sy_status Around(Call<&sy_memory_ext_v1::native_address>, sy_device*, sy_buffer*, void**, int32_t*, sy_error*);
  sy_status Around(Call<&sy_memory_ext_v1::import_memory>, sy_device*, void*, int32_t, uint64_t, sy_buffer**,
                   sy_error*);
  sy_status Around(Call<&sy_memory_ext_v1::host_alloc>, sy_device*, uint64_t, void**, sy_error*);
  void Around(Call<&sy_memory_ext_v1::host_free>, sy_device*, void*);
  sy_status Around(Call<&sy_memory_ext_v1::native_stream>, sy_device*, sy_stream*, void**, sy_error*);
  // kernel.cc
  sy_status Around(Call<&sy_kernel_v1::prepare>, sy_device*, const sy_prepare_request*, sy_kernel**, sy_kernel_info*,
                   sy_error*);
  sy_status Around(Call<&sy_kernel_v1::bind>, sy_kernel*, const sy_binding*, sy_bound**, sy_launch*, sy_error*);
  void Around(Call<&sy_kernel_v1::unbind>, sy_bound*);
  void Around(Call<&sy_kernel_v1::release>, sy_kernel*);
  sy_status Around(Call<&sy_launch_table::launch>, sy_bound*, sy_stream*, sy_error*);
  sy_status Around(Call<&sy_region_v1::partition>, sy_device*, const sy_region*, uint32_t*, sy_error*);
  sy_status Around(Call<&sy_region_v1::prepare>, sy_device*, const sy_region*, uint64_t, sy_kernel**, sy_kernel_info*,
                   sy_error*);
  sy_status Around(Call<&sy_capture_v1::begin>, sy_device*, sy_stream*, sy_error*);
  sy_status Around(Call<&sy_capture_v1::end>, sy_device*, sy_stream*, sy_graph**, sy_error*);
  sy_status Around(Call<&sy_capture_v1::launch>, sy_graph*, sy_stream*, sy_error*);
  void Around(Call<&sy_capture_v1::release>, sy_graph*);
  sy_status Around(Call<&sy_profiler_v1::start>, sy_device*, sy_error*);
  sy_status Around(Call<&sy_profiler_v1::drain>, sy_device*, sy_span*, uint32_t, uint32_t*, uint64_t*, sy_error*);
  sy_status Around(Call<&sy_profiler_v1::stop>, sy_device*, sy_error*);
  // collective.cc
  sy_status Around(Call<&sy_collective_v1::init>, const sy_init_request*, sy_communicator**, sy_error*);
  sy_status Around(Call<&sy_collective_v1::poll>, sy_communicator*, sy_error*);
  void Around(Call<&sy_collective_v1::abort>, sy_communicator*);
  void Around(Call<&sy_collective_v1::destroy>, sy_communicator*);
  sy_status Around(Call<&sy_collective_v1::send_recv_batch>, sy_communicator*, const sy_call*, const sy_transfer*,
                   uint32_t, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v1::request_poll>, sy_request*, sy_error*);
  sy_status Around(Call<&sy_collective_v1::all_reduce>, sy_communicator*, const sy_call*, const void*, void*, uint64_t,
                   sy_dtype, int32_t, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v1::reduce_scatter>, sy_communicator*, const sy_call*, const void*, void*,
                   uint64_t, sy_dtype, int32_t, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v1::all_gather>, sy_communicator*, const sy_call*, const void*, void*, uint64_t,
                   sy_dtype, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v1::broadcast>, sy_communicator*, const sy_call*, void*, uint64_t, sy_dtype,
                   int32_t, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v1::all_to_all>, sy_communicator*, const sy_call*, const void*, void*, uint64_t,
                   sy_dtype, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v1::barrier>, sy_communicator*, const sy_call*, sy_request**, sy_error*);
  sy_status Around(Call<&sy_collective_v1::split>, sy_communicator*, int32_t, int32_t, const char*, sy_communicator**,
                   sy_error*);
  sy_status Around(Call<&sy_collective_v1::group_begin>, sy_error*);
  sy_status Around(Call<&sy_collective_v1::group_end>, sy_error*);
  sy_status Around(Call<&sy_collective_v1::buffer_alloc>, sy_communicator*, uint64_t, void**, sy_error*);
  void Around(Call<&sy_collective_v1::buffer_free>, sy_communicator*, void*);
  sy_status Around(Call<&sy_collective_v1::register_memory>, sy_communicator*, void*, uint64_t, void**, sy_error*);
  void Around(Call<&sy_collective_v1::deregister_memory>, sy_communicator*, void*);

 private:
  enum Kind { kStatus, kNoStatus };
  // One call under examination; holds the mutex until Leave, and again after Return. One with a status takes over what
  // an earlier one without had to say.
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
      return good() ? entry : nullptr;
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

   private:
    Validate& owner_;
    const char* const function_;
    std::unique_lock<std::mutex> lock_;
    uint64_t number_ = 0;
    std::string problem_;
  };

  // device.cc
  void CheckPlace(Checked& check, const char* role, sy_device* device, const sy_place& place, uint64_t bytes);
  // The stream may be NULL: the call then has finished on return. Null also where there is a problem.
  Objects<StreamRecord>::Entry* CheckStream(Checked& check, sy_device* device, sy_stream* stream);
  // Notes that work on `stream` uses the buffers.
  Submission Uses(Checked& check, Objects<StreamRecord>::Entry* stream, const char* function,
                  const std::vector<BufferUse>& buffers);
  // After the call: a device may be lost, and what failed was not queued.
  sy_status Heed(sy_device* device, sy_status status, const Submission& work = {});
  BufferUse UseOf(sy_buffer* buffer);
  template <typename Record>
  void CheckNoneLeft(Checked& check, Objects<Record>& objects, sy_device* device);
  // kernel.cc
  template <typename Record>
  void CheckAlive(Checked& check, const Objects<Record>& holders, const void* holder,
                  const std::vector<BufferUse>& buffers);
  // collective.cc
  Objects<CommunicatorState>::Entry* CheckCall(Checked& check, sy_communicator* communicator, const sy_call* call);
  void CheckData(Checked& check, const void* send, const void* receive, uint64_t send_count, uint64_t receive_count,
                 sy_dtype dtype);
  template <auto Function, typename... Arguments>
  sy_status Begin(Checked& check, Call<Function> call, Arguments... arguments);

  std::mutex mutex_;
  uint64_t calls_ = 0;
  std::string pending_;  // of a function without a status
  int groups_ = 0;
  Timelines timelines_;
  Objects<DeviceRecord> devices_{"device"};
  Objects<BufferRecord> buffers_{"buffer"};
  Objects<StreamRecord> streams_{"stream"};
  Objects<EventRecord> events_{"event"};
  Objects<KernelState> kernels_{"kernel"};
  Objects<BindingState> bindings_{"binding"};
  Objects<GraphState> graphs_{"graph"};
  Objects<HostMemory> host_memory_{"host allocation"};
  Objects<CommunicatorState> communicators_{"communicator"};
  Objects<OfCommunicator> requests_{"request"}, owned_{"allocation of a collective"}, registrations_{"registration"};
};

}  // namespace switchyard
