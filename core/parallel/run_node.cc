#include "core/parallel/run_node.h"

namespace switchyard {

StatusOr<std::vector<Buffer>> RunNode(KernelCache& kernels, const Graph& graph, const Node& node,
                                      const std::vector<const Buffer*>& inputs) {
  Device& device = kernels.device();
  SY_ASSIGN_OR_RETURN(Kernel* const kernel, kernels.Find(graph, node));
  if (kernel == nullptr) return Unimplemented("{} does not offer {}", device.info().plugin, node.op);
  std::vector<Buffer> outputs;
  std::vector<sy_place> from, to;
  for (const Buffer* input : inputs) from.push_back(input->at(0));
  for (const TensorType& output : node.outputs) {
    SY_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(static_cast<uint64_t>(output.bytes())));
    outputs.push_back(std::move(buffer));
    to.push_back(outputs.back().at(0));
  }
  sy_binding binding{};
  binding.header = SY_HEADER(sy_binding);
  binding.inputs = from.data();
  binding.outputs = to.data();
  const Kernel::Info& info = kernel->info();
  SY_ASSIGN_OR_RETURN(const Buffer workspace, device.Allocate(info.workspace_bytes));
  SY_ASSIGN_OR_RETURN(const Buffer persistent, device.Allocate(info.persistent_bytes));
  SY_ASSIGN_OR_RETURN(const Buffer constants, device.Allocate(info.constant_bytes));
  if (info.workspace_bytes > 0) binding.workspace = workspace.at(0);
  if (info.persistent_bytes > 0) {
    SY_RETURN_IF_ERROR(device.Fill(Stream(), persistent.at(0), 0, info.persistent_bytes));
    binding.persistent = persistent.at(0);
  }
  if (info.constant_bytes > 0) {
    SY_RETURN_IF_ERROR(device.WriteConstants(*kernel, Stream(), constants.at(0)));
    binding.constants = constants.at(0);
  }
  SY_ASSIGN_OR_RETURN(const BoundKernel bound, device.Bind(*kernel, binding));
  sy_error error = EmptyError();
  SY_RETURN_IF_ERROR(FromAbi(bound.Launch(nullptr, &error), error, "launch"));
  return outputs;
}

}  // namespace switchyard
