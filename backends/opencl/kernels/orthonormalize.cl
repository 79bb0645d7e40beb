// The rows of one matrix made orthonormal by a work-group. A work-item keeps to its columns of all rows, so that only
// sums pass between work-items.
static floatW dot_of(const __global float* a, const __global float* b, uint columns) {
  floatW sum = (floatW)0.0f;
  EACH_VECTOR(k, columns) sum += LOAD(f32, a, k, columns, 0.0f) * LOAD(f32, b, k, columns, 0.0f);
  return sum;
}

// By Gram and Schmidt, modified: each row that was made is cleared out before the next product. draws: `drawn` has rows
// that stand in for rows of zeros.
GROUP_KERNEL void orthonormalize(ARRAY(a), ARRAY(drawn), ARRAY(q), uint rows, uint columns, uint draws) {
  GROUP_SCRATCH
  __global float* made = OF(float, q);
  for (uint i = 0; i < rows; ++i) {
    const ulong row = (ulong)i * columns;
    const __global float* from = OF(float, a) + row;
    float given = GROUP_SUM(dot_of(from, from, columns));
    if (draws && given == 0.0f) {
      from = OF(float, drawn) + row;
      given = GROUP_SUM(dot_of(from, from, columns));
    }
    __global float* v = made + row;
    EACH_VECTOR(k, columns) STORE(f32, v, k, columns, LOAD(f32, from, k, columns, 0.0f));
    for (uint step = 0; step < 2 * i; ++step) {
      const __global float* before = made + (ulong)(step % i) * columns;
      const float share = GROUP_SUM(dot_of(v, before, columns));
      EACH_VECTOR(k, columns) {
        STORE(f32, v, k, columns, LOAD(f32, v, k, columns, 0.0f) - share * LOAD(f32, before, k, columns, 0.0f));
      }
    }
    const float left = GROUP_SUM(dot_of(v, v, columns));
    const float scale = left <= 1e-10f * given ? 0.0f * left : 1.0f / sqrt(left);
    EACH_VECTOR(k, columns) STORE(f32, v, k, columns, scale * LOAD(f32, v, k, columns, 0.0f));
  }
}
