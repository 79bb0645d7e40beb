// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), many counters at once.
#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {
namespace {

constexpr int kCounters = 32;
constexpr int64_t kBlock = 1024;

// words[4·j + w] = word w of the counter {first + j, c1, c2, c3}.
void Philox(uint64_t key, uint32_t first, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t* words) {
  uint32_t a[kCounters], b[kCounters], c[kCounters], d[kCounters];
  for (int j = 0; j < kCounters; ++j) {
    a[j] = first + static_cast<uint32_t>(j);
    b[j] = c1;
    c[j] = c2;
    d[j] = c3;
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int j = 0; j < kCounters; ++j) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * a[j], p1 = uint64_t{0xCD9E8D57u} * c[j];
      a[j] = static_cast<uint32_t>(p1 >> 32) ^ b[j] ^ k0;
      b[j] = static_cast<uint32_t>(p1);
      c[j] = static_cast<uint32_t>(p0 >> 32) ^ d[j] ^ k1;
      d[j] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int j = 0; j < kCounters; ++j) {
    words[4 * j] = a[j];
    words[4 * j + 1] = b[j];
    words[4 * j + 2] = c[j];
    words[4 * j + 3] = d[j];
  }
}

// In [0, 1).
SY_INLINE float Uniform(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1.0p-24f; }

// All of a sample has the fate of its first element.
void DropPath(const DropoutSample& a, int64_t begin, int64_t end) {
  uint32_t words[4 * kCounters];
  Philox(a.key, 0, a.sample, a.step0, a.step1, words);
  if (Uniform(words[0]) >= a.p) {
    ForEachVector(end - begin, [&](int64_t i, int64_t lanes) SY_INLINED {
      StoreRow(a.y, begin + i, LoadRow(a.x, begin + i, lanes) / (1.0f - a.p), lanes);
    });
  } else {
    ForEachVector(end - begin, [&](int64_t i, int64_t lanes) SY_INLINED { StoreRow(a.y, begin + i, Floats{}, lanes); });
  }
}

}  // namespace

void dropout(const DropoutSample& a, int64_t begin, int64_t end, float* scratch) {
  if (a.per_sample) return DropPath(a, begin, end);
  uint32_t words[kBlock];
  for (int64_t first = begin; first < end; first += kBlock) {  // begin is a multiple of 4
    const int64_t n = Min(kBlock, end - first);
    for (int64_t i = 0; i < n; i += 4 * kCounters)
      Philox(a.key, static_cast<uint32_t>((first + i) / 4), a.sample, a.step0, a.step1, words + i);
    const float* x = Widened(a.x, first, n, scratch);
    float* y = Destination(a.y, first, scratch + kBlock);
    for (int64_t i = 0; i < n; ++i) y[i] = Uniform(words[i]) >= a.p ? x[i] / (1.0f - a.p) : 0.0f;
    Finish(a.y, first, n, y);
  }
}

}  // namespace switchyard::SY_ISA
