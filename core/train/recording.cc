#include "core/train/recording.h"

#include <utility>

#include "core/base/logging.h"
#include "core/train/file_calls.h"

namespace switchyard {
namespace {

constexpr int64_t kUnrecordedUpdates = 2;  // they touch memory for the first time

}  // namespace

Status WriteProfile(const Profile& profile, const std::string& folder, int rank) {
  const std::string name = rank == 0 ? "profile.json" : fmt::format("profile.{}.json", rank);
  const std::string json = profile.TraceJson(rank);
  SY_ASSIGN_OR_RETURN(const Folder opened, Folder::Open(folder));
  SY_RETURN_IF_ERROR(opened.Replace(name, {BytesOf(json)}));
  LogInfo("profile of {} updates in {}; ui.perfetto.dev opens it", profile.updates(), opened.PathOf(name));
  return OkStatus();
}

void Recording::BeginUpdate(int64_t number, int64_t left) {
  if (!wanted_) return;
  left_ = left;
  if (!profile_ && (seen_++ == kUnrecordedUpdates || left <= kRecordedUpdates)) {
    profile_ = std::make_unique<Profile>();
    engine_.Record(profile_.get());
  }
  if (profile_) profile_->BeginUpdate(number);
}

void Recording::WaitedForData(double seconds) {
  if (profile_) profile_->Waited("data", seconds);
}

Status Recording::EndUpdate(const std::string& folder) {
  if (!profile_) return OkStatus();
  profile_->EndUpdate();
  if (profile_->updates() < kRecordedUpdates && left_ > 1) return OkStatus();
  wanted_ = false;
  engine_.Record(nullptr);
  const auto profile = std::exchange(profile_, nullptr);
  return WriteProfile(*profile, folder, engine_.world().rank());
}

}  // namespace switchyard
