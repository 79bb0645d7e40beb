// What layer_norm and batch_norm share. Sums over rows are taken by each work-group over its share and then over the
// groups, always in the same order.
#pragma once

#include <vector>

#include "backends/opencl/kernel.h"

namespace switchyard {

// x (rows, columns) where the last axis is `columns`.
struct RowShape {
  int64_t rows = 1, columns = 1;
  std::vector<int64_t> dims;
};
bool ReadShape(const Request& r, const sy_tensor& x, const char* name, RowShape* shape);

// Whether a tensor is as input 0 is; whether it is f32 with one value for each column, or for each row.
bool LikeX(const Request& r, const sy_tensor& t, const RowShape& shape, const char* name);
bool IsChannels(const Request& r, const sy_tensor& t, const RowShape& shape, const char* name);
bool IsRows(const Request& r, const sy_tensor& t, const RowShape& shape, const char* name);

// y (width) f32 = Σ over `parts` of partial (parts, width).
void SumParts(Kernel& kernel, const Operand& partial, int64_t parts, int64_t width, const Operand& y);
// Splits sums (2, columns) into outputs 1 and 2.
void Separate(Kernel& kernel, const Request& r, const Operand& sums, int64_t columns);

}  // namespace switchyard
