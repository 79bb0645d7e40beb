// Rows of channels that are made of rows of channels at other places: windows of pooling, neighbours of resizing.
#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {
namespace {

constexpr int kWindowVectors = 4;  // vectors of channels at a time

SY_INLINE Ints Taps(const uint16_t* from, int64_t lanes) {
  return __builtin_convertvector(LoadHalves(from, lanes), Ints);
}

template <int vectors>
SY_INLINE void SumStrip(const WindowRow& a, int64_t c, int64_t lanes) {
  Floats sum[vectors] = {};
  for (int64_t t = 0; t < a.count; ++t) {
    const Floats weight = Splat(a.terms[t].weight);
    for (int j = 0; j < vectors; ++j) {
      const Floats term = weight * LoadRow(a.from, a.terms[t].at + c + j * kLanes, lanes);
      sum[j] = t == 0 ? term : sum[j] + term;
    }
  }
  for (int j = 0; j < vectors; ++j) StoreRow(a.to, a.at + c + j * kLanes, sum[j], lanes);
}

template <int vectors>
SY_INLINE void LargestStrip(const WindowRow& a, int64_t c, int64_t lanes) {
  Floats best[vectors];
  Ints tap[vectors];
  for (int j = 0; j < vectors; ++j) {
    best[j] = LoadRow(a.from, a.terms[0].at + c + j * kLanes, lanes);
    tap[j] = Ints{} + a.terms[0].tap;
  }
  for (int64_t t = 1; t < a.count; ++t) {
    for (int j = 0; j < vectors; ++j) {
      const Floats x = LoadRow(a.from, a.terms[t].at + c + j * kLanes, lanes);
      // The first NaN wins, else the first of the largest.
      const Ints better = (x > best[j]) | ((x != x) & (best[j] == best[j]));
      best[j] = better ? x : best[j];
      tap[j] = better ? Ints{} + a.terms[t].tap : tap[j];
    }
  }
  for (int j = 0; j < vectors; ++j) {
    const int64_t at = a.at + c + j * kLanes;
    if (a.to.data) StoreRow(a.to, at, best[j], lanes);
    if (a.taps) StoreHalves(a.taps + at, __builtin_convertvector(tap[j], Halves), lanes);
  }
}

template <int vectors>
SY_INLINE void ChosenStrip(const WindowRow& a, int64_t c, int64_t lanes) {
  Floats sum[vectors] = {};
  for (int64_t t = 0; t < a.count; ++t) {
    const int64_t from = a.terms[t].at + c;
    for (int j = 0; j < vectors; ++j) {
      const Ints chosen = Taps(a.taps + from + j * kLanes, lanes) == a.terms[t].tap;
      sum[j] += chosen ? LoadRow(a.from, from + j * kLanes, lanes) : Floats{};
    }
  }
  for (int j = 0; j < vectors; ++j) StoreRow(a.to, a.at + c + j * kLanes, sum[j], lanes);
}

}  // namespace

#define SY_STRIPS(Strip, a)                                                      \
  int64_t c = 0;                                                                 \
  for (; c + kWindowVectors * kLanes <= a.columns; c += kWindowVectors * kLanes) \
    Strip<kWindowVectors>(a, c, int64_t{kLanes});                                \
  for (; c + kLanes <= a.columns; c += kLanes) Strip<1>(a, c, int64_t{kLanes});  \
  if (c < a.columns) Strip<1>(a, c, a.columns - c)

void window_sum(const WindowRow& a) { SY_STRIPS(SumStrip, a); }
void window_largest(const WindowRow& a) { SY_STRIPS(LargestStrip, a); }
void window_chosen(const WindowRow& a) { SY_STRIPS(ChosenStrip, a); }

}  // namespace switchyard::SY_ISA
