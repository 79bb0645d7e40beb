#include "backends/null/kernel.h"

#include <algorithm>
#include <cstring>

#include "backends/null/device.h"
#include "core/abi/boundary.h"

struct sy_kernel {
  std::shared_ptr<switchyard::NullKernel> kernel;
};

struct sy_bound {
  std::shared_ptr<switchyard::Bound> bound;
};

namespace switchyard {
namespace {

constexpr uint64_t kScratchBytes = 256, kScribble = 0xEE;
constexpr size_t kConstants = 8;
std::atomic<uint64_t> next_constant{0x5157'0000'0000'0000};

// What the forward leaves for which input of its backward.
struct ResidualRule {
  const char *forward, *backward;
  std::vector<Saved> saved;
};
const std::vector<ResidualRule>& ResidualRules() {
  static const std::vector<ResidualRule> rules = {
      {"layer_norm", "layer_norm_backward", {{true, 1, 2, 0, 0}, {true, 2, 3, 0, 0}}},  // mean, rstd
      {"pool", "pool_backward", {{false, 0, 0, 0, 0}}}};                                // x
  return rules;
}

uint64_t AlignUp(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// A forward that is one of a pair: plans its residual and returns the residual's bytes.
uint64_t PlanResidual(NullKernel& kernel) {
  const Problem& problem = kernel.reference->problem();
  uint64_t bytes = 0;
  for (const ResidualRule& rule : ResidualRules()) {
    if (problem.op != rule.forward) continue;
    kernel.saved = rule.saved;
    for (Saved& saved : kernel.saved) {
      saved.offset = bytes;
      saved.bytes = Extent(saved.is_output ? problem.outputs[saved.operand] : problem.inputs[saved.operand]);
      bytes += AlignUp(saved.bytes);
    }
  }
  return bytes;
}

// A backward whose forward left a residual reads it, where the tensors agree.
sy_status JoinForward(NullKernel& kernel, const NullKernel& forward, sy_error* error) {
  const Problem &problem = kernel.reference->problem(), &before = forward.reference->problem();
  for (const ResidualRule& rule : ResidualRules()) {
    if (problem.op != rule.backward || before.op != rule.forward || forward.saved.empty()) continue;
    kernel.saved = forward.saved;
    kernel.reads_saved = true;
    for (const Saved& saved : kernel.saved) {
      const sy_tensor& left = saved.is_output ? before.outputs[saved.operand] : before.inputs[saved.operand];
      const sy_tensor& read = problem.inputs[saved.backward_input];
      if (left.dtype != read.dtype || DimsOf(left) != DimsOf(read)) {
        return Refuse(error, SY_INVALID,
                      Text(problem.op, ": the forward left ", ToText(left), " where ", ToText(read), " is read"));
      }
    }
  }
  return SY_OK;
}

sy_status RefuseWhatIsNotOffered(const sy_prepare_request& request, const Problem& problem, sy_error* error) {
  for (const auto* tensors : {&problem.inputs, &problem.outputs}) {
    for (const sy_tensor& tensor : *tensors) {
      if (tensor.dtype == SY_F64) return Refuse(error, SY_UNSUPPORTED, problem.op + ": no f64 on this device");
      if (!IsContiguous(tensor)) return Refuse(error, SY_UNSUPPORTED, problem.op + ": only contiguous tensors");
    }
  }
  for (size_t o = 0; request.accumulate && problem.op != "matmul" && o < problem.outputs.size(); ++o) {
    if (request.accumulate[o]) return Refuse(error, SY_UNSUPPORTED, problem.op + ": cannot accumulate");
  }
  return SY_OK;
}

sy_status Prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** result, sy_kernel_info* info,
                  sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (given == nullptr || info == nullptr)
      return Refuse(error, SY_INVALID, "prepare: request and info must not be NULL");
    if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
    const sy_prepare_request request = ReadStruct(given);
    auto kernel = std::make_shared<NullKernel>();
    std::vector<int32_t> inplace(request.output_count, -1);
    kernel->info = {SY_HEADER(sy_kernel_info)};
    kernel->info.inplace = inplace.data();
    if (const sy_status status = ReferenceKernel::Prepare(given, &kernel->reference, &kernel->info, error);
        status != SY_OK) {
      return status;
    }
    const Problem& problem = kernel->reference->problem();
    if (const sy_status status = RefuseWhatIsNotOffered(request, problem, error); status != SY_OK) return status;
    kernel->device = device;
    kernel->tag = device->profiler.Keep(request.tag);

    kernel->info.capturable = 1;
    if (problem.op == "matmul") {
      if (request.workspace_limit >= kScratchBytes)
        kernel->info.workspace_bytes = kScratchBytes;
      else
        kernel->info.second_choice = "no room for its scratch: the workspace limit is below 256 bytes";
    }
    if (problem.op == "cross_entropy") {
      kernel->info.persistent_bytes = sizeof(uint64_t);
      for (size_t i = 0; i < kConstants; ++i) kernel->constants.push_back(next_constant++);
      kernel->info.constant_bytes = kConstants * sizeof(uint64_t);
    }
    if (request.paired_forward) kernel->info.residual_bytes = PlanResidual(*kernel);
    if (request.forward) {
      if (const sy_status status = JoinForward(*kernel, *request.forward->kernel, error); status != SY_OK)
        return status;
    }
    if (problem.op != "optimizer_update") inplace.assign(inplace.size(), -1);
    kernel->info.inplace = ReadStruct(info).inplace;  // the caller's
    if (kernel->info.inplace) std::copy(inplace.begin(), inplace.end(), kernel->info.inplace);
    FillStruct(info, kernel->info);
    *result = new sy_kernel{std::move(kernel)};
    return SY_OK;
  });
}

sy_status Launch(sy_bound* bound, sy_stream* stream, sy_error* error) {
  Command command{Command::Kind::kLaunch};
  command.bound = bound->bound;
  return Submit(bound->bound->device(), stream, std::move(command), error);
}

sy_status Bind(sy_device*, sy_kernel* kernel, const sy_binding* binding, sy_bound** result, sy_launch* launch,
               sy_error* error) {
  if (!KnowsExtensions(binding, error)) return SY_UNSUPPORTED;
  return Guarded(error, [&] {
    auto bound = std::make_unique<sy_bound>(sy_bound{std::make_shared<Bound>(kernel->kernel, ReadStruct(binding))});
    if (!bound->bound->Resolvable(error)) return SY_INVALID;
    *result = bound.release();
    *launch = Launch;
    return SY_OK;
  });
}

void Unbind(sy_device*, sy_bound* bound) {
  if (bound != nullptr) bound->bound->Unbind();
  delete bound;
}
void Release(sy_device*, sy_kernel* kernel) { delete kernel; }

sy_status WriteConstants(sy_device* device, sy_kernel* kernel, sy_stream* stream, sy_place constants, sy_error* error) {
  if (constants.buffer == nullptr) return Refuse(error, SY_INVALID, "write_constants: expected device memory");
  if (!device->memory.ResolveForKernel(constants, kernel->kernel->info.constant_bytes, error)) return SY_INVALID;
  Command command{Command::Kind::kConstants};
  command.kernel = kernel->kernel;
  command.destination = constants;
  return Submit(device, stream, std::move(command), error);
}

}  // namespace

