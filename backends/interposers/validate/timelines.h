// What the validating interposer knows of the order in which work runs. Not thread-safe: Validate holds its mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace switchyard {

// The order of a stream's work: item k is finished once completed ≥ k. A wait makes everything after it later than
// another timeline's item.
class Timelines {
 public:
  uint64_t New() {
    if (unused_.empty()) {
      lines_.emplace_back();
      return lines_.size() - 1;
    }
    const uint64_t line = unused_.back();
    unused_.pop_back();
    return line;
  }
  void Drop(uint64_t line) {  // that no other line waits for
    lines_[line] = {};
    unused_.push_back(line);
  }
  uint64_t Submit(uint64_t line) { return ++lines_[line].submitted; }
  uint64_t submitted(uint64_t line) const { return lines_[line].submitted; }
  bool Finished(uint64_t line, uint64_t item) const { return lines_[line].completed >= item; }
  // The item `at` of `line` is later than `item` of `other`.
  void Order(uint64_t line, uint64_t at, uint64_t other, uint64_t item);
  void Complete(uint64_t line, uint64_t item);
  // What has certainly finished once `item` of `line` has: the last item of each line.
  using Past = std::map<uint64_t, uint64_t>;
  Past Before(uint64_t line, uint64_t item) const;
  static bool Holds(const Past& past, uint64_t line, uint64_t item) {
    const auto found = past.find(line);
    return found != past.end() && found->second >= item;
  }
  // Something that was submitted to the line so far has failed: so has all that is submitted later.
  void Fail(uint64_t line) { lines_[line].failed = std::min(lines_[line].failed, lines_[line].submitted); }
  bool HasFailed(uint64_t line) const { return lines_[line].failed != kNever; }
  // All up to there has run without an error.
  void SeeHealthy(uint64_t line, uint64_t item) { lines_[line].healthy = std::max(lines_[line].healthy, item); }
  // Others queue work there that is not submitted here.
  void Share(uint64_t line) { lines_[line].shared = true; }
  // Nothing has been submitted since all was well, no wait either.
  bool CannotFail(uint64_t line) const {
    const Line& one = lines_[line];
    return one.submitted == one.healthy && one.failed == kNever && !one.shared;
  }
  bool IsBehindFailure(uint64_t line, uint64_t item) const { return item > lines_[line].failed; }

 private:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  struct Waiting {
    uint64_t at, other, item;
  };
  struct Line {
    uint64_t submitted = 0, completed = 0, healthy = 0, failed = kNever;
    bool shared = false;
    std::vector<Waiting> waits;
  };
  std::vector<Line> lines_;
  std::vector<uint64_t> unused_;
};

}  // namespace switchyard
