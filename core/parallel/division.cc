#include "core/parallel/division.h"

#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"

namespace switchyard {
namespace {

// The tensor as (before · outer, extent, inner · after): the divided axis in the middle.
struct Unfolded {
  int64_t before, extent, after;
  Unfolded(const Shape& shape, const DividedAxis& axis, int64_t extent)
      : before(axis.outer), extent(extent), after(axis.inner) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d < static_cast<size_t>(axis.dimension)) before *= shape[d];
      if (d > static_cast<size_t>(axis.dimension)) after *= shape[d];
    }
  }
  Shape shape() const { return {before, extent, after}; }
};

}  // namespace

Value Divider::Convert(const Value& value, const Shape& whole, const Division& from, const Division& to,
                       const std::string& name) const {
  if (from == to) return value;
  const Value all = from ? Gather(value, whole, *from, name) : value;
  return to ? Cut(all, *to) : all;
}

Value Divider::ScatterSum(const Value& addend, const std::string& name, std::source_location where) const {
  return ops::ReduceScatter(addend, SY_SUM, ranks_, group_, name, where);
}

bool Divider::CanScatter(const Shape& whole, const DividedAxis& axis) const {
  return Unfolded(whole, axis, axis.extent).before == 1 && axis.dimension == 0 && axis.extent % ranks_ == 0;
}

Value Divider::Cut(const Value& whole, const DividedAxis& axis) const {
  const Part part = PartOf(whole.shape(), axis);
  const Value unfolded = ops::Reshape(whole, Unfolded(whole.shape(), axis, axis.extent).shape());
  return ops::Reshape(ops::Slice(unfolded, 1, part.begin, part.end - part.begin), ShapeOf(part));
}

// Ranks gather parts of one size: a shorter one is padded, and what is too much is cut out again.
Value Divider::Gather(const Value& value, const Shape& shape, const DividedAxis& axis, const std::string& name) const {
  const Part own = PartOf(shape, axis);
  const int64_t most = (axis.extent + ranks_ - 1) / ranks_, held = own.end - own.begin;
  const Unfolded whole(shape, axis, axis.extent);
  Value part = ops::Reshape(value, {whole.before, held, whole.after});
  if (held < most) part = ops::Pad(part, {0, 0, 0}, {0, most - held, 0});
  part = ops::Reshape(part, {1, whole.before, most, whole.after});
  const Value all = ops::AllGather(part, ranks_, group_, name + "/gather");
  if (axis.extent == most * ranks_)
    return ops::Reshape(whole.before == 1 ? all : ops::Transpose(all, {1, 0, 2, 3}), shape);
  std::vector<Value> parts;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Part p = switchyard::PartOf(shape, axis, rank, ranks_);
    const Value one = ops::Reshape(ops::Slice(all, 0, rank, 1), {whole.before, most, whole.after});
    parts.push_back(ops::Slice(one, 1, 0, p.end - p.begin));
  }
  return ops::Reshape(ops::Concat(parts, 1), shape);
}

}  // namespace switchyard
