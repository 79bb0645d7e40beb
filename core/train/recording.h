// The updates of a run that --profile records: three, from the third on, or the last of a shorter run; and the file
// that they go to. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "core/train/engine.h"

namespace switchyard {

constexpr int64_t kRecordedUpdates = 3;

// profile.json in the folder; of rank r > 0 profile.r.json.
Status WriteProfile(const Profile& profile, const std::string& folder, int rank);

class Recording {
 public:
  // engine: must outlive this. Nothing is recorded where it is not wanted.
  Recording(Engine& engine, bool wanted) : engine_(engine), wanted_(wanted) {}

  // left: updates until the run's end, with this one.
  void BeginUpdate(int64_t number, int64_t left);
  void WaitedForData(double seconds);
  // After the last one writes the file.
  Status EndUpdate(const std::string& folder);

 private:
  Engine& engine_;
  bool wanted_;
  int64_t seen_ = 0, left_ = 0;
  std::unique_ptr<Profile> profile_;  // while updates are recorded
};

}  // namespace switchyard
