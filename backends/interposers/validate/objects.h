// What the validating interposer knows of handles: which are alive, where they were made and where they ended. Not
// thread-safe: Validate holds its mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <unordered_map>
#include <utility>

namespace switchyard {

// Shared with the one call that is at it: two calls that may not run beside each other share a turn.
using Turn = std::shared_ptr<void>;
inline Turn NewTurn() { return std::make_shared<int>(); }

// Handles of one kind, each with a Record. A plugin may hand out the address of a dead handle again; `id` tells them
// apart.
template <typename Record>
class Objects {
 public:
  struct Entry {
    Record record;
    std::string born;  // "call 12: alloc of 64 bytes"
    uint64_t id = 0;
    Turn in_use = NewTurn();  // shared with the calls that name it and have not returned
  };
  explicit Objects(const char* noun) : noun_(noun) {}

  Entry& Add(const void* handle, Record record, const std::string& born) {
    dead_.erase(handle);
    return live_[handle] = Entry{std::move(record), born, ++last_id_};
  }
  Entry* Find(const void* handle) {
    const auto found = live_.find(handle);
    return found == live_.end() ? nullptr : &found->second;
  }
  void Remove(const void* handle, const std::string& died) {
    const auto found = live_.find(handle);
    if (found == live_.end()) return;
    if (dead_.size() >= kMostDead) dead_.clear();
    dead_[handle] = {found->second.born, died};
    live_.erase(found);
  }
  // Printed: "buffer 0x5592 (made by call 12: alloc of 64 bytes)", with its end if it has ended, or "0x17, which never
  // was a buffer".
  struct Description {
    const Objects& objects;
    const void* handle;
    friend std::ostream& operator<<(std::ostream& out, const Description& d) { return d.objects.Print(out, d.handle); }
  };
  Description Describe(const void* handle) const { return {*this, handle}; }
  std::ostream& Print(std::ostream& out, const void* handle) const {
    if (const auto found = live_.find(handle); found != live_.end()) {
      return out << noun_ << ' ' << handle << " (made by " << found->second.born << ')';
    }
    if (const auto found = dead_.find(handle); found != dead_.end()) {
      const auto& [born, died] = found->second;
      return out << noun_ << ' ' << handle << " (made by " << born << ", ended by " << died << ')';
    }
    if (handle == nullptr) return out << "a NULL " << noun_;
    return out << handle << ", which never was a " << noun_;
  }
  const char* noun() const { return noun_; }
  std::unordered_map<const void*, Entry>& live() { return live_; }

 private:
  static constexpr size_t kMostDead = 1 << 11;  // half a MiB; with more, host memory grows as if the plugin leaked
  const char* const noun_;
  uint64_t last_id_ = 0;
  std::unordered_map<const void*, Entry> live_;
  std::unordered_map<const void*, std::pair<std::string, std::string>> dead_;
};

}  // namespace switchyard
