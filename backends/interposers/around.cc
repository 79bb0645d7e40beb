#include "backends/interposers/around.h"

namespace switchyard {
namespace {

const sy_host* the_host = nullptr;

template <typename Table>
bool Take(const sy_plugin& plugin, Table& table) {
  if constexpr (kInterface<Table> != nullptr) {
    const auto* given = static_cast<const Table*>(plugin.interface(kInterface<Table>));
    if (given == nullptr) return false;
    table = ReadStruct(given);
    table.header = SY_HEADER(Table);
  }
  return true;
}

std::vector<sy_tensor> TensorsOf(const sy_region& region, const uint32_t* indices, uint32_t count) {
  std::vector<sy_tensor> tensors;
  for (uint32_t i = 0; i < count; ++i) tensors.push_back(region.tensors[indices[i]]);
  return tensors;
}

}  // namespace

uint64_t ElementBytes(sy_dtype dtype) { return sy_dtype_bits(dtype) / 8; }

uint64_t Extent(const sy_tensor& tensor) {
  int64_t last = 0;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.dims[axis] == 0) return 0;
    last += (tensor.dims[axis] - 1) * tensor.strides[axis];
  }
  return static_cast<uint64_t>(last + 1) * ElementBytes(tensor.dtype);
}

void HostLog(int32_t level, const std::string& text) {
  if (the_host != nullptr && SY_HAS(sy_host, the_host, log)) the_host->log(level, text.c_str());
}

std::string HostSetting(const char* name) {
  const char* value = the_host != nullptr && SY_HAS(sy_host, the_host, setting) ? the_host->setting(name) : nullptr;
  return value == nullptr ? "" : value;
}

Wrapped::Wrapped(const sy_plugin& inner) : name_(inner.name) {
  std::apply([&](auto&... table) { offered_ = {Take(inner, table)...}; }, inner_);
  std::get<sy_launch_table>(inner_).launch = [](sy_bound* bound, sy_stream* stream, sy_error* error) {
    const auto* record = reinterpret_cast<const BoundRecord*>(bound);
    return record->launch(record->inner, stream, error);
  };
}

bool Wrapped::Offers(const char* interface_name) const {
  size_t index = 0;
  bool offers = false;
  const auto look = [&]<typename Table>(const Table&) {
    if constexpr (kInterface<Table> != nullptr) {
      if (std::strcmp(kInterface<Table>, interface_name) == 0) offers = offered_[index];
    }
    ++index;
  };
  std::apply([&](const auto&... table) { (look(table), ...); }, inner_);
  return offers;
}

void Wrapped::Remember(sy_kernel* kernel, KernelRecord record) {
  const std::lock_guard lock(mutex_);
  kernels_[kernel] = std::make_shared<const KernelRecord>(std::move(record));
}

std::shared_ptr<const KernelRecord> Wrapped::Find(sy_kernel* kernel) {
  const std::lock_guard lock(mutex_);
  const auto found = kernels_.find(kernel);
  return found == kernels_.end() ? nullptr : found->second;
}

sy_status Wrapped::Forward(Call<&sy_kernel_v1::prepare>, sy_device* device, const sy_prepare_request* given,
                           sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  const sy_status status = std::get<sy_kernel_v1>(inner_).prepare(device, given, kernel, info, error);
  if (status != SY_OK) return status;
  const sy_prepare_request request = ReadStruct(given);
  const sy_kernel_info answer = ReadStruct(info);
  KernelRecord record;
  record.op = request.op;
  record.tag = request.tag == nullptr ? request.op : request.tag;
  record.device = device;
  record.inputs.assign(request.inputs, request.inputs + request.input_count);
  record.outputs.assign(request.outputs, request.outputs + request.output_count);
  record.workspace_bytes = answer.workspace_bytes;
  record.persistent_bytes = answer.persistent_bytes;
  record.residual_bytes = answer.residual_bytes;
  if (request.forward != nullptr) {
    if (const auto forward = Find(request.forward)) record.residual_bytes = forward->residual_bytes;
  }
  Remember(*kernel, std::move(record));
  return SY_OK;
}

