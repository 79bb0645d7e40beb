// Cases of core/graph/ops/softmax.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

void AddSoftmax(Table& table) {
  table.RowsApart({"softmax", "softmax_backward"});
  table.Add("softmax", "odd", {T({5, 17})}, {T({5, 17})});
  table.Gradient("softmax_backward", {"o0", "g0"}, {0});
  table.Add("softmax", "one_class", {T({3, 1})}, {T({3, 1})});
  table.Gradient("softmax_backward", {"o0", "g0"}, {0});
  table.Add("softmax", "long_rows", {T({3, 2, 1031})}, {T({3, 2, 1031})});
  table.Gradient("softmax_backward", {"o0", "g0"}, {0});
}

}  // namespace switchyard::conform
