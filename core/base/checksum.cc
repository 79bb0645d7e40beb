#include "core/base/checksum.h"

#include <zlib.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define SY_FOLDS 1
#include <immintrin.h>
#endif

namespace switchyard {
namespace {

uint32_t OneByOne(const unsigned char* at, size_t bytes, uint32_t before) {
  return static_cast<uint32_t>(crc32_z(before, at, bytes));
}

#ifdef SY_FOLDS

// A register of n bits that holds bytes of the message is a polynomial over GF(2): its lowest bit is the factor of
// x^(n−1), since the bits are reflected. As a checksum is a remainder modulo P, a register may be moved d bits on in
// the message, added to what stands there, and left out where it stood: A·x^64 + B, its two halves, becomes A·(x^(64+d)
// mod P) + B·(x^d mod P). A carry-less product of two reflected halves reads as the product times x, so that the
// constants are those of one power less.

// x^n mod P in a half of 64 bits.
constexpr uint64_t Power(int n) {
  constexpr uint32_t kReflectedP = 0xEDB88320;
  uint32_t power = 0x80000000;  // x^0
  for (int i = 0; i < n; ++i) power = (power >> 1) ^ ((power & 1) != 0 ? kReflectedP : 0);
  return uint64_t{power} << 32;
}
template <int bits>
constexpr long long kMoveLow = static_cast<long long>(Power(63 + bits));  // of A, which lies in the lower half
template <int bits>
constexpr long long kMoveHigh = static_cast<long long>(Power(bits - 1));

#define SY_FOLD_128 __attribute__((target("pclmul,sse2")))
#define SY_FOLD_512 __attribute__((target("pclmul,vpclmulqdq,avx512f")))

// zlib inverts at both ends; what is carried from one function to the next is not inverted.
constexpr uint32_t kInverted = 0xFFFFFFFF;

SY_FOLD_128 inline __m128i Fold(__m128i moved, __m128i by, const unsigned char* onto) {
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(moved, by, 0x00), _mm_clmulepi64_si128(moved, by, 0x11)),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(onto)));
}

// Four registers, so that one product need not wait for another.
SY_FOLD_128 uint32_t By64(const unsigned char* at, size_t bytes, uint32_t before) {
  constexpr size_t kStep = 64;
  if (bytes < kStep) return OneByOne(at, bytes, before);
  const __m128i by_four = _mm_set_epi64x(kMoveHigh<512>, kMoveLow<512>);
  const __m128i by_one = _mm_set_epi64x(kMoveHigh<128>, kMoveLow<128>);
  const auto* first = reinterpret_cast<const __m128i*>(at);
  __m128i a = _mm_xor_si128(_mm_loadu_si128(first), _mm_cvtsi32_si128(static_cast<int>(before ^ kInverted)));
  __m128i b = _mm_loadu_si128(first + 1), c = _mm_loadu_si128(first + 2), d = _mm_loadu_si128(first + 3);
  for (at += kStep, bytes -= kStep; bytes >= kStep; at += kStep, bytes -= kStep) {
    a = Fold(a, by_four, at);
    b = Fold(b, by_four, at + 16);
    c = Fold(c, by_four, at + 32);
    d = Fold(d, by_four, at + 48);
  }
  alignas(16) unsigned char rest[4 * 16];
  auto* const rests = reinterpret_cast<__m128i*>(rest);
  _mm_store_si128(rests + 1, b);
  _mm_store_si128(rests + 2, c);
  _mm_store_si128(rests + 3, d);
  for (int i = 1; i < 4; ++i) a = Fold(a, by_one, rest + 16 * i);
  _mm_store_si128(rests, a);
  return OneByOne(at, bytes, OneByOne(rest, 16, kInverted));
}

SY_FOLD_512 inline __m512i Fold(__m512i moved, __m512i by, const unsigned char* onto) {
  constexpr int kSumOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(moved, by, 0x00), _mm512_clmulepi64_epi128(moved, by, 0x11),
                                   _mm512_loadu_si512(onto), kSumOfThree);
}

SY_FOLD_512 uint32_t By256(const unsigned char* at, size_t bytes, uint32_t before) {
  constexpr size_t kStep = 256;
  if (bytes < 2 * kStep) return By64(at, bytes, before);
  const __m512i by = _mm512_set4_epi64(kMoveHigh<2048>, kMoveLow<2048>, kMoveHigh<2048>, kMoveLow<2048>);
  __m512i a = _mm512_xor_si512(_mm512_loadu_si512(at),
                               _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(before ^ kInverted))));
  __m512i b = _mm512_loadu_si512(at + 64), c = _mm512_loadu_si512(at + 128), d = _mm512_loadu_si512(at + 192);
  for (at += kStep, bytes -= kStep; bytes >= kStep; at += kStep, bytes -= kStep) {
    a = Fold(a, by, at);
    b = Fold(b, by, at + 64);
    c = Fold(c, by, at + 128);
    d = Fold(d, by, at + 192);
  }
  alignas(64) unsigned char rest[kStep];
  const __m512i rests[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) _mm512_store_si512(rest + 64 * i, rests[i]);
  return By64(at, bytes, By64(rest, kStep, kInverted));
}

auto Fastest() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("pclmul")) return OneByOne;
  return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") ? By256 : By64;
}

#else

auto Fastest() { return OneByOne; }

#endif

}  // namespace

uint32_t Crc32(const void* data, size_t bytes, uint32_t before) {
  if (bytes == 0) return before;  // also of no data at all, with which zlib begins anew
  static const auto compute = Fastest();
  return compute(static_cast<const unsigned char*>(data), bytes, before);
}

}  // namespace switchyard
