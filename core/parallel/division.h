// How the ranks of a group hold a value, and the nodes that make one way of holding it into another. Thread-safe.
#pragma once

#include <optional>
#include <source_location>
#include <string>

#include "core/graph/graph.h"
#include "core/graph/part.h"

namespace switchyard {

using Division = std::optional<DividedAxis>;  // nothing: each rank holds it whole

class Divider {
 public:
  Divider(int ranks, int rank, int group) : ranks_(ranks), rank_(rank), group_(group) {}
  int ranks() const { return ranks_; }

  Part PartOf(const Shape& whole, const DividedAxis& axis) const {
    return switchyard::PartOf(whole, axis, rank_, ranks_);
  }
  // `value`, of shape `whole` and held as `from` says, held as `to` says. `name`: of the collective that this takes.
  Value Convert(const Value& value, const Shape& whole, const Division& from, const Division& to,
                const std::string& name) const;
  // This rank's part of the sum of what the ranks hold; one of all values where it CanScatter.
  Value ScatterSum(const Value& addend, const std::string& name, std::source_location where) const;
  bool CanScatter(const Shape& whole, const DividedAxis& axis) const;

 private:
  Value Cut(const Value& whole, const DividedAxis& axis) const;
  Value Gather(const Value& value, const Shape& shape, const DividedAxis& axis, const std::string& name) const;

  int ranks_, rank_, group_;
};

}  // namespace switchyard
