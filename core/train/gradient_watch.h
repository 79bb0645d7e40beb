// Watching for gradients that are not finite. The device leaves such an update out by itself; here a run learns of it,
// goes on (--on_nonfinite=skip, or a dynamic loss scale that can still be lowered) or ends with an error that says
// where to look. On an asynchronous device an update is judged while the next one runs. The norm is of gradients summed
// over the ranks, so every rank comes to the same verdict at the same call. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/train/engine.h"
#include "core/train/timetable.h"

namespace switchyard {

class GradientWatch {
 public:
  // skipped: before, by the run that goes on. config.on_nonfinite says whether such updates are left out.
  GradientWatch(Engine& engine, const TrainConfig& config, const SkippedUpdates& skipped)
      : engine_(engine),
        skip_(config.on_nonfinite == "skip"),
        fp16_wire_(config.allreduce_dtype == "fp16" && engine.world().data_size() > 1),
        skipped_(skipped) {}

  // An update was begun in the engine's current slot. update: counted from 1; epoch: from 1.
  void Begun(int64_t update, int64_t epoch) { unread_ = {engine_.slot(), update, epoch}; }

  // Judges the update that was begun last, unless that was done. followed: the next one has begun.
  Status Check(bool followed);

  const SkippedUpdates& skipped() const { return skipped_; }  // so far

 private:
  struct Unread {
    int slot = 0;
    int64_t update = 0, epoch = 0;
  };
  Status Refuse(const Unread& update, float norm, bool followed);
  StatusOr<std::string> FirstNonFinite(bool followed);  // the tensor, in words

  Engine& engine_;
  const bool skip_, fp16_wire_;
  std::optional<Unread> unread_;
  SkippedUpdates skipped_;
};

}  // namespace switchyard
