// Training runs of every parallel mode of which a drawn rank is killed at a drawn moment, and what has to hold then:
//
// - whoever started the ranks ends within a limit, with an error, and every word about a failure names the killed rank
//   (an mpirun that goes on without ranks after one was killed while they met is ended and counted, not judged);
// - nothing is left over: no process, no temporary file (the shared memory of Open MPI is one);
// - every checkpoint that was published loads to its last byte;
// - the run goes on from the latest one, or begins again where it has none, and ends with the files that the same run
//   has when nothing happens: weights, state and metrics; with `launch --max_restarts` without being asked.
//
// What is drawn follows from the seed and the number of the trial alone; what ranks are doing at that moment does not.
// The process has no children of its own beside these runs. Main thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/data/files_for_tests.h"

namespace switchyard {

struct KilledMode {
  std::string name;
  std::string starter;  // launch, nodes (two launchers), mpirun, or alone: one process without any
  int ranks = 1;        // processes
  std::string run;      // settings that the run keeps
  std::string places;   // settings that are given again where it goes on
};
// Those for which this machine has what they need.
std::vector<KilledMode> KilledModes();

class KilledRuns {
 public:
  // limit_seconds: how long a start, and an end after a kill, may take. The runs work in memory, where there is such a
  // file system: on a disk they would mostly wait for fsync. What is found is kept in `folder`.
  KilledRuns(std::string folder, uint64_t seed, double limit_seconds);
  ~KilledRuns();

  // Which of `modes` the trial is of: each comes once before one comes again.
  const KilledMode& ModeOf(uint64_t trial, const std::vector<KilledMode>& modes) const;
  // "": all that has to hold does. Else what does not, and in which folder the files of the trial are left.
  std::string Try(const KilledMode& mode, uint64_t trial);

  int kills() const;  // of ranks that lived
  // A line for each mode that was tried, and their sums.
  std::string Table() const;

 private:
  struct Reference;
  struct Figures;
  class Trial;

  std::string kept_, work_;
  uint64_t seed_;
  double limit_seconds_;
  TemporaryFolder temporary_;  // of the programs that are started
  std::map<std::string, Reference> references_;
  std::map<std::string, Figures> figures_;
};

}  // namespace switchyard
