#include "core/plan/regions.h"

#include <algorithm>
#include <optional>
#include <set>

#include "core/graph/verify.h"
#include "core/plan/region_order.h"

namespace switchyard {
namespace {

// Inputs, assignments, outputs, collectives and what runs on the host belong to the engine.
bool Offered(const Node& node) {
  return !node.host && !IsCollective(node.op) && (!IsStructural(node.op) || TraitsOf(node.op).view);
}

// A graph, or a part of it, as the plugin sees it. Points into itself and into `graph`.
struct RegionView {
  std::vector<sy_tensor> tensors;
  std::vector<std::vector<uint32_t>> node_inputs, node_outputs;
  std::vector<sy_region_node> nodes;
  std::vector<uint32_t> inputs, outputs;
  std::vector<Ref> input_refs, output_refs;
  sy_region region{};

  RegionView(const Graph& graph, const std::vector<int>& members, const IdLists& users) {
    const std::set<int> inside(members.begin(), members.end());
    std::map<Ref, uint32_t> numbers;
    const auto number = [&](Ref ref) {
      const auto [found, fresh] = numbers.emplace(ref, static_cast<uint32_t>(tensors.size()));
      if (fresh) {
        tensors.push_back(ToAbi(graph.type(ref)));
        if (!inside.contains(ref.node)) {
          inputs.push_back(found->second);
          input_refs.push_back(ref);
        }
      }
      return found->second;
    };
    for (const int id : members) {
      const Node& node = graph.node(id);
      auto& ins = node_inputs.emplace_back();
      auto& outs = node_outputs.emplace_back();
      for (const Ref& input : node.inputs) ins.push_back(number(input));
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        const Ref ref{id, static_cast<int>(o)};
        outs.push_back(number(ref));
        const bool leaves = std::any_of(users[id].begin(), users[id].end(), [&](int user) {
          const auto& read = graph.node(user).inputs;
          return !inside.contains(user) && std::find(read.begin(), read.end(), ref) != read.end();
        });
        if (leaves) {
          outputs.push_back(outs.back());
          output_refs.push_back(ref);
        }
      }
    }
    for (size_t i = 0; i < members.size(); ++i) {
      const Node& node = graph.node(members[i]);
      nodes.push_back({node.op.c_str(), node.attributes.data(), node.attributes.size(),
                       static_cast<uint32_t>(node_inputs[i].size()), static_cast<uint32_t>(node_outputs[i].size()),
                       node_inputs[i].data(), node_outputs[i].data()});
    }
    region.header = SY_HEADER(sy_region);
    region.tensor_count = static_cast<uint32_t>(tensors.size());
    region.node_count = static_cast<uint32_t>(nodes.size());
    region.input_count = static_cast<uint32_t>(inputs.size());
    region.output_count = static_cast<uint32_t>(outputs.size());
    region.tensors = tensors.data();
    region.nodes = nodes.data();
    region.inputs = inputs.data();
    region.outputs = outputs.data();
  }

  // Equal for regions that one kernel serves.
  std::string Key() const {
    std::string key = "region(";
    key.append(reinterpret_cast<const char*>(tensors.data()), tensors.size() * sizeof(sy_tensor));
    for (size_t i = 0; i < nodes.size(); ++i) {
      key += fmt::format(";{}({})({})", nodes[i].op, fmt::join(node_inputs[i], ","), fmt::join(node_outputs[i], ","));
      if (nodes[i].attributes_size > 0)
        key.append(static_cast<const char*>(nodes[i].attributes), nodes[i].attributes_size);
    }
    return key + fmt::format(")({})({})", fmt::join(inputs, ","), fmt::join(outputs, ","));
  }
};

// What the plugin marked, as lists of node ids; regions of fewer than two nodes are left out.
StatusOr<std::vector<std::vector<int>>> Claims(const Graph& graph, Device& device, const IdLists& users) {
  std::vector<int> offered;
  for (int id = 0; id < graph.size(); ++id) {
    if (Offered(graph.node(id))) offered.push_back(id);
  }
  const RegionView view(graph, offered, users);
  std::vector<uint32_t> claims(offered.size(), 0);
  const Status partitioned = device.Partition(view.region, claims);
  if (partitioned.code() == absl::StatusCode::kUnimplemented) return std::vector<std::vector<int>>();
  SY_RETURN_IF_ERROR(partitioned);
  std::map<uint32_t, std::vector<int>> by_number;
  for (size_t i = 0; i < claims.size(); ++i) {
    if (claims[i] != 0) by_number[claims[i]].push_back(offered[i]);
  }
  std::vector<std::vector<int>> regions;
  for (auto& [number, members] : by_number) {
    if (members.size() > 1) regions.push_back(std::move(members));
  }
  return regions;
}

}  // namespace

