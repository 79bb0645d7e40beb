// layer_norm over rows.   T: storage of activations; gammas, betas and statistics are f32.

// With RESIDUAL, h = x + residual is what is normalised, and is left in `sum`.
GROUP_KERNEL void layer_norm(ARRAY(x), ARRAY(residual), ARRAY(gamma), ARRAY(beta), ARRAY(y), ARRAY(mean), ARRAY(rstd),
                             ARRAY(sum), uint rows, uint columns, float eps) {
  GROUP_SCRATCH
  EACH_ROW(row, rows) {
    const ulong start = (ulong)row * columns;
    const __global STORED(T)* h = OF(STORED(T), x) + start;
    __global STORED(T)* to = OF(STORED(T), y) + start;
    floatW total = (floatW)0.0f, squares = (floatW)0.0f;
#ifdef RESIDUAL
    __global STORED(T)* joined = OF(STORED(T), sum) + start;
    EACH_VECTOR(i, columns) {
      const floatW v = LOAD(T, h, i, columns, 0.0f) + LOAD(T, OF(STORED(T), residual) + start, i, columns, 0.0f);
      STORE(T, joined, i, columns, v);
      total += LOAD(T, joined, i, columns, 0.0f);  // as it was stored
    }
    h = joined;
#else
    EACH_VECTOR(i, columns) total += LOAD(T, h, i, columns, 0.0f);
#endif
    const float center = GROUP_SUM(total) / columns;
    EACH_VECTOR(i, columns) {
      const floatW off = LOAD(T, h, i, columns, center) - center;
      squares += off * off;
    }
    const float scale = 1.0f / sqrt(GROUP_SUM(squares) / columns + eps);
    EACH_VECTOR(i, columns) {
      const floatW normal = (LOAD(T, h, i, columns, 0.0f) - center) * scale;
      STORE(T, to, i, columns,
            normal * LOAD(f32, OF(float, gamma), i, columns, 0.0f) + LOAD(f32, OF(float, beta), i, columns, 0.0f));
    }
    if (LANE == 0) {
      OF(float, mean)[row] = center;
      OF(float, rstd)[row] = scale;
    }
  }
}

// Work-group g takes the rows g·share …, and leaves the sums over them in partial (parts, 2, columns): dgamma, dbeta.
GROUP_KERNEL void layer_norm_backward(ARRAY(h), ARRAY(gamma), ARRAY(mean), ARRAY(rstd), ARRAY(dy), ARRAY(dsum),
                                      ARRAY(dh), ARRAY(partial), uint rows, uint columns, uint share) {
  GROUP_SCRATCH
  const uint first = get_group_id(0) * share;
  __global float* dgamma = OF(float, partial) + (ulong)get_group_id(0) * 2 * columns;
  __global float* dbeta = dgamma + columns;
  for (uint row = first; row < min(rows, first + share); ++row) {
    const ulong start = (ulong)row * columns;
    const __global STORED(T)*x = OF(STORED(T), h) + start, *g = OF(STORED(T), dy) + start;
    __global STORED(T)* to = OF(STORED(T), dh) + start;
    const float center = OF(float, mean)[row], scale = OF(float, rstd)[row];
    floatW sum = (floatW)0.0f, product = (floatW)0.0f;
    EACH_VECTOR(i, columns) {
      const floatW normal = (LOAD(T, x, i, columns, center) - center) * scale, dv = LOAD(T, g, i, columns, 0.0f);
      const floatW dn = dv * LOAD(f32, OF(float, gamma), i, columns, 0.0f);
      sum += dn;
      product += dn * normal;
      const bool begins = row == first;
      STORE(f32, dgamma, i, columns, begins ? dv * normal : LOAD(f32, dgamma, i, columns, 0.0f) + dv * normal);
      STORE(f32, dbeta, i, columns, begins ? dv : LOAD(f32, dbeta, i, columns, 0.0f) + dv);
    }
    const float mean_g = GROUP_SUM(sum) / columns, mean_gx = GROUP_SUM(product) / columns;
    EACH_VECTOR(i, columns) {
      const floatW normal = (LOAD(T, x, i, columns, 0.0f) - center) * scale;
      const floatW dn = LOAD(T, g, i, columns, 0.0f) * LOAD(f32, OF(float, gamma), i, columns, 0.0f);
      floatW d = scale * (dn - mean_g - normal * mean_gx);
#ifdef RESIDUAL
      d += LOAD(T, OF(STORED(T), dsum) + start, i, columns, 0.0f);
#endif
      STORE(T, to, i, columns, d);
    }
  }
}
