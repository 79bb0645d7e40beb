// How the ranks that write a checkpoint together meet, in the threads that write it and beside the steps: over the
// store of the rendezvous, so that no collective of the steps is in the way and a rank that dies ends every wait. One
// object per rank and save. Rank 0 publishes. Not thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/processes/rendezvous.h"
#include "core/train/tensor_file.h"

namespace switchyard {

class SaveMeeting {
 public:
  // number: of the save, new in the run and the same on all ranks; writers: the ranks that write a file, 0 first.
  SaveMeeting(Rendezvous& rendezvous, int number, int rank, std::vector<int> writers)
      : rendezvous_(rendezvous), number_(number), rank_(rank), writers_(std::move(writers)) {}

  // Of rank 0: SharedWriting::begin and wait. The error of a rank begins with its number.
  Status Begin(const std::string& draft);
  StatusOr<std::vector<TensorFileSummary>> Wait();

  // Of the other writers: where to write, and that it was done.
  StatusOr<std::string> Draft();
  Status Report(const TensorFileSummary& summary);

  // Of all ranks, once, at the end, however it comes; status: of this rank. What became of the save: the error of this
  // rank, else that of the whole. Where the run has failed meanwhile, that is for those to say who run it.
  Status End(const Status& status);

 private:
  std::string Key(const std::string& what) const;
  Status Put(const std::string& what, const Status& status, const std::string& value = "");
  StatusOr<std::string> Get(const std::string& what);

  Rendezvous& rendezvous_;
  const int number_, rank_;
  const std::vector<int> writers_;
  bool told_ = false;  // of rank 0, where the others may write; of another, what it wrote
};

}  // namespace switchyard