StatusOr<RegionGraph> ClaimRegions(Graph source, KernelCache& cache) {
  Device& device = cache.device();
  if (!device.claims_regions()) return RegionGraph{std::move(source), {}};
  const auto users = source.Users();
  SY_ASSIGN_OR_RETURN(std::vector<std::vector<int>> regions, Claims(source, device, users));

  std::vector<int> region_of(source.size(), -1);
  std::vector<RegionView> views;
  std::vector<ClaimedRegion> claimed;
  std::vector<std::vector<int>> accepted;
  for (const auto& members : regions) {
    RegionView view(source, members, users);
    SY_ASSIGN_OR_RETURN(Kernel * kernel, cache.FindRegion(view.Key(), view.region));
    if (kernel == nullptr) continue;
    ClaimedRegion region{kernel, static_cast<int>(members.size()), {}};
    for (const int id : members) {
      region_of[id] = static_cast<int>(accepted.size());
      region.cost.flops += CostOf(source, source.node(id)).flops;
    }
    for (const auto* refs : {&view.input_refs, &view.output_refs}) {
      for (const Ref& ref : *refs) region.cost.bytes += static_cast<double>(source.type(ref).bytes());
    }
    claimed.push_back(region);
    accepted.push_back(members);
    views.push_back(std::move(view));
  }
  if (accepted.empty()) return RegionGraph{std::move(source), {}};

  SY_ASSIGN_OR_RETURN(const std::vector<int> order,
                      OrderWithRegions(source, accepted, region_of, device.info().plugin));
  RegionGraph result;
  std::map<Ref, Value> value_of;
  std::vector<int> new_id(source.size(), -1);
  const auto map = [&](const std::vector<Ref>& refs) {
    std::vector<Value> values;
    for (const Ref& ref : refs) values.push_back(value_of.at(ref));
    return values;
  };
  for (const int item : order) {
    std::vector<Value> made;
    std::vector<Ref> replaced;
    if (item < 0) {
      const RegionView& view = views[-1 - item];
      const std::vector<int>& members = accepted[-1 - item];
      const Node& first = source.node(members.front());
      std::vector<TensorType> types;
      for (const Ref& ref : view.output_refs) types.push_back(source.type(ref));
      result.graph.SetPhase(first.phase);
      made = result.graph.Region(map(view.input_refs), types, first.where, "region/" + first.name);
      replaced = view.output_refs;
      result.regions[result.graph.size() - 1] = claimed[-1 - item];
      for (const int id : members) new_id[id] = result.graph.size() - 1;
    } else {
      const Node& node = source.node(item);
      if (node.input) {
        made = {result.graph.Input(node.name, node.outputs[0], *node.input, node.where)};
      } else {
        made = result.graph.Clone(source, item, map(node.inputs));
      }
      for (size_t o = 0; o < made.size(); ++o) replaced.push_back({item, static_cast<int>(o)});
      new_id[item] = result.graph.size() - 1;
      if (node.forward >= 0 && region_of[node.forward] < 0) result.graph.SetForward(new_id[item], new_id[node.forward]);
    }
    for (size_t o = 0; o < made.size(); ++o) value_of[replaced[o]] = made[o];
    const std::vector<int> alone = {item};
    const std::vector<int>& taken = item < 0 ? accepted[-1 - item] : alone;
    const int again = source.node(taken.front()).repeats;
    if (std::all_of(taken.begin(), taken.end(), [&](int id) { return source.node(id).repeats >= 0; }))
      result.graph.SetRepeats(new_id[taken.front()], new_id[again]);
    for (const int id : taken) {
      for (const int earlier : source.node(id).control) {
        if (new_id[earlier] != new_id[id]) result.graph.AddControl(new_id[id], new_id[earlier]);
      }
    }
  }
  result.graph.SetPhase(Phase::kForward);
  Verify(result.graph, "regions");
  return result;
}

}  // namespace switchyard
