// Cases of core/graph/ops/loss.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

void AddLoss(Table& table) {
  table.RowsApart({"cross_entropy"});
  const auto add = [&](const char* name, int64_t n, int64_t c, float smoothing, int32_t ignore, bool soft) {
    sy_cross_entropy_attributes a{};
    a.label_smoothing = smoothing;
    a.ignore_index = ignore;
    a.soft_targets = soft;
    const Operand target = soft ? T({n, c}, Fill::kProbability) : I({n}, static_cast<double>(c));
    table.Add("cross_entropy", name, a, {T({n, c}), target}, {F({n}), F({n})});
    table.Gradient("cross_entropy_backward", {"i0", "i1", "o1", "g0"}, {0});
  };
  add("labels", 7, 10, 0, -100, false);
  add("ignored", 29, 3, 0, 2, false);
  add("smoothing", 5, 11, 0.1f, -100, false);
  add("soft", 6, 13, 0, -100, true);
  add("soft_smoothing", 3, 1000, 0.1f, -100, true);
  add("one_class", 2, 1, 0, -100, false);
  sy_cross_entropy_attributes a{};
  a.ignore_index = -100;
  // Of equal logits log C, however large they are.
  a.label_smoothing = 0.25f;
  table.Add("cross_entropy", "large_logits", a, {T({4, 9}, Fill::kConstant, 60000), I({4}, 9)}, {F({4}), F({4})});
  a.soft_targets = 1;
  table.Add("cross_entropy", "large_logits_soft", a, {T({4, 9}, Fill::kConstant, 60000), T({4, 9}, Fill::kProbability)},
            {F({4}), F({4})});
  a = {};
  a.ignore_index = -100;
  table.Add("cross_entropy", "negative_labels", a, {T({9, 4}), I({9}, 3, Fill::kSignedIndex)}, {F({9}), F({9})});
  table.Add("cross_entropy", "labels_beyond", a, {T({9, 4}), I({9}, 4, Fill::kSignedIndex)}, {F({9}), F({9})});
  table.Add("label_rank", "odd", {T({11, 7}), I({11}, 7)}, {I({11}, 0)}).exact = true;
  table.Add("label_rank", "ties", {T({8, 5}, Fill::kConstant, 1), I({8}, 5, Fill::kSignedIndex)}, {I({8}, 0)}).exact =
      true;
  table.Add("label_rank", "not_numbers", {T({24, 7}, Fill::kExtreme), I({24}, 7)}, {I({24}, 0)}).exact = true;
  table.Add("label_rank", "imagenet", {T({3, 1000}), I({3}, 1000)}, {I({3}, 0)}).exact = true;
}

}  // namespace switchyard::conform
