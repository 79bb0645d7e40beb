// Which places of an image or volume make up which others, axis by axis: the windows of pooling and the neighbours of
// resizing, and the same seen from the other side, for gradients. Along an axis every place has a list of terms, each a
// place on the other side with a weight and a tap; the terms of a place in space are the products of its axes' lists,
// in row-major order: weights multiply, taps count through the window. Images are volumes of depth 1. Immutable once
// made, hence thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backends/cpu/kernel.h"

namespace switchyard {

struct AxisTerm {
  int64_t at;
  double weight;
  int64_t tap;
};

// The terms of each place of an axis.
using AxisTerms = std::vector<std::vector<AxisTerm>>;

class WindowMap {
 public:
  // One axis after another, outermost first: its terms, its extent on the side that the terms name, how many taps there
  // are along it.
  void AddAxis(AxisTerms terms, int64_t from_extent, int64_t taps);
  // Places that name `extent` others: the same pairs from the other side, in the order of the places.
  static AxisTerms Inverted(const AxisTerms& terms, int64_t extent);

  int64_t most_terms() const;  // of a place in space
  int64_t from_rows() const { return axes_[0].from * axes_[1].from * axes_[2].from; }
  int64_t places() const { return axes_[0].Places() * axes_[1].Places() * axes_[2].Places(); }

  // body(row) for every place of each of `images`, with its terms in `row`: elements of rows of `columns` channels.
  // `row` holds what all places share. Needs most_terms() terms per thread at `terms`.
  template <typename Body>
  void ForEachRow(int threads, int64_t images, const WindowRow& row, WindowTerm* terms, const Body& body) const;

  // The terms of a place, in an image whose rows begin at row `first`; how many.
  int64_t Fill(int64_t place, int64_t first, int64_t columns, WindowTerm* terms) const;

  // Bytes of workspace for the terms.
  uint64_t TermBytes(int threads) const {
    return static_cast<uint64_t>(threads * most_terms() + 3) / 4 * 4 * sizeof(WindowTerm);
  }

 private:
  struct Axis {
    AxisTerms terms = {{{0, 1, 0}}};
    int64_t from = 1, taps = 1;
    int64_t Places() const { return static_cast<int64_t>(terms.size()); }
  };

  std::array<Axis, 3> axes_;
};

}  // namespace switchyard

#include "backends/cpu/parallel.h"

namespace switchyard {

template <typename Body>
void WindowMap::ForEachRow(int threads, int64_t images, const WindowRow& row, WindowTerm* terms,
                           const Body& body) const {
  const int64_t per_image = places(), most = most_terms();
  ParallelRanges(threads, images * per_image, RowGrain(row.columns * most),
                 [&](int64_t begin, int64_t end, int thread) {
                   WindowRow own = row;
                   WindowTerm* const list = terms + thread * most;
                   own.terms = list;
                   for (int64_t place = begin; place < end; ++place) {
                     own.at = place * row.columns;
                     own.count = Fill(place % per_image, place / per_image * from_rows(), row.columns, list);
                     body(own);
                   }
                 });
}

}  // namespace switchyard
