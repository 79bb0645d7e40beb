// Looks at every crash of what a RecordedDisk has recorded, and at those of a program that had forgotten an fsync.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/train/lossy_disk.h"
#include "tests/train/scratch.h"

namespace switchyard {

class CrashTest : public Scratch {
 protected:
  // Says what is wrong with a folder that a crash before call `cut` left, or "".
  using Judge = std::function<std::string(int cut, const std::string& folder)>;

  // Looks at every crash from call `from_` on: before each call; with all that was pending lost, with nothing lost,
  // with each single thing lost and with each single thing kept. Returns the first complaint.
  std::string FirstLoss(const RecordedDisk& disk, int forgotten, const Judge& judge) {
    for (int cut = from_; cut <= disk.calls(); ++cut) {
      if (only_all_ && cut < disk.calls() && (cut == 0 || !disk.IsFsync(cut - 1))) continue;
      std::vector<std::vector<int>> losses = disk.Losses(cut, forgotten);
      if (only_all_ && !losses.empty()) losses.resize(1);
      for (const auto& lost : losses) {
        const DiskContent content = disk.AfterCrash(cut, lost);
        std::string& verdict = Verdict(cut, content, judge);
        if (verdict == "whole") continue;
        std::string text = fmt::format("before {}: {}; lost:", disk.Describe(cut), verdict);
        for (const int one : lost) text += " " + disk.Describe(one) + ",";
        return text;
      }
    }
    return "";
  }

  void ExpectEveryFsyncIsNeeded(const RecordedDisk& disk, const Judge& judge) {
    EXPECT_EQ(FirstLoss(disk, -1, judge), "");
    int looked_at = 0;
    for (const int forgotten : disk.Fsyncs()) {
      if (forgotten < from_) continue;
      EXPECT_NE(FirstLoss(disk, forgotten, judge), "") << "not needed: " << disk.Describe(forgotten);
      ++looked_at;
    }
    EXPECT_GT(looked_at, 0);
  }

  // Ends what the judge calls a phase here: `Phase` counts the ends that a crash has behind it.
  void EndPhase(const RecordedDisk& disk) { ends_.push_back(disk.calls()); }
  int Phase(int cut) const {
    return static_cast<int>(std::count_if(ends_.begin(), ends_.end(), [&](int end) { return cut >= end; }));
  }

  // For another disk in the same test.
  void Forget() {
    from_ = 0;
    ends_.clear();
    verdicts_.clear();
  }

  int64_t judged() const { return static_cast<int64_t>(verdicts_.size()); }

  int from_ = 0;
  // For long recordings: only crashes that lose all that was pending, which fsyncs alone change.
  bool only_all_ = false;

 private:
  // Crashes of which the same is left, at calls that are judged alike, are looked at once.
  std::string& Verdict(int cut, const DiskContent& content, const Judge& judge) {
    const auto [found, fresh] = verdicts_.try_emplace({Phase(cut), content});
    if (fresh) {
      const std::string folder = In("after");
      std::filesystem::create_directory(folder);
      WriteDisk(content, folder);
      const std::string complaint = judge(cut, folder);
      found->second = complaint.empty() ? "whole" : complaint;
      std::filesystem::remove_all(folder);
    }
    return found->second;
  }

  std::vector<int> ends_;
  std::map<std::pair<int, DiskContent>, std::string> verdicts_;
};

}  // namespace switchyard
