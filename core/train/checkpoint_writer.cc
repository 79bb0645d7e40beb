#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/logging.h"
#include "core/train/checkpoint.h"

namespace switchyard {

// What the thread does, and where it leaves its result.
struct CheckpointWriter::Job {
  Status status;
  std::thread thread;
};

CheckpointWriter::CheckpointWriter(std::string run_folder) : run_folder_(std::move(run_folder)) {}

CheckpointWriter::~CheckpointWriter() {
  const Status status = Finish();
  if (!status.ok()) LogError("{}", Message(status));
}

Status CheckpointWriter::Save(CheckpointContents contents, const SaveOptions& options) {
  const auto held = std::make_shared<CheckpointContents>(std::move(contents));
  return Save([held]() -> StatusOr<CheckpointContents> { return std::move(*held); }, options);
}

Status CheckpointWriter::Save(MakeContents make, const SaveOptions& options) {
  return Begin(
      [make = std::move(make), options, run_folder = run_folder_]() mutable -> Status {
        auto contents = std::exchange(make, nullptr)();
        SY_RETURN_IF_ERROR(contents.status());
        return SaveCheckpoint(run_folder, *contents, options).status();
      },
      nullptr);
}

Status CheckpointWriter::Begin(std::function<Status()> work, std::function<Status(const Status&)> end) {
  const Status earlier = Finish();
  if (!earlier.ok()) return end ? end(earlier) : earlier;
  const auto out_of_memory = [](const std::string& run_folder) {
    return ResourceExhausted("out of memory while saving a checkpoint in {}; what was saved before is whole",
                             run_folder);
  };
  const auto ended = [end](const Status& status) { return end ? end(status) : status; };
  try {
    auto job = std::make_unique<Job>();
    job->thread = std::thread(
        [job = job.get(), work = std::move(work), ended, run_folder = run_folder_, out_of_memory]() mutable {
          // Of this thread alone, on Linux: where steps are computed on host cores, they go first.
          constexpr int kBehind = 10, kLast = 19;
          (void)setpriority(PRIO_PROCESS, 0, std::min(kLast, getpriority(PRIO_PROCESS, 0) + kBehind));
          try {
            job->status = std::exchange(work, nullptr)();
          } catch (const std::bad_alloc&) {
            job->status = out_of_memory(run_folder);
          } catch (const std::exception& error) {
            job->status =
                Internal("saving a checkpoint in {}: {}; what was saved before is whole", run_folder, error.what());
          }
          try {
            job->status = ended(job->status);
          } catch (const std::bad_alloc&) {
            job->status = out_of_memory(run_folder);
          }
        });
    job_ = std::move(job);
  } catch (const std::bad_alloc&) {
    return ended(out_of_memory(run_folder_));
  } catch (const std::system_error& error) {
    return ended(
        ResourceExhausted("cannot start the thread that saves a checkpoint in {}: {}", run_folder_, error.what()));
  }
  return OkStatus();
}

Status CheckpointWriter::Finish() {
  if (job_ == nullptr) return OkStatus();
  job_->thread.join();
  const Status status = job_->status;
  job_.reset();
  return status;
}

}  // namespace switchyard
