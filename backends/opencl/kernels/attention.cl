// The rows of attention between its products (Vaswani et al., 2017; Dao et al., "FlashAttention", 2022, algorithm 4,
// for the backward). s (batches·H, T, T) f32 holds scale·q·kᵀ; T_ is its row length. TM: storage of bias and mask; `added`
// says which of them there are.
enum { BIAS = 1, MASK = 2 };
static floatW with_added(const __global char* bias, const __global char* mask, uint added, floatW s, uint i, uint T_) {
  if (added & BIAS) s += LOAD(TM, (const __global STORED(TM)*)bias, i, T_, 0.0f);
  if (added & MASK) s += LOAD(TM, (const __global STORED(TM)*)mask, i, T_, 0.0f);
  return s;
}
// The rows of bias (H, T, T) and mask (G, T, T) that belong to row (b, h, t).
#define ADDED_ROWS(row)                                                                                         \
  const uint t = (row) % T_, head = (row) / T_ % H, batch = first_batch + (row) / T_ / H;                       \
  const __global char* bias_row = bias_buffer + bias_offset + ((ulong)head * T_ + t) * T_ * sizeof(STORED(TM)); \
  const __global char* mask_row = mask_buffer + mask_offset + ((ulong)(batch % G) * T_ + t) * T_ * sizeof(STORED(TM));

GROUP_KERNEL void probabilities(ARRAY(s), ARRAY(bias), ARRAY(mask), ARRAY(logsumexp), uint rows, uint T_, uint H,
                                uint G, uint first_batch, uint added) {
  GROUP_SCRATCH
  EACH_ROW(row, rows) {
    __global float* p = OF(float, s) + (ulong)row * T_;
    ADDED_ROWS(row)
    floatW most = (floatW)-INFINITY, sum = (floatW)0.0f;
    EACH_VECTOR(i, T_) most = fmax(most, with_added(bias_row, mask_row, added, LOAD(f32, p, i, T_, -INFINITY), i, T_));
    const float largest = GROUP_MAX(most);
    EACH_VECTOR(i, T_) {
      const floatW e = exp(with_added(bias_row, mask_row, added, LOAD(f32, p, i, T_, -INFINITY), i, T_) - largest);
      STORE(f32, p, i, T_, e);
      sum += e;
    }
    const float total = GROUP_SUM(sum), scale = 1.0f / total;
    EACH_VECTOR(i, T_) STORE(f32, p, i, T_, LOAD(f32, p, i, T_, 0.0f) * scale);
    if (LANE == 0) OF(float, logsumexp)[row] = largest + log(total);
  }
}

// s becomes p = exp(s − logsumexp), and dp = dout·vᵀ becomes ds = p·(dp − Σ p·dp).
GROUP_KERNEL void gradients(ARRAY(s), ARRAY(dp), ARRAY(bias), ARRAY(mask), ARRAY(logsumexp), uint rows, uint T_, uint H,
                            uint G, uint first_batch, uint added) {
  GROUP_SCRATCH
  EACH_ROW(row, rows) {
    __global float *p = OF(float, s) + (ulong)row * T_, *d = OF(float, dp) + (ulong)row * T_;
    ADDED_ROWS(row)
    const float lse = OF(float, logsumexp)[row];
    floatW sum = (floatW)0.0f;
    EACH_VECTOR(i, T_) {
      const floatW e = exp(with_added(bias_row, mask_row, added, LOAD(f32, p, i, T_, -INFINITY), i, T_) - lse);
      STORE(f32, p, i, T_, e);
      sum += e * LOAD(f32, d, i, T_, 0.0f);
    }
    const float dot = GROUP_SUM(sum);
    EACH_VECTOR(i, T_) STORE(f32, d, i, T_, LOAD(f32, p, i, T_, 0.0f) * (LOAD(f32, d, i, T_, 0.0f) - dot));
  }
}
