#include "core/plan/kernels.h"

#include <chrono>

#include "core/graph/op.h"

namespace switchyard {
namespace {

template <typename T>
void Append(std::string& key, const T* values, size_t count) {
  key.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

void Append(std::string& key, size_t value) { Append(key, &value, 1); }

void Append(std::string& key, const TensorType& type) {
  Append(key, static_cast<size_t>(type.dtype));
  Append(key, type.shape.size());
  Append(key, type.shape.data(), type.shape.size());
}

// What a kernel depends on: nodes with equal keys share one.
std::string KeyOf(const Graph& graph, const Node& node, bool paired_forward, const Kernel* forward,
                  const std::vector<uint8_t>& accumulate) {
  std::string key = node.op + '(';
  Append(key, node.inputs.size());
  for (const Ref& input : node.inputs) Append(key, graph.type(input));
  Append(key, node.outputs.size());
  for (const TensorType& output : node.outputs) Append(key, output);
  Append(key, static_cast<size_t>(paired_forward));
  Append(key, &forward, 1);
  Append(key, accumulate.size());
  Append(key, accumulate.data(), accumulate.size());
  key.append(static_cast<const char*>(node.attributes.data()), node.attributes.size());
  return key;
}

// What prepare() gives; the seconds that it took are added to `total`.
template <typename Prepare>
StatusOr<Kernel> Timed(double& total, const Prepare& prepare) {
  const auto begin = std::chrono::steady_clock::now();
  auto kernel = prepare();
  total += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return kernel;
}

}  // namespace

StatusOr<Kernel*> KernelCache::Find(const Graph& graph, const Node& node, bool paired_forward, Kernel* forward,
                                    const std::vector<uint8_t>& accumulate) {
  const std::string key = KeyOf(graph, node, paired_forward, forward, accumulate);
  const auto found = kernels_.find(key);
  if (found != kernels_.end()) return found->second.get();
  if (!device_.has_kernels()) {
    refusals_[key] = "the plugin has no kernel/2 interface";
    return kernels_.emplace(key, nullptr).first->second.get();
  }
  std::vector<sy_tensor> inputs, outputs;
  for (const Ref& input : node.inputs) inputs.push_back(ToAbi(graph.type(input)));
  for (const TensorType& output : node.outputs) outputs.push_back(ToAbi(output));
  sy_prepare_request request{};
  request.header = SY_HEADER(sy_prepare_request);
  request.op = node.op.c_str();
  request.op_version = 1;
  request.attributes = node.attributes.data();
  request.attributes_size = node.attributes.size();
  request.input_count = static_cast<uint32_t>(inputs.size());
  request.output_count = static_cast<uint32_t>(outputs.size());
  request.inputs = inputs.data();
  request.outputs = outputs.data();
  request.workspace_limit = options_.workspace_limit;
  request.determinism = options_.deterministic ? SY_DETERMINISM_RUN : SY_DETERMINISM_ANY;
  request.tuning = static_cast<uint32_t>(options_.tuning);
  request.paired_forward = paired_forward;
  request.forward = forward == nullptr ? nullptr : forward->handle();
  request.accumulate = accumulate.empty() ? nullptr : accumulate.data();
  request.tag = node.op.c_str();
  auto kernel = Timed(seconds_, [&] { return device_.Prepare(request); });
  if (kernel.ok()) return kernels_.emplace(key, std::make_unique<Kernel>(std::move(*kernel))).first->second.get();
  if (kernel.status().code() != absl::StatusCode::kUnimplemented) {
    return Annotate(kernel.status(), fmt::format("preparing {} ({}, built at {}:{})", node.name, node.op,
                                                 node.where.file_name(), node.where.line()));
  }
  refusals_[key] = Message(kernel.status());
  return kernels_.emplace(key, nullptr).first->second.get();
}

std::string KernelCache::Refusal(const Graph& graph, const Node& node) const {
  const auto found = refusals_.find(KeyOf(graph, node, false, nullptr, {}));
  return found == refusals_.end() ? "" : found->second;
}

StatusOr<Kernel*> KernelCache::FindRegion(const std::string& key, const sy_region& region) {
  const auto found = kernels_.find(key);
  if (found != kernels_.end()) return found->second.get();
  auto kernel = Timed(seconds_, [&] { return device_.PrepareRegion(region, options_.workspace_limit); });
  if (kernel.ok()) return kernels_.emplace(key, std::make_unique<Kernel>(std::move(*kernel))).first->second.get();
  if (kernel.status().code() != absl::StatusCode::kUnimplemented) return kernel.status();
  return kernels_.emplace(key, nullptr).first->second.get();
}

CanPrepare KernelCache::Predicate() {
  return [this](const Graph& graph, const Node& node) {
    const auto kernel = Find(graph, node);
    if (!kernel.ok()) {
      status_ = kernel.status();
      return true;  // decomposing would hide the defect
    }
    return *kernel != nullptr;
  };
}

}  // namespace switchyard
