#include "tools/conform/collective_rank.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "core/runtime/collectives/composition.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint8_t kGuardByte = 0xA5;
constexpr auto kLookForDead = std::chrono::milliseconds(50);

}  // namespace

double Sent(int rank, uint64_t i, sy_dtype dtype, int reduction) {
  const uint64_t r = static_cast<uint64_t>(rank);
  if (reduction == SY_PRODUCT)
    return dtype == SY_U8 || (i + r) % 3 != 2 ? 1 + static_cast<double>((i + r) % 3 % 2) : -1;
  const double value = static_cast<double>((i * 7 + r * 5) % 23);
  return dtype == SY_U8 ? 1 + value : value - 11;
}

double Reduced(int size, uint64_t i, sy_dtype dtype, int reduction) {
  double result = Sent(0, i, dtype, reduction);
  for (int rank = 1; rank < size; ++rank) {
    const double next = Sent(rank, i, dtype, reduction);
    if (reduction == SY_SUM) result += next;
    if (reduction == SY_PRODUCT) result *= next;
    if (reduction == SY_MAX) result = std::max(result, next);
    if (reduction == SY_MIN) result = std::min(result, next);
  }
  return result;
}

StatusOr<Area> Area::Make(Device* device, const Bytes& payload) {
  Area area;
  area.bytes_ = payload.size();
  if (device == nullptr) {
    area.guard_ = 64;
    area.host_ = std::make_shared<Bytes>(area.bytes_ + 2 * area.guard_, kGuardByte);
    area.address_ = area.host_->data() + area.guard_;
  } else {
    area.device_ = device;
    area.guard_ = std::max<uint64_t>(64, device->info().alignment);
    SY_ASSIGN_OR_RETURN(area.buffer_, device->Allocate(area.bytes_ + 2 * area.guard_));
    SY_ASSIGN_OR_RETURN(void* const native, device->AddressOf(area.buffer_));
    area.address_ = static_cast<char*>(native) + area.guard_;
    const Bytes image(area.bytes_ + 2 * area.guard_, kGuardByte);
    SY_RETURN_IF_ERROR(device->Upload(area.buffer_.at(0), image.data(), image.size()));
  }
  SY_RETURN_IF_ERROR(area.Write(0, payload));
  return area;
}

StatusOr<Area> Area::Over(Device* device, void* address, uint64_t bytes) {
  Area area;
  area.bytes_ = bytes;
  area.address_ = address;
  if (device == nullptr) return area;
  area.device_ = device;
  SY_ASSIGN_OR_RETURN(area.buffer_, device->Import(address, device->info().memory_kind, bytes));
  return area;
}

Status Area::Write(uint64_t begin, const Bytes& bytes) {
  if (bytes.empty()) return OkStatus();
  if (device_ != nullptr) return device_->Upload(buffer_.at(guard_ + begin), bytes.data(), bytes.size());
  std::memcpy(at(begin), bytes.data(), bytes.size());
  return OkStatus();
}

StatusOr<Bytes> Area::Read() const {
  Bytes image(bytes_ + 2 * guard_);
  if (device_ == nullptr) {
    std::memcpy(image.data(), static_cast<const char*>(address_) - guard_, image.size());
  } else if (!image.empty()) {
    SY_RETURN_IF_ERROR(device_->Download(image.data(), buffer_.at(0), image.size()));
  }
  for (uint64_t i = 0; i < guard_; ++i) {
    if (image[i] != kGuardByte || image[image.size() - 1 - i] != kGuardByte) {
      return Internal("wrote outside of a buffer of {} bytes", bytes_);
    }
  }
  return Bytes(image.begin() + static_cast<ptrdiff_t>(guard_), image.end() - static_cast<ptrdiff_t>(guard_));
}

Status Area::Expect(const Bytes& expected) const { return ExpectPart(0, expected); }

Status Area::ExpectPart(uint64_t begin, const Bytes& expected) const {
  SY_ASSIGN_OR_RETURN(const Bytes found, Read());
  for (uint64_t i = 0; i < expected.size(); ++i) {
    if (found[begin + i] == expected[i]) continue;
    return Internal("byte {} of {} is {}, expected {}", i, expected.size(), found[begin + i], expected[i]);
  }
  return OkStatus();
}

Link::Link(Rank& rank, sy_communicator* handle, int place, int size, uint64_t limit_ms)
    : rank_(rank), handle_(handle), place_(place), size_(size), limit_ms_(limit_ms) {}

Link::~Link() { Destroy(); }

void Link::Release::operator()(sy_request* request) const { link->rank_.api().request_release(link->handle_, request); }

void Link::Destroy() {
  if (handle_ != nullptr) rank_.api().destroy(std::exchange(handle_, nullptr));
}

void Link::GiveUp() {
  gave_up_ = true;
  rank_.api().abort(handle_);
}

