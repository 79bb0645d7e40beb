// A graph whose values are divided over the ranks of a group, starting from its divided inputs: what follows for each
// node, and the nodes that a rank runs in its place. tensor_parallel.cc says what for. One thread.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/graph/factors.h"
#include "core/graph/passes/rewrite.h"
#include "core/parallel/division.h"

namespace switchyard {

class Sharding {
 public:
  // Keeps `source`. sequence: of sums that have rows of each sample a rank takes those of its samples. late: values
  // that no node reads; where ranks have addends of one, they keep them. Throws BuildError where the samples do not
  // come out even.
  Sharding(const Graph& source, const Divider& divider, bool sequence, std::set<Ref> late);

  bool divides() const { return !divided_.empty(); }
  // Nodes that leave partial sums with something added to them, which every rank would add.
  const std::set<int>& with_addends() const { return with_addends_; }
  // Ops that were made whole, with how many nodes each.
  const std::map<std::string, int>& gathered() const { return gathered_; }
  // Does each rank have an addend of this old value, one of `late`?
  bool IsAddend(const Ref& old) const { return addends_.contains(old); }
  // How an old value is held.
  Division DivisionOf(const Ref& old) const;

  // For Rewrite: inputs as the rank holds them, and what it runs in place of a node.
  void DivideInput(const Node& input, TensorType* type, InputInfo* info) const;
  std::optional<std::vector<Value>> Replace(Rewriting& r, int id);

 private:
  // An axis of a node's factors, of which (outer, extent, inner) divides `extent`.
  struct Choice {
    int axis = 0;
    int64_t outer = 1, extent = 1, inner = 1;
  };
  struct Followed {
    Factors factors;
    Choice choice;
  };

  static std::optional<Choice> AxisOf(const Factors& factors, const Factors::Operand& operand, const DividedAxis& d);
  static Division DivisionAt(const Factors& factors, const Factors::Operand& operand, const Choice& choice);
  std::optional<Choice> Choose(const Node& node, const Factors& factors) const;
  Division SamplesOf(const Ref& old) const;
  bool IsDivided(const InputInfo& info) const;
  bool ReadsParts(const Node& node) const;
  void FollowSamples(int id);
  void Follow(int id);
  void TakeOwnSamples(const Ref& sum);
  Division Read(int id, size_t input) const;
  bool ReadAlike(int forward, int backward) const;
  std::vector<Value> Whole(Rewriting& r, const Node& node);
  std::vector<Value> Divide(Rewriting& r, int id, const Followed& followed);
  Value As(Rewriting& r, const Ref& old, const Division& wanted);

  const Graph& source_;
  const Divider divider_;
  const bool sequence_;
  std::map<Ref, DividedAxis> divided_;  // old values; others are whole
  std::map<Ref, DividedAxis> samples_;  // old values: where they have the samples of the batch; with sequence_
  const std::set<Ref> late_;
  std::set<Ref> addends_;             // those of late_ of which ranks have addends
  std::set<Ref> scattered_;           // sums of which each rank takes the part of its samples
  std::map<int, Followed> followed_;  // nodes that work on parts
  std::set<int> with_addends_;
  std::map<std::string, int> gathered_;
  std::map<std::tuple<Ref, Division, Phase>, Value> converted_;
};

}  // namespace switchyard
