// gather rows of a table, and its transpose scatter_add. Both clamp an index to the table, so that one is the gradient
// of the other.
#include <algorithm>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

// f(row of the table, row of the gathered tensor) for every index.
template <typename F>
void ForEachRow(const Array& indices, int64_t table_rows, F f) {
  for (int64_t i = 0; i < indices.size(); ++i) {
    f(std::clamp<int64_t>(static_cast<int64_t>(indices[i]), 0, table_rows - 1), i);
  }
}

void CheckGather(Check& check) {
  if (!check.Operands(2, 1)) return;
  const Dims table = check.InputDims(0);
  check.Need(check.InputType(1) == SY_I32 || check.InputType(1) == SY_I64, "indices must be i32");
  check.Need(!table.empty(), "table must have rank 1 or more") &&
      check.Output("y", 0, Join(check.InputDims(1), Dims(table.begin() + 1, table.end())));
}

void RunGather(Call& call) {
  const Array& table = call.input(0);
  const int64_t width = table.size() / table.dims[0];
  ForEachRow(call.input(1), table.dims[0], [&](int64_t row, int64_t out) {
    for (int64_t i = 0; i < width; ++i) call.output(0)[out * width + i] = table[row * width + i];
  });
}

void CheckScatterAdd(Check& check) {
  if (!check.Operands(2, 1) || !check.FloatsExcept({0})) return;
  const Dims table = check.OutputDims(0);
  check.Need(!table.empty(), "table must have rank 1 or more") &&
      check.Input("updates", 1, Join(check.InputDims(0), Dims(table.begin() + 1, table.end())));
}

void RunScatterAdd(Call& call) {
  Array& table = call.output(0);
  const int64_t width = table.size() / table.dims[0];
  ForEachRow(call.input(0), table.dims[0], [&](int64_t row, int64_t in) {
    for (int64_t i = 0; i < width; ++i) table[row * width + i] += call.input(1)[in * width + i];
  });
}

const Operation kGather{"gather", 0, CheckGather, RunGather};
const Operation kScatterAdd{"scatter_add", 0, CheckScatterAdd, RunScatterAdd};

}  // namespace
}  // namespace switchyard