sy_status NullKernel::WriteConstants(const sy_place& place, sy_error* error) const {
  char* const to = device->memory.ResolveForKernel(place, info.constant_bytes, error);
  if (to == nullptr) return SY_INVALID;
  std::memcpy(to, constants.data(), info.constant_bytes);
  return SY_OK;
}

sy_status NullKernel::VerifyConstants(const sy_place& place, sy_error* error) const {
  const char* const found = device->memory.ResolveForKernel(place, info.constant_bytes, error);
  if (found == nullptr) return SY_INVALID;
  if (std::memcmp(found, constants.data(), info.constant_bytes) == 0) return SY_OK;
  return Refuse(error, SY_INVALID, reference->problem().op + ": its constants are not what write_constants writes");
}

Bound::Bound(std::shared_ptr<const NullKernel> kernel, const sy_binding& binding)
    : kernel_(std::move(kernel)),
      workspace_(binding.workspace),
      persistent_(binding.persistent),
      residual_(binding.residual),
      constants_(binding.constants) {
  const Problem& problem = kernel_->reference->problem();
  inputs_.assign(binding.inputs, binding.inputs + problem.inputs.size());
  outputs_.assign(binding.outputs, binding.outputs + problem.outputs.size());
}

bool Bound::Resolvable(sy_error* error) const {
  DeviceMemory& memory = device()->memory;
  const Problem& problem = kernel_->reference->problem();
  const auto resolvable = [&](const sy_place& place, uint64_t bytes) {
    if (bytes == 0) return true;
    if (place.buffer != nullptr) return memory.ResolveForKernel(place, bytes, error) != nullptr;
    Refuse(error, SY_INVALID, "bind: expected device memory for every place that the kernel asked for");
    return false;
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!resolvable(inputs_[i], Extent(problem.inputs[i]))) return false;
  }
  for (size_t o = 0; o < outputs_.size(); ++o) {
    if (!resolvable(outputs_[o], Extent(problem.outputs[o]))) return false;
  }
  const uint64_t residual = kernel_->saved.empty() ? 0 : kernel_->saved.back().offset + kernel_->saved.back().bytes;
  return resolvable(workspace_, kernel_->info.workspace_bytes) &&
         resolvable(persistent_, kernel_->info.persistent_bytes) && resolvable(residual_, residual) &&
         resolvable(constants_, kernel_->info.constant_bytes);
}

