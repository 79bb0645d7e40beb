// What a capture records: commands of the stream on which it began (branch 0) and of those drawn in since, each behind
// the command before it on its branch and behind what its branch was made to wait for. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/null/stream.h"

namespace switchyard {

class Recording {
 public:
  explicit Recording(std::weak_ptr<Stream> first) { Join(std::move(first)); }

  size_t Join(std::weak_ptr<Stream> stream);       // its branch
  size_t Add(size_t branch, Command command);      // its place among all commands
  void Wait(size_t branch, size_t command);        // what comes on the branch is behind that command
  void Spoil();                                    // there will be no graph
  std::vector<std::shared_ptr<Stream>> Streams();  // of all branches but the first
  // In an order that the edges allow: of what they leave open the first branch's first, or the last branch's.
  // SY_UNSUPPORTED where it was spoiled, or where branch 0 is not behind everything.
  sy_status Finish(bool last_branch_first, std::shared_ptr<const Graph>* graph, sy_error* error);

 private:
  struct Node {
    Command command;
    size_t branch;
    std::vector<size_t> behind;
  };
  std::mutex mutex_;
  std::vector<Node> nodes_;
  std::vector<std::vector<size_t>> tails_;  // by branch: what its next command is behind
  std::vector<std::weak_ptr<Stream>> streams_;
  bool spoiled_ = false;
};

}  // namespace switchyard
