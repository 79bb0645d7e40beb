// peer/1 by the runtime's shared memory (11-07_IPC_memory_sharing.md of github.com/hicann/runtime). A description
// carries the runtime's key, which any process may use, and who exported it. In the process itself, where no page says
// that a key can be opened, it is the memory's own address, if this process wrote the description and has not freed the
// memory.
//
// What becomes of imported memory when its exporter ends is not documented. So an import watches that process, and
// copies are refused once it has ended; a copy that runs at that moment may still meet whatever the driver does
// (HARDWARE.md). Thread-safe.
#include "backends/npu/peer.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/abi/boundary.h"

namespace switchyard {
namespace {

constexpr uint64_t kBounceBytes = uint64_t{1} << 20;  // of a stream, where copies go in pieces
constexpr char kDescriptionKind[16] = "npu memory 1";

// A process of this host that no later one is taken for.
struct ProcessName {
  int64_t pid;
  uint64_t started;        // in clock ticks since the host began
  uint64_t pid_namespace;  // in which `pid` counts
};

struct Description {
  char kind[16];  // kDescriptionKind
  ProcessName process;
  char* address;
  uint64_t bytes;
  char key[ACL_IPC_MEM_KEY_BYTES];
  char unused[7];
};
static_assert(sizeof(Description) <= SY_MEMORY_DESCRIPTION_BYTES);

// Field 22 of /proc/PID/stat, behind the name of the program, which may hold anything. 0: there is no such process.
uint64_t StartOf(int64_t pid) {
  char path[40], line[1024];
  std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  FILE* file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  const size_t read = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  line[read] = '\0';
  const char* at = std::strrchr(line, ')');
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  unsigned long long started = 0;
  return at != nullptr && std::sscanf(at, " %llu", &started) == 1 ? started : 0;
}

ProcessName ThisProcess() {
  struct stat space {};
  const bool known = stat("/proc/self/ns/pid", &space) == 0;
  return {getpid(), StartOf(getpid()), known ? space.st_ino : 0};
}

bool operator==(const ProcessName& a, const ProcessName& b) {
  return a.pid == b.pid && a.started == b.started && a.pid_namespace == b.pid_namespace;
}

// What this process has exported, by address, as long as it is allocated.
struct Export {
  Description description;
  const sy_device* device;
};
struct Exports {
  std::mutex mutex;
  std::map<const char*, Export> all;
};
Exports& OwnExports() {
  static auto& exports = *new Exports;
  return exports;
}

}  // namespace

// Ends when the last buffer that names it goes.
struct Borrowed::Import {
  Import(const sy_device& of, std::string by, int exporter) : device(of), key(std::move(by)), process(exporter) {}
  ~Import() {
    if (address != nullptr && device.Enter(nullptr) == SY_OK) device.acl->aclrtIpcMemClose(key.c_str());
    close(process);
  }
  const sy_device& device;
  const std::string key;
  const int process;  // a pidfd
  void* address = nullptr;
};

Borrowed::Borrowed(std::shared_ptr<const Import> import) : import_(std::move(import)) {}

namespace {

// The runtime does not say what a key means that is opened twice, so each is open once. Ended under the lock, so that
// nobody opens it while it is closed.
struct Imports {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<const Borrowed::Import>> by_key;
};
Imports& OpenImports() {
  static auto& imports = *new Imports;
  return imports;
}

}  // namespace

Borrowed::~Borrowed() {
  if (import_ == nullptr) return;
  Imports& imports = OpenImports();
  const std::lock_guard lock(imports.mutex);
  const std::string key = import_->key;
  import_.reset();
  const auto found = imports.by_key.find(key);
  if (found != imports.by_key.end() && found->second.expired()) imports.by_key.erase(found);
}

namespace {

sy_status CheckAlive(const Borrowed::Import& import, sy_error* error) {
  pollfd ended{import.process, POLLIN, 0};
  if (poll(&ended, 1, 0) == 0) return SY_OK;
  return Refuse(error, SY_INVALID, "the process that exported this memory has ended, and its memory with it");
}

}  // namespace

sy_status Borrowed::Check(sy_error* error) const { return import_ == nullptr ? SY_OK : CheckAlive(*import_, error); }

namespace {

sy_status Open(sy_device& device, const Description& given, std::shared_ptr<const Borrowed::Import>* result,
               sy_error* error) {
  if (given.process.pid_namespace != ThisProcess().pid_namespace)
    return Refuse(error, SY_UNSUPPORTED,
                  "import_memory: the exporter is in another container, so nobody could tell when it ends");
  Imports& imports = OpenImports();
  const std::lock_guard lock(imports.mutex);
  const auto found = imports.by_key.find(given.key);
  if (auto open = found == imports.by_key.end() ? nullptr : found->second.lock(); open != nullptr) {
    if (const sy_status status = CheckAlive(*open, error); status != SY_OK) return status;
    if (&open->device == &device) {
      *result = std::move(open);
      return SY_OK;
    }
    return Refuse(error, SY_UNSUPPORTED, "import_memory: another device of this process has imported it");
  }
  const int process = static_cast<int>(syscall(SYS_pidfd_open, given.process.pid, 0));
  if (process < 0)
    return Refuse(error, SY_UNSUPPORTED,
                  Text("import_memory: process ", given.process.pid, " cannot be watched: ", std::strerror(errno)));
  const auto made = std::make_shared<Borrowed::Import>(device, given.key, process);
  if (StartOf(given.process.pid) != given.process.started)
    return Refuse(error, SY_INVALID, "import_memory: the process that exported the memory has ended");
  const sy_status status = CheckAcl(
      error,
      device.acl->aclrtIpcMemImportByKey(&made->address, given.key, ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS),
      "aclrtIpcMemImportByKey");
  if (status != SY_OK) {
    made->address = nullptr;
    return status == SY_DEVICE_LOST || status == SY_OUT_OF_MEMORY ? status : SY_UNSUPPORTED;
  }
  imports.by_key[given.key] = made;
  *result = made;
  return SY_OK;
}

// Lets the streams of both reach the memory of both: what one context enables is one way.
sy_status Join(const sy_device& device, const sy_device& owner, sy_error* error) {
  const Runtime& acl = *device.acl;
  if (device.index == owner.index) return SY_OK;
  if (acl.aclrtDeviceCanAccessPeer == nullptr || acl.aclrtDeviceEnablePeerAccess == nullptr)
    return Refuse(error, SY_UNSUPPORTED, "import_memory: the NPU runtime has no aclrtDeviceEnablePeerAccess");
  for (const auto& [from, to] : {std::pair{&owner, &device}, std::pair{&device, &owner}}) {
    if (const sy_status status = from->Enter(error); status != SY_OK) return status;
    int32_t possible = 0;
    const aclError code = acl.aclrtDeviceCanAccessPeer(&possible, from->index, to->index);
    if (const sy_status status = CheckAcl(error, code, "aclrtDeviceCanAccessPeer"); status != SY_OK) return status;
    if (possible == 0)
      return Refuse(error, SY_UNSUPPORTED,
                    Text("device ", from->index, " cannot reach the memory of device ", to->index));
    const sy_status status =
        CheckAcl(error, acl.aclrtDeviceEnablePeerAccess(to->index, 0), "aclrtDeviceEnablePeerAccess");
    if (status != SY_OK) return status;
  }
  return SY_OK;
}

sy_status ExportMemory(sy_device* device, sy_buffer* buffer, void* description, uint32_t capacity, uint32_t* bytes,
                       sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    *bytes = 0;
    if (buffer->origin != sy_buffer::kExportable || buffer->borrowed != nullptr)
      return Refuse(error, SY_INVALID, "export_memory: the buffer was not allocated as exportable (sy_alloc_options)");
    if (capacity < sizeof(Description))
      return Refuse(error, SY_INVALID,
                    Text("export_memory: room for ", capacity, " bytes, expected ", sizeof(Description)));
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    Exports& exports = OwnExports();
    const std::lock_guard lock(exports.mutex);
    auto found = exports.all.find(buffer->address);
    if (found == exports.all.end()) {
      Description made{};
      std::memcpy(made.kind, kDescriptionKind, sizeof made.kind);
      made.process = ThisProcess();
      made.address = buffer->address;
      made.bytes = buffer->bytes;
      const aclError code =
          device->acl->aclrtIpcMemGetExportKey(buffer->address, WholePages(buffer->bytes), made.key, sizeof made.key,
                                               ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION);
      if (const sy_status status = CheckAcl(error, code, "aclrtIpcMemGetExportKey"); status != SY_OK) return status;
      made.key[sizeof made.key - 1] = '\0';
      found = exports.all.emplace(buffer->address, Export{made, device}).first;
    }
    std::memcpy(description, &found->second.description, sizeof(Description));
    *bytes = sizeof(Description);
    return SY_OK;
  });
}

