// One rank of a collective check: a process that joins the others through a folder and calls the functions of
// collective/2 directly. It gives them host memory, or memory of a device, and waits for requests and for streams in
// the same way; no wait is without an end. Every area of memory lies between guard bytes. Not thread-safe; two Links
// may be used by two threads.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/abi/collective.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "nlohmann/json.hpp"
#include "tools/conform/file_store.h"
#include "tools/conform/values.h"

namespace switchyard::conform {

// Memory that a collective reads or writes, with guards around it.
class Area {
 public:
  // `device` may be null: host memory.
  static StatusOr<Area> Make(Device* device, const Bytes& payload);
  // Memory that somebody else owns, without guards: what buffer_alloc gave.
  static StatusOr<Area> Over(Device* device, void* address, uint64_t bytes);
  void* at(uint64_t byte = 0) const { return static_cast<char*>(address_) + byte; }
  Status Write(uint64_t begin, const Bytes& bytes);
  StatusOr<Bytes> Read() const;  // the payload; kInternal if a guard was overwritten
  Status Expect(const Bytes& expected) const;
  Status ExpectPart(uint64_t begin, const Bytes& expected) const;

 private:
  Device* device_ = nullptr;
  Buffer buffer_;                // on a device
  std::shared_ptr<Bytes> host_;  // else; null for memory of somebody else
  void* address_ = nullptr;      // of the payload
  uint64_t guard_ = 0, bytes_ = 0;
};

class Rank;

// A communicator, and what its calls need.
class Link {
 public:
  Link(Rank& rank, sy_communicator* handle, int place, int size, uint64_t limit_ms);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // A call that was made. Its request is given back when the call has ended, or with this object: then the call is
  // dropped. Destroyed before the link and the memory of the call.
  struct Release {
    const Link* link;
    void operator()(sy_request* request) const;
  };
  struct Pending {
    Link* link = nullptr;
    std::unique_ptr<sy_request, Release> request{nullptr, Release{nullptr}};
    bool done = true;
    std::string what;
    Event event;
    std::chrono::steady_clock::time_point began;
  };
  using Function = std::function<sy_status(const sy_call*, sy_request**, sy_error*)>;
  // Gives the call its tag and sequence number.
  StatusOr<Pending> Start(const std::string& tag, const char* what, const Function& function);
  StatusOr<bool> Look(Pending& pending);  // true: it has finished; never blocks
  // Waits. Where a rank has died the communicator is aborted and the answer is kUnavailable; where the limit of the
  // link and a grace have passed, kDeadlineExceeded. kInternal: it did not return even then.
  Status Finish(Pending& pending);
  Status Do(const std::string& tag, const char* what, const Function& function);
  // Records the work of all calls since for Look: after group_end.
  Status Mark(Pending& pending);

  Status AllReduce(uint64_t count, sy_dtype dtype, int reduction, bool in_place);  // with data that is checked
  sy_communicator* handle() const { return handle_; }
  Rank& rank() const { return rank_; }
  int place() const { return place_; }
  int size() const { return size_; }
  uint64_t limit_ms() const { return limit_ms_; }
  // The kit had to end a wait on it by abort, since the plugin did not.
  bool gave_up() const { return gave_up_; }
  void GiveUp();
  void Destroy();

 private:
  Rank& rank_;
  sy_communicator* handle_;
  int place_, size_;
  uint64_t limit_ms_, sequence_ = 0;
  bool gave_up_ = false;
  Stream stream_;
};

class Rank {
 public:
  Rank(const sy_collective_v2& api, sy_instance* instance, const nlohmann::json& task);
  // Asks the plugin what it can do, and opens the device. kUnimplemented where these ranks cannot be tried here.
  Status Open();
  // All ranks under one name. `limit_ms` for joining and for every call.
  StatusOr<std::unique_ptr<Link>> Join(const std::string& name, uint64_t limit_ms = kLimitMs);
  // The first half of it: init and no poll. `extensions` of the request, or null.
  StatusOr<std::unique_ptr<Link>> Begin(const std::string& name, uint64_t limit_ms, int rank, int size,
                                        const sy_extension* extensions = nullptr);
  // Polls until the link is ready; the wait ends as Link::Finish does.
  Status Await(Link& link);
  StatusOr<Area> Memory(const Bytes& payload) { return Area::Make(device_.get(), payload); }
  StatusOr<Area> Empty(uint64_t bytes) { return Memory(Bytes(bytes, 0xFF)); }

  const sy_collective_v2& api() const { return api_; }
  sy_instance* instance() const { return instance_; }
  bool Sums() const;  // it has all_reduce for sums of f32, with which most checks move data
  const sy_collective_info& info() const { return info_; }
  Device* device() const { return device_.get(); }
  FileStore& store() { return store_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool on_stream() const { return info_.completion == SY_COMPLETES_ON_STREAM; }
  // kUnavailable once a rank has died, or has failed in its check and will not come to the next call.
  Status Health() const;

  static constexpr uint64_t kLimitMs = 20000, kGraceMs = 2000;

 private:
  bool Reaches(const std::string& memory_kind) const;

  const sy_collective_v2& api_;
  sy_instance* const instance_;
  FileStore store_;
  const int rank_, size_, first_device_;
  const std::string device_plugin_;
  std::unique_ptr<Device> device_;
  sy_collective_info info_{};
};

// Element i of what `rank` sends, and the reduction of all ranks: whole numbers, so small that every dtype holds every
// result exactly and in any order, of both signs where the dtype has them, and different for every rank.
double Sent(int rank, uint64_t i, sy_dtype dtype, int reduction);
double Reduced(int size, uint64_t i, sy_dtype dtype, int reduction);

template <typename F>
Bytes Make(uint64_t count, sy_dtype dtype, F element) {
  std::vector<double> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = element(i);
  return Encode(values, dtype);
}

}  // namespace switchyard::conform
