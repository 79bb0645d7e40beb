#include <sys/mman.h>

#include <thread>

#include "tools/conform/collective_run.h"
#include "tools/conform/given_struct.h"

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kDropLimitMs = 6000, kMessage = 1 << 20;  // bytes that a peer keeps back
constexpr auto kAtOnce = std::chrono::milliseconds(2000);

// Host memory that is really gone afterwards: whoever touches it then dies of it. On a device, memory that was freed.
class Mortal {
 public:
  static StatusOr<Mortal> Make(Rank& rank) {
    Mortal mortal;
    if (rank.device() != nullptr) {
      SY_ASSIGN_OR_RETURN(mortal.area_, rank.Empty(kMessage));
      mortal.address_ = mortal.area_.at();
      return mortal;
    }
    void* const pages = mmap(nullptr, kMessage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return ResourceExhausted("no memory for a message of {} bytes", kMessage);
    mortal.address_ = mortal.pages_ = pages;
    return mortal;
  }
  void* address() const { return address_; }
  // The addresses stay taken, so that nothing else comes to lie there.
  void Die() {
    if (pages_ != nullptr) mprotect(pages_, kMessage, PROT_NONE);
    area_ = Area();
  }

 private:
  Area area_;
  void *pages_ = nullptr, *address_ = nullptr;
};

StatusOr<Link::Pending> StartReceiving(Link& link, const Mortal& memory) {
  const sy_transfer transfer = {link.size() - 1, 0, memory.address(), kMessage};
  return link.Start("kept back", "send_recv_batch", [&](const sy_call* call, sy_request** request, sy_error* error) {
    return link.rank().api().send_recv_batch(link.handle(), call, &transfer, 1, request, error);
  });
}

// The last rank, once the others have let go: sends what they waited for. How that ends is the plugin's affair, but it
// has to end.
Status SendLate(Link& link) {
  Rank& rank = link.rank();
  std::string value;
  for (int of = 0; of + 1 < link.size(); ++of) {
    if (!rank.store().Wait(fmt::format("dropped/{}", of), value, Rank::kLimitMs)) {
      return DeadlineExceeded("rank {} did not come", of);
    }
  }
  SY_ASSIGN_OR_RETURN(const Area area, rank.Memory(Bytes(kMessage, 0x77)));
  std::vector<sy_transfer> transfers;
  for (int to = 0; to + 1 < link.size(); ++to) {
    transfers.insert(transfers.end(), 2, sy_transfer{to, 1, area.at(), kMessage});
  }
  const Status sent =
      link.Do("kept back", "send_recv_batch", [&](const sy_call* call, sy_request** request, sy_error* error) {
        return rank.api().send_recv_batch(link.handle(), call, transfers.data(),
                                          static_cast<uint32_t>(transfers.size()), request, error);
      });
  rank.store().Put("dropped/late", "sent");
  return sent.code() == absl::StatusCode::kInternal ? sent : OkStatus();
}

Status DropRequests(Link& link) {
  Rank& rank = link.rank();
  const sy_collective_v2& api = rank.api();
  SY_ASSIGN_OR_RETURN(Mortal first_memory, Mortal::Make(rank));
  SY_ASSIGN_OR_RETURN(Mortal second_memory, Mortal::Make(rank));
  SY_ASSIGN_OR_RETURN(Link::Pending first, StartReceiving(link, first_memory));
  SY_ASSIGN_OR_RETURN(Link::Pending second, StartReceiving(link, second_memory));
  if (first.request == nullptr || second.request == nullptr) {
    return Internal("a message had come before it was sent");
  }
  WatchedError error;
  for (int poll = 0; poll < 20; ++poll) {
    for (const Link::Pending* pending : {&first, &second}) {
      const sy_status status = api.request_poll(link.handle(), pending->request.get(), error.get());
      SY_RETURN_IF_ERROR(error.Judge(status, "request_poll"));
      SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_IN_PROGRESS}, "request_poll of a message that was not sent"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto began = Clock::now();
  first.request.reset();
  if (Clock::now() > began + kAtOnce) {
    return Internal("request_release of a call that had not ended took {} ms: it waited",
                    (Clock::now() - began) / std::chrono::milliseconds(1));
  }
  first_memory.Die();
  sy_status status = SY_IN_PROGRESS;
  while (status == SY_IN_PROGRESS && Clock::now() < began + 2 * kAtOnce) {
    status = api.request_poll(link.handle(), second.request.get(), error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, "request_poll"));
  }
  SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_ABORTED}, "a call beside one that was dropped"));
  for (int again = 0; again < 3; ++again) {
    status = api.request_poll(link.handle(), second.request.get(), error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, "request_poll"));
    SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_ABORTED}, "an aborted call that is polled again"));
  }
  second.request.reset();
  second_memory.Die();
  rank.store().Put(fmt::format("dropped/{}", link.place()), "gone");
  std::string value;
  if (!rank.store().Wait("dropped/late", value, Rank::kLimitMs)) return DeadlineExceeded("the last rank did not come");
  SY_ASSIGN_OR_RETURN(const Mortal third_memory, Mortal::Make(rank));
  auto third = StartReceiving(link, third_memory);
  const Status next = third.ok() ? link.Finish(*third) : third.status();
  if (next.code() != absl::StatusCode::kAborted) {
    return Internal("a call after one that was dropped: expected SY_ABORTED, found {}",
                    next.ok() ? "success" : next.ToString());
  }
  const auto leaving = Clock::now();
  link.Destroy();
  return Clock::now() < leaving + kAtOnce ? OkStatus() : Internal("destroy after a dropped call took longer than 2 s");
}

