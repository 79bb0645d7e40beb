// b of a product, as matmul_vector.cl reads it: panels of COLUMNS columns, (batch, N/COLUMNS, K, COLUMNS) f32, zero
// beyond N.   TB: storage of b.
// b's element (k, n) lies at k·k_stride + n·n_stride.
GROUP_KERNEL void pack(ARRAY(b), ARRAY(panels), uint N, uint K, uint k_stride, uint n_stride, uint inner_count,
                       ulong b_outer, ulong b_inner, uint rows) {
  const uint panel = get_group_id(1), z = get_group_id(2), first = get_group_id(0) * rows, n0 = panel * COLUMNS;
  const uint last = min(K, first + rows);
  const __global STORED(TB)* from = OF(STORED(TB), b) + start_of(z, inner_count, b_outer, b_inner);
  __global float* to = OF(float, panels) + ((ulong)z * get_num_groups(1) + panel) * K * COLUMNS;
  if (n_stride == 1) {
    for (uint k = first; k < last; ++k) {
      const __global STORED(TB)* row = from + (ulong)k * k_stride;
      for (uint n = LANE * WIDTH; n < COLUMNS; n += LANES * WIDTH) {
        VSTORE(LOAD(TB, row, n0 + n, N, 0.0f), to + k * COLUMNS + n);
      }
    }
    return;
  }
  for (uint k = first; k < last; ++k) {
    for (uint n = LANE; n < COLUMNS; n += LANES) {
      to[k * COLUMNS + n] = n0 + n < N ? AT(TB, from, k * k_stride + (n0 + n) * n_stride) : 0.0f;
    }
  }
}
