// kernel/2: prepare finds the op's function and keeps the launches that it lists, bind sets their arguments, launch
// enqueues them.
#include "backends/opencl/kernel.h"

#include <algorithm>

namespace switchyard {
class Bound;
}

struct sy_kernel {
  std::shared_ptr<const switchyard::Kernel> kernel;
};

struct sy_bound {
  std::unique_ptr<switchyard::Bound> bound;
};

namespace switchyard {

constexpr uint64_t kRegionAlignment = 256;

std::string Define(const char* macro, sy_dtype dtype) { return Format(" -D%s=%s", macro, TypeName(dtype)); }
std::string Define(const char* macro, int64_t value) {
  return Format(" -D%s=%lld", macro, static_cast<long long>(value));
}

Launch& Launch::Array(const Operand& operand) {
  Argument argument;
  argument.is_array = true;
  argument.operand = operand;
  arguments_.push_back(argument);
  return *this;
}

Launch& Launch::Memory(cl_mem memory, uint64_t offset) {
  Argument argument;
  argument.is_array = true;
  argument.memory = memory;
  argument.offset = offset;
  arguments_.push_back(argument);
  return *this;
}

Launch& Launch::Scalar(const void* value, size_t bytes) {
  Argument argument;
  argument.value.assign(static_cast<const char*>(value), bytes);
  arguments_.push_back(argument);
  return *this;
}

Launch& Launch::Uint(int64_t value) {
  const auto v = static_cast<cl_uint>(value);
  return Scalar(&v, sizeof v);
}
Launch& Launch::Int(int32_t value) { return Scalar(&value, sizeof value); }
Launch& Launch::Ulong(int64_t value) { return Scalar(&value, sizeof value); }
Launch& Launch::Float(double value) {
  const auto v = static_cast<float>(value);
  return Scalar(&v, sizeof v);
}

Launch& Launch::Groups(int64_t x, int64_t y, int64_t z) {
  groups_[0] = static_cast<size_t>(x);
  groups_[1] = static_cast<size_t>(y);
  groups_[2] = static_cast<size_t>(z);
  return *this;
}

Launch& Launch::Lanes(uint32_t x, uint32_t y) {
  lanes_[0] = x;
  lanes_[1] = y;
  return *this;
}

Kernel::Kernel(const Request& request)
    : inplace(request.outputs.size(), -1), device_(request.device), error_(request.error) {
  const auto extent = [](const sy_tensor& tensor) {  // to the end of the last element, whatever the strides
    int64_t last = 0;
    for (int i = 0; i < tensor.rank; ++i) last += (tensor.dims[i] - 1) * tensor.strides[i];
    return static_cast<uint64_t>((last + 1) * DtypeBytes(tensor.dtype));
  };
  for (const sy_tensor& tensor : request.inputs) input_bytes_.push_back(extent(tensor));
  for (const sy_tensor& tensor : request.outputs) output_bytes_.push_back(extent(tensor));
}

cl_program Kernel::Compile(const std::string& source, const std::string& options) {
  cl_program program = nullptr;
  Keep(device_->programs.Get(source, options, &program, status_ == SY_OK ? error_ : nullptr));
  return program;
}

cl_program Kernel::CompileText(const std::string& text) {
  cl_program program = nullptr;
  Keep(device_->programs.GetText(text, "", &program, status_ == SY_OK ? error_ : nullptr));
  return program;
}

Launch& Kernel::Add(cl_program program, const std::string& function) {
  launches_.emplace_back(program, function);
  return launches_.back().Lanes(device_->lanes);
}

Operand Kernel::Scratch(int64_t bytes) {
  const Operand region = {Operand::kScratch, 0, scratch_bytes_};
  scratch_bytes_ += (static_cast<uint64_t>(bytes) + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment;
  return region;
}

Operand Kernel::Panels(int64_t bytes) {
  panel_bytes_ = std::max(panel_bytes_, static_cast<uint64_t>(bytes));
  return {Operand::kPanels, 0, 0};
}

Tiling TileOver(const sy_device& device, int64_t rows, int64_t columns) {
  // A CPU's group takes some thousands of elements, or fewer so that every core has several; another's a few of each
  // work-item.
  constexpr int64_t kMost = 8192, kLeast = 256, kGroupsPerUnit = 8, kEach = 8;
  const int64_t fair = rows * columns / (device.traits.compute_units * kGroupsPerUnit);
  const int64_t target = device.grouped() ? device.lanes * kEach : std::clamp(fair, kLeast, kMost);
  Tiling tiling;
  tiling.columns_each = std::min(columns, DivideUp(target, device.width) * device.width);
  tiling.rows_each = std::clamp<int64_t>(target / tiling.columns_each, 1, rows);
  tiling.groups = DivideUp(rows, tiling.rows_each) * DivideUp(columns, tiling.columns_each);
  return tiling;
}

int64_t RowGroups(const sy_device& device, int64_t rows) {
  constexpr int64_t kGroupsPerUnit = 32;
  return std::min<int64_t>(rows, device.traits.compute_units * kGroupsPerUnit);
}

int64_t RowShare(const sy_device& device, int64_t rows) {
  constexpr int64_t kGroupsPerUnit = 4;
  return DivideUp(rows, std::min<int64_t>(rows, device.traits.compute_units * kGroupsPerUnit));
}

// A kernel at fixed places.
class Bound {
 public:
  static sy_status Make(std::shared_ptr<const Kernel> kernel, const sy_binding& binding, std::unique_ptr<Bound>* bound,
                        sy_error* error);
  sy_status Run(Stream& stream, const sy_stream* handle, sy_error* error) const;
  sy_device* device() const { return kernel_->device_; }

 private:
  struct Step {
    KernelHandle kernel;
    size_t global[3], local[3];
  };
  sy_status Bind(const Launch& launch, const Places& places, sy_error* error);
  void Use(const sy_place& place);
  std::shared_ptr<const Kernel> kernel_;
  MemoryHandle memory_;
  std::vector<std::weak_ptr<const bool>> buffers_;  // those that arguments lie in, once each
  std::vector<Step> steps_;
};

sy_status Bound::Make(std::shared_ptr<const Kernel> kernel, const sy_binding& binding, std::unique_ptr<Bound>* result,
                      sy_error* error) {
  for (size_t i = 0; i < kernel->input_bytes_.size(); ++i) {
    const sy_status status = CheckPlace(binding.inputs[i], kernel->input_bytes_[i], "bind: input", error);
    if (status != SY_OK) return status;
  }
  for (size_t o = 0; o < kernel->output_bytes_.size(); ++o) {
    const sy_status status = CheckPlace(binding.outputs[o], kernel->output_bytes_[o], "bind: output", error);
    if (status != SY_OK) return status;
  }
  const uint64_t workspace = kernel->workspace_bytes();
  if (workspace > 0) {
    const sy_status status = CheckPlace(binding.workspace, workspace, "bind: workspace", error);
    if (status != SY_OK) return status;
  }
  auto bound = std::make_unique<Bound>();
  bound->kernel_ = std::move(kernel);
  const Kernel& k = *bound->kernel_;
  for (size_t i = 0; i < k.input_bytes_.size(); ++i) bound->Use(binding.inputs[i]);
  for (size_t o = 0; o < k.output_bytes_.size(); ++o) bound->Use(binding.outputs[o]);
  if (workspace > 0) bound->Use(binding.workspace);
  const Places places = {binding.inputs, binding.outputs, binding.workspace, k.scratch_bytes_};
  std::vector<Launch> made;
  if (k.at_bind) {
    const sy_status status = k.at_bind(places, &made, &bound->memory_, error);
    if (status != SY_OK) return status;
  }
  for (const auto* launches : {&std::as_const(made), &k.launches_}) {
    for (const Launch& launch : *launches) {
      if (const sy_status status = bound->Bind(launch, places, error); status != SY_OK) return status;
    }
  }
  *result = std::move(bound);
  return SY_OK;
}

void Bound::Use(const sy_place& place) {
  const auto same = [&](const auto& used) { return used.lock() == place.buffer->alive; };
  if (std::none_of(buffers_.begin(), buffers_.end(), same)) buffers_.push_back(place.buffer->alive);
}

sy_status Bound::Bind(const Launch& launch, const Places& places, sy_error* error) {
  cl_int code;
  Step step;
  step.kernel = KernelHandle(clCreateKernel(launch.program_, launch.function_.c_str(), &code));
  if (code != CL_SUCCESS) return Failed(error, code, ("clCreateKernel of " + launch.function_).c_str());
  cl_uint index = 0;
  for (const Launch::Argument& argument : launch.arguments_) {
    if (!argument.is_array) {
      SY_CL(error, clSetKernelArg, step.kernel.get(), index++, argument.value.size(), argument.value.data());
      continue;
    }
    cl_mem memory = argument.memory;
    cl_ulong offset = argument.offset;
    if (!memory) {
      const Operand& operand = argument.operand;
      const sy_place& place = operand.kind == Operand::kInput    ? places.inputs[operand.index]
                              : operand.kind == Operand::kOutput ? places.outputs[operand.index]
                                                                 : places.workspace;
      memory = place.buffer->memory.get();
      offset = place.offset + operand.offset + (operand.kind == Operand::kPanels ? places.panels : 0);
    }
    SY_CL(error, clSetKernelArg, step.kernel.get(), index++, sizeof memory, &memory);
    SY_CL(error, clSetKernelArg, step.kernel.get(), index++, sizeof offset, &offset);
  }
  for (int axis = 0; axis < 3; ++axis) {
    step.local[axis] = axis < 2 ? launch.lanes_[axis] : 1;
    step.global[axis] = launch.groups_[axis] * step.local[axis];
  }
  steps_.push_back(std::move(step));
  return SY_OK;
}

sy_status Bound::Run(Stream& stream, const sy_stream* handle, sy_error* error) const {
  // OpenCL does not keep the memory of a kernel's arguments alive.
  if (std::any_of(buffers_.begin(), buffers_.end(), [](const auto& buffer) { return buffer.expired(); })) {
    return Refuse(error, SY_INVALID, "launch: a buffer of the binding was freed before");
  }
  Profiler& profiler = kernel_->device_->profiler;
  const bool profiled = profiler.running();
  for (const Step& step : steps_) {
    cl_event command = nullptr;
    const cl_int code = clEnqueueNDRangeKernel(stream.queue(), step.kernel.get(), 3, nullptr, step.global, step.local,
                                               0, nullptr, profiled ? &command : nullptr);
    if (code != CL_SUCCESS) return stream.Queued(code, "clEnqueueNDRangeKernel", error);
    if (profiled) profiler.Add(EventHandle(command), kernel_->tag_, handle);
  }
  return SY_OK;
}

namespace {

constinit const Registration* last_registered = nullptr;
}  // namespace

Registration::Registration(const char* name, PrepareFunction function, size_t bytes)
    : op(name), prepare(function), attribute_bytes(bytes), next(std::exchange(last_registered, this)) {}

const Registration* Registration::Find(const char* op) {
  const Registration* row = last_registered;
  while (row != nullptr && std::strcmp(row->op, op) != 0) row = row->next;
  return row;
}

namespace {

// What the kernels' 32-bit indices and 32-bit arithmetic cannot hold.
sy_status CheckTensor(const sy_tensor& tensor, const Request& request) {
  if (Elements(tensor) > INT32_MAX) return SY_REFUSE_OP(request, "tensors of 2^31 elements and more are not taken");
  return tensor.dtype == SY_F64 ? SY_REFUSE_OP(request, "f64 is not taken") : SY_OK;
}

sy_status PrepareKernel(sy_device* device, const sy_prepare_request& request, sy_kernel** result, sy_kernel_info* info,
                        sy_error* error) {
  const Registration* op = Registration::Find(request.op);
  if (op == nullptr) return SY_FAIL(error, SY_UNSUPPORTED, "%s: not an op of the opencl plugin", request.op);
  if (request.determinism > SY_DETERMINISM_RUN) {
    return SY_FAIL(error, SY_UNSUPPORTED, "%s: sums depend on the number of compute units", op->op);
  }
  Request r;
  r.device = device;
  if (const sy_status status = ReadOpRequest(request, op->op, op->attribute_bytes, &r, error); status != SY_OK)
    return status;
  for (const auto* tensors : {&r.inputs, &r.outputs}) {
    for (const sy_tensor& tensor : *tensors) {
      if (const sy_status status = CheckTensor(tensor, r); status != SY_OK) return status;
    }
  }
  auto kernel = std::make_shared<Kernel>(r);
  if (const sy_status status = op->prepare(r, *kernel); status != SY_OK) return status;
  if (kernel->status() != SY_OK) return kernel->status();
  if (kernel->workspace_bytes() > request.workspace_limit) {
    return SY_REFUSE_OP(r, "needs %llu bytes of workspace, the limit is %llu",
                        static_cast<unsigned long long>(kernel->workspace_bytes()),
                        static_cast<unsigned long long>(request.workspace_limit));
  }
  kernel->Tag(device->profiler.Keep(request.tag));
  sy_kernel_info filled = ReadStruct(info);
  filled.workspace_bytes = kernel->workspace_bytes();
  filled.persistent_bytes = filled.constant_bytes = filled.residual_bytes = 0;
  filled.determinism = SY_DETERMINISM_RUN;
  filled.capturable = 0;
  if (filled.inplace) std::copy(kernel->inplace.begin(), kernel->inplace.end(), filled.inplace);
  FillStruct(info, filled);
  *result = new sy_kernel{std::move(kernel)};
  return SY_OK;
}

sy_status Prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (given == nullptr || info == nullptr || kernel == nullptr) {
      return Refuse(error, SY_INVALID, "prepare: request, kernel and info must not be NULL");
    }
    if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
    const sy_prepare_request request = ReadStruct(given);
    if (request.op == nullptr) return Refuse(error, SY_INVALID, "prepare: the request names no op");
    return PrepareKernel(device, request, kernel, info, error);
  });
}

sy_status LaunchBound(sy_bound* bound, sy_stream* stream, sy_error* error) {
  return Guarded(error, [&] {
    return OnStream(bound->bound->device(), stream, error,
                    [&](Stream& on) { return bound->bound->Run(on, stream, error); });
  });
}

sy_status BindKernel(sy_device*, sy_kernel* kernel, const sy_binding* binding, sy_bound** bound, sy_launch* launch,
                     sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(binding, error)) return SY_UNSUPPORTED;
    auto made = std::make_unique<sy_bound>();
    const sy_status status = Bound::Make(kernel->kernel, ReadStruct(binding), &made->bound, error);
    if (status != SY_OK) return status;
    *bound = made.release();
    *launch = LaunchBound;
    return SY_OK;
  });
}

void Unbind(sy_device*, sy_bound* bound) { delete bound; }
void Release(sy_device*, sy_kernel* kernel) { delete kernel; }

}  // namespace

const sy_kernel_v2 kOpenClKernels = {
    .header = SY_HEADER(sy_kernel_v2), .prepare = Prepare, .bind = BindKernel, .unbind = Unbind, .release = Release};

}  // namespace switchyard
