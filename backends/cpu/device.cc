#include "backends/cpu/device.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>

#include "backends/cpu/openmp.h"
#include "backends/cpu/vector/kernels.h"

thread_local uint64_t sy_device::entered = 0;
thread_local uint64_t sy_device::complete = 0;

// The launching thread may run on any of the device's cores, so that threads which it starts later (data loaders) are
// not squeezed onto one of them; each of the other OpenMP threads stays on a core of its own.
void sy_device::EnterSlowly() const {
  entered = serial;
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  if (cores.empty()) return;
  switchyard::ParallelRegion(threads, [&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    const int thread = omp_get_thread_num();
    for (int i = 0; i < threads; ++i)
      if ((thread == 0 || i == thread) && cores[i] >= 0 && cores[i] < CPU_SETSIZE) CPU_SET(cores[i], &set);
    sched_setaffinity(0, sizeof set, &set);  // best effort: a core that is not there leaves the thread where it was
    GOMP_barrier();                          // so that no thread is pinned in another's stead
  });
}

// oneDNN divides its work among as many threads as it asks for, and leaves out what a thread that is not there had.
sy_status sy_device::CompleteTeam(sy_error* error) const {
  Enter();
  int started = 1;
  switchyard::ParallelRegion(threads, [&] {
    if (omp_get_thread_num() == 0) started = omp_get_num_threads();
  });
  if (started < threads) {
    return SY_FAIL(error, SY_INTERNAL, "cpu: the system gives %d of %d threads; raise its limits or lower --threads",
                   started, threads);
  }
  complete = serial;
  return SY_OK;
}

