// What every interposer stands on (core/abi/interpose.h). An interposer is a class derived from Wrapped with overloads
// of one function:
//
//   // every call
//   template <auto Function, typename... Arguments>
//   auto Around(Call<Function> call, Arguments... arguments);
//   // this one, if it differs
//   void Around(Call<&sy_device_v2::free>, sy_device*, sy_buffer*);
//
// which reaches the plugin inside with Forward(call, arguments...). Every function of the ABI takes first an instance,
// a device, a communicator or, for a launch, a binding: those four, as the engine holds them, are objects of ours,
// which name their interposer and the handle inside. Around sees ours; Forward hands on the one inside. All other
// handles pass through unchanged, for what takes them takes the device or communicator too. So does the device of a
// collective's init, with its backend: they are the engine's outermost pair. Interfaces that this header does not know
// are hidden, for their functions would be handed objects of ours.
//
// Threads: as the ABI says for the plugin; Wrapped guards its own tables. No exception leaves a function of the table.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/abi/boundary.h"
#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/interpose.h"
#include "core/abi/kernel.h"

namespace switchyard {

// The function that bind hands out, as if it were a table of its own.
struct sy_launch_table {
  sy_launch launch;
};

// Every function of the ABI: X(table, function).
// clang-format off
#define SY_EVERY_FUNCTION(X) \
  X(sy_device_v2, count) X(sy_device_v2, open) X(sy_device_v2, close) X(sy_device_v2, query) \
  X(sy_device_v2, alloc) X(sy_device_v2, free) X(sy_device_v2, copy) X(sy_device_v2, synchronize) \
  X(sy_device_v2, stream_create) X(sy_device_v2, stream_destroy) X(sy_device_v2, event_create) \
  X(sy_device_v2, event_destroy) X(sy_device_v2, event_record) X(sy_device_v2, event_query) \
  X(sy_device_v2, event_synchronize) X(sy_device_v2, stream_wait) X(sy_device_v2, fill) \
  X(sy_memory_ext_v2, native_address) X(sy_memory_ext_v2, import_memory) X(sy_memory_ext_v2, host_alloc) \
  X(sy_memory_ext_v2, host_free) X(sy_memory_ext_v2, native_stream) \
  X(sy_semaphore_v1, create) X(sy_semaphore_v1, destroy) X(sy_semaphore_v1, signal) X(sy_semaphore_v1, query) \
  X(sy_semaphore_v1, wait) X(sy_semaphore_v1, stream_signal) X(sy_semaphore_v1, stream_wait) \
  X(sy_peer_v1, export_memory) X(sy_peer_v1, import_memory) \
  X(sy_capture_v2, begin) X(sy_capture_v2, end) X(sy_capture_v2, launch) X(sy_capture_v2, release) \
  X(sy_profiler_v2, start) X(sy_profiler_v2, drain) X(sy_profiler_v2, stop) \
  X(sy_kernel_v2, prepare) X(sy_kernel_v2, bind) X(sy_kernel_v2, unbind) X(sy_kernel_v2, release) \
  X(sy_kernel_v2, write_constants) \
  X(sy_region_v2, partition) X(sy_region_v2, prepare) \
  X(sy_launch_table, launch) \
  X(sy_collective_v2, query) X(sy_collective_v2, init) X(sy_collective_v2, poll) \
  X(sy_collective_v2, send_recv_batch) X(sy_collective_v2, abort) X(sy_collective_v2, destroy) \
  X(sy_collective_v2, request_poll) X(sy_collective_v2, request_release) X(sy_collective_v2, all_reduce) \
  X(sy_collective_v2, reduce_scatter) X(sy_collective_v2, reduces) X(sy_collective_v2, all_gather) X(sy_collective_v2, broadcast) X(sy_collective_v2, all_to_all) \
  X(sy_collective_v2, barrier) X(sy_collective_v2, split) X(sy_collective_v2, group_begin) \
  X(sy_collective_v2, group_end) X(sy_collective_v2, buffer_alloc) X(sy_collective_v2, buffer_free)
// clang-format on

// Stands for one function in overload resolution.
template <auto Function>
struct Call {};

template <auto Function>
struct Signature;
template <typename Table, typename Result, typename... Arguments, Result (*Table::*Function)(Arguments...)>
struct Signature<Function> {
  using TableType = Table;
  using ResultType = Result;
};
// True if it returns sy_status; its last argument is then a sy_error*.
template <auto Function>
inline constexpr bool kCanFail = std::is_same_v<typename Signature<Function>::ResultType, sy_status>;
template <auto Function, typename Table>
inline constexpr bool kIsOf = std::is_same_v<typename Signature<Function>::TableType, Table>;

// "alloc"
template <auto Function>
inline constexpr const char* kName = "";
#define SY_NAME(table, function) \
  template <>                    \
  inline constexpr const char* kName<&table::function> = #function;
SY_EVERY_FUNCTION(SY_NAME)
#undef SY_NAME

template <typename... Arguments>
sy_error* ErrorOf(Arguments... arguments) {
  return std::get<sizeof...(Arguments) - 1>(std::make_tuple(arguments...));
}

using Tables = std::tuple<sy_device_v2, sy_memory_ext_v2, sy_semaphore_v1, sy_peer_v1, sy_capture_v2, sy_profiler_v2,
                          sy_kernel_v2, sy_region_v2, sy_collective_v2, sy_launch_table>;
// Null for what is no interface.
template <typename Table>
inline constexpr const char* kInterface = nullptr;
template <>
inline constexpr const char* kInterface<sy_device_v2> = "device/2";
template <>
inline constexpr const char* kInterface<sy_memory_ext_v2> = "memory_ext/2";
template <>
inline constexpr const char* kInterface<sy_semaphore_v1> = "semaphore/1";
template <>
inline constexpr const char* kInterface<sy_peer_v1> = "peer/1";
template <>
inline constexpr const char* kInterface<sy_capture_v2> = "capture/2";
template <>
inline constexpr const char* kInterface<sy_profiler_v2> = "profiler/2";
template <>
inline constexpr const char* kInterface<sy_kernel_v2> = "kernel/2";
template <>
inline constexpr const char* kInterface<sy_region_v2> = "region/2";
template <>
inline constexpr const char* kInterface<sy_collective_v2> = "collective/2";

class Wrapped;

// What the engine holds as sy_device, sy_communicator or sy_bound.
template <typename Handle>
struct Held {
  Wrapped* interposer = nullptr;
  Handle* inner = nullptr;
};
struct DeviceRecord : Held<sy_device> {
  int32_t index = 0;
};
// A prepared kernel or region.
struct KernelRecord {
  std::string op, tag;
  sy_device* device = nullptr;  // as the engine holds it
  std::vector<sy_tensor> inputs, outputs;
  uint64_t workspace_bytes = 0, persistent_bytes = 0, constant_bytes = 0;
  uint64_t residual_bytes = 0;  // that a launch touches: a forward's own, a backward's forward's
};
struct BoundRecord : Held<sy_bound> {
  sy_launch launch = nullptr;  // of the plugin inside
  std::shared_ptr<const KernelRecord> kernel;
  std::vector<sy_place> outputs;
};
template <typename Handle>
Held<Handle>* HeldBehind(Handle* handle) {
  return reinterpret_cast<Held<Handle>*>(handle);
}
inline const DeviceRecord* RecordOf(sy_device* device) { return static_cast<const DeviceRecord*>(HeldBehind(device)); }
inline const BoundRecord* RecordOf(sy_bound* bound) { return static_cast<const BoundRecord*>(HeldBehind(bound)); }

uint64_t ElementBytes(sy_dtype dtype);  // 0 for an unknown one
// Bytes from the first element of a tensor to the end of the last one.
uint64_t Extent(const sy_tensor& tensor);

// The instance that a wrap makes; it serves the host of the interposer's own.
class Wrapped : public sy_instance {
 public:
  Wrapped(const sy_instance& interposer, const sy_plugin& inner);
  const std::string& plugin_name() const { return name_; }
  // What the plugin inside offers of an interface; functions that it lacks are NULL.
  template <typename Table>
  const Table& Inner() const {
    return std::get<Table>(inner_);
  }
  bool Offers(const char* interface_name) const { return Interface(interface_name) != nullptr; }

