#include "tools/conform/failing_stream.h"

namespace switchyard::conform {

StatusOr<std::unique_ptr<FailingStream>> FailingStream::Make(Device& device) {
  std::unique_ptr<FailingStream> made(new FailingStream(device));
  SY_ASSIGN_OR_RETURN(made->buffer_, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(made->stream_, device.NewStream());
  if (device.async()) {
    SY_ASSIGN_OR_RETURN(made->pair_, BoundPair::Make(device, "conform", kFreed));
    made->pair_->FreeMemory();
  }
  return made;
}

Status FailingStream::Fail() {
  const bool copies = device_.Copy(stream_, buffer_.at(0), HostPlace(data_.data()), data_.size()).ok();
  const bool launches = pair_ != nullptr && pair_->Launch(stream_).ok();
  return copies || launches ? OkStatus() : Unimplemented("every fault that could be planted is refused at the call");
}

}  // namespace switchyard::conform
