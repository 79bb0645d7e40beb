#include "tools/conform/failing_stream.h"

namespace switchyard::conform {
namespace {

Status Noticed() { return Unimplemented("every fault that could be planted is refused at the call"); }

}  // namespace

StatusOr<std::unique_ptr<FailingStream>> FailingStream::Make(Device& device) {
  std::unique_ptr<FailingStream> made(new FailingStream(device));
  SY_ASSIGN_OR_RETURN(made->buffer_, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(made->stream_, device.NewStream());
  if (!device.async()) return made;
  // Whether the call notices a long copy is tried where it spoils nothing.
  SY_ASSIGN_OR_RETURN(const auto other, Device::Open(device.plugin(), device.info().index, {}));
  FailingStream probe(*other);
  SY_ASSIGN_OR_RETURN(probe.buffer_, other->Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(probe.stream_, other->NewStream());
  if (probe.QueueLongCopy().ok()) return made;
  auto pair = BoundPair::Make(device, "conform", kFreed);
  if (pair.ok()) {
    made->pair_ = std::move(*pair);
    made->pair_->FreeMemory();
    if (!device.Allocate(kBytes).ok()) return Noticed();  // as a device that refuses to free what is bound refuses the rest
  } else if (pair.status().code() != absl::StatusCode::kUnimplemented) {
    return pair.status();
  }
  return made;
}

Status FailingStream::QueueLongCopy() {
  return device_.Copy(stream_, buffer_.at(0), HostPlace(data_.data()), data_.size());
}

Status FailingStream::Fail() {
  const Status queued = pair_ != nullptr ? pair_->Launch(stream_) : QueueLongCopy();
  return queued.ok() ? OkStatus() : Noticed();
}

}  // namespace switchyard::conform