  template <auto Function, typename Owner, typename... Arguments>
  auto Forward(Call<Function>, Owner* owner, Arguments... arguments) {
    return (Inner<typename Signature<Function>::TableType>().*Function)(Inside(owner), arguments...);
  }
  // Those that make or end an object of ours, or tell of a kernel.
  sy_status Forward(Call<&sy_device_v2::open>, sy_instance*, int32_t, const sy_open_options*, sy_device**, sy_error*);
  void Forward(Call<&sy_device_v2::close>, sy_device*);
  sy_status Forward(Call<&sy_collective_v2::init>, sy_instance*, const sy_init_request*, sy_communicator**, sy_error*);
  sy_status Forward(Call<&sy_collective_v2::split>, sy_communicator*, int32_t, int32_t, const char*, sy_communicator**,
                    sy_error*);
  void Forward(Call<&sy_collective_v2::destroy>, sy_communicator*);
  sy_status Forward(Call<&sy_kernel_v2::prepare>, sy_device*, const sy_prepare_request*, sy_kernel**, sy_kernel_info*,
                    sy_error*);
  sy_status Forward(Call<&sy_region_v2::prepare>, sy_device*, const sy_region*, uint64_t, sy_kernel**, sy_kernel_info*,
                    sy_error*);
  void Forward(Call<&sy_kernel_v2::release>, sy_device*, sy_kernel*);
  sy_status Forward(Call<&sy_kernel_v2::bind>, sy_device*, sy_kernel*, const sy_binding*, sy_bound**, sy_launch*,
                    sy_error*);
  void Forward(Call<&sy_kernel_v2::unbind>, sy_device*, sy_bound*);
  sy_status Forward(Call<&sy_launch_table::launch>, sy_bound* bound, sy_stream* stream, sy_error* error) {
    return RecordOf(bound)->launch(RecordOf(bound)->inner, stream, error);
  }