namespace switchyard {
namespace {

constexpr uint64_t kAlignment = 64, kHugePage = uint64_t{2} << 20;
constexpr char kHostMemory[] = "host";  // the memory kind

uint64_t MemoryBytes(const sy_instance& instance) {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::ifstream file("/sys/fs/cgroup/memory.max");
  uint64_t limit = 0;
  if (file >> limit && limit > 0) bytes = std::min(bytes, limit);
  return static_cast<uint64_t>(instance.NumberSetting("CPU_MEMORY", static_cast<int64_t>(bytes)));
}

// Of the first processor.
std::string ProcessorField(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t end = line.find_first_of("\t:"), value = line.find(": ");
    if (value != std::string::npos && line.substr(0, end) == name) return line.substr(value + 2);
  }
  return "";
}

std::string ProcessorName() {
  const std::string name = ProcessorField("model name");
  return name.empty() ? "processor" : name;
}

// What tells processors apart that have one name, as those of virtual machines have.
std::string ProcessorModel() {
  std::string text;
  for (const char* field : {"cpu family", "model", "CPU implementer", "CPU part"}) {
    const std::string value = ProcessorField(field);
    if (!value.empty()) text += "-" + value;
  }
  return text;
}

// One device per local rank that shares the machine.
int32_t DeviceCount(const sy_instance& instance) {
  return static_cast<int32_t>(std::min<int64_t>(instance.NumberSetting("CPU_DEVICES", 1), 4096));
}

bool Exists(const sy_instance& instance, int32_t index, sy_error* error) {
  const int32_t count = DeviceCount(instance);
  if (index >= 0 && index < count) return true;
  SY_FAIL(error, SY_INVALID, "cpu: device %d of %d; SWITCHYARD_CPU_DEVICES sets how many there are", index, count);
  return false;
}

sy_status Count(sy_instance* instance, int32_t* count, sy_error* error) {
  if (const char* refusal = InstructionSetRefusal(*instance)) return Refuse(error, SY_UNSUPPORTED, refusal);
  *count = DeviceCount(*instance);
  return SY_OK;
}

std::string OneDnnVersion() {
  const dnnl_version_t& onednn = *dnnl_version();
  return Format("%d.%d.%d", onednn.major, onednn.minor, onednn.patch);
}

// What was bound: oneDNN, and the library that runs the threads, unless that is this one (openmp.cc).
std::string BoundLibraries() {
  std::string text = "oneDNN " + OneDnnVersion();
  Dl_info threads{}, self{};
  if (dladdr(reinterpret_cast<const void*>(&GOMP_parallel), &threads) == 0 ||
      dladdr(reinterpret_cast<const void*>(&BoundLibraries), &self) == 0 || threads.dli_fbase == self.dli_fbase)
    return text + ", threads of its own";
  std::error_code error;  // the name behind the links tells the version: libgomp.so.1.0.0
  const auto path = std::filesystem::canonical(threads.dli_fname, error);
  return text + ", threads of " + (error ? std::string(threads.dli_fname) : path.filename().string());
}

sy_status Query(sy_instance* instance, int32_t index, sy_device_info* info, sy_error* error) {
  if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
  if (!Exists(*instance, index, error)) return SY_INVALID;
  InstructionSetRefusal(*instance);  // chooses what the name tells
  sy_device_info full = {};
  std::snprintf(full.name, sizeof full.name, "%s (%s%s)", ProcessorName().c_str(), Vector().isa,
                MultipliesBf16() ? "" : ", halves computed in f32");
  char host[64] = {};
  gethostname(host, sizeof host - 1);
  uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a of the machine's name
  for (const char* c = host; *c; ++c) hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100000001B3ull;
  std::memcpy(full.uuid, &hash, sizeof hash);
  std::memcpy(full.uuid + 8, &index, sizeof index);
  full.memory_bytes = MemoryBytes(*instance);
  full.free_bytes =
      std::min(full.memory_bytes,
               static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  full.alignment = kAlignment;
  full.address_kind = SY_ADDRESS_HOST;
  full.flags = SY_DEVICE_SHAREABLE | SY_DEVICE_CPU_CORES;
  full.dtypes = 1u << SY_F32 | 1u << SY_BF16 | 1u << SY_F16 | 1u << SY_I32;
  std::snprintf(full.memory_kind, sizeof full.memory_kind, "%s", kHostMemory);
  static const auto& libraries = *new std::string(BoundLibraries());
  full.libraries = libraries.c_str();
  FillStruct(info, full);
  return SY_OK;
}

void Close(sy_device* device) {
  if (device == nullptr) return;
  if (device->stream) dnnl_stream_destroy(device->stream);
  if (device->engine) dnnl_engine_destroy(device->engine);
  delete device;
}

sy_status Open(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device,
               sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!Exists(*instance, index, error)) return SY_INVALID;
  if (const char* refusal = InstructionSetRefusal(*instance)) return Refuse(error, SY_UNSUPPORTED, refusal);
  sy_device* opened = new (std::nothrow) sy_device;
  if (opened == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cpu: no memory to open a device");
  opened->index = index;
  opened->memory_limit = MemoryBytes(*instance);
  int threads = 0;
  if (options && SY_HAS(sy_open_options, options, threads)) threads = options->threads;
  opened->threads = std::clamp(threads > 0 ? threads : CoresAllowed(), 1, 1024);
  if (options && SY_HAS(sy_open_options, options, cores) && options->cores && threads > 0)
    opened->cores.assign(options->cores, options->cores + opened->threads);
  if (const sy_status status = opened->EnterToLaunch(error); status != SY_OK) {
    Close(opened);
    return status;
  }
  if (dnnl_engine_create(&opened->engine, dnnl_cpu, 0) != dnnl_success ||
      dnnl_stream_create(&opened->stream, opened->engine, dnnl_stream_default_flags) != dnnl_success) {
    Close(opened);
    return SY_FAIL(error, SY_INTERNAL, "cpu: oneDNN cannot create an engine");
  }
  *device = opened;
  return SY_OK;
}

sy_status Alloc(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (bytes == 0) return SY_FAIL(error, SY_INVALID, "cpu: an allocation of 0 bytes");
  const uint64_t before = device->allocated.fetch_add(bytes);
  if (bytes > device->memory_limit || before > device->memory_limit - bytes) {
    device->allocated.fetch_sub(bytes);
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "cpu: %llu bytes asked for, %llu of %llu in use",
                   static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(before),
                   static_cast<unsigned long long>(device->memory_limit));
  }
  auto* allocation = new (std::nothrow) sy_buffer;
  if (allocation) {
    allocation->bytes = bytes;
    allocation->owned = true;
    if (options && SY_HAS(sy_alloc_options, options, exportable) && options->exportable) {
      allocation->shared = SharedMemory::Make(bytes);
      if (allocation->shared) allocation->address = allocation->shared->address();
    } else if (bytes >= kHugePage) {
      // Whole huge pages, aligned to one: one page-table entry where small pages need 512.
      const uint64_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage;
      void* base =
          mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base != MAP_FAILED) {
        char* start = static_cast<char*>(base);
        char* aligned =
            reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(start) + kHugePage - 1) / kHugePage * kHugePage);
        if (aligned > start) munmap(start, static_cast<size_t>(aligned - start));
        const size_t behind = static_cast<size_t>(start + kHugePage - aligned);
        if (behind > 0) munmap(aligned + mapped, behind);
        madvise(aligned, mapped, MADV_HUGEPAGE);
        allocation->address = aligned;
        allocation->mapped = mapped;
        allocation->untouched = true;
      }
    } else {
      const uint64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      allocation->address = static_cast<char*>(std::aligned_alloc(kAlignment, size));
    }
  }
  if (allocation == nullptr || allocation->address == nullptr) {
    delete allocation;
    device->allocated.fetch_sub(bytes);
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "cpu: the system refused %llu bytes",
                   static_cast<unsigned long long>(bytes));
  }
  *buffer = allocation;
  return SY_OK;
}

