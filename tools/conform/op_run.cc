#include "tools/conform/op_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/abi/op_request.h"

namespace switchyard::conform {
namespace {

constexpr uint8_t kGuard = 0xA5;
constexpr uint8_t kPoison = 0xFF;  // not a number in every float dtype
constexpr uint64_t kGuardBytes = 256;

// f(i, where it lies in bytes) of each element i, in row-major order.
template <typename F>
void ForEachElement(const sy_tensor& tensor, F f) {
  const size_t size = BytesOf(tensor.dtype), count = static_cast<size_t>(Elements(tensor));
  int64_t index[SY_MAX_RANK] = {}, at = 0;
  for (size_t i = 0; i < count; ++i) {
    f(i, static_cast<size_t>(at) * size);
    for (int32_t axis = tensor.rank; axis-- > 0;) {
      at += tensor.strides[axis];
      if (++index[axis] < tensor.dims[axis]) break;
      at -= tensor.strides[axis] * tensor.dims[axis];
      index[axis] = 0;
    }
  }
}

// To the end of the last element, whatever the strides.
uint64_t StoredBytes(const sy_tensor& tensor) {
  int64_t last = 0;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) last += (tensor.dims[axis] - 1) * tensor.strides[axis];
  return static_cast<uint64_t>(last + 1) * BytesOf(tensor.dtype);
}

// Row-major values as the (possibly strided) tensor stores them; poison in the gaps.
Bytes Stored(const std::vector<double>& values, const sy_tensor& tensor) {
  Bytes packed = Encode(values, tensor.dtype);
  if (IsContiguous(tensor)) return packed;
  const size_t size = BytesOf(tensor.dtype);
  Bytes stored(StoredBytes(tensor), kPoison);
  ForEachElement(tensor, [&](size_t i, size_t at) { std::memcpy(&stored[at], &packed[i * size], size); });
  return stored;
}

// The way back; kInternal where a gap was written.
StatusOr<Bytes> Packed(Bytes stored, const sy_tensor& tensor) {
  if (IsContiguous(tensor)) return stored;
  const size_t size = BytesOf(tensor.dtype);
  Bytes packed(static_cast<size_t>(Elements(tensor)) * size), gaps = stored;
  ForEachElement(tensor, [&](size_t i, size_t at) {
    std::memcpy(&packed[i * size], &stored[at], size);
    std::memset(&gaps[at], kPoison, size);
  });
  for (size_t i = 0; i < gaps.size(); ++i) {
    if (gaps[i] != kPoison) return Internal("wrote between the elements of a strided tensor, at byte {}", i);
  }
  return packed;
}

}  // namespace

StatusOr<Kernel> PrepareOp(Device& device, const Problem& problem, const PrepareMode& mode) {
  sy_prepare_request request{};
  request.op = problem.op.c_str();
  request.op_version = mode.op_version;
  request.attributes_size = mode.attribute_bytes.value_or(static_cast<uint32_t>(problem.attributes.size()));
  request.attributes = problem.attributes.empty() ? nullptr : problem.attributes.data();
  request.input_count = static_cast<uint32_t>(problem.inputs.size());
  request.output_count = static_cast<uint32_t>(problem.outputs.size());
  request.inputs = mode.without_inputs ? nullptr : problem.inputs.data();
  request.outputs = mode.without_outputs ? nullptr : problem.outputs.data();
  request.workspace_limit = mode.workspace_limit;
  request.determinism = mode.determinism;
  request.tuning = mode.tuning;
  request.paired_forward = mode.paired_forward;
  request.forward = mode.forward == nullptr ? nullptr : mode.forward->handle();
  request.accumulate = mode.accumulate.empty() ? nullptr : mode.accumulate.data();
  request.tag = "conform";
  return device.Prepare(request);
}

StatusOr<GuardedBuffer> GuardedBuffer::Make(Device& device, uint64_t bytes, int lead_alignments) {
  GuardedBuffer guarded;
  guarded.device_ = &device;
  guarded.bytes_ = bytes;
  const uint64_t alignment = device.info().alignment;
  guarded.lead_ = (kGuardBytes + alignment - 1) / alignment * alignment + (lead_alignments - 1) * alignment;
  SY_ASSIGN_OR_RETURN(guarded.buffer_, device.Allocate(guarded.lead_ + bytes + kGuardBytes));
  return guarded;
}

