#include "core/parallel/mesh_interpreter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/abi/ops.h"
#include "core/graph/graph.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/mesh_exchange.h"
#include "core/parallel/mesh_player.h"
#include "core/parallel/run_node.h"
#include "core/plan/kernels.h"
#include "core/runtime/collectives/composition.h"

namespace switchyard {
namespace {

using Bytes = std::vector<char>;

const sy_collective_attributes& CollectiveOf(const Node& node) {
  return node.attributes.as<sy_collective_attributes>();
}

}  // namespace

struct MeshInterpreter::Impl {
  Impl(const Mesh& m, Device& d) : mesh(m), device(d), kernels(d, {}), players(static_cast<size_t>(m.size())) {}
  Mesh mesh;
  Device& device;
  KernelCache kernels;
  std::vector<Player> players;
  std::vector<std::vector<Group>> groups;  // by rank, then by index

  StatusOr<std::shared_ptr<Buffer>> NewBuffer(uint64_t bytes) {
    SY_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(std::max<uint64_t>(bytes, 1)));
    return std::make_shared<Buffer>(std::move(buffer));
  }
  StatusOr<char*> AddressOf(const Buffer& buffer) {
    SY_ASSIGN_OR_RETURN(void* const native, device.AddressOf(buffer));
    return static_cast<char*>(native);
  }
  StatusOr<Bytes> Contents(Player& p, Ref ref) {
    SY_ASSIGN_OR_RETURN(const char* const address, AddressOf(*p.values.at(ref)));
    return Bytes(address, address + p.graph->type(ref).bytes());
  }
  Status Fill(Player& p, Ref ref, const Bytes& contents) {
    const auto bytes = static_cast<uint64_t>(p.graph->type(ref).bytes());
    if (contents.size() != bytes)
      return InvalidArgument("{} bytes for {}", contents.size(), ToString(p.graph->type(ref)));
    SY_ASSIGN_OR_RETURN(p.values[ref], NewBuffer(bytes));
    SY_ASSIGN_OR_RETURN(char* const address, AddressOf(*p.values[ref]));
    std::copy(contents.begin(), contents.end(), address);
    return OkStatus();
  }

  Status RunKernel(Player& p, const Node& node);
  Status Accumulate(Player& p, const Node& node);
  Status Compute(Player& p, const Node& node);
  StatusOr<bool> Communicate(int rank);
  Status Exchange(const std::vector<int>& ranks, const Node& node);
  Status Finish(Player& p);
};

Status MeshInterpreter::Impl::RunKernel(Player& p, const Node& node) {
  std::vector<const Buffer*> inputs;
  for (const Ref& input : node.inputs) inputs.push_back(p.values.at(input).get());
  SY_ASSIGN_OR_RETURN(std::vector<Buffer> outputs, RunNode(kernels, *p.graph, node, inputs));
  for (size_t o = 0; o < outputs.size(); ++o)
    p.values[{p.at, static_cast<int>(o)}] = std::make_shared<Buffer>(std::move(outputs[o]));
  return OkStatus();
}

Status MeshInterpreter::Impl::Accumulate(Player& p, const Node& node) {
  SY_ASSIGN_OR_RETURN(Bytes sum, Contents(p, node.inputs[0]));
  SY_ASSIGN_OR_RETURN(const Bytes added, Contents(p, node.inputs[1]));
  switchyard::Accumulate(sum.data(), added.data(), static_cast<uint64_t>(node.outputs[0].elements()), SY_F32, SY_SUM);
  return Fill(p, {p.at, 0}, sum);
}

// A node that needs no other rank.
Status MeshInterpreter::Impl::Compute(Player& p, const Node& node) {
  if (node.input) {
    const auto given = p.named.find(node.name);
    if (given != p.named.end()) return Fill(p, {p.at, 0}, given->second);
    Bytes contents(static_cast<size_t>(node.outputs[0].bytes()));
    if (node.input->content != nullptr) std::memcpy(contents.data(), node.input->content->data(), contents.size());
    return Fill(p, {p.at, 0}, contents);
  }
  if (IsAccumulate(node)) return Accumulate(p, node);
  if (TraitsOf(node.op).view || TraitsOf(node.op).transfer) {  // all lies on the host
    p.values[{p.at, 0}] = p.values.at(node.inputs[0]);
  } else if (IsAssign(node)) {
    p.written.push_back({p.graph->node(node.inputs[0].node).name, node.inputs[1]});
  } else if (IsOutput(node)) {
    p.written.push_back({node.name, node.inputs[0]});
  } else {
    return RunKernel(p, node);
  }
  return OkStatus();
}

// The collective at which all of `ranks`, in the order of the group, have arrived.
Status MeshInterpreter::Impl::Exchange(const std::vector<int>& ranks, const Node& node) {
  const auto count = ranks.size();
  std::vector<Bytes> sent;
  for (const int rank : ranks) {
    Player& p = players[static_cast<size_t>(rank)];
    SY_ASSIGN_OR_RETURN(Bytes contents, Contents(p, p.node().inputs[0]));
    if (!sent.empty() && contents.size() != sent[0].size()) {
      return InvalidArgument("rank {} sends {} bytes, rank {} sends {}", rank, contents.size(), ranks[0],
                             sent[0].size());
    }
    sent.push_back(std::move(contents));
  }
  const auto& a = CollectiveOf(node);
  if (a.root < 0 || static_cast<size_t>(a.root) >= count)
    return InvalidArgument("there is no rank {} in the group", a.root);
  const Player& first = players[static_cast<size_t>(ranks[0])];  // whose graph may differ from the others'
  const auto dtype = static_cast<sy_dtype>(first.graph->type(first.node().inputs[0]).dtype);
  const std::vector<Bytes> received = Exchanged(*ExchangeOf(node), a, dtype, sent);
  for (size_t i = 0; i < count; ++i) {
    Player& p = players[static_cast<size_t>(ranks[i])];
    SY_RETURN_IF_ERROR(Fill(p, {p.at, 0}, received[i]));
    p.Advance();
  }
  return OkStatus();
}

