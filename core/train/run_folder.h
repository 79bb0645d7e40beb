// The folder of a run, <output>/<model>/<tag>/<suffix>/<output_suffix>: made for one run and shared with none. It holds
// config.json, the checkpoints, and below <node> the log. For the rank that writes; other processes may do the same at
// the same time.
#pragma once

#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/train/config.h"

namespace switchyard {

// Creates the folder, which must not be there, and returns it. Without --suffix the date and time name it, and where
// another run of this second has that name, the next that is free: "20260102-030405-2". With one that is taken,
// FailedPrecondition says what to do.
StatusOr<std::string> CreateRunFolder(const TrainConfig& config, const std::string& model);

// The run whose checkpoint lies in `checkpoint_folder` (absolute, links resolved): two folders up, if that is a run
// folder with a config.json of ours. Else "": a copy of a checkpoint belongs to no run, whatever lies around it.
std::string RunFolderOf(const std::string& checkpoint_folder);

// While it lives, no other process trains in the folder: two that were told to go on with one run would remove each
// other's checkpoints. Ends with the process. A file system without locks lets everyone in.
class RunFolderLock {
 public:
  // FailedPrecondition where another holds it.
  static StatusOr<RunFolderLock> Take(const std::string& run_folder);
  RunFolderLock(RunFolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RunFolderLock& operator=(RunFolderLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~RunFolderLock();

 private:
  explicit RunFolderLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

// config.json: the settings of the run, without what was done only once, at its start.
Status WriteRunConfig(const std::string& run_folder, const TrainConfig& config);

}  // namespace switchyard
