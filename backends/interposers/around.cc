#include "backends/interposers/around.h"

namespace switchyard {
namespace {

std::vector<sy_tensor> TensorsOf(const sy_region& region, const uint32_t* indices, uint32_t count) {
  std::vector<sy_tensor> tensors;
  for (uint32_t i = 0; i < count; ++i) tensors.push_back(region.tensors[indices[i]]);
  return tensors;
}

// Calls body(table) for the interface of this name.
template <typename Body>
void WithInterface(const char* name, Tables& tables, const Body& body) {
  const auto look = [&](auto& table) {
    using Table = std::decay_t<decltype(table)>;
    if constexpr (kInterface<Table> != nullptr) {
      if (std::strcmp(kInterface<Table>, name) == 0) body(table);
    }
  };
  std::apply([&](auto&... table) { (look(table), ...); }, tables);
}

}  // namespace

uint64_t ElementBytes(sy_dtype dtype) { return sy_dtype_bytes(dtype, 1); }

uint64_t Extent(const sy_tensor& tensor) {
  int64_t last = 0;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.dims[axis] == 0) return 0;
    last += (tensor.dims[axis] - 1) * tensor.strides[axis];
  }
  return sy_dtype_bytes(tensor.dtype, static_cast<uint64_t>(last + 1));
}

Wrapped::Wrapped(const sy_instance& interposer, const sy_plugin& inner)
    : name_(inner.name), inner_instance_(inner.instance) {
  host = interposer.host;
  const auto take = [&](auto& table) {
    using Table = std::decay_t<decltype(table)>;
    if constexpr (kInterface<Table> != nullptr) {
      const auto* given = static_cast<const Table*>(inner.get_interface(inner.instance, kInterface<Table>));
      if (given == nullptr) return;
      table = ReadStruct(given);
      std::get<Table>(outer_).header = SY_HEADER(Table);
    }
  };
  std::apply([&](auto&... table) { (take(table), ...); }, inner_);
  // Launches are offered where there are kernels. Each binding has its own function: Forward does not ask for this one.
  std::get<sy_launch_table>(inner_).launch = [](sy_bound*, sy_stream*, sy_error*) -> sy_status { return SY_INTERNAL; };
}

const void* Wrapped::Interface(const char* name) const {
  const void* found = nullptr;
  WithInterface(name, const_cast<Tables&>(outer_), [&](const auto& table) {
    if (table.header.size > 0) found = &table;
  });
  return found;
}

