// Few of the kills of which tools/soak does a thousand.
#include "tests/faults/killed_runs.h"

#include <random>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(KilledRuns, EndWithTheRightCulpritAndGoOnWithTheBitsOfUninterruptedOnes) {
  constexpr uint64_t kTrials = 4;
  const uint64_t seed = std::random_device()();
  printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const TemporaryFolder folder;
  const std::vector<KilledMode> modes = KilledModes();
  KilledRuns runs(folder.path(), seed, 60);
  for (uint64_t trial = 0; trial < kTrials; ++trial) ASSERT_EQ(runs.Try(runs.ModeOf(trial, modes), trial), "");
  printf("%s", runs.Table().c_str());
}

}  // namespace
}  // namespace switchyard