  // What is known of a kernel; null for a handle that prepare never gave, or that was released.
  std::shared_ptr<const KernelRecord> Find(sy_kernel* kernel);

  // The interposer to which a call goes. One that doubts what it is handed has a MakerOf of its own.
  static Wrapped* MakerOf(sy_instance* instance) { return static_cast<Wrapped*>(instance); }
  template <typename Handle>
  static Wrapped* MakerOf(Handle* handle) {
    return HeldBehind(handle)->interposer;
  }

  // Fills `outer` with a plugin whose functions call the Around of `owner`, which lives as long as the process.
  template <typename Interposer>
  static sy_status Wrap(std::unique_ptr<Interposer> owner, const sy_plugin& inner, sy_plugin* outer, sy_error* error);

 protected:
  void Hide(const char* interface_name);

 private:
  template <typename Interposer, auto Function>
  struct Entry;

  sy_instance* Inside(sy_instance*) const { return inner_instance_; }
  template <typename Handle>
  static Handle* Inside(Handle* handle) {
    return HeldBehind(handle)->inner;
  }
  const void* Interface(const char* name) const;
  void Remember(sy_kernel* kernel, KernelRecord record);
  sy_status Hold(sy_communicator* inner, sy_communicator** outer);

  const std::string name_;
  sy_instance* const inner_instance_;
  Tables inner_{};
  Tables outer_{};  // a header of size 0: not offered
  std::mutex mutex_;
  std::map<sy_kernel*, std::shared_ptr<const KernelRecord>> kernels_;
};

// The C function that stands for one of the plugin inside. An interposer that does something about every call, before
// the overload for the function is chosen, has a function Enter; it goes on to Around.
template <typename Interposer, typename Table, typename Result, typename Owner, typename... Arguments,
          Result (*Table::*Function)(Owner*, Arguments...)>
struct Wrapped::Entry<Interposer, Function> {
  static auto Enter(Interposer& interposer, Owner* owner, Arguments... arguments) {
    constexpr Call<Function> call;
    if constexpr (requires { interposer.Enter(call, owner, arguments...); }) {
      return interposer.Enter(call, owner, arguments...);
    } else {
      return interposer.Around(call, owner, arguments...);
    }
  }
  static Result Run(Owner* owner, Arguments... arguments) {
    Interposer& interposer = *static_cast<Interposer*>(Interposer::MakerOf(owner));
    if constexpr (kCanFail<Function>) {
      return Guarded(ErrorOf(arguments...), [&] { return Enter(interposer, owner, arguments...); });
    } else {
      try {
        Enter(interposer, owner, arguments...);
      } catch (const std::exception& failure) {
        interposer.Log(3, Text(kName<Function>, ": ", failure.what()));
      }
    }
  }
};

template <typename Interposer>
sy_status Wrapped::Wrap(std::unique_ptr<Interposer> owner, const sy_plugin& inner, sy_plugin* outer, sy_error* error) {
  if (!KnowsExtensions(outer, error)) return SY_UNSUPPORTED;
  Wrapped& wrapped = *owner;
#define SY_FILL(table, function)                  \
  if (wrapped.Inner<table>().function != nullptr) \
    std::get<table>(wrapped.outer_).function = Entry<Interposer, &table::function>::Run;
  SY_EVERY_FUNCTION(SY_FILL)
#undef SY_FILL
  sy_plugin filled = ReadStruct(&inner);
  filled.instance = owner.release();
  filled.get_interface = [](sy_instance* instance, const char* name) {
    return static_cast<const Wrapped*>(instance)->Interface(name);
  };
  FillStruct(outer, filled);
  return SY_OK;
}

}  // namespace switchyard
