// Matrix products for devices with many work-items: a work-group of 16 × 16 computes a tile of 64 × 64, each work-item
// 4 × 4 of it, from slices of a and b that are 16 deep and lie in local memory (NVIDIA, "OpenCL Best Practices Guide",
// 3.2.2). Strides are in elements: a's (m, k) at m·a_row + k·a_k, b's (k, n) at k·b_k + n·b_column.
//   TA, TB: storage of a and b, others as in epilogue.cl. WIDTH is 1 here.
#define SIDE 16
#define EACH 4
#define TILE (SIDE * EACH)

__attribute__((reqd_work_group_size(SIDE, SIDE, 1))) __kernel void matmul(
    ARRAY(a), ARRAY(b), ARRAY(c), ARRAY(bias), ARRAY(preactivation), ARRAY(residual), uint M, uint N, uint K,
    uint a_row, uint a_k, uint b_k, uint b_column, uint c_row, uint inner_count, ulong a_outer, ulong a_inner,
    ulong b_outer, ulong b_inner, ulong c_outer, ulong c_inner, float alpha, int activation, uint flags) {
  __local float a_slice[SIDE][TILE + 1], b_slice[SIDE][TILE + 1];
  const uint x = get_local_id(0), y = get_local_id(1), z = get_group_id(2), item = y * SIDE + x;
  const uint n0 = get_group_id(0) * TILE, m0 = get_group_id(1) * TILE;
  const __global STORED(TA)* a_from = OF(STORED(TA), a) + start_of(z, inner_count, a_outer, a_inner);
  const __global STORED(TB)* b_from = OF(STORED(TB), b) + start_of(z, inner_count, b_outer, b_inner);
  float sum[EACH][EACH];
  for (uint i = 0; i < EACH; ++i) {
    for (uint j = 0; j < EACH; ++j) sum[i][j] = 0;
  }
  for (uint k0 = 0; k0 < K; k0 += SIDE) {
    // Neighbouring work-items read neighbouring elements, along whichever axis they lie.
    for (uint e = item; e < SIDE * TILE; e += SIDE * SIDE) {
      const uint k = a_k == 1 ? e % SIDE : e / TILE, m = a_k == 1 ? e / SIDE : e % TILE;
      const bool inside = k0 + k < K && m0 + m < M;
      a_slice[k][m] = inside ? AT(TA, a_from, (m0 + m) * a_row + (k0 + k) * a_k) : 0.0f;
    }
    for (uint e = item; e < SIDE * TILE; e += SIDE * SIDE) {
      const uint k = b_k == 1 ? e % SIDE : e / TILE, n = b_k == 1 ? e / SIDE : e % TILE;
      const bool inside = k0 + k < K && n0 + n < N;
      b_slice[k][n] = inside ? AT(TB, b_from, (k0 + k) * b_k + (n0 + n) * b_column) : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint k = 0; k < SIDE; ++k) {
      float left[EACH], right[EACH];
      for (uint i = 0; i < EACH; ++i) left[i] = a_slice[k][y + i * SIDE];
      for (uint j = 0; j < EACH; ++j) right[j] = b_slice[k][x + j * SIDE];
      for (uint i = 0; i < EACH; ++i) {
        for (uint j = 0; j < EACH; ++j) sum[i][j] += left[i] * right[j];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const ulong c_start = start_of(z, inner_count, c_outer, c_inner);
  for (uint i = 0; i < EACH; ++i) {
    const uint m = m0 + y + i * SIDE;
    const ulong start = c_start + (ulong)m * c_row;
    for (uint j = 0; j < EACH; ++j) {
      const uint n = n0 + x + j * SIDE;
      if (m < M && n < N) {
        finish(alpha * sum[i][j], OF(STORED(TC), c) + start, OF(STORED(TBIAS), bias) + z % inner_count * N,
               OF(STORED(TC), preactivation) + start, OF(STORED(TC), residual) + start, n, N, activation, flags);
      }
    }
  }
}