Status CheckDropped(Rank& rank) {
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join("dropped", kDropLimitMs));
  return link->place() == link->size() - 1 ? SendLate(*link) : DropRequests(*link);
}

// A request keeps its answer until it is released, and nothing is lost by asking again.
Status CheckPolledAgain(Rank& rank) {
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join("polled-again"));
  const sy_collective_v2& api = rank.api();
  const int next = (link->place() + 1) % link->size(), before = (link->place() + link->size() - 1) % link->size();
  bool any = false;
  for (int round = 0; round < 3; ++round) {
    const Bytes sent(kMessage, static_cast<uint8_t>(link->place() + 10 * round)),
        expected(kMessage, static_cast<uint8_t>(before + 10 * round));
    SY_ASSIGN_OR_RETURN(const Area send, rank.Memory(sent));
    SY_ASSIGN_OR_RETURN(const Area receive, rank.Empty(kMessage));
    const sy_transfer transfers[] = {{next, 1, send.at(), kMessage}, {before, 0, receive.at(), kMessage}};
    SY_ASSIGN_OR_RETURN(auto pending, link->Start("ring", "send_recv_batch", [&](auto* call, auto** request, auto* e) {
      return api.send_recv_batch(link->handle(), call, transfers, 2, request, e);
    }));
    WatchedError error;
    const auto limit = Clock::now() + std::chrono::milliseconds(Rank::kLimitMs);
    sy_status status = pending.request == nullptr ? SY_OK : SY_IN_PROGRESS;
    while (status == SY_IN_PROGRESS) {
      status = api.request_poll(link->handle(), pending.request.get(), error.get());
      SY_RETURN_IF_ERROR(error.Judge(status, "request_poll"));
      if (Clock::now() > limit) return DeadlineExceeded("messages around the ring did not arrive");
    }
    for (int again = 0; again < 3 && pending.request != nullptr; ++again) {
      any = true;
      SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK}, "a call that has ended and is polled again"));
      status = api.request_poll(link->handle(), pending.request.get(), error.get());
      SY_RETURN_IF_ERROR(error.Judge(status, "request_poll"));
    }
    SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK}, "messages around the ring, polled again"));
    pending.request.reset();
    SY_RETURN_IF_ERROR(receive.Expect(expected));
  }
  return any ? OkStatus() : Unimplemented("every call had finished when it returned");
}

}  // namespace

void CheckRequests(Checklist& list, Rank& rank) {
  list.Run("requests/polled_again", !rank.on_stream(), [&] { return CheckPolledAgain(rank); });
}

void CheckDroppedRequests(Checklist& list, Rank& rank) {
  list.Run("requests/dropped", !rank.on_stream(), [&] { return CheckDropped(rank); });
}

}  // namespace switchyard::conform