StatusOr<Link::Pending> Link::Start(const std::string& tag, const char* what, const Function& function) {
  Pending pending;
  pending.link = this;
  pending.what = what;
  pending.began = Clock::now();
  if (rank_.on_stream() && rank_.device() != nullptr && stream_.handle() == nullptr) {
    SY_ASSIGN_OR_RETURN(stream_, rank_.device()->NewStream(1));
  }
  sy_call call{};
  call.header = SY_HEADER(sy_call);
  call.tag = tag.c_str();
  call.sequence = sequence_++;
  if (rank_.on_stream()) {
    call.stream = stream_.handle();
    SY_ASSIGN_OR_RETURN(call.native_stream, rank_.device()->NativeStream(stream_));
  }
  sy_error error = EmptyError();
  sy_request* request = nullptr;
  SY_RETURN_IF_ERROR(FromAbi(function(&call, &request, &error), error, what));
  if (request != nullptr && rank_.on_stream()) {
    return Internal("a collective that completes on the stream answered with a request");
  }
  pending.request = {request, Release{this}};
  SY_RETURN_IF_ERROR(Mark(pending));
  return pending;
}

Status Link::Mark(Pending& pending) {
  pending.done = !rank_.on_stream() && pending.request == nullptr;
  if (!rank_.on_stream()) return OkStatus();
  SY_ASSIGN_OR_RETURN(pending.event, rank_.device()->NewEvent());
  return pending.event.Record(stream_);
}

StatusOr<bool> Link::Look(Pending& pending) {
  if (pending.done) return true;
  sy_error error = EmptyError();
  if (pending.request != nullptr) {
    const sy_status status = rank_.api().request_poll(handle_, pending.request.get(), &error);
    if (status == SY_IN_PROGRESS) return false;
    pending.done = true;
    pending.request.reset();
    SY_RETURN_IF_ERROR(FromAbi(status, error, pending.what));
    return true;
  }
  auto done = pending.event.Done();
  // What went wrong on the device's stream the communicator tells.
  const sy_status status = rank_.api().poll(handle_, &error);
  if (status != SY_OK && status != SY_IN_PROGRESS) return FromAbi(status, error, pending.what);
  if (!done.ok()) return done.status();
  pending.done = *done;
  return pending.done;
}

