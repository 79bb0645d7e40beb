// Matrix products for devices whose work-items are vector units; b comes packed by pack.cl. A work-item keeps ROWS ×
// COLUMNS sums in registers, and walks over `tiles` such tiles below one another, so that its panel stays in the cache.
//   TA: storage of a, others as in epilogue.cl. A_UNIT: a's elements along K are neighbours.
GROUP_KERNEL void matmul(ARRAY(a), ARRAY(panels), ARRAY(c), ARRAY(bias), ARRAY(preactivation), ARRAY(residual), uint M,
                         uint N, uint K, uint tiles, uint a_row, uint a_k, uint c_row, uint inner_count, ulong a_outer,
                         ulong a_inner, ulong c_outer, ulong c_inner, float alpha, int activation, uint flags) {
  const uint panel = get_group_id(0), z = get_group_id(2), n0 = panel * COLUMNS;
  const __global STORED(TA)* from = OF(STORED(TA), a) + start_of(z, inner_count, a_outer, a_inner);
  const __global float* packed = OF(float, panels) + ((ulong)z * get_num_groups(0) + panel) * K * COLUMNS;
  const ulong c_start = start_of(z, inner_count, c_outer, c_inner);
  const uint first = get_group_id(1) * tiles * ROWS, last = min(M, first + tiles * ROWS);
  for (uint m0 = first; m0 < last; m0 += ROWS) {
    const __global STORED(TA) * row[ROWS];  // rows beyond M repeat the last
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) row[r] = from + (ulong)min(m0 + r, M - 1) * a_row;
    floatW sum[ROWS][2];
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) sum[r][0] = sum[r][1] = (floatW)0.0f;
    const __global float* b = packed;
    for (uint k = 0; k < K; ++k, b += COLUMNS) {
      const floatW left = VLOAD(b), right = VLOAD(b + WIDTH);
#pragma unroll
      for (uint r = 0; r < ROWS; ++r) {
#ifdef A_UNIT
        const floatW x = (floatW)AT(TA, row[r], k);
#else
        const floatW x = (floatW)AT(TA, row[r], k * a_k);
#endif
        sum[r][0] += x * left;
        sum[r][1] += x * right;
      }
    }
    float tile[ROWS * COLUMNS];
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) {
      VSTORE(sum[r][0], tile + r * COLUMNS);
      VSTORE(sum[r][1], tile + r * COLUMNS + WIDTH);
    }
    for (uint r = 0; r < ROWS && m0 + r < M; ++r) {
      const ulong start = c_start + (ulong)(m0 + r) * c_row;
      for (uint n = n0; n < min(N, n0 + COLUMNS); n += WIDTH) {
        finish(alpha * VLOAD(tile + r * COLUMNS + n - n0), OF(STORED(TC), c) + start,
               OF(STORED(TBIAS), bias) + z % inner_count * N, OF(STORED(TC), preactivation) + start,
               OF(STORED(TC), residual) + start, n, N, activation, flags);
      }
    }
  }
}
