#include "tools/conform/failing_stream.h"

namespace switchyard::conform {

StatusOr<std::unique_ptr<FailingStream>> FailingStream::Make(Device& device) {
  std::unique_ptr<FailingStream> made(new FailingStream(device));
  SY_ASSIGN_OR_RETURN(made->buffer_, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(made->stream_, device.NewStream());
  return made;
}

Status FailingStream::Fail() {
  if (device_.Copy(stream_, buffer_.at(0), HostPlace(data_.data()), data_.size()).ok()) return OkStatus();
  const Status noticed = Unimplemented("every fault that could be planted is refused at the call");
  if (!device_.async()) return noticed;
  SY_ASSIGN_OR_RETURN(pair_, BoundPair::Make(device_, "conform"));
  pair_->FreeMemory();
  return pair_->Launch(stream_).ok() ? OkStatus() : noticed;
}

}  // namespace switchyard::conform
