#include "core/train/state_copy.h"

#include <algorithm>
#include <cstring>

#include "core/base/logging.h"

namespace switchyard {
namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;  // bytes after which waiting steps are told how far the copy is

}  // namespace

StateCopy::~StateCopy() {
  if (copies_.handle() == nullptr) return;
  (void)engine_.world().device->Synchronize(copies_);
  (void)engine_.Synchronize();  // the steps have waited for begun_
}

Status StateCopy::Reserve() {
  if (of_host_.bytes() > 0 || engine_.layout().bytes(kHostStateArena) == 0) return OkStatus();
  SY_ASSIGN_OR_RETURN(HostMemory of_host, engine_.memory().AllocateForCopy(kHostStateArena));
  SY_ASSIGN_OR_RETURN(host_, engine_.memory().AllocateForCopy(kStateArena));
  of_host_ = std::move(of_host);
  return OkStatus();
}

Status StateCopy::Allocate() {
  if (allocated_) return OkStatus();
  SY_RETURN_IF_ERROR(Reserve());
  Device& device = *engine_.world().device;
  const uint64_t bytes = engine_.layout().bytes(kStateArena);
  if (host_.bytes() == 0) {
    SY_ASSIGN_OR_RETURN(host_, device.AllocateHost(bytes));
  }
  if (engine_.async()) {
    SY_ASSIGN_OR_RETURN(copies_, device.NewStream());
    SY_ASSIGN_OR_RETURN(begun_, device.NewEvent());
    SY_ASSIGN_OR_RETURN(done_, device.NewEvent());
    auto beside = device.Allocate(bytes);
    if (beside.ok()) {
      beside_ = std::move(*beside);
    } else {
      LogWarning("each checkpoint holds up a step while it is copied, for lack of {:.1f} MB of device memory",
                 static_cast<double>(bytes) / 1e6);
    }
  }
  allocated_ = true;
  return OkStatus();
}

Status StateCopy::Begin() {
  SY_RETURN_IF_ERROR(Allocate());
  Device& device = *engine_.world().device;
  const sy_place state = engine_.memory().place(kStateArena, 0, 0);
  if (of_host_.bytes() > 0)
    std::memcpy(of_host_.data(), engine_.memory().host_address(kHostStateArena), of_host_.bytes());
  if (!engine_.async()) {
    engine_.memory().state_reading().Begin();
    return OkStatus();
  }
  if (beside_.bytes() == 0) return device.Download(host_.data(), state, host_.bytes());
  SY_RETURN_IF_ERROR(device.Copy(copies_, beside_.at(0), state, host_.bytes()));
  SY_RETURN_IF_ERROR(begun_.Record(copies_));
  SY_RETURN_IF_ERROR(engine_.StartAfter(begun_));
  SY_RETURN_IF_ERROR(device.Copy(copies_, HostPlace(host_.data()), beside_.at(0), host_.bytes()));
  return done_.Record(copies_);
}

Status StateCopy::Wait() {
  if (!engine_.async()) return CopyBesideSteps();
  return beside_.bytes() > 0 ? done_.Wait() : OkStatus();
}

Status StateCopy::CopyBesideSteps() {
  StateReading& reading = engine_.memory().state_reading();
  if (!reading.reads()) return OkStatus();
  Status status;
  for (uint64_t begin = 0, end = 0; status.ok() && begin < host_.bytes(); begin = end) {
    end = std::min(begin + kPiece, host_.bytes());
    status = engine_.world().device->Copy(Stream(), HostPlace(host_.data() + begin),
                                          engine_.memory().place(kStateArena, begin, 0), end - begin);
    reading.Reach(end);
  }
  reading.End();
  return status;
}

}  // namespace switchyard
