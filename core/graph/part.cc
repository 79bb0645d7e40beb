#include "core/graph/part.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/graph/part_runs.h"

namespace switchyard {
namespace {

// move(byte of the whole, byte of the part, bytes) for each run of elements that lie together in both.
template <typename F>
void ForEachRun(const Part& part, size_t size, F move) {
  if (part.axis.dimension == DividedAxis::kAllElements) {
    const auto unit = static_cast<int64_t>(size);
    return move(part.begin * unit, 0, (part.end - part.begin) * unit);
  }
  const auto dimension = static_cast<size_t>(part.axis.dimension);
  int64_t before = part.axis.outer, run = part.axis.inner * static_cast<int64_t>(size);
  for (size_t d = 0; d < dimension; ++d) before *= part.whole[d];
  for (size_t d = dimension + 1; d < part.whole.size(); ++d) run *= part.whole[d];
  const int64_t held = (part.end - part.begin) * run;
  for (int64_t i = 0; i < before; ++i) move((i * part.axis.extent + part.begin) * run, i * held, held);
}

}  // namespace

Part PartOf(const Shape& whole, const DividedAxis& axis, int index, int count) {
  return {whole, axis, axis.extent * index / count, axis.extent * (index + 1) / count};
}

Shape ShapeOf(const Part& part) {
  if (part.axis.dimension == DividedAxis::kAllElements) return {part.end - part.begin};
  Shape shape = part.whole;
  shape[static_cast<size_t>(part.axis.dimension)] = part.axis.outer * (part.end - part.begin) * part.axis.inner;
  return shape;
}

const Shape& WholeShape(const Part& part) { return part.of ? WholeShape(*part.of) : part.whole; }

std::vector<PartRun> RunsOf(const Part& part) {
  std::vector<PartRun> runs;
  ForEachRun(part, 1, [&](int64_t whole, int64_t at, int64_t elements) {
    if (elements > 0) runs.push_back({whole, at, elements});
  });
  if (!part.of) return runs;
  const std::vector<PartRun> outer = RunsOf(*part.of);
  std::vector<PartRun> composed;
  size_t i = 0;
  for (PartRun run : runs) {
    for (int64_t taken = 0; run.elements > 0 && i < outer.size(); run.elements -= taken) {
      const int64_t skipped = run.whole - outer[i].at;
      taken = std::clamp<int64_t>(outer[i].elements - skipped, 0, run.elements);
      if (taken > 0) composed.push_back({outer[i].whole + skipped, run.at, taken});
      run.whole += taken;
      run.at += taken;
      if (skipped + taken == outer[i].elements || taken == 0) ++i;
    }
  }
  return composed;
}

void CutPart(const Part& part, size_t size, const std::byte* whole, std::byte* elements) {
  std::vector<std::byte> held;
  if (part.of) {
    held.resize(static_cast<size_t>(Elements(part.whole)) * size);
    CutPart(*part.of, size, whole, held.data());
    whole = held.data();
  }
  ForEachRun(part, size, [&](int64_t from, int64_t to, int64_t bytes) {
    if (bytes > 0) std::memcpy(elements + to, whole + from, static_cast<size_t>(bytes));
  });
}

void PutPart(const Part& part, size_t size, const std::byte* elements, std::byte* whole) {
  ForEachRun(part, size, [&](int64_t to, int64_t from, int64_t bytes) {
    std::memcpy(whole + to, elements + from, static_cast<size_t>(bytes));
  });
}

}  // namespace switchyard