Status Link::Finish(Pending& pending) {
  const auto limit = pending.began + std::chrono::milliseconds(limit_ms_ + Rank::kGraceMs);
  auto look_for_dead = Clock::now() + kLookForDead;
  Status reason;
  Clock::time_point aborted;
  for (int rounds = 0;; ++rounds) {
    const auto done = Look(pending);
    const auto now = Clock::now();
    if (!reason.ok() && (!done.ok() || *done)) return reason;
    if (!done.ok()) return done.status();
    if (*done) return OkStatus();
    if (!reason.ok() && now > aborted + std::chrono::milliseconds(Rank::kGraceMs)) {
      return Internal("{}, and the call did not return within {} ms after that", Message(reason), Rank::kGraceMs);
    }
    if (reason.ok() && now > look_for_dead) {
      reason = rank_.Health();
      look_for_dead = now + kLookForDead;
    }
    if (reason.ok() && now > limit) {
      reason = DeadlineExceeded("{} did not end by itself within {} ms and was aborted", pending.what, limit_ms_);
    }
    if (!reason.ok() && aborted == Clock::time_point{}) {
      GiveUp();
      aborted = Clock::now();
    }
    if (rounds > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

Status Link::Do(const std::string& tag, const char* what, const Function& function) {
  SY_ASSIGN_OR_RETURN(Pending pending, Start(tag, what, function));
  return Finish(pending);
}

Status Link::AllReduce(uint64_t count, sy_dtype dtype, int reduction, bool in_place) {
  const Bytes sent = Make(count, dtype, [&](uint64_t i) { return Sent(place_, i, dtype, reduction); });
  SY_ASSIGN_OR_RETURN(const Area send, rank_.Memory(sent));
  SY_ASSIGN_OR_RETURN(const Area receive, rank_.Memory(in_place ? sent : Bytes(sent.size(), 0xFF)));
  const void* const from = in_place ? receive.at() : send.at();
  SY_RETURN_IF_ERROR(Do("all_reduce", "all_reduce", [&](const sy_call* call, sy_request** request, sy_error* error) {
    return rank_.api().all_reduce(handle_, call, from, receive.at(), count, dtype, reduction, request, error);
  }));
  if (!in_place) SY_RETURN_IF_ERROR(Annotate(send.Expect(sent), "send buffer"));
  return Annotate(receive.Expect(Make(count, dtype, [&](uint64_t i) { return Reduced(size_, i, dtype, reduction); })),
                  fmt::format("{} elements{}", count, in_place ? " in place" : ""));
}

Rank::Rank(const sy_collective_v2& api, sy_instance* instance, const nlohmann::json& task)
    : api_(api),
      instance_(instance),
      store_(task.value("folder", "")),
      rank_(task.value("rank", 0)),
      size_(task.value("size", 1)),
      first_device_(task.value("device", 0)),
      device_plugin_(task.value("device_plugin", "")) {}

bool Rank::Reaches(const std::string& kind) const {
  for (const char* const* reached = info_.memory_kinds; *reached != nullptr; ++reached) {
    if (kind == *reached) return true;
  }
  return false;
}

bool Rank::Sums() const {
  return api_.all_reduce != nullptr && api_.reduces(instance_, SY_SUM, SY_F32, nullptr) == SY_OK;
}

Status Rank::Open() {
  info_.header = SY_HEADER(sy_collective_info);
  sy_error error = EmptyError();
  SY_RETURN_IF_ERROR(FromAbi(api_.query(instance_, &info_, &error), error, "query"));
  if (device_plugin_.empty()) {
    if (Reaches("host") && info_.completion == SY_COMPLETES_BY_POLL) return OkStatus();
    return Unimplemented("it takes no host memory: give its ranks memory of a backend with --device=NAME");
  }
  SY_ASSIGN_OR_RETURN(const auto plugin, Registry::Get().Find(PluginKind::kBackend, device_plugin_));
  std::string reason;
  SY_ASSIGN_OR_RETURN(const int count, plugin->DeviceCount(&reason));
  const bool distinct = info_.flags & SY_COLLECTIVE_DISTINCT_DEVICES;
  if (count <= first_device_ || (distinct && size_ > count - first_device_)) {
    return Unimplemented("{} ranks need {} devices of their own from device {} on; {} has {}{}{}", size_,
                         distinct ? size_ : 1, first_device_, plugin->name(), count, reason.empty() ? "" : ": ",
                         reason);
  }
  SY_ASSIGN_OR_RETURN(device_, Device::Open(*plugin, first_device_ + rank_ % (count - first_device_), {}));
  const std::string& kind = device_->info().memory_kind;
  if (Reaches(kind)) return OkStatus();
  std::vector<std::string> kinds;
  for (const char* const* reached = info_.memory_kinds; *reached != nullptr; ++reached) kinds.push_back(*reached);
  return FailedPrecondition("it does not reach the memory of {} (kind \"{}\"; it reaches {})", plugin->name(), kind,
                            fmt::join(kinds, ", "));
}

StatusOr<std::unique_ptr<Link>> Rank::Begin(const std::string& name, uint64_t limit_ms, int rank, int size,
                                            const sy_extension* extensions) {
  const std::vector<int32_t> hosts(static_cast<size_t>(std::max(size, 1)), 0);
  sy_init_request request{};
  request.header = SY_HEADER(sy_init_request);
  request.header.next = extensions;
  request.rank = rank;
  request.size = size;
  request.hosts = hosts.data();
  request.name = name.c_str();
  request.store = store_.interface();
  request.timeout_ms = limit_ms;
  if (device_ != nullptr) {
    request.device = device_->handle();
    request.backend = &device_->plugin().table();
    request.device_index = device_->info().index;
  }
  sy_communicator* handle = nullptr;
  sy_error error = EmptyError();
  SY_RETURN_IF_ERROR(FromAbi(api_.init(instance_, &request, &handle, &error), error, "init"));
  if (handle == nullptr) return Internal("init succeeded without a communicator");
  return std::make_unique<Link>(*this, handle, rank, size, limit_ms);
}

Status Rank::Await(Link& link) {
  const auto began = Clock::now();
  const auto limit = began + std::chrono::milliseconds(link.limit_ms() + kGraceMs);
  auto look_for_dead = began + kLookForDead;
  Status reason;
  Clock::time_point aborted;
  for (;;) {
    sy_error error = EmptyError();
    const sy_status status = api_.poll(link.handle(), &error);
    const auto now = Clock::now();
    if (status != SY_IN_PROGRESS) return reason.ok() ? FromAbi(status, error, "joining") : reason;
    if (!reason.ok() && now > aborted + std::chrono::milliseconds(kGraceMs)) {
      return Internal("{}, and poll did not answer with an error within {} ms after that", Message(reason), kGraceMs);
    }
    if (reason.ok() && now > look_for_dead) {
      reason = Health();
      look_for_dead = now + kLookForDead;
    }
    if (reason.ok() && now > limit) {
      reason = DeadlineExceeded("joining did not end by itself within {} ms and was aborted", link.limit_ms());
    }
    if (!reason.ok() && aborted == Clock::time_point{}) {
      link.GiveUp();
      aborted = Clock::now();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

StatusOr<std::unique_ptr<Link>> Rank::Join(const std::string& name, uint64_t limit_ms) {
  SY_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, Begin(name, limit_ms, rank_, size_));
  SY_RETURN_IF_ERROR(Await(*link));
  return link;
}

Status Rank::Health() const {
  std::string who;
  if (store_.Wait("dead", who, 0)) return Unavailable("a process died");
  if (store_.Wait("failed", who, 0)) return Unavailable("rank {} has failed", who);
  // Under mpirun nobody announces a death: a rank that means to die leaves its process id.
  if (!store_.Wait("victim", who, 0)) return OkStatus();
  const bool gone = kill(static_cast<pid_t>(std::stol(who)), 0) != 0 && errno == ESRCH;
  return gone ? Unavailable("process {} died", who) : OkStatus();
}

}  // namespace switchyard::conform
