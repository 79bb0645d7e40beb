// What every interposer stands on (core/abi/interpose.h). An interposer is a class derived from Wrapped with overloads
// of one function:
//
//   // every call
//   template <auto Function, typename... Arguments>
//   auto Around(Call<Function> call, Arguments... arguments);
//   // this one, if it differs
//   sy_status Around(Call<&sy_device_v1::alloc>, sy_device*, uint64_t, sy_buffer**, sy_error*);
//
// which reaches the plugin inside with Forward(call, arguments...). The functions of the ABI have no context pointer,
// so each plugin that is wrapped takes a slot: kSlots sets of C functions, each bound to one static pointer to its
// interposer. Handles pass through unchanged, except sy_bound: a launch carries nothing but its binding, which
// therefore becomes a BoundRecord of ours. Interfaces that this header does not know are hidden, for a plugin's own
// functions must not be handed the BoundRecord.
//
// Threads: as the ABI says for the plugin; Wrapped guards its own tables. No exception leaves a function of a slot.
#pragma once

#include <array>
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
  X(sy_device_v1, count) X(sy_device_v1, open) X(sy_device_v1, close) X(sy_device_v1, query) \
  X(sy_device_v1, alloc) X(sy_device_v1, free) X(sy_device_v1, copy) X(sy_device_v1, synchronize) \
  X(sy_device_v1, stream_create) X(sy_device_v1, stream_destroy) X(sy_device_v1, event_create) \
  X(sy_device_v1, event_destroy) X(sy_device_v1, event_record) X(sy_device_v1, event_query) \
  X(sy_device_v1, event_synchronize) X(sy_device_v1, stream_wait) X(sy_device_v1, fill) \
  X(sy_memory_ext_v1, native_address) X(sy_memory_ext_v1, import_memory) X(sy_memory_ext_v1, host_alloc) \
  X(sy_memory_ext_v1, host_free) X(sy_memory_ext_v1, native_stream) \
  X(sy_capture_v1, begin) X(sy_capture_v1, end) X(sy_capture_v1, launch) X(sy_capture_v1, release) \
  X(sy_profiler_v1, start) X(sy_profiler_v1, drain) X(sy_profiler_v1, stop) \
  X(sy_kernel_v1, prepare) X(sy_kernel_v1, bind) X(sy_kernel_v1, unbind) X(sy_kernel_v1, release) \
  X(sy_region_v1, partition) X(sy_region_v1, prepare) \
  X(sy_launch_table, launch) \
  X(sy_collective_v1, query) X(sy_collective_v1, init) X(sy_collective_v1, poll) \
  X(sy_collective_v1, send_recv_batch) X(sy_collective_v1, abort) X(sy_collective_v1, destroy) \
  X(sy_collective_v1, request_poll) X(sy_collective_v1, all_reduce) X(sy_collective_v1, reduce_scatter) \
  X(sy_collective_v1, all_gather) X(sy_collective_v1, broadcast) X(sy_collective_v1, all_to_all) \
  X(sy_collective_v1, barrier) X(sy_collective_v1, split) X(sy_collective_v1, group_begin) \
  X(sy_collective_v1, group_end) X(sy_collective_v1, buffer_alloc) X(sy_collective_v1, buffer_free) \
  X(sy_collective_v1, register_memory) X(sy_collective_v1, deregister_memory)
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

// "alloc", and with its interface where several have one of that name: "capture/1 launch".
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

using Tables = std::tuple<sy_device_v1, sy_memory_ext_v1, sy_capture_v1, sy_profiler_v1, sy_kernel_v1, sy_region_v1,
                          sy_collective_v1, sy_launch_table>;
template <typename Table>
inline constexpr const char* kInterface = nullptr;
template <>
inline constexpr const char* kInterface<sy_device_v1> = "device/1";
template <>
inline constexpr const char* kInterface<sy_memory_ext_v1> = "memory_ext/1";
template <>
inline constexpr const char* kInterface<sy_capture_v1> = "capture/1";
template <>
inline constexpr const char* kInterface<sy_profiler_v1> = "profiler/1";
template <>
inline constexpr const char* kInterface<sy_kernel_v1> = "kernel/1";
template <>
inline constexpr const char* kInterface<sy_region_v1> = "region/1";
template <>
inline constexpr const char* kInterface<sy_collective_v1> = "collective/1";

// A prepared kernel or region.
struct KernelRecord {
  std::string op, tag;
  sy_device* device = nullptr;
  std::vector<sy_tensor> inputs, outputs;
  uint64_t workspace_bytes = 0, persistent_bytes = 0;
  uint64_t residual_bytes = 0;  // that a launch touches: a forward's own, a backward's forward's
};

// What the engine holds as sy_bound.
struct BoundRecord {
  std::shared_ptr<const KernelRecord> kernel;
  sy_kernel* kernel_handle = nullptr;
  sy_bound* inner = nullptr;
  sy_launch launch = nullptr;
  std::vector<sy_place> inputs, outputs;
  sy_place workspace{}, persistent{}, residual{};
};

uint64_t ElementBytes(sy_dtype dtype);
// Bytes from the first element of a tensor to the end of the last one.
uint64_t Extent(const sy_tensor& tensor);
// The host's log (level as in sy_host) and settings; the host was given to sy_plugin_query.
void HostLog(int32_t level, const std::string& text);
std::string HostSetting(const char* name);  // "" where there is none