Status GuardedBuffer::Write(const Bytes& payload) {
  Bytes image(lead_ + bytes_ + kGuardBytes, kGuard);
  std::copy(payload.begin(), payload.end(), image.begin() + static_cast<ptrdiff_t>(lead_));
  return device_->Upload(buffer_.at(0), image.data(), image.size());
}

StatusOr<Bytes> GuardedBuffer::Read() const {
  Bytes image(lead_ + bytes_ + kGuardBytes);
  SY_RETURN_IF_ERROR(device_->Download(image.data(), buffer_.at(0), image.size()));
  const auto payload = image.begin() + static_cast<ptrdiff_t>(lead_), behind = payload + static_cast<ptrdiff_t>(bytes_);
  const auto is_written = [](uint8_t byte) { return byte != kGuard; };
  for (const auto& [begin, end] : {std::pair{image.begin(), payload}, std::pair{behind, image.end()}}) {
    const auto written = std::find_if(begin, end, is_written);
    if (written != end) return Internal("wrote outside of a buffer of {} bytes, at byte {}", bytes_, written - payload);
  }
  return Bytes(payload, behind);
}

StatusOr<std::unique_ptr<BoundOp>> BoundOp::Make(Device& device, const Problem& problem, const Kernel& kernel,
                                                 Mode mode) {
  std::unique_ptr<BoundOp> op(new BoundOp());
  op->device_ = &device;
  op->problem_ = &problem;
  op->mode_ = std::move(mode);
  int lead = op->mode_.first_lead;
  const auto allocate = [&](uint64_t bytes) { return GuardedBuffer::Make(device, bytes, 1 + lead++ % 3); };
  for (const sy_tensor& tensor : problem.inputs) {
    SY_ASSIGN_OR_RETURN(GuardedBuffer buffer, allocate(StoredBytes(tensor)));
    op->inputs_.push_back(std::make_shared<GuardedBuffer>(std::move(buffer)));
  }
  op->shared_with_.assign(problem.outputs.size(), -1);
  for (size_t o = 0; o < problem.outputs.size(); ++o) {
    const int input = op->mode_.in_place ? kernel.info().inplace[o] : -1;
    const auto& taken = op->shared_with_;
    if (input >= 0 && std::find(taken.begin(), taken.end(), input) == taken.end()) {
      if (StoredBytes(problem.inputs[input]) != StoredBytes(problem.outputs[o])) {
        return Internal("declared output {} in place of input {}, which has another size", o, input);
      }
      op->shared_with_[o] = input;
      op->outputs_.push_back(op->inputs_[input]);
      continue;
    }
    SY_ASSIGN_OR_RETURN(GuardedBuffer buffer, allocate(StoredBytes(problem.outputs[o])));
    op->outputs_.push_back(std::make_shared<GuardedBuffer>(std::move(buffer)));
  }
  std::vector<sy_place> inputs, outputs;
  for (const auto& buffer : op->inputs_) inputs.push_back(buffer->place());
  for (const auto& buffer : op->outputs_) outputs.push_back(buffer->place());
  sy_binding binding{};
  binding.inputs = inputs.data();
  binding.outputs = outputs.data();
  if (kernel.info().workspace_bytes > 0) {
    SY_ASSIGN_OR_RETURN(op->workspace_, allocate(kernel.info().workspace_bytes));
    binding.workspace = op->workspace_->place();
  }
  if (kernel.info().persistent_bytes > 0) {
    SY_ASSIGN_OR_RETURN(op->persistent_, allocate(kernel.info().persistent_bytes));
    SY_RETURN_IF_ERROR(op->persistent_->Write(Bytes(kernel.info().persistent_bytes, 0)));
    binding.persistent = op->persistent_->place();
  }
  SY_ASSIGN_OR_RETURN(op->stream_, device.NewStream());
  if (kernel.info().constant_bytes > 0) {
    SY_ASSIGN_OR_RETURN(op->constants_, allocate(kernel.info().constant_bytes));
    SY_RETURN_IF_ERROR(op->constants_->Write(Bytes(kernel.info().constant_bytes, kPoison)));
    SY_RETURN_IF_ERROR(device.WriteConstants(kernel, op->stream_, op->constants_->place()));
    binding.constants = op->constants_->place();
  }
  op->residual_ = op->mode_.residual;
  if (op->residual_ == nullptr && kernel.info().residual_bytes > 0) {
    SY_ASSIGN_OR_RETURN(GuardedBuffer buffer, allocate(kernel.info().residual_bytes));
    op->residual_ = std::make_shared<GuardedBuffer>(std::move(buffer));
    SY_RETURN_IF_ERROR(op->residual_->Write(Bytes(kernel.info().residual_bytes, kPoison)));
  }
  if (op->residual_ != nullptr) binding.residual = op->residual_->place();
  SY_ASSIGN_OR_RETURN(op->bound_, device.Bind(kernel, binding));
  return op;
}