sy_status ImportMemory(sy_device* device, const void* description, uint32_t bytes, sy_buffer** buffer,
                       sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    *buffer = nullptr;
    Description given{};
    if (description == nullptr || bytes != sizeof given ||
        std::memcmp(description, kDescriptionKind, sizeof kDescriptionKind) != 0)
      return Refuse(error, SY_INVALID,
                    Text("import_memory: ", bytes, " bytes that do not describe memory of this plugin"));
    std::memcpy(&given, description, sizeof given);
    if (given.key[sizeof given.key - 1] != '\0')
      return Refuse(error, SY_INVALID, "import_memory: a key without an end");
    if (device->acl->aclrtIpcMemImportByKey == nullptr || device->acl->aclrtIpcMemClose == nullptr)
      return Refuse(error, SY_UNSUPPORTED, "import_memory: the NPU runtime has no aclrtIpcMemImportByKey");
    std::shared_ptr<const Borrowed> borrowed;  // none: memory of this very device and process
    char* address = given.address;
    if (given.process == ThisProcess()) {
      Exports& exports = OwnExports();
      const std::lock_guard lock(exports.mutex);
      const auto found = exports.all.find(given.address);
      if (found == exports.all.end() || std::memcmp(&found->second.description, &given, sizeof given) != 0)
        return Refuse(error, SY_INVALID, "import_memory: this process did not write that, or has freed the memory");
      const sy_device& owner = *found->second.device;
      if (const sy_status status = Join(*device, owner, error); status != SY_OK) return status;
      if (owner.index != device->index) borrowed = std::make_shared<const Borrowed>(nullptr);
    } else {
      std::shared_ptr<const Borrowed::Import> import;
      if (const sy_status status = device->Enter(error); status != SY_OK) return status;
      if (const sy_status status = Open(*device, given, &import, error); status != SY_OK) return status;
      address = static_cast<char*>(import->address);
      borrowed = std::make_shared<const Borrowed>(std::move(import));
    }
    auto made = std::make_unique<sy_buffer>(address, given.bytes, sy_buffer::kForeign);
    made->borrowed = std::move(borrowed);
    *buffer = made.release();
    return SY_OK;
  });
}

