// Sums and products of half types on the host: the shared reductions in every instruction set that this machine has,
// not only in the one that a collective would choose here, and the reductions that the core composes of messages.
#include <gtest/gtest.h>

#include <functional>

#include "collectives/reduction/reduce.h"
#include "core/abi/collective.h"
#include "core/runtime/collectives/composition.h"
#include "tools/conform/rounding.h"

namespace switchyard {
namespace generic {
ReduceFunction Find(sy_dtype dtype, int reduction);
}
#if defined(__x86_64__)
namespace avx2 {
ReduceFunction Find(sy_dtype dtype, int reduction);
}
namespace avx512 {
ReduceFunction Find(sy_dtype dtype, int reduction);
}
#endif

namespace conform {
namespace {

using Find = ReduceFunction (*)(sy_dtype dtype, int reduction);

Bytes Reduced(Find find, const std::vector<Bytes>& sources, sy_dtype half, int reduction) {
  Bytes first(sources[0].size()), second(sources[0].size());
  void* const destinations[] = {first.data(), second.data()};
  std::vector<const void*> from;
  for (const Bytes& source : sources) from.push_back(source.data());
  find(half, reduction)(destinations, 2, from.data(), static_cast<int>(from.size()), first.size() / 2);
  EXPECT_EQ(first, second);
  return first;
}

void ExpectExact(Find find) {
  for (const sy_dtype half : {SY_BF16, SY_F16}) {
    for (const int reduction : {SY_SUM, SY_PRODUCT}) {
      std::vector<double> a, b, exact;
      for (const Pair& pair : reduction == SY_SUM ? PairsToAdd(half) : PairsToMultiply(half)) {
        a.push_back(pair.a);
        b.push_back(pair.b);
        exact.push_back(reduction == SY_SUM ? pair.a + pair.b : pair.a * pair.b);
      }
      const Bytes found = Reduced(find, {Encode(a, half), Encode(b, half)}, half, reduction);
      const Status right = ExpectRounded(Decode(found, half), exact, half);
      EXPECT_TRUE(right.ok()) << sy_dtype_name(half) << ": " << right;
    }
    // Once, not at every step: 1 is half a unit of the last place of the first number.
    const double large = half == SY_BF16 ? 256 : 2048;
    const std::vector<Bytes> sources = {Encode({large}, half), Encode({1}, half), Encode({1}, half)};
    EXPECT_EQ(Decode(Reduced(find, sources, half, SY_SUM), half)[0], large + 2);
  }
}

TEST(HostRounding, OfReductionsWithoutVectorInstructions) { ExpectExact(generic::Find); }

#if defined(__x86_64__)
TEST(HostRounding, OfReductionsWithAvx2) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) GTEST_SKIP() << "this machine has no AVX2";
  ExpectExact(avx2::Find);
}

TEST(HostRounding, OfReductionsWithAvx512) {
  if (!__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    GTEST_SKIP() << "this machine has no AVX-512";
  }
  ExpectExact(avx512::Find);
}
#endif

TEST(HostRounding, OfReductionsThatAreComposedOfMessages) {
  for (const sy_dtype half : {SY_BF16, SY_F16}) {
    for (const int reduction : {SY_SUM, SY_PRODUCT}) {
      std::vector<double> a, b, exact;
      for (const Pair& pair : reduction == SY_SUM ? PairsToAdd(half) : PairsToMultiply(half)) {
        a.push_back(pair.a);
        b.push_back(pair.b);
        exact.push_back(reduction == SY_SUM ? pair.a + pair.b : pair.a * pair.b);
      }
      Bytes total = Encode(a, half);
      Accumulate(total.data(), Encode(b, half).data(), a.size(), half, reduction);
      const Status right = ExpectRounded(Decode(total, half), exact, half);
      EXPECT_TRUE(right.ok()) << sy_dtype_name(half) << ": " << right;
    }
  }
}

}  // namespace
}  // namespace conform
}  // namespace switchyard