BoundOp::~BoundOp() {
  if (launched_) (void)device_->Synchronize(stream_);
}

Status BoundOp::Fill() {
  written_inputs_.clear();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    written_inputs_.push_back(Stored(problem_->values[i], problem_->inputs[i]));
    SY_RETURN_IF_ERROR(inputs_[i]->Write(written_inputs_.back()));
  }
  for (size_t o = 0; o < outputs_.size(); ++o) {
    if (shared_with_[o] >= 0) continue;
    const bool given = o < mode_.initial_outputs.size() && !mode_.initial_outputs[o].empty();
    SY_RETURN_IF_ERROR(outputs_[o]->Write(given ? Stored(mode_.initial_outputs[o], problem_->outputs[o])
                                                : Bytes(outputs_[o]->bytes(), kPoison)));
  }
  if (workspace_) SY_RETURN_IF_ERROR(workspace_->Write(Bytes(workspace_->bytes(), kPoison)));
  return OkStatus();
}

Status BoundOp::Launch() {
  launched_ = true;
  sy_error error = EmptyError();
  return FromAbi(bound_.Launch(stream_.handle(), &error), error, "launch");
}

StatusOr<std::vector<std::vector<double>>> BoundOp::Collect() {
  launched_ = false;
  SY_RETURN_IF_ERROR(device_->Synchronize(stream_));
  for (size_t i = 0; i < inputs_.size(); ++i) {
    auto bytes = inputs_[i]->Read();
    if (!bytes.ok()) return Annotate(bytes.status(), fmt::format("input {}", i));
    const bool overwritten =
        std::find(shared_with_.begin(), shared_with_.end(), static_cast<int>(i)) != shared_with_.end();
    if (!overwritten && *bytes != written_inputs_[i]) return Internal("changed its input {}", i);
  }
  for (const auto& [scratch, name] : {std::pair(&workspace_, "workspace"), std::pair(&persistent_, "persistent memory"),
                                      std::pair(&constants_, "constants")}) {
    if (!scratch->has_value()) continue;
    if (auto bytes = (*scratch)->Read(); !bytes.ok()) return Annotate(bytes.status(), name);
  }
  if (residual_ != nullptr) {
    if (auto bytes = residual_->Read(); !bytes.ok()) return Annotate(bytes.status(), "residual");
  }
  std::vector<std::vector<double>> results;
  for (size_t o = 0; o < outputs_.size(); ++o) {
    auto bytes = outputs_[o]->Read();
    if (!bytes.ok()) return Annotate(bytes.status(), fmt::format("output {}", o));
    const auto packed = Packed(*bytes, problem_->outputs[o]);
    if (!packed.ok()) return Annotate(packed.status(), fmt::format("output {}", o));
    results.push_back(Decode(*packed, problem_->outputs[o].dtype));
  }
  return results;
}

StatusOr<std::vector<std::vector<double>>> BoundOp::Run() {
  SY_RETURN_IF_ERROR(Fill());
  SY_RETURN_IF_ERROR(Launch());
  return Collect();
}

StatusOr<std::vector<std::vector<double>>> RunOp(Device& device, const Problem& problem, const PrepareMode& mode) {
  SY_ASSIGN_OR_RETURN(Kernel kernel, PrepareOp(device, problem, mode));
  SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device, problem, kernel, {}));
  return bound->Run();
}

}  // namespace switchyard::conform
