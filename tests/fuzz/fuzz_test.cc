// Each fuzzer for a second, the same inputs in every run up to where the second ends. The hours are tools/soak's.
#include "tests/fuzz/fuzz.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

class Fuzz : public ::testing::TestWithParam<FuzzTarget> {};

TEST_P(Fuzz, NoInputBreaksIt) {
  FuzzInput current;
  EXPECT_GT(RunFuzzer(GetParam(), 1, 1.0, 1 << 20, &current), static_cast<int64_t>(GetParam().seeds().size()));
}

INSTANTIATE_TEST_SUITE_P(, Fuzz, ::testing::ValuesIn(FuzzTargets()),
                         [](const auto& info) { return std::string(info.param.name); });

// A parser with a fault that needs two right bytes in a row; the driver must find it.
TEST(FuzzDriver, FindsAPlantedFault) {
  static int found;
  found = 0;
  const FuzzTarget planted = {"planted",
                              [](const uint8_t* data, size_t size) {
                                for (size_t i = 1; i < size; ++i) found += data[i - 1] == '{' && data[i] == '[';
                                return 0;
                              },
                              [] {
                                return std::vector<FuzzInput>{{'a', 'b', 'c'}};
                              }};
  FuzzInput current;
  RunFuzzer(planted, 1, 10, 20000, &current);
  EXPECT_GT(found, 0);
}

TEST(FuzzDriver, RepeatsItselfForTheSameSeed) {
  FuzzInput first, second, other;
  RunFuzzer(FuzzTargets()[0], 7, 60, 200, &first);
  RunFuzzer(FuzzTargets()[0], 7, 60, 200, &second);
  RunFuzzer(FuzzTargets()[0], 8, 60, 200, &other);
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
}

}  // namespace
}  // namespace switchyard
