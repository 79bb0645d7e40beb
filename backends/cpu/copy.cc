#include "backends/cpu/copy.h"

#include <cstring>

#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

constexpr int64_t kTile = 32;  // rows and columns of a transposed tile: both sides stay in L1

// to[i·to_i + j] = from[i + j·from_j]
template <typename Element>
void TransposeTile(int64_t rows, int64_t columns, const Element* from, int64_t from_j, Element* to, int64_t to_i) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[i * to_i + j] = from[i + j * from_j];
}

}  // namespace

StridedCopy StridedCopy::Simplified() const {
  StridedCopy simple(element_bytes_, from_offset_, to_offset_);
  for (const Axis& axis : axes_) {
    if (axis.extent == 1) continue;
    if (!simple.axes_.empty()) {
      Axis& last = simple.axes_.back();
      if (last.from_stride == axis.from_stride * axis.extent && last.to_stride == axis.to_stride * axis.extent) {
        last = {last.extent * axis.extent, axis.from_stride, axis.to_stride};
        continue;
      }
    }
    simple.axes_.push_back(axis);
  }
  return simple;
}

void StridedCopy::Run(int threads, const char* from, char* to) const {
  switch (element_bytes_) {
    case 1:
      return RunTyped(threads, reinterpret_cast<const uint8_t*>(from), reinterpret_cast<uint8_t*>(to));
    case 2:
      return RunTyped(threads, reinterpret_cast<const uint16_t*>(from), reinterpret_cast<uint16_t*>(to));
    case 4:
      return RunTyped(threads, reinterpret_cast<const uint32_t*>(from), reinterpret_cast<uint32_t*>(to));
    default:
      return RunTyped(threads, reinterpret_cast<const uint64_t*>(from), reinterpret_cast<uint64_t*>(to));
  }
}

template <typename Element>
void StridedCopy::RunTyped(int threads, const Element* from, Element* to) const {
  from += from_offset_;
  to += to_offset_;
  if (axes_.empty()) {
    *to = *from;
    return;
  }
  const size_t last = axes_.size() - 1;
  const Axis inner = axes_[last];
  const bool contiguous = inner.from_stride == 1 && inner.to_stride == 1;
  if (contiguous && last == 0) {
    ParallelRanges(threads, inner.extent, kParallelElements, [&](int64_t begin, int64_t end, int) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin) * sizeof(Element));
    });
    return;
  }
  // The axis along which the source is contiguous, if it is not the last: it and the last are copied in tiles.
  size_t across = last;
  if (!contiguous && inner.to_stride == 1)
    for (size_t d = 0; d < last; ++d)
      if (axes_[d].from_stride == 1) across = d;
  const int64_t across_tiles = across == last ? 1 : (axes_[across].extent + kTile - 1) / kTile;
  int64_t items = across_tiles;
  for (size_t d = 0; d < last; ++d)
    if (d != across) items *= axes_[d].extent;
  const int64_t item_elements = inner.extent * (across == last ? 1 : std::min(kTile, axes_[across].extent));

  ParallelRanges(
      threads, items, std::max<int64_t>(1, kParallelElements / item_elements), [&](int64_t begin, int64_t end, int) {
        for (int64_t item = begin; item < end; ++item) {
          int64_t rest = item / across_tiles;
          const Element* source = from;
          Element* destination = to;
          for (size_t d = last; d-- > 0;) {
            if (d == across) continue;
            const int64_t index = rest % axes_[d].extent;
            rest /= axes_[d].extent;
            source += index * axes_[d].from_stride;
            destination += index * axes_[d].to_stride;
          }
          if (across != last) {
            const int64_t i = item % across_tiles * kTile, rows = std::min(kTile, axes_[across].extent - i);
            for (int64_t j = 0; j < inner.extent; j += kTile)
              TransposeTile(rows, std::min(kTile, inner.extent - j), source + i + j * inner.from_stride,
                            inner.from_stride, destination + i * axes_[across].to_stride + j, axes_[across].to_stride);
          } else if (contiguous) {
            std::memcpy(destination, source, static_cast<size_t>(inner.extent) * sizeof(Element));
          } else {
            for (int64_t j = 0; j < inner.extent; ++j) destination[j * inner.to_stride] = source[j * inner.from_stride];
          }
        }
      });
}

}  // namespace switchyard
