// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A draw is a pure function of a 64-bit key and a 128-bit counter, so that it depends neither on wall time nor on
// world size, thread or call order. Keys are made with Key(): hash seed, names and indices into one.
// Thread-safe: everything here is a pure function, except RandomStream, which is one thread's.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace switchyard {

// One round on counter and key, in place.
inline __attribute__((always_inline)) constexpr void PhiloxRound(uint32_t& k0, uint32_t& k1, uint32_t& c0, uint32_t& c1,
                                                                 uint32_t& c2, uint32_t& c3) {
  const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(p1);
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(p0);
  k0 += 0x9E3779B9u;
  k1 += 0xBB67AE85u;
}

// Four 32-bit words from key (k0, k1) and counter (c0..c3).
constexpr std::array<uint32_t, 4> Philox(uint64_t key, std::array<uint32_t, 4> c) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) PhiloxRound(k0, k1, c[0], c[1], c[2], c[3]);
  return c;
}

// FNV-1a, 64 bit: the key of a name.
constexpr uint64_t HashName(std::string_view name) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const char ch : name) h = (h ^ static_cast<unsigned char>(ch)) * 0x100000001B3ull;
  return h;
}

// Mixes any number of integers into one key (SplitMix64 finaliser, order matters).
template <typename... Parts>
constexpr uint64_t Key(uint64_t first, Parts... parts) {
  uint64_t h = 0;
  for (const uint64_t part : {first, static_cast<uint64_t>(parts)...}) {
    h += 0x9E3779B97F4A7C15ull + part;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
    h ^= h >> 31;
  }
  return h;
}

// Uniform in [0, 1) with 24 bits.
constexpr float UnitFloat(uint32_t word) { return static_cast<float>(word >> 8) * 0x1.0p-24f; }

// The words of one key in order: a generator for hosts (shuffling, augmentation, initialisation).
class RandomStream {
 public:
  explicit RandomStream(uint64_t key) : key_(key) {}
  uint32_t Next32() {
    if (used_ == 4) {
      words_ = Philox(key_, {static_cast<uint32_t>(block_), static_cast<uint32_t>(block_ >> 32), 0, 0});
      ++block_;
      used_ = 0;
    }
    return words_[used_++];
  }
  float Uniform() { return UnitFloat(Next32()); }
  float Uniform(float lo, float hi) { return lo + (hi - lo) * Uniform(); }
  // Uniform integer in [0, n), n ≥ 1, without modulo bias (Lemire 2019).
  uint32_t Below(uint32_t n) {
    for (;;) {
      const uint64_t product = uint64_t{Next32()} * n;
      if (static_cast<uint32_t>(product) >= (0u - n) % n) return static_cast<uint32_t>(product >> 32);
    }
  }
  // Standard normal (Box-Muller).
  float Normal() {
    const double u = 1.0 - Uniform(), v = Uniform();
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }

 private:
  uint64_t key_, block_ = 0;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace switchyard
