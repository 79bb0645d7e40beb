// scatter_add of rows: a work-group owns `share` rows of the table (f32) and adds the updates that belong there in the
// order of the indices, so that the sum is the same every time.   T: storage of updates.
GROUP_KERNEL void scatter_add(ARRAY(indices), ARRAY(updates), ARRAY(table), uint table_rows, uint count, uint columns,
                              uint share, uint accumulate) {
  const uint first = get_group_id(0) * share, last = min(table_rows, first + share);
  __global float* to = OF(float, table);
  for (uint row = first; row < last && !accumulate; ++row) {
    EACH_VECTOR(i, columns) STORE(f32, to + (ulong)row * columns, i, columns, (floatW)0.0f);
  }
  for (uint k = 0; k < count; ++k) {
    const uint row = (uint)clamp(OF(int, indices)[k], 0, (int)table_rows - 1);
    if (row < first || row >= last) continue;
    const __global STORED(T)* from = OF(STORED(T), updates) + (ulong)k * columns;
    __global float* sum = to + (ulong)row * columns;
    EACH_VECTOR(i, columns) {
      STORE(f32, sum, i, columns, LOAD(f32, sum, i, columns, 0.0f) + LOAD(T, from, i, columns, 0.0f));
    }
  }
}