void Wrapped::Hide(const char* interface_name) {
  WithInterface(interface_name, outer_, [](auto& table) { table.header.size = 0; });
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

sy_status Wrapped::Forward(Call<&sy_device_v2::open>, sy_instance*, int32_t index, const sy_open_options* options,
                           sy_device** device, sy_error* error) {
  auto record = std::make_unique<DeviceRecord>();
  record->interposer = this;
  record->index = index;
  const sy_status status = Inner<sy_device_v2>().open(inner_instance_, index, options, &record->inner, error);
  if (status == SY_OK) *device = reinterpret_cast<sy_device*>(static_cast<Held<sy_device>*>(record.release()));
  return status;
}

void Wrapped::Forward(Call<&sy_device_v2::close>, sy_device* device) {
  const std::unique_ptr<const DeviceRecord> record(RecordOf(device));
  Inner<sy_device_v2>().close(record->inner);
}

// A rank that split left out has no communicator.
sy_status Wrapped::Hold(sy_communicator* inner, sy_communicator** outer) {
  *outer = inner == nullptr ? nullptr : reinterpret_cast<sy_communicator*>(new Held<sy_communicator>{this, inner});
  return SY_OK;
}

sy_status Wrapped::Forward(Call<&sy_collective_v2::init>, sy_instance*, const sy_init_request* request,
                           sy_communicator** communicator, sy_error* error) {
  sy_communicator* inner = nullptr;
  const sy_status status = Inner<sy_collective_v2>().init(inner_instance_, request, &inner, error);
  return status == SY_OK ? Hold(inner, communicator) : status;
}

sy_status Wrapped::Forward(Call<&sy_collective_v2::split>, sy_communicator* communicator, int32_t color, int32_t key,
                           const char* name, sy_communicator** result, sy_error* error) {
  sy_communicator* inner = nullptr;
  const sy_status status = Inner<sy_collective_v2>().split(Inside(communicator), color, key, name, &inner, error);
  return status == SY_OK ? Hold(inner, result) : status;
}

void Wrapped::Forward(Call<&sy_collective_v2::destroy>, sy_communicator* communicator) {
  const std::unique_ptr<const Held<sy_communicator>> held(HeldBehind(communicator));
  Inner<sy_collective_v2>().destroy(held->inner);
}

sy_status Wrapped::Forward(Call<&sy_kernel_v2::prepare>, sy_device* device, const sy_prepare_request* given,
                           sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  const sy_status status = Inner<sy_kernel_v2>().prepare(Inside(device), given, kernel, info, error);
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
  record.constant_bytes = answer.constant_bytes;
  record.residual_bytes = answer.residual_bytes;
  if (request.forward != nullptr) {
    if (const auto forward = Find(request.forward)) record.residual_bytes = forward->residual_bytes;
  }
  Remember(*kernel, std::move(record));
  return SY_OK;
}

sy_status Wrapped::Forward(Call<&sy_region_v2::prepare>, sy_device* device, const sy_region* given, uint64_t limit,
                           sy_kernel** kernel, sy_kernel_info* info, sy_error* error) {
  const sy_status status = Inner<sy_region_v2>().prepare(Inside(device), given, limit, kernel, info, error);
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
  record.constant_bytes = answer.constant_bytes;
  record.residual_bytes = answer.residual_bytes;
  Remember(*kernel, std::move(record));
  return SY_OK;
}

void Wrapped::Forward(Call<&sy_kernel_v2::release>, sy_device* device, sy_kernel* kernel) {
  {
    const std::lock_guard lock(mutex_);  // first: once released, another prepare may be given the same handle
    kernels_.erase(kernel);
  }
  Inner<sy_kernel_v2>().release(Inside(device), kernel);
}

sy_status Wrapped::Forward(Call<&sy_kernel_v2::bind>, sy_device* device, sy_kernel* kernel, const sy_binding* given,
                           sy_bound** bound, sy_launch* launch, sy_error* error) {
  auto record = std::make_unique<BoundRecord>();
  record->interposer = this;
  record->kernel = Find(kernel);
  if (record->kernel == nullptr) return SY_FAIL(error, SY_INVALID, "bind: %p is no kernel", static_cast<void*>(kernel));
  const sy_binding binding = ReadStruct(given);
  record->outputs.assign(binding.outputs, binding.outputs + record->kernel->outputs.size());
  const sy_status status =
      Inner<sy_kernel_v2>().bind(Inside(device), kernel, given, &record->inner, &record->launch, error);
  if (status != SY_OK) return status;
  if (record->launch == nullptr) {
    Inner<sy_kernel_v2>().unbind(Inside(device), record->inner);
    return SY_FAIL(error, SY_INTERNAL, "bind of %s succeeded without a launch function", record->kernel->op.c_str());
  }
  *bound = reinterpret_cast<sy_bound*>(static_cast<Held<sy_bound>*>(record.release()));
  *launch = std::get<sy_launch_table>(outer_).launch;
  return SY_OK;
}

void Wrapped::Forward(Call<&sy_kernel_v2::unbind>, sy_device* device, sy_bound* bound) {
  const std::unique_ptr<const BoundRecord> record(RecordOf(bound));
  Inner<sy_kernel_v2>().unbind(Inside(device), record->inner);
}

}  // namespace switchyard