sy_status Bound::Run(const sy_stream* stream, sy_error* error) {
  if (unbound_) return Refuse(error, SY_INVALID, "a binding was unbound before its launch has run");
  if (++device()->launches == device()->fail_at) {
    return Refuse(error, SY_INTERNAL, Text("launch ", device()->fail_at, " fails as NULL_FAIL_AT says"));
  }
  const uint64_t start = DeviceClock();
  const sy_status status = Compute(error);
  device()->profiler.Add({kernel_->tag, stream, start, DeviceClock()});
  return status;
}

sy_status Bound::Compute(sy_error* error) {
  DeviceMemory& memory = device()->memory;
  const Problem& problem = kernel_->reference->problem();
  std::vector<void*> inputs, outputs;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs.push_back(memory.ResolveForKernel(inputs_[i], Extent(problem.inputs[i]), error));
    if (inputs.back() == nullptr) return SY_INVALID;
  }
  for (size_t o = 0; o < outputs_.size(); ++o) {
    outputs.push_back(memory.ResolveForKernel(outputs_[o], Extent(problem.outputs[o]), error));
    if (outputs.back() == nullptr) return SY_INVALID;
  }
  if (kernel_->info.workspace_bytes) {
    char* scratch = memory.ResolveForKernel(workspace_, kernel_->info.workspace_bytes, error);
    if (scratch == nullptr) return SY_INVALID;
    std::memset(scratch, kScribble, kernel_->info.workspace_bytes);
  }
  if (kernel_->info.persistent_bytes) {  // counts the runs of this binding: nobody else may touch it
    char* persistent = memory.ResolveForKernel(persistent_, sizeof(uint64_t), error);
    if (persistent == nullptr) return SY_INVALID;
    uint64_t counted;
    std::memcpy(&counted, persistent, sizeof counted);
    const uint64_t expected = runs_++;
    if (counted != expected) {
      return Refuse(error, SY_INVALID, Text("persistent bytes changed: expected ", expected, ", found ", counted));
    }
    std::memcpy(persistent, &++counted, sizeof counted);
  }
  if (kernel_->info.constant_bytes) {
    if (const sy_status status = kernel_->VerifyConstants(constants_, error); status != SY_OK) return status;
  }

  std::vector<char*> residual;
  for (const Saved& saved : kernel_->saved) {
    sy_place place = residual_;
    place.offset += saved.offset;
    residual.push_back(memory.ResolveForKernel(place, saved.bytes, error));
    if (residual.back() == nullptr) return SY_INVALID;
    if (kernel_->reads_saved) inputs[saved.backward_input] = residual.back();
  }
  // A kernel's own copies first, as an output may share its place with an input.
  for (size_t k = 0; !kernel_->reads_saved && k < residual.size(); ++k) {
    const Saved& saved = kernel_->saved[k];
    if (!saved.is_output) std::memcpy(residual[k], inputs[saved.operand], saved.bytes);
  }
  kernel_->reference->Run(inputs.data(), outputs.data());
  for (size_t k = 0; !kernel_->reads_saved && k < residual.size(); ++k) {
    const Saved& saved = kernel_->saved[k];
    if (saved.is_output) std::memcpy(residual[k], outputs[saved.operand], saved.bytes);
  }
  return SY_OK;
}

const sy_kernel_v2 kNullKernels = {.header = SY_HEADER(sy_kernel_v2),
                                   .prepare = Prepare,
                                   .bind = Bind,
                                   .unbind = Unbind,
                                   .release = Release,
                                   .write_constants = WriteConstants};

}  // namespace switchyard
