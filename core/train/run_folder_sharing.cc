#include "core/train/run_folder_sharing.h"

#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/base/secret.h"
#include "core/train/file_calls.h"
#include "core/train/told_by_another.h"

namespace switchyard {

Status TellAll(World& world, const Status& status, std::string* text) {
  std::string verdict = status.ok() ? "+" + *text : "-" + Message(status);
  SY_RETURN_IF_ERROR(world.BroadcastText(verdict, 0));
  if (world.rank() == 0) return status;
  if (verdict[0] == '-') return ToldByAnother(FailedPrecondition("{}", verdict.substr(1)));
  *text = verdict.substr(1);
  return OkStatus();
}

StatusOr<bool> EveryRankShares(World& world, const std::string& run_folder) {
  constexpr char kMeeting[] = ".ranks";
  const bool first_rank = world.rank() == 0;
  std::string mark;  // what no other folder has
  const auto prepare = [&]() -> Status {
    SY_ASSIGN_OR_RETURN(const std::string random, RandomBytes(8));
    mark = Hexadecimal(random);
    SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder));
    SY_RETURN_IF_ERROR(run.Remove(kMeeting));  // of a start that was cut short
    return run.CreateInside(kMeeting).status();
  };
  SY_RETURN_IF_ERROR(TellAll(world, first_rank ? prepare() : OkStatus(), &mark));
  const auto name = [&](int rank) { return fmt::format("{}-{}", mark, rank); };
  const auto write = [&]() -> Status {
    SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder));
    SY_ASSIGN_OR_RETURN(const Folder meeting, run.OpenInside(kMeeting));
    return meeting.Write(name(world.rank()), {BytesOf(mark)});
  };
  const auto comes_to_rank_0 = [&](int rank) {
    const auto read = ReadWholeFile(fmt::format("{}/{}/{}", run_folder, kMeeting, name(rank)), mark.size());
    return read.ok() && *read == mark;
  };
  const auto agree = [&world](int32_t* first) {
    return world.communicator->AllReduce("shares_run_folder", first, first, 1, SY_I32, SY_MIN);
  };
  const Status written = write();
  int32_t first = written.ok() ? world.size() : world.rank();
  SY_RETURN_IF_ERROR(agree(&first));
  std::string why = written.ok() ? "what it writes there does not come to rank 0" : Message(written);
  if (first < world.size()) {
    SY_RETURN_IF_ERROR(world.BroadcastText(why, first));
  } else if (first_rank) {
    for (first = 0; first < world.size() && comes_to_rank_0(first);) ++first;
  }
  SY_RETURN_IF_ERROR(agree(&first));
  if (first_rank) {
    const auto run = Folder::Open(run_folder);
    const Status removed = run.ok() ? run->Remove(kMeeting) : run.status();
    if (!removed.ok()) LogWarning("{}/{} can be deleted: {}", run_folder, kMeeting, Message(removed));
  }
  if (first == 0) return FailedPrecondition("rank 0 cannot write into the run folder {}: {}", run_folder, why);
  if (first_rank && first < world.size())
    LogWarning(
        "rank {} on {} does not share the run folder {} with rank 0 ({}): each checkpoint is gathered on rank 0, for "
        "which steps wait; with --output on a file system to which all hosts write, each rank writes its part",
        first, world.processes.host_names[static_cast<size_t>(first)], run_folder, why);
  return first == world.size();
}

}  // namespace switchyard
