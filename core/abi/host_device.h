// For plugins written in C++ whose device is the host: a count that threads raise and wait for, which is all that
// semaphore/1 takes without streams, and memory that another process can reach, for peer/1. Thread-safe.
#ifndef SWITCHYARD_ABI_HOST_DEVICE_H_
#define SWITCHYARD_ABI_HOST_DEVICE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>

#include "core/abi/boundary.h"
#include "core/abi/device.h"

namespace switchyard {

class HostCount {
 public:
  // SY_INVALID where it is `value` or more already.
  sy_status Raise(uint64_t value, sy_error* error) {
    const std::lock_guard lock(mutex_);
    if (count_ >= value)
      return Refuse(error, SY_INVALID, Text("a semaphore at ", count_, " cannot be raised to ", value));
    count_ = value;
    raised_.notify_all();
    return SY_OK;
  }
  uint64_t Get() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  void Wait(uint64_t value) {
    std::unique_lock lock(mutex_);
    raised_.wait(lock, [&] { return count_ >= value; });
  }
  // SY_TIMEOUT
  sy_status Wait(uint64_t value, uint64_t timeout_ms, sy_error* error) {
    constexpr uint64_t kAlways = uint64_t{1} << 40;  // ms: longer than any process, and a number that the clock holds
    const auto most = std::chrono::milliseconds(std::min(timeout_ms, kAlways));
    std::unique_lock lock(mutex_);
    if (raised_.wait_for(lock, most, [&] { return count_ >= value; })) return SY_OK;
    return Refuse(error, SY_TIMEOUT,
                  Text("a semaphore is at ", count_, " and not at ", value, " after ", timeout_ms, " ms"));
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable raised_;
  uint64_t count_ = 0;
};

// Memory in a nameless file of this process. Whoever opens what Describe wrote opens that file through /proc/PID/fd,
// which the kernel allows to processes of the same user, and has its bytes from then on, even if this process ends.
class SharedMemory {
 public:
  // Zeros, page-aligned, in a file that can never shrink under those who map it. Null where the system gives none.
  static std::shared_ptr<const SharedMemory> Make(uint64_t bytes) {
    std::shared_ptr<SharedMemory> made(new SharedMemory);
    made->file_ = memfd_create("switchyard", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made->file_ < 0 || ftruncate(made->file_, static_cast<off_t>(bytes)) != 0 ||
        fcntl(made->file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        !made->Map(made->file_, bytes)) {
      return nullptr;
    }
    return made;
  }

  // plugin: its name, so that no other plugin's memory is taken for its own.
  sy_status Describe(const char* plugin, void* description, uint32_t capacity, uint32_t* bytes, sy_error* error) const {
    if (capacity < sizeof(Description)) {
      return Refuse(error, SY_INVALID,
                    Text("export_memory: ", capacity, " bytes of room, expected ", sizeof(Description)));
    }
    struct stat status;
    if (fstat(file_, &status) != 0) return Refuse(error, SY_INTERNAL, std::strerror(errno));
    Description own(plugin);
    own.process = getpid();
    own.file = file_;
    own.device = status.st_dev;
    own.inode = status.st_ino;
    own.bytes = bytes_;
    std::memcpy(description, &own, sizeof own);
    *bytes = sizeof own;
    return SY_OK;
  }

  static sy_status Open(const char* plugin, const void* description, uint32_t bytes,
                        std::shared_ptr<const SharedMemory>* opened, sy_error* error) {
    const Description expected(plugin);
    Description given(plugin);
    if (bytes != sizeof given || std::memcmp(description, expected.magic, sizeof expected.magic) != 0)
      return Refuse(error, SY_INVALID, "import_memory: this is not what export_memory wrote");
    std::memcpy(&given, description, sizeof given);
    const std::string path = Text("/proc/", given.process, "/fd/", given.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0 || status.st_dev != given.device || status.st_ino != given.inode ||
        static_cast<uint64_t>(status.st_size) != given.bytes) {
      if (file >= 0) close(file);
      return Refuse(
          error, SY_UNSUPPORTED,
          Text("import_memory: ", path, " is not, or no longer, the memory of a process of this host and user"));
    }
    std::shared_ptr<SharedMemory> made(new SharedMemory);
    const bool mapped = made->Map(file, given.bytes);
    const int why = errno;
    close(file);
    if (!mapped) return Refuse(error, SY_OUT_OF_MEMORY, std::strerror(why));
    *opened = std::move(made);
    return SY_OK;
  }

  ~SharedMemory() {
    if (address_ != nullptr) munmap(address_, bytes_);
    if (file_ >= 0) close(file_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  char* address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  // What Describe writes: where the file is, and which one it must be.
  struct Description {
    explicit Description(const char* plugin) { std::strncpy(magic + 2, plugin, sizeof magic - 2); }
    char magic[8] = {'S', 'Y'};
    int64_t process = 0, file = 0;
    uint64_t device = 0, inode = 0, bytes = 0;
  };
  static_assert(sizeof(Description) <= SY_MEMORY_DESCRIPTION_BYTES);

  SharedMemory() = default;
  bool Map(int file, uint64_t bytes) {
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (address == MAP_FAILED) return false;
    address_ = static_cast<char*>(address);
    bytes_ = bytes;
    return true;
  }

  int file_ = -1;
  char* address_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace switchyard

#endif  // SWITCHYARD_ABI_HOST_DEVICE_H_
