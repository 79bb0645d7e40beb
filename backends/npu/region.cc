// region/2: two linear layers with an activation between them, and the two products of their gradient, are claimed and
// become one kernel. What passes between their nodes is scratch of that kernel and takes no place in the plan's memory,
// unless somebody outside reads it too.
#include <algorithm>
#include <map>
#include <set>

#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

bool Is(const sy_region_node& node, const char* op) { return std::strcmp(node.op, op) == 0; }

// A matmul; *activates if it ends in an activation, or in the gradient of one.
bool IsProduct(const sy_region_node& node, bool* activates) {
  if (!Is(node, "matmul") || node.attributes == nullptr) return false;
  sy_matmul_attributes a{};
  std::memcpy(&a, node.attributes, std::min<size_t>(node.attributes_size, sizeof a));
  *activates = *activates || a.activation != SY_ACTIVATION_NONE;
  return true;
}

// Whether something outside `members` reads them and is read by them in turn, which one kernel could not do.
bool IsConvex(const sy_region& graph, const std::set<uint32_t>& members) {
  std::set<uint32_t> inside, between;  // tensors of the members, and those made from them outside
  for (uint32_t n = *members.begin(); n <= *members.rbegin(); ++n) {
    const sy_region_node& node = graph.nodes[n];
    const bool member = members.contains(n);
    bool derived = false;
    for (uint32_t i = 0; i < node.input_count; ++i) {
      if (between.contains(node.inputs[i])) {
        if (member) return false;
        derived = true;
      }
      derived = derived || inside.contains(node.inputs[i]);
    }
    for (uint32_t o = 0; o < node.output_count; ++o) {
      if (member) inside.insert(node.outputs[o]);
      if (!member && derived) between.insert(node.outputs[o]);
    }
  }
  return true;
}

sy_status Partition(sy_device*, const sy_region* given, uint32_t* claims, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(given, error)) return SY_UNSUPPORTED;
    const sy_region graph = ReadStruct(given);
    std::map<uint32_t, uint32_t> producer;  // node by tensor
    for (uint32_t n = 0; n < graph.node_count; ++n) {
      claims[n] = 0;
      for (uint32_t o = 0; o < graph.nodes[n].output_count; ++o) producer[graph.nodes[n].outputs[o]] = n;
    }
    uint32_t regions = 0;
    for (uint32_t n = 0; n < graph.node_count; ++n) {
      if (!Is(graph.nodes[n], "matmul") || graph.nodes[n].input_count == 0) continue;
      std::set<uint32_t> members = {n};
      uint32_t tensor = graph.nodes[n].inputs[0];
      bool activates = false;
      for (; producer.contains(tensor); tensor = graph.nodes[producer[tensor]].inputs[0]) {
        const sy_region_node& between = graph.nodes[producer[tensor]];
        const bool activation = Is(between, "pointwise") && between.input_count == 1;
        if (!activation && !Is(between, "reshape")) break;
        activates = activates || activation;
        members.insert(producer[tensor]);
      }
      if (!producer.contains(tensor)) continue;
      const uint32_t first = producer[tensor];
      if (!IsProduct(graph.nodes[first], &activates) || !activates || graph.nodes[first].outputs[0] != tensor) continue;
      members.insert(first);
      const bool taken = std::any_of(members.begin(), members.end(), [&](uint32_t m) { return claims[m] != 0; });
      if (taken || !IsConvex(graph, members)) continue;
      ++regions;
      for (const uint32_t m : members) claims[m] = regions;
    }
    return SY_OK;
  });
}

