// A copy between two strided views: what transpose, slice, pad, roll, concat and broadcasting come down to. Prepared
// once (AddAxis for each axis, outermost first, then Simplified), run many times. Immutable once simplified, hence
// thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard {

class StridedCopy {
 public:
  // element_bytes: 1, 2, 4 or 8. Offsets in elements.
  explicit StridedCopy(int64_t element_bytes, int64_t from_offset = 0, int64_t to_offset = 0)
      : element_bytes_(element_bytes), from_offset_(from_offset), to_offset_(to_offset) {}

  // Strides in elements; from_stride 0 repeats.
  void AddAxis(int64_t extent, int64_t from_stride, int64_t to_stride) {
    axes_.push_back({extent, from_stride, to_stride});
  }

  // The same copy with axes of extent 1 dropped and neighbours merged where both sides run on.
  StridedCopy Simplified() const;

  // Views must not overlap.
  void Run(int threads, const char* from, char* to) const;

 private:
  struct Axis {
    int64_t extent, from_stride, to_stride;
  };
  template <typename Element>
  void RunTyped(int threads, const Element* from, Element* to) const;

  int64_t element_bytes_, from_offset_, to_offset_;
  std::vector<Axis> axes_;
};

}  // namespace switchyard
