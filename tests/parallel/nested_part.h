// Parts of parts, put where they belong in the tensor that is none: what one process that plays all ranks does instead
// of gathering level by level.
#pragma once

#include <cstddef>
#include <vector>

#include "core/graph/part.h"

namespace switchyard {

// `elements` of the part into those of the whole tensor; what is not of the part stays as it is.
inline void PutIntoWhole(const Part& part, const std::vector<float>& elements, std::vector<float>* whole) {
  const auto* const from = reinterpret_cast<const std::byte*>(elements.data());
  auto* const to = reinterpret_cast<std::byte*>(whole->data());
  if (!part.of) return PutPart(part, sizeof(float), from, to);
  std::vector<float> held(static_cast<size_t>(Elements(part.whole)));
  CutPart(*part.of, sizeof(float), to, reinterpret_cast<std::byte*>(held.data()));
  PutPart(part, sizeof(float), from, reinterpret_cast<std::byte*>(held.data()));
  PutIntoWhole(*part.of, held, whole);
}

}  // namespace switchyard
