#include "tools/conform/file_store.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/base/secret.h"
#include "core/base/status.h"

namespace switchyard::conform {

FileStore::FileStore(std::string folder) : folder_(std::move(folder)) {
  interface_.header = SY_HEADER(sy_store);
  interface_.context = this;
  interface_.put = [](void* context, const char* key, const void* value, uint32_t bytes, sy_error*) -> sy_status {
    const std::string text(static_cast<const char*>(value), bytes);
    return static_cast<FileStore*>(context)->Put(key, text) ? SY_OK : SY_INTERNAL;
  };
  interface_.get = [](void* context, const char* key, void* value, uint32_t capacity, uint32_t* bytes,
                      uint64_t timeout_ms, sy_error*) -> sy_status {
    std::string text;
    if (!static_cast<FileStore*>(context)->Wait(key, text, timeout_ms)) return SY_TIMEOUT;
    if (text.size() > capacity) return SY_INVALID;
    std::memcpy(value, text.data(), text.size());
    *bytes = static_cast<uint32_t>(text.size());
    return SY_OK;
  };
  // The folder's random name has to do for a key: what these ranks compute is worth nothing to anybody.
  interface_.digest = [](void* context, const void* data, uint32_t bytes, unsigned char* digest) {
    const std::string_view message(static_cast<const char*>(data), bytes);
    std::memcpy(digest, HmacSha256(static_cast<FileStore*>(context)->folder_, message).data(), 32);
  };
}

// Keys may hold any character; file names are their hexadecimal digits.
std::string FileStore::PathOf(const std::string& key) const {
  std::string path = folder_ + "/key-";
  for (const unsigned char c : key) path += fmt::format("{:02x}", c);
  return path;
}

bool FileStore::Put(const std::string& key, const std::string& value) const {
  const std::string draft = fmt::format("{}/draft-{}-{}", folder_, getpid(), std::hash<std::string>{}(key));
  {
    std::ofstream file(draft, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    if (!file.flush()) return false;
  }
  std::error_code error;
  std::filesystem::rename(draft, PathOf(key), error);
  return !error;
}

bool FileStore::Wait(const std::string& key, std::string& value, uint64_t timeout_ms) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    if (std::ifstream file(PathOf(key), std::ios::binary); file) {
      value.assign(std::istreambuf_iterator<char>(file), {});
      return true;
    }
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace switchyard::conform
