// Kernels of a device: prepared, checked and bound.
#include <algorithm>
#include <mutex>

#include "core/base/text.h"
#include "core/runtime/device/device_impl.h"

namespace switchyard {
namespace {

constexpr uint64_t kMostMemory = uint64_t{1} << 48;  // bytes, of a device that does not say how much it has

}  // namespace

Kernel& Kernel::operator=(Kernel&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    handle_ = std::exchange(other.handle_, nullptr);
    info_ = std::move(other.info_);
  }
  return *this;
}

void Kernel::reset() {
  if (handle_ != nullptr) {
    const std::lock_guard lock(device_->impl_->preparing);
    device_->kernels_->release(device_->handle_, handle_);
  }
  handle_ = nullptr;
}

BoundKernel& BoundKernel::operator=(BoundKernel&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    handle_ = std::exchange(other.handle_, nullptr);
    launch_ = std::exchange(other.launch_, nullptr);
  }
  return *this;
}

void BoundKernel::reset() {
  if (handle_ != nullptr) device_->kernels_->unbind(device_->handle_, handle_);
  handle_ = nullptr;
}

StatusOr<Kernel> Device::Prepare(const sy_prepare_request& request) {
  const std::string what = fmt::format("{}: prepare of {}", info_.plugin, request.op);
  if (kernels_ == nullptr) return Unimplemented("{}: it has no kernels", what);
  sy_prepare_request call = request;
  call.header = SY_HEADER(sy_prepare_request);
  std::vector<int32_t> inplace(std::max<uint32_t>(request.output_count, 1), -1);
  sy_kernel_info info{};
  info.header = SY_HEADER(sy_kernel_info);
  info.inplace = inplace.data();
  sy_error error = EmptyError();
  sy_kernel* handle = nullptr;
  const sy_status status = [&] {
    const std::lock_guard lock(impl_->preparing);
    return kernels_->prepare(handle_, &call, &handle, &info, &error);
  }();
  if (status != SY_OK) return FromAbi(status, error, what);
  inplace.resize(request.output_count);
  return Accept(what, handle, info, std::move(inplace), request.input_count, request.workspace_limit);
}

Status Device::Partition(const sy_region& graph, std::span<uint32_t> claims) {
  const std::string what = fmt::format("{}: region partition", info_.plugin);
  if (regions_ == nullptr) return Unimplemented("{}: it claims no regions", what);
  sy_error error = EmptyError();
  const std::lock_guard lock(impl_->preparing);
  const sy_status status = regions_->partition(handle_, &graph, claims.data(), &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, what);
}

StatusOr<Kernel> Device::PrepareRegion(const sy_region& region, uint64_t workspace_limit) {
  const std::string what = fmt::format("{}: prepare of a region of {} nodes", info_.plugin, region.node_count);
  if (regions_ == nullptr) return Unimplemented("{}: it claims no regions", what);
  std::vector<int32_t> inplace(std::max<uint32_t>(region.output_count, 1), -1);
  sy_kernel_info info{};
  info.header = SY_HEADER(sy_kernel_info);
  info.inplace = inplace.data();
  sy_error error = EmptyError();
  sy_kernel* handle = nullptr;
  const sy_status status = [&] {
    const std::lock_guard lock(impl_->preparing);
    return regions_->prepare(handle_, &region, workspace_limit, &handle, &info, &error);
  }();
  if (status != SY_OK) return FromAbi(status, error, what);
  inplace.resize(region.output_count);
  return Accept(what, handle, info, std::move(inplace), region.input_count, workspace_limit);
}

// The plugin's answer to a prepare, checked.
StatusOr<Kernel> Device::Accept(const std::string& what, sy_kernel* handle, const sy_kernel_info& info,
                                std::vector<int32_t> inplace, uint32_t input_count, uint64_t workspace_limit) {
  if (handle == nullptr) return Internal("{} succeeded without a kernel", what);
  Kernel::Info answer;
  answer.workspace_bytes = info.workspace_bytes;
  answer.persistent_bytes = info.persistent_bytes;
  answer.constant_bytes = info.constant_bytes;
  answer.residual_bytes = info.residual_bytes;
  answer.inplace.assign(inplace.begin(), inplace.end());
  answer.determinism = info.determinism;
  answer.capturable = info.capturable != 0;
  if (info.second_choice != nullptr) answer.second_choice = Printable(info.second_choice, 2 * sizeof sy_error::message);
  Kernel kernel(this, handle, std::move(answer));
  if (info.constant_bytes > 0 && kernels_->write_constants == nullptr) {
    return Internal("{} asks for {} constant bytes, but kernel/2 lacks write_constants", what, info.constant_bytes);
  }
  for (const int input : kernel.info().inplace) {
    if (input < -1 || input >= static_cast<int>(input_count)) {
      return Internal("{} declared input {} as in-place; there are {} inputs", what, input, input_count);
    }
  }
  // What is more than any memory would wrap around where sizes are added.
  const uint64_t most = info_.memory_bytes > 0 ? info_.memory_bytes : kMostMemory;
  for (const auto& [kind, bytes] : {std::pair("persistent", info.persistent_bytes),
                                    {"constant", info.constant_bytes},
                                    {"residual", info.residual_bytes}}) {
    if (bytes > most)
      return Internal("{} asked for {} {} bytes; expected at most {}, {}", what, bytes, kind, most,
                      info_.memory_bytes > 0 ? "the device's memory" : "more than any device has");
  }
  if (info.determinism > SY_DETERMINISM_EXACT) {
    return Internal("{} answered the unknown determinism class {}; expected {} to {}", what, info.determinism,
                    static_cast<int>(SY_DETERMINISM_ANY), static_cast<int>(SY_DETERMINISM_EXACT));
  }
  if (kernel.info().workspace_bytes > workspace_limit) {
    return Internal("{} asked for {} bytes of workspace; the limit was {}", what, kernel.info().workspace_bytes,
                    workspace_limit);
  }
  return kernel;
}

Status Device::WriteConstants(const Kernel& kernel, const Stream& stream, sy_place constants) {
  sy_error error = EmptyError();
  const sy_status status = kernels_->write_constants(handle_, kernel.handle(), stream.handle(), constants, &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, info_.plugin + ": write_constants");
}

StatusOr<BoundKernel> Device::Bind(const Kernel& kernel, const sy_binding& binding) {
  sy_binding call = binding;
  call.header = SY_HEADER(sy_binding);
  sy_error error = EmptyError();
  sy_bound* handle = nullptr;
  sy_launch launch = nullptr;
  const sy_status status = kernels_->bind(handle_, kernel.handle(), &call, &handle, &launch, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": bind");
  BoundKernel bound(this, handle, launch);
  if (launch == nullptr) return Internal("{}: bind succeeded without a launch function", info_.plugin);
  return bound;
}

}  // namespace switchyard