// False where the rank has to wait for another.
StatusOr<bool> MeshInterpreter::Impl::Communicate(int rank) {
  Player& p = players[static_cast<size_t>(rank)];
  const Node& node = p.node();
  const auto& a = CollectiveOf(node);
  const auto group = static_cast<size_t>(a.group);
  if (group >= groups[static_cast<size_t>(rank)].size()) return InvalidArgument("there is no group {}", a.group);
  const std::vector<int>& ranks = groups[static_cast<size_t>(rank)][group].ranks;
  if (IsMessage(node)) {
    if (a.root < 0 || static_cast<size_t>(a.root) >= ranks.size() || ranks[static_cast<size_t>(a.root)] == rank)
      return InvalidArgument("there is no peer {} in a group of {}", a.root, ranks.size());
    const int peer = ranks[static_cast<size_t>(a.root)];
    if (ExchangeOf(node) == Exchange::kReceive) return false;  // the sender hands it over
    Player& to = players[static_cast<size_t>(peer)];
    if (to.ended()) return InvalidArgument("rank {} has ended, which is to receive", peer);
    if (ExchangeOf(to.node()) != Exchange::kReceive) return false;
    const auto& theirs = groups[static_cast<size_t>(peer)].at(static_cast<size_t>(CollectiveOf(to.node()).group)).ranks;
    if (theirs.at(static_cast<size_t>(CollectiveOf(to.node()).root)) != rank) return false;
    SY_ASSIGN_OR_RETURN(const Bytes contents, Contents(p, node.inputs[0]));
    SY_RETURN_IF_ERROR(Fill(to, {to.at, 0}, contents));
    to.Advance();
    p.Advance();
    return true;
  }
  for (const int other : ranks) {
    const Player& q = players[static_cast<size_t>(other)];
    if (q.ended()) return InvalidArgument("rank {} has ended, which is to take part", other);
    if (!IsCollective(q.node().op) || CollectiveOf(q.node()).group != a.group || IsMessage(q.node())) return false;
    if (q.node().op != node.op || !(q.node().attributes == node.attributes))
      return InvalidArgument("rank {} is at {} ({}) instead", other, q.node().name, q.node().op);
  }
  SY_RETURN_IF_ERROR(Exchange(ranks, node));
  return true;
}

Status MeshInterpreter::Impl::Finish(Player& p) {
  std::vector<std::pair<std::string, Bytes>> values;
  for (const auto& [name, ref] : p.written) {
    SY_ASSIGN_OR_RETURN(Bytes contents, Contents(p, ref));
    values.emplace_back(name, std::move(contents));
  }
  for (auto& [name, contents] : values) p.named[name] = std::move(contents);
  p.values.clear();
  return OkStatus();
}

MeshInterpreter::MeshInterpreter(const Mesh& mesh, Device& reference)
    : impl_(std::make_unique<Impl>(mesh, reference)) {}
MeshInterpreter::~MeshInterpreter() = default;

void MeshInterpreter::Set(int rank, const std::string& name, const void* data, uint64_t bytes) {
  const auto* const begin = static_cast<const char*>(data);
  impl_->players.at(static_cast<size_t>(rank)).named[name].assign(begin, begin + bytes);
}

StatusOr<std::vector<char>> MeshInterpreter::Get(int rank, const std::string& name) const {
  const Player& p = impl_->players.at(static_cast<size_t>(rank));
  const auto found = p.named.find(name);
  if (found == p.named.end()) return NotFound("rank {} holds no {}", rank, name);
  return found->second;
}

Status MeshInterpreter::Run(const std::vector<const Graph*>& graphs) {
  Impl& impl = *impl_;
  const int ranks = impl.mesh.size();
  if (graphs.size() != static_cast<size_t>(ranks))
    return InvalidArgument("{} graphs for {} ranks", graphs.size(), ranks);
  impl.groups.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    SY_ASSIGN_OR_RETURN(auto groups, GroupsOf(impl.mesh, rank));
    impl.groups.push_back(std::move(groups));
    impl.players[static_cast<size_t>(rank)].Begin(*graphs[static_cast<size_t>(rank)]);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < ranks; ++rank) {
      Player& p = impl.players[static_cast<size_t>(rank)];
      while (!p.ended()) {
        const Node& node = p.node();
        if (!IsCollective(node.op)) {
          const Status computed = impl.Compute(p, node);
          if (!computed.ok()) return Annotate(computed, fmt::format("rank {}, {} ({})", rank, node.name, node.op));
          p.Advance();
        } else {
          const StatusOr<bool> done = impl.Communicate(rank);
          if (!done.ok()) return Annotate(done.status(), fmt::format("rank {}, {} ({})", rank, node.name, node.op));
          if (!*done) break;
        }
        moved = true;
      }
    }
  }
  std::string waiting;
  for (int rank = 0; rank < ranks; ++rank) {
    const Player& p = impl.players[static_cast<size_t>(rank)];
    if (!p.ended()) waiting += fmt::format("{}rank {} in {}", waiting.empty() ? "" : ", ", rank, p.node().name);
  }
  if (!waiting.empty()) return FailedPrecondition("ranks wait for each other: {}", waiting);
  for (Player& p : impl.players) SY_RETURN_IF_ERROR(impl.Finish(p));
  return OkStatus();
}

}  // namespace switchyard