// Runs `queue` on the stream; on one of its own, until it has finished, where there is none.
template <typename Queue>
sy_status OnStream(sy_device& device, sy_stream* stream, sy_error* error, const Queue& queue) {
  if (stream != nullptr) return queue(*stream);
  if (const sy_status status = CreateStream(&device, nullptr, &stream, error); status != SY_OK) return status;
  sy_status status = queue(*stream);
  if (status == SY_OK) status = Synchronize(&device, stream, nullptr, error);
  DestroyStream(&device, stream);
  return status;
}

sy_status Queue(sy_stream& stream, void* to, const void* from, uint64_t bytes, aclrtMemcpyKind kind, sy_error* error) {
  return CheckAcl(error, stream.device.acl->aclrtMemcpyAsync(to, bytes, from, bytes, kind, stream.stream),
                  "aclrtMemcpyAsync");
}

sy_status MakeBounce(sy_stream& stream, sy_error* error) {
  if (stream.bounce != nullptr) return SY_OK;
  return CheckAcl(error, stream.device.acl->aclrtMalloc(&stream.bounce, kBounceBytes, ACL_MEM_MALLOC_HUGE_FIRST),
                  "aclrtMalloc");
}

sy_status CheckPlace(const sy_place& place, sy_error* error) {
  return IsBorrowed(place) ? place.buffer->borrowed->Check(error) : SY_OK;
}

}  // namespace

