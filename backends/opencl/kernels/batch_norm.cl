// batch_norm over columns.   T: storage of activations; gammas, betas and statistics are f32. `fused` says what comes
// with it: RECTIFIES: ReLU follows. ADDS: a residual is added before it, and has a gradient of its own.
enum { RECTIFIES = 1, ADDS = 2, INFERENCE = 4 };

// g of the element's gradient: what lies before the activation, which let pass what left it above 0.
static floatW passed(const __global STORED(T) * dy, const __global STORED(T) * y, uint i, uint columns, uint fused) {
  const floatW g = LOAD(T, dy, i, columns, 0.0f);
  return fused & RECTIFIES ? select((floatW)0.0f, g, LOAD(T, y, i, columns, 0.0f) > 0.0f) : g;
}
#define PASSED(i, columns, start) passed(OF(STORED(T), dy) + (start), OF(STORED(T), y) + (start), i, columns, fused)

// Σ (x − mean)² over the rows of work-group g, partial (parts, columns).
GROUP_KERNEL void squares_about_mean(ARRAY(x), ARRAY(mean), ARRAY(partial), uint rows, uint columns, uint share) {
  const uint first = get_group_id(0) * share;
  __global float* to = OF(float, partial) + (ulong)get_group_id(0) * columns;
  EACH_VECTOR(i, columns) {
    const floatW center = LOAD(f32, OF(float, mean), i, columns, 0.0f);
    floatW total = (floatW)0.0f;
    for (uint row = first; row < min(rows, first + share); ++row) {
      const floatW off = LOAD(T, OF(STORED(T), x) + (ulong)row * columns, i, columns, 0.0f) - center;
      total += off * off;
    }
    STORE(f32, to, i, columns, total);
  }
}

// From Σ (x − mean)² to rstd and the next running statistics.
GROUP_KERNEL void batch_statistics(ARRAY(squares), ARRAY(mean), ARRAY(running_mean), ARRAY(running_var), ARRAY(rstd),
                                   ARRAY(next_mean), ARRAY(next_var), uint rows, uint columns, float eps,
                                   float momentum) {
  EACH_VECTOR(i, columns) {
    const floatW total = LOAD(f32, OF(float, squares), i, columns, 0.0f),
                 center = LOAD(f32, OF(float, mean), i, columns, 0.0f);
    const floatW variance = total / rows, unbiased = rows > 1 ? total / (rows - 1) : variance;
    STORE(f32, OF(float, rstd), i, columns, 1.0f / sqrt(variance + eps));
    const floatW m = LOAD(f32, OF(float, running_mean), i, columns, 0.0f),
                 v = LOAD(f32, OF(float, running_var), i, columns, 0.0f);
    STORE(f32, OF(float, next_mean), i, columns, (1 - momentum) * m + momentum * center);
    STORE(f32, OF(float, next_var), i, columns, (1 - momentum) * v + momentum * unbiased);
  }
}

// y = act((x − mean)·rstd·gamma + beta + residual); in INFERENCE, `rstd` holds the variance.
GROUP_KERNEL void batch_norm(ARRAY(x), ARRAY(gamma), ARRAY(beta), ARRAY(mean), ARRAY(rstd), ARRAY(residual), ARRAY(y),
                             uint rows, uint columns, float eps, uint fused) {
  EACH_ROW(row, rows) {
    const ulong start = (ulong)row * columns;
    EACH_VECTOR(i, columns) {
      floatW scale = LOAD(f32, OF(float, rstd), i, columns, 1.0f);
      if (fused & INFERENCE) scale = 1.0f / sqrt(scale + eps);
      const floatW normal =
          (LOAD(T, OF(STORED(T), x) + start, i, columns, 0.0f) - LOAD(f32, OF(float, mean), i, columns, 0.0f)) * scale;
      floatW v = normal * LOAD(f32, OF(float, gamma), i, columns, 0.0f) + LOAD(f32, OF(float, beta), i, columns, 0.0f);
      if (fused & ADDS) v += LOAD(T, OF(STORED(T), residual) + start, i, columns, 0.0f);
      if (fused & RECTIFIES) v = activate(RELU, v);
      STORE(T, OF(STORED(T), y) + start, i, columns, v);
    }
  }
}

// Σ g·normal and Σ g over the rows of work-group g, partial (parts, 2, columns).
GROUP_KERNEL void batch_norm_sums(ARRAY(x), ARRAY(mean), ARRAY(rstd), ARRAY(dy), ARRAY(y), ARRAY(partial), uint rows,
                                  uint columns, uint share, uint fused) {
  const uint first = get_group_id(0) * share;
  __global float* to = OF(float, partial) + (ulong)get_group_id(0) * 2 * columns;
  EACH_VECTOR(i, columns) {
    const floatW center = LOAD(f32, OF(float, mean), i, columns, 0.0f),
                 scale = LOAD(f32, OF(float, rstd), i, columns, 0.0f);
    floatW product = (floatW)0.0f, sum = (floatW)0.0f;
    for (uint row = first; row < min(rows, first + share); ++row) {
      const ulong start = (ulong)row * columns;
      const floatW d = PASSED(i, columns, start);
      product += d * (LOAD(T, OF(STORED(T), x) + start, i, columns, 0.0f) - center) * scale;
      sum += d;
    }
    STORE(f32, to, i, columns, product);
    STORE(f32, to + columns, i, columns, sum);
  }
}

// sums (2, columns): Σ g·normal, Σ g.
GROUP_KERNEL void batch_norm_backward(ARRAY(x), ARRAY(gamma), ARRAY(mean), ARRAY(rstd), ARRAY(dy), ARRAY(y), ARRAY(sums),
                                      ARRAY(dx), ARRAY(dresidual), uint rows, uint columns, uint fused) {
  EACH_ROW(row, rows) {
    const ulong start = (ulong)row * columns;
    EACH_VECTOR(i, columns) {
      const floatW scale = LOAD(f32, OF(float, rstd), i, columns, 0.0f),
                   g = LOAD(f32, OF(float, gamma), i, columns, 0.0f);
      const floatW normal =
          (LOAD(T, OF(STORED(T), x) + start, i, columns, 0.0f) - LOAD(f32, OF(float, mean), i, columns, 0.0f)) * scale;
      const floatW product = LOAD(f32, OF(float, sums), i, columns, 0.0f);
      const floatW sum = LOAD(f32, OF(float, sums) + columns, i, columns, 0.0f);
      const floatW d = PASSED(i, columns, start);
      STORE(T, OF(STORED(T), dx) + start, i, columns, scale * g * (d - sum / rows - normal * product / rows));
      if (fused & ADDS) STORE(T, OF(STORED(T), dresidual) + start, i, columns, d);
    }
  }
}