class Wrapped {
 public:
  explicit Wrapped(const sy_plugin& inner);
  bool Offers(const char* interface_name) const;
  const std::string& plugin_name() const { return name_; }

  template <auto Function, typename... Arguments>
  auto Forward(Call<Function>, Arguments... arguments) {
    using Table = typename Signature<Function>::TableType;
    return (std::get<Table>(inner_).*Function)(arguments...);
  }
  sy_status Forward(Call<&sy_kernel_v1::prepare>, sy_device*, const sy_prepare_request*, sy_kernel**, sy_kernel_info*,
                    sy_error*);
  sy_status Forward(Call<&sy_region_v1::prepare>, sy_device*, const sy_region*, uint64_t, sy_kernel**, sy_kernel_info*,
                    sy_error*);
  void Forward(Call<&sy_kernel_v1::release>, sy_kernel*);
  sy_status Forward(Call<&sy_kernel_v1::bind>, sy_kernel*, const sy_binding*, sy_bound**, sy_launch*, sy_error*);
  void Forward(Call<&sy_kernel_v1::unbind>, sy_bound*);
  sy_status Forward(Call<&sy_launch_table::launch>, sy_bound*, sy_stream*, sy_error*);

  // What is known of a kernel; null for a handle that prepare never gave, or that was released.
  std::shared_ptr<const KernelRecord> Find(sy_kernel* kernel);
  const Tables& inner() const { return inner_; }
  void set_outer_launch(sy_launch launch) { outer_launch_ = launch; }

 private:
  void Remember(sy_kernel* kernel, KernelRecord record);

  std::string name_;
  Tables inner_{};
  std::array<bool, std::tuple_size_v<Tables>> offered_{};
  sy_launch outer_launch_ = nullptr;
  std::mutex mutex_;
  std::map<sy_kernel*, std::shared_ptr<const KernelRecord>> kernels_;
};

// One call, into the interposer's overload for the function; no exception leaves it. The same for every slot, and
// compiled once.
template <typename Interposer, auto Function, typename... Arguments>
auto Enter(Interposer& interposer, Arguments... arguments) {
  if constexpr (kCanFail<Function>) {
    return Guarded(ErrorOf(arguments...), [&] { return interposer.Around(Call<Function>(), arguments...); });
  } else {
    try {
      interposer.Around(Call<Function>(), arguments...);
    } catch (const std::exception& failure) {
      HostLog(3, Text(kName<Function>, ": ", failure.what()));
    }
  }
}

// The C functions that stand for one wrapped plugin.
template <typename Interposer, int Number>
struct Slot {
  static inline Interposer* interposer = nullptr;
  static inline Tables outer{};

  template <auto Function>
  struct Entry;
  template <typename Table, typename Result, typename... Arguments, Result (*Table::*Function)(Arguments...)>
  struct Entry<Function> {
    static Result Run(Arguments... arguments) { return Enter<Interposer, Function>(*interposer, arguments...); }
  };

  static const void* Interface(const char* name) {
    const void* found = nullptr;
    const auto look = [&](const auto& table) {
      using Table = std::decay_t<decltype(table)>;
      if constexpr (kInterface<Table> != nullptr) {
        if (std::strcmp(kInterface<Table>, name) == 0 && interposer->Offers(name)) found = &table;
      }
    };
    std::apply([&](const auto&... table) { (look(table), ...); }, outer);
    return found;
  }

  static void Occupy(std::unique_ptr<Interposer> owner) {
    interposer = owner.release();  // for the life of the process, as every plugin
    const auto head = [](auto& table) {
      using Table = std::decay_t<decltype(table)>;
      if constexpr (kInterface<Table> != nullptr) table.header = SY_HEADER(Table);
    };
    std::apply([&](auto&... table) { (head(table), ...); }, outer);
    const Tables& inner = interposer->inner();
#define SY_FILL(table, function) \
  if (std::get<table>(inner).function != nullptr) std::get<table>(outer).function = Entry<&table::function>::Run;
    SY_EVERY_FUNCTION(SY_FILL)
#undef SY_FILL
    interposer->set_outer_launch(std::get<sy_launch_table>(outer).launch);
  }
};

// How many plugins one interposer can stand around in a process.
constexpr int kSlots = 8;

// The wrap function of interpose/1: puts `owner` into a free slot.
template <typename Interposer, int Number = 0>
sy_status Wrap(const sy_plugin& inner, std::unique_ptr<Interposer> owner, sy_plugin* outer, sy_error* error) {
  if constexpr (Number == kSlots) {
    return SY_FAIL(error, SY_UNSUPPORTED, "expected at most %d plugins in a process around which it stands", kSlots);
  } else {
    using Chosen = Slot<Interposer, Number>;
    if (Chosen::interposer != nullptr) return Wrap<Interposer, Number + 1>(inner, std::move(owner), outer, error);
    Chosen::Occupy(std::move(owner));
    sy_plugin filled = inner;
    filled.interface = Chosen::Interface;
    FillStruct(outer, filled);
    return SY_OK;
  }
}

// The body of an interposer's sy_plugin_query: keeps the host, and fills the table.
sy_status Introduce(const sy_host* host, sy_plugin* plugin, const char* name, const void* (*interface)(const char*),
                    sy_error* error);

}  // namespace switchyard