uint64_t WholePages(uint64_t bytes) {
  constexpr uint64_t kSmall = 4096, kLarge = uint64_t{2} << 20;
  const uint64_t page = bytes <= kLarge / 2 ? kSmall : kLarge;
  return bytes > UINT64_MAX - page ? bytes : (bytes + page - 1) / page * page;
}

sy_status CopyBorrowed(sy_device& device, sy_stream* stream, const sy_place& destination, const sy_place& source,
                       uint64_t bytes, sy_error* error) {
  if (const sy_status status = CheckPlace(destination, error); status != SY_OK) return status;
  if (const sy_status status = CheckPlace(source, error); status != SY_OK) return status;
  const auto at = [](const sy_place& place) {
    return place.buffer != nullptr ? place.buffer->address + place.offset : static_cast<char*>(place.host);
  };
  char* const to = at(destination);
  const char* const from = at(source);
  return OnStream(device, stream, error, [&](sy_stream& queue) -> sy_status {
    if (destination.buffer != nullptr && source.buffer != nullptr)
      return Queue(queue, to, from, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE, error);
    sy_status status = MakeBounce(queue, error);
    const bool upload = source.buffer == nullptr;
    for (uint64_t done = 0; status == SY_OK && done < bytes; done += kBounceBytes) {
      const uint64_t part = std::min(kBounceBytes, bytes - done);
      status = Queue(queue, queue.bounce, from + done, part,
                     upload ? ACL_MEMCPY_HOST_TO_DEVICE : ACL_MEMCPY_DEVICE_TO_DEVICE, error);
      if (status == SY_OK)
        status = Queue(queue, to + done, queue.bounce, part,
                       upload ? ACL_MEMCPY_DEVICE_TO_DEVICE : ACL_MEMCPY_DEVICE_TO_HOST, error);
    }
    return status;
  });
}

sy_status FillBorrowed(sy_device& device, sy_stream* stream, const sy_place& destination, uint8_t value, uint64_t bytes,
                       sy_error* error) {
  if (const sy_status status = CheckPlace(destination, error); status != SY_OK) return status;
  return OnStream(device, stream, error, [&](sy_stream& queue) -> sy_status {
    sy_status status = MakeBounce(queue, error);
    const uint64_t most = std::min(kBounceBytes, bytes);
    if (status == SY_OK)
      status = CheckAcl(error, device.acl->aclrtMemsetAsync(queue.bounce, most, value, most, queue.stream),
                        "aclrtMemsetAsync");
    for (uint64_t done = 0; status == SY_OK && done < bytes; done += kBounceBytes) {
      status = Queue(queue, destination.buffer->address + destination.offset + done, queue.bounce,
                     std::min(kBounceBytes, bytes - done), ACL_MEMCPY_DEVICE_TO_DEVICE, error);
    }
    return status;
  });
}

void EndExport(const sy_device& device, const sy_buffer& buffer) {
  Exports& exports = OwnExports();
  const std::lock_guard lock(exports.mutex);
  const auto found = exports.all.find(buffer.address);
  if (found == exports.all.end()) return;
  device.acl->aclrtIpcMemClose(found->second.description.key);
  exports.all.erase(found);
}

const sy_peer_v1 kNpuPeers = {
    .header = SY_HEADER(sy_peer_v1), .export_memory = ExportMemory, .import_memory = ImportMemory};

}  // namespace switchyard
