// Tiles: the emulation against what Intel's manual says of TDPBF16PS, the blocking above them, the choice to use them,
// and on a CPU with AMX the instructions against the emulation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "backends/cpu/amx.h"
#include "backends/cpu/vector/tile_check.h"
#include "backends/cpu/vector/transpose.h"

namespace switchyard {
namespace amx {
bool tiles_multiply();
bool tiles_multiply() { return SY_ISA::AgreesWithEmulation<SY_ISA::AmxTiles>(); }
}  // namespace amx

namespace {

using namespace SY_ISA;  // NOLINT

uint32_t Half(float x) { return Bits<uint32_t>(x) >> 16; }  // of a number that bf16 holds
float Pair(uint32_t first, uint32_t second) { return Bits<float>(first | second << 16); }

// Element (0, 0) of sum + a·b on a whole tile: row 0 of `a` and column 0 of `b` hold the pairs given, bits of bf16.
struct Term {
  uint32_t first_a, first_b, second_a, second_b;
};
float Product(float sum, const std::vector<Term>& terms) {
  std::vector<float> a(256), b(256), c(256);
  c[0] = sum;
  for (size_t k = 0; k < terms.size(); ++k) {
    a[k] = Pair(terms[k].first_a, terms[k].second_a);
    b[k * 16] = Pair(terms[k].first_b, terms[k].second_b);
  }
  EmulatedTiles tiles;
  tiles.Load<0>(c.data(), 64);
  tiles.Load<1>(a.data(), 64);
  tiles.Load<2>(b.data(), 64);
  tiles.MultiplyAdd<0, 1, 2>();
  tiles.Store<0>(c.data(), 64);
  return c[0];
}

const uint32_t kOne = Half(1), kZero = 0;

TEST(EmulatedTiles, FirstAndSecondElementsAreSummedApartAndThenAdded) {
  // 2^24 + 1 rounds to 2^24, 2^24 + 2 is a float.
  EXPECT_EQ(Product(0x1p24f, {{kOne, kOne, kOne, kOne}}), 0x1p24f + 2);
  EXPECT_EQ(Product(0x1p24f, {{kOne, kOne, kZero, kZero}}), 0x1p24f);
  EXPECT_EQ(Product(0x1p24f, {{kOne, kOne, kZero, kZero}, {kOne, kOne, kZero, kZero}}), 0x1p24f + 2);
}

TEST(EmulatedTiles, AChainRoundsAtEachStep) {
  const Term large = {Half(0x1p24f), kOne, kZero, kZero}, one = {kOne, kOne, kZero, kZero};
  EXPECT_EQ(Product(0, {large, one, one}), 0x1p24f);
  EXPECT_EQ(Product(0, {one, one, large}), 0x1p24f + 2);
}

TEST(EmulatedTiles, SubnormalNumbersAreZeroButNotTheProductInsideOneStep) {
  const Term smallest = {Half(0x1p-126f), kOne, kZero, kZero}, half = {Half(0x1p-126f), Half(0.5f), kZero, kZero};
  EXPECT_EQ(Product(0, {smallest}), 0x1p-126f);
  EXPECT_EQ(Product(0, {smallest, half}), 0x1.8p-126f);
  EXPECT_EQ(Product(0, {half}), 0);
  EXPECT_EQ(Product(0, {{1, Half(0x1p120f), kZero, kZero}}), 0);                      // a subnormal factor
  EXPECT_EQ(Product(0x1p-127f, {{Half(0x1p-126f), kOne, kZero, kZero}}), 0x1p-126f);  // a subnormal sum
  EXPECT_EQ(Product(-0x1.8p-126f, {smallest}), 0);                                    // a subnormal result
}

TEST(EmulatedTiles, RowsLieAsFarApartAsTheCallerSays) {
  std::vector<float> from(16 * 24), to(16 * 20, -1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  EmulatedTiles tiles;
  tiles.Load<7>(from.data(), 24 * 4);
  tiles.Store<7>(to.data(), 20 * 4);
  for (size_t r = 0; r < 16; ++r)
    for (size_t c = 0; c < 20; ++c) EXPECT_EQ(to[r * 20 + c], c < 16 ? static_cast<float>(r * 24 + c) : -1);
}

TEST(TileGemm, EveryShapeIsTheExactProductAndWritesNothingElse) {
  std::minstd_rand random(1);
  const auto whole = [&] { return static_cast<float>(static_cast<int>(random() >> 16) % 17 - 8); };
  for (int64_t m = 1; m <= 5; ++m)
    for (int64_t n = 1; n <= 4; ++n)
      for (int64_t depth = 1; depth <= 3; ++depth)
        for (const bool add : {false, true}) {
          const int64_t rows = 16 * m, columns = 16 * n, inner = 32 * depth, lda = inner / 2 + 16, ldb = columns + 16,
                        ldc = columns + 8;
          std::vector<float> a(static_cast<size_t>(rows * inner)), b(static_cast<size_t>(inner * columns));
          std::vector<float> words_a(static_cast<size_t>(rows * lda)), words_b(static_cast<size_t>(inner / 2 * ldb));
          std::vector<float> c(static_cast<size_t>(rows * ldc), 3), expected = c;
          for (float& x : a) x = whole();
          for (float& x : b) x = whole();
          const auto at = [](std::vector<float>& v, int64_t i) -> float& { return v[static_cast<size_t>(i)]; };
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t k = 0; k < inner; k += 2)
              at(words_a, i * lda + k / 2) = Pair(Half(at(a, i * inner + k)), Half(at(a, i * inner + k + 1)));
          for (int64_t k = 0; k < inner; k += 2)
            for (int64_t j = 0; j < columns; ++j)
              at(words_b, k / 2 * ldb + j) = Pair(Half(at(b, k * columns + j)), Half(at(b, (k + 1) * columns + j)));
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; ++j) {
              float sum = add ? 3 : 0;
              for (int64_t k = 0; k < inner; ++k) sum += at(a, i * inner + k) * at(b, k * columns + j);
              at(expected, i * ldc + j) = sum;
            }
          EmulatedTiles tiles;
          MultiplyTiles(tiles, m, n, depth, LeftFactor(words_a.data(), lda), RightFactor(words_b.data(), ldb), c.data(),
                        ldc, add);
          ASSERT_EQ(c, expected) << m << " " << n << " " << depth << " " << add;
        }
}

TEST(Transpose, ExchangesRowsAndColumns) {
  std::vector<float> from(48 * 40, 1), to(32 * 50, -1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  Transpose(from.data(), 40, 48, 32, to.data(), 50);
  for (size_t r = 0; r < 32; ++r)
    for (size_t c = 0; c < 50; ++c) ASSERT_EQ(to[r * 50 + c], c < 48 ? static_cast<float>(c * 40 + r) : -1);
}

struct Exchanged : EmulatedTiles {  // factors in the wrong order
  template <int sum, int a, int b>
  void MultiplyAdd() {
    EmulatedTiles::MultiplyAdd<sum, b, a>();
  }
};
struct Forgetful : EmulatedTiles {  // sums that are not kept
  template <int tile>
  void Load(const void* from, int64_t row_bytes) {
    tile < 4 ? EmulatedTiles::Zero<tile>() : EmulatedTiles::Load<tile>(from, row_bytes);
  }
};
struct Short : EmulatedTiles {  // a configuration with 15 rows
  template <int tile>
  void Store(void* to, int64_t row_bytes) const {
    EmulatedTiles::Store<tile>(to, row_bytes);
    std::memset(static_cast<char*>(to) + 15 * row_bytes, 0, 64);
  }
};

TEST(TileCheck, SeesTilesThatDoSomethingElse) {
  EXPECT_TRUE(AgreesWithEmulation<EmulatedTiles>());
  EXPECT_FALSE(AgreesWithEmulation<Exchanged>());
  EXPECT_FALSE(AgreesWithEmulation<Forgetful>());
  EXPECT_FALSE(AgreesWithEmulation<Short>());
}

bool Yes() { return true; }
bool No() { return false; }
bool Never() {
  ADD_FAILURE() << "asked though the answer was known";
  return true;
}
int Granted() { return 0; }
int Refused() { return EPERM; }
int NeverRequested() { return Never() ? 0 : 0; }

TEST(TilesRefusal, AsksInOrderAndSaysWhatIsMissing) {
  EXPECT_EQ(TilesRefusal({Yes, Yes, Granted, Yes}), std::nullopt);
  EXPECT_EQ(TilesRefusal({No, Never, NeverRequested, Never}), "");
  EXPECT_THAT(TilesRefusal({Yes, No, NeverRequested, Never}), testing::Optional(testing::HasSubstr("XCR0")));
  EXPECT_EQ(TilesRefusal({Yes, Yes, Refused, Never}), "the kernel refuses them: Operation not permitted");
  EXPECT_EQ(TilesRefusal({Yes, Yes, Granted, No}), "a product on them came out wrong");
}

// Everything that bf16 and f32 hold but NaN and infinity, so that order, rounding and flushing all show.
TEST(AmxTiles, DoWhatTheManualSays) {
  if (const auto refusal = TilesRefusal(kAmxMachine))
    GTEST_SKIP() << (refusal->empty() ? "this CPU has no AMX" : *refusal);
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const uint32_t spread = 1 + static_cast<uint32_t>(repeat) % 60;  // of the exponents
    const auto half = [&] {
      return static_cast<uint32_t>((random() & 0x807F) | (127 - spread / 2 + random() % spread) << 7);
    };
    alignas(64) float a[256], b[256], c[256], expected[256];
    for (int i = 0; i < 256; ++i) {
      a[i] = Pair(repeat % 7 ? half() : static_cast<uint32_t>(random() & 0x807F), half());
      b[i] = Pair(half(), half());
      c[i] = expected[i] = Pair(static_cast<uint32_t>(random() & 0xFFFF), half());
    }
    const auto multiply = [&](auto& tiles, float* to) {
      tiles.template Load<3>(to, 64);
      tiles.template Load<5>(a, 64);
      tiles.template Load<6>(b, 64);
      tiles.template MultiplyAdd<3, 5, 6>();
      tiles.template Store<3>(to, 64);
    };
    EmulatedTiles emulated;
    multiply(emulated, expected);
    {
      AmxTiles tiles;
      multiply(tiles, c);
    }
    ASSERT_EQ(std::memcmp(c, expected, sizeof c), 0) << "exponents over " << spread;
  }
}

}  // namespace
}  // namespace switchyard
