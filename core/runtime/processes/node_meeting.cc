#include "core/runtime/processes/node_meeting.h"

#include <unistd.h>

#include <chrono>
#include <numeric>
#include <sstream>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/secret.h"
#include "core/runtime/processes/token.h"

namespace switchyard {
namespace {

// What the others do where somebody waits for them in vain.
std::string Advice(const LaunchOptions& options) {
  const std::string loopback =
      IsLoopback(options.master_address)
          ? fmt::format(
                "; {} is this host alone: between hosts --master_addr is an address of node 0 that the others reach",
                options.master_address)
          : "";
  if (options.node_rank > 0)
    return "check --master_addr and --master_port, and that switchyard launch --node_rank=0 runs there" + loopback;
  const auto own = IsOwnAddress(options.master_address);
  const std::string doubt =
      own.ok() && *own
          ? loopback
          : fmt::format("; {} is no address of this host, so is --node_rank=0 right here?", options.master_address);
  return fmt::format(
      "run `switchyard launch --nnodes={} --node_rank=... --master_addr={} --master_port={} ...` on each{}",
      options.nnodes, options.master_address, options.master_port, doubt);
}

}  // namespace

StatusOr<int> OpenNodeZero(const LaunchOptions& options) {
  if (options.nnodes > 1) {
    const auto own = IsOwnAddress(options.master_address);
    if (own.ok() && !*own)
      LogWarning("launch: --master_addr={} is no address of this host, but this is node 0", options.master_address);
  }
  const auto listener = ListenOn(IsLoopback(options.master_address) ? options.master_address : "", options.master_port);
  if (listener.ok()) return listener;
  return Annotate(listener.status(),
                  "launch: node 0 (another run, or a second launcher with --node_rank=0, may be there already; choose "
                  "another --master_port)");
}

StatusOr<std::unique_ptr<NodeMeeting>> NodeMeeting::Join(const LaunchOptions& options, int listener,
                                                         const std::vector<int>& gone) {
  std::unique_ptr<NodeMeeting> joined(new NodeMeeting);
  NodeMeeting& nodes = *joined;
  nodes.node_ = options.node_rank;
  nodes.links_.resize(static_cast<size_t>(options.nnodes));
  // Of itself a node says how many ranks it starts; node 0 also whether it may start them again, and the word by which
  // this run differs from others.
  SY_ASSIGN_OR_RETURN(const std::string run_word, RandomToken());
  SY_ASSIGN_OR_RETURN(const std::string token, RandomToken());
  const Member self{HostName(), getpid(),
                    options.node_rank != 0
                        ? fmt::to_string(options.nproc_per_node)
                        : fmt::format("{} {:d} {}", options.nproc_per_node, options.max_restarts > 0, run_word),
                    options.node_rank};
  MeetingTerms terms{"node", options.nnodes, token, Advice(options), options.least_nodes, gone};
  terms.patience = std::chrono::milliseconds(100 * options.rendezvous_timeout_s);  // a tenth of the time
  if (options.nnodes > 1) {
    SY_ASSIGN_OR_RETURN(terms.token, FindToken(IsLoopback(options.master_address), options.token_file));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.rendezvous_timeout_s);
  nodes.place_.port = options.master_port;
  nodes.members_ = {self};
  if (options.node_rank == 0) {
    SY_ASSIGN_OR_RETURN(nodes.place_.port, PortOf(listener));
    if (options.nnodes > 1) {
      SY_ASSIGN_OR_RETURN(nodes.links_, HoldMeeting(terms, listener, deadline, &nodes.members_));
    }
  } else {
    SY_ASSIGN_OR_RETURN(nodes.links_[0], AttendMeeting(terms, options.node_rank, self, {options.master_address},
                                                       options.master_port, deadline, &nodes.members_));
  }
  for (const auto& link : nodes.links_) {
    if (link != nullptr) link->WatchHost();
  }
  nodes.first_ranks_ = {0};
  nodes.place_.nodes = 0;
  for (size_t node = 0; node < nodes.members_.size(); ++node) {
    const Member& member = nodes.members_[node];
    const int ranks = std::atoi(member.about.c_str());
    const bool is_there = member.pid != 0;
    if (is_there && ranks < 1) {
      return InvalidArgument("launch: {} says that it starts \"{}\" ranks",
                             MemberName("node", static_cast<int>(node), member), member.about);
    }
    if (static_cast<int>(node) == options.node_rank) nodes.place_.node = nodes.place_.nodes;
    nodes.place_.nodes += is_there ? 1 : 0;
    nodes.first_ranks_.push_back(nodes.first_ranks_.back() + ranks);
  }
  nodes.place_.first_rank = nodes.first_ranks_[static_cast<size_t>(options.node_rank)];
  nodes.place_.world = nodes.first_ranks_.back();
  int ranks_of_node_zero = 0;
  std::string word;
  std::istringstream(nodes.members_[0].about) >> ranks_of_node_zero >> nodes.place_.restarts >> word;
  nodes.place_.token = Hexadecimal(HmacSha256(terms.token, "switchyard ranks " + word));
  return joined;
}

NodeMeeting::~NodeMeeting() {
  for (const auto& link : links_) {
    if (link == nullptr || !link->open()) continue;
    if (!failed_) link->Send(MessageType::kGoodbye);
    link->Flush();
  }
}

std::string NodeMeeting::Describe(int node) const {
  const size_t index = static_cast<size_t>(node);
  std::vector<int> ranks(static_cast<size_t>(first_ranks_[index + 1] - first_ranks_[index]));
  std::iota(ranks.begin(), ranks.end(), first_ranks_[index]);
  return fmt::format("node {} (launcher pid {} on host {}, {})", node, members_[index].pid, members_[index].host,
                     NameNumbers("rank", ranks));
}

void NodeMeeting::Tell(const NodeFailure& failure, int except) {
  failed_ = true;
  for (size_t node = 0; node < links_.size(); ++node) {
    if (links_[node] == nullptr || !links_[node]->open() || static_cast<int>(node) == except) continue;
    links_[node]->Send(MessageType::kFailure, {failure.text, std::to_string(failure.code)});
    links_[node]->Flush();
  }
}

void NodeMeeting::ReportFailure(const std::string& text, int code) {
  if (!failed_) Tell({text, code}, -1);
}

void NodeMeeting::AddTo(std::vector<pollfd>* polled) const {
  for (const auto& link : links_) {
    if (link != nullptr && link->open()) polled->push_back({link->descriptor(), POLLIN, 0});
  }
}

void NodeMeeting::SayAgain(bool again, const std::string& run) {
  for (const auto& link : links_) {
    if (link == nullptr || !link->open()) continue;
    link->Send(MessageType::kAgain, {again ? "1" : "0", run});
    link->Flush();
  }
}

std::vector<int> NodeMeeting::Gone() {
  Serve();
  std::vector<int> gone;
  for (size_t node = 1; node < links_.size(); ++node) {
    if (links_[node] == nullptr || !links_[node]->open()) gone.push_back(static_cast<int>(node));
  }
  return gone;
}

NodeFailure NodeMeeting::Serve() {
  for (size_t node = 0; node < links_.size(); ++node) {
    if (links_[node] == nullptr || !links_[node]->open()) continue;
    std::vector<Frame> messages;
    const bool alive = links_[node]->Receive(&messages);
    NodeFailure failure;
    bool said_goodbye = false;
    for (const Frame& message : messages) {
      said_goodbye |= message.type == MessageType::kGoodbye;
      if (message.type == MessageType::kFailure && message.fields.size() == 2)
        failure = {message.fields[0], std::max(1, std::atoi(message.fields[1].c_str()))};
      if (message.type == MessageType::kAgain && message.fields.size() == 2 && node_ != 0) {
        has_verdict_ = true;
        again_ = message.fields[0] == "1" ? message.fields[1] : "";
      }
    }
    if (!alive || said_goodbye) links_[node]->Close();
    if (!alive && !said_goodbye && failure.code == 0 && !failed_)
      failure = {Describe(static_cast<int>(node)) + " is gone", 1};
    if (failure.code == 0 || failed_) continue;
    Tell(failure, static_cast<int>(node));
    return failure;
  }
  return {};
}

}  // namespace switchyard