// Where every tensor of the region lies.
std::vector<Operand> PlaceTensors(const sy_region& region, Sequence& s) {
  std::vector<Operand> places(region.tensor_count);
  for (uint32_t i = 0; i < region.input_count; ++i)
    places[region.inputs[i]] = MakeOperand(Operand::kInput, i, region.tensors[region.inputs[i]]);
  for (uint32_t o = 0; o < region.output_count; ++o)
    places[region.outputs[o]] = MakeOperand(Operand::kOutput, o, region.tensors[region.outputs[o]]);
  for (uint32_t t = 0; t < region.tensor_count; ++t) {
    if (places[t].home != Operand::kNone) continue;
    const Operand shape = MakeOperand(Operand::kScratch, 0, region.tensors[t]);
    places[t] = s.Scratch(shape.dtype, shape.dims);
  }
  return places;
}

// A node as a call of prepare would name it, checked as one.
sy_status CheckNode(const sy_region& region, const sy_region_node& node, sy_error* error) {
  std::vector<sy_tensor> inputs, outputs;
  for (uint32_t i = 0; i < node.input_count; ++i) inputs.push_back(region.tensors[node.inputs[i]]);
  for (uint32_t o = 0; o < node.output_count; ++o) outputs.push_back(region.tensors[node.outputs[o]]);
  sy_prepare_request request{};
  request.header = SY_HEADER(sy_prepare_request);
  request.op = node.op;
  request.op_version = 1;
  request.attributes = node.attributes;
  request.attributes_size = node.attributes_size;
  request.input_count = node.input_count;
  request.output_count = node.output_count;
  request.inputs = inputs.data();
  request.outputs = outputs.data();
  OpRequest read;
  return Is(node, "reshape") ? ReadOpRequest(request, node.op, 0, &read, error) : CheckRequest(request, error);
}

sy_status PrepareRegion(sy_device* device, const sy_region* given, uint64_t workspace_limit, sy_kernel** result,
                        sy_kernel_info* info, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(given, error) || !KnowsExtensions(info, error)) return SY_UNSUPPORTED;
    const sy_region region = ReadStruct(given);
    for (uint32_t n = 0; n < region.node_count; ++n) {
      if (const sy_status status = CheckNode(region, region.nodes[n], error); status != SY_OK) return status;
    }
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    Sequence sequence(*device, AllOperators());
    const std::vector<Operand> places = PlaceTensors(region, sequence);
    for (uint32_t n = 0; n < region.node_count; ++n) {
      const sy_region_node& node = region.nodes[n];
      Request r;
      r.op = node.op;
      r.attributes = node.attributes;
      r.attributes_size = node.attributes_size;
      r.error = error;
      for (uint32_t i = 0; i < node.input_count; ++i) r.inputs.push_back(places[node.inputs[i]]);
      for (uint32_t o = 0; o < node.output_count; ++o) r.outputs.push_back(places[node.outputs[o]]);
      r.accumulate.assign(node.output_count, 0);
      r.inplace.assign(node.output_count, -1);
      const Sequence::Scope scope(sequence);
      if (const sy_status status = Is(node, "reshape") ? BuildReshape(sequence, r) : Build(sequence, r);
          status != SY_OK)
        return status;
    }
    Request whole;
    whole.op = "region";
    for (uint32_t i = 0; i < region.input_count; ++i) whole.inputs.push_back(places[region.inputs[i]]);
    for (uint32_t o = 0; o < region.output_count; ++o) whole.outputs.push_back(places[region.outputs[o]]);
    std::unique_ptr<sy_kernel> kernel;
    const sy_status status = MakeKernel(device, sequence, whole, workspace_limit, &kernel, error);
    if (status != SY_OK) return status;
    sy_kernel_info filled = ReadStruct(info);
    filled.workspace_bytes = kernel->workspace_bytes;
    filled.persistent_bytes = filled.constant_bytes = filled.residual_bytes = 0;
    filled.determinism = ReachedDeterminism(device);
    filled.capturable = 0;
    if (filled.inplace != nullptr) std::fill_n(filled.inplace, region.output_count, -1);
    FillStruct(info, filled);
    *result = kernel.release();
    return SY_OK;
  });
}

}  // namespace

const sy_region_v2 kNpuRegions = {.header = SY_HEADER(sy_region_v2), .partition = Partition, .prepare = PrepareRegion};

}  // namespace switchyard
