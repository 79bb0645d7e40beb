// A few of the kills of which tools/soak does a thousand, always those of one seed: what is found can be found again.
#include "tests/faults/killed_runs.h"

#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(KilledRuns, EndWithTheRightCulpritAndGoOnWithTheBitsOfUninterruptedOnes) {
  constexpr uint64_t kTrials = 4, kSeed = 1;
  const TemporaryFolder folder;
  std::vector<KilledMode> modes = KilledModes();
  std::erase_if(modes, [](const KilledMode& mode) { return mode.starter == "mpirun"; });  // slow where cores are busy
  KilledRuns runs(folder.path(), kSeed, 60);
  for (uint64_t trial = 0; trial < kTrials; ++trial) ASSERT_EQ(runs.Try(runs.ModeOf(trial, modes), trial), "");
  printf("%s", runs.Table().c_str());
  EXPECT_GT(runs.kills(), 0) << "no rank was found in time";
}

}  // namespace
}  // namespace switchyard