sy_status Wrapped::Forward(Call<&sy_region_v1::prepare>, sy_device* device, const sy_region* given, uint64_t limit,
                           sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  const sy_status status = std::get<sy_region_v1>(inner_).prepare(device, given, limit, kernel, info, error);
  if (status != SY_OK) return status;
  const sy_region region = ReadStruct(given);
  const sy_kernel_info answer = ReadStruct(info);
  KernelRecord record;
  record.op = record.tag = Text("region of ", region.node_count, " nodes");
  record.device = device;
  record.inputs = TensorsOf(region, region.inputs, region.input_count);
  record.outputs = TensorsOf(region, region.outputs, region.output_count);
  record.workspace_bytes = answer.workspace_bytes;
  record.persistent_bytes = answer.persistent_bytes;
  record.residual_bytes = answer.residual_bytes;
  Remember(*kernel, std::move(record));
  return SY_OK;
}

void Wrapped::Forward(Call<&sy_kernel_v1::release>, sy_kernel* kernel) {
  {
    const std::lock_guard lock(mutex_);  // first: once released, another prepare may be given the same handle
    kernels_.erase(kernel);
  }
  std::get<sy_kernel_v1>(inner_).release(kernel);
}

sy_status Wrapped::Forward(Call<&sy_kernel_v1::bind>, sy_kernel* kernel, const sy_binding* given, sy_bound** bound,
                           sy_launch* launch, sy_error* error) {
  auto record = std::make_unique<BoundRecord>();
  record->kernel = Find(kernel);
  record->kernel_handle = kernel;
  if (record->kernel == nullptr) return SY_FAIL(error, SY_INVALID, "bind: %p is no kernel", static_cast<void*>(kernel));
  const sy_binding binding = ReadStruct(given);
  record->inputs.assign(binding.inputs, binding.inputs + record->kernel->inputs.size());
  record->outputs.assign(binding.outputs, binding.outputs + record->kernel->outputs.size());
  record->workspace = binding.workspace;
  record->persistent = binding.persistent;
  record->residual = binding.residual;
  const sy_status status = std::get<sy_kernel_v1>(inner_).bind(kernel, given, &record->inner, &record->launch, error);
  if (status != SY_OK) return status;
  if (record->launch == nullptr) {
    std::get<sy_kernel_v1>(inner_).unbind(record->inner);
    return SY_FAIL(error, SY_INTERNAL, "bind of %s succeeded without a launch function", record->kernel->op.c_str());
  }
  *bound = reinterpret_cast<sy_bound*>(record.release());
  *launch = outer_launch_;
  return SY_OK;
}

void Wrapped::Forward(Call<&sy_kernel_v1::unbind>, sy_bound* bound) {
  const std::unique_ptr<BoundRecord> record(reinterpret_cast<BoundRecord*>(bound));
  std::get<sy_kernel_v1>(inner_).unbind(record->inner);
}

sy_status Wrapped::Forward(Call<&sy_launch_table::launch>, sy_bound* bound, sy_stream* stream, sy_error* error) {
  const auto* record = reinterpret_cast<const BoundRecord*>(bound);
  return record->launch(record->inner, stream, error);
}

sy_status Introduce(const sy_host* host, sy_plugin* plugin, const char* name, const void* (*interface)(const char*),
                    sy_error* error) {
  if (plugin == nullptr || !SY_HAS(sy_plugin, plugin, interface)) {
    return SY_FAIL(error, SY_INVALID, "sy_plugin_query: the plugin struct is smaller than version 1's");
  }
  the_host = host;
  sy_plugin filled{};
  filled.magic = SY_PLUGIN_MAGIC;
  filled.name = name;
  filled.version = "0.1.0";
  filled.vendor = "Switchyard";
  filled.interface = interface;
  FillStruct(plugin, filled);
  return SY_OK;
}

}  // namespace switchyard