void Free(sy_device* device, sy_buffer* buffer) {
  if (buffer == nullptr) return;
  if (buffer->owned) {
    device->allocated.fetch_sub(buffer->bytes);
    if (buffer->mapped) {
      munmap(buffer->address, buffer->mapped);
    } else if (buffer->shared == nullptr) {
      std::free(buffer->address);
    }
  }
  delete buffer;
}

sy_status Copy(sy_device*, sy_stream*, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!destination.buffer && !source.buffer) return SY_FAIL(error, SY_INVALID, "cpu: a copy from host to host");
  if (bytes == 0) return SY_OK;
  if (!Fits(destination, bytes) || !Fits(source, bytes))
    return SY_FAIL(error, SY_INVALID, "cpu: a copy of %llu bytes leaves its buffer",
                   static_cast<unsigned long long>(bytes));
  std::memmove(Address(destination), Address(source), bytes);
  return SY_OK;
}

sy_status Fill(sy_device*, sy_stream*, sy_place destination, uint8_t value, uint64_t bytes,
               const sy_fill_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (bytes == 0) return SY_OK;
  if (!Fits(destination, bytes))
    return SY_FAIL(error, SY_INVALID, "cpu: filling %llu bytes leaves the buffer",
                   static_cast<unsigned long long>(bytes));
  if (value == 0 && destination.buffer && destination.buffer->untouched) return SY_OK;
  std::memset(Address(destination), value, bytes);
  return SY_OK;
}

sy_status Synchronize(sy_device*, sy_stream*, const sy_synchronize_options* options, sy_error* error) {
  return KnowsExtensions(options, error) ? SY_OK : SY_UNSUPPORTED;
}

sy_status NativeAddress(sy_device*, sy_buffer* buffer, void** address, sy_error*) {
  *address = Address({.buffer = buffer});
  return SY_OK;
}

sy_status ImportMemory(sy_device*, void* address, const char* memory_kind, uint64_t bytes, sy_buffer** buffer,
                       sy_error* error) {
  if (memory_kind == nullptr || std::strcmp(memory_kind, kHostMemory) != 0) {
    return SY_FAIL(error, SY_UNSUPPORTED, "cpu: only host memory can be imported, not kind %s",
                   memory_kind ? memory_kind : "NULL");
  }
  if (reinterpret_cast<uintptr_t>(address) % kAlignment != 0)
    return SY_FAIL(error, SY_INVALID, "cpu: imported memory must be aligned to %llu bytes",
                   static_cast<unsigned long long>(kAlignment));
  auto* imported = new (std::nothrow) sy_buffer;
  if (imported == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cpu: no memory for a buffer");
  imported->address = static_cast<char*>(address);
  imported->bytes = bytes;
  *buffer = imported;
  return SY_OK;
}

sy_status HostAlloc(sy_device*, uint64_t bytes, void** address, sy_error* error) {
  const bool huge = bytes >= kHugePage;  // then a copy to it takes three quarters of the time
  const uint64_t alignment = huge ? kHugePage : kAlignment;
  const uint64_t size = (std::max<uint64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  *address = std::aligned_alloc(alignment, size);
  if (huge && *address) madvise(*address, size, MADV_HUGEPAGE);
  return *address ? SY_OK : SY_FAIL(error, SY_OUT_OF_MEMORY, "cpu: no host memory");
}

void HostFree(sy_device*, void* address) { std::free(address); }

}  // namespace

const sy_device_v2& DeviceInterface() {
  static constexpr sy_device_v2 kInterface = {
      .header = SY_HEADER(sy_device_v2),
      .count = Count,
      .open = Open,
      .close = Close,
      .query = Query,
      .alloc = Alloc,
      .free = Free,
      .copy = Copy,
      .synchronize = Synchronize,
      .stream_create = nullptr,
      .fill = Fill,
  };
  return kInterface;
}

const sy_memory_ext_v2& MemoryInterface() {
  static constexpr sy_memory_ext_v2 kInterface = {
      .header = SY_HEADER(sy_memory_ext_v2),
      .native_address = NativeAddress,
      .import_memory = ImportMemory,
      .host_alloc = HostAlloc,
      .host_free = HostFree,
  };
  return kInterface;
}

}  // namespace switchyard

switchyard::TuningCache& sy_device::Choices() const {
  std::call_once(choices_read, [&] {
    choices = std::make_unique<switchyard::TuningCache>(switchyard::Format(
        "cpu-ways-1-%s%s-%s-onednn-%s", switchyard::ProcessorName().c_str(), switchyard::ProcessorModel().c_str(),
        switchyard::Vector().isa, switchyard::OneDnnVersion().c_str()));
  });
  return *choices;
}
