// optimizer_update: SGD with momentum (Sutskever et al., 2013), Adam (Kingma and Ba, 2014), AdamW (Loshchilov and
// Hutter, 2017); and the sums behind squared_norm. Both run over chunks: stretches of tensors that lie in the same
// buffers, at byte offsets in a table, one work-group each.
#ifdef KIND
// KIND: SY_OPTIMIZER_*. STATES: how many moments there are. NESTEROV. TG: storage of gradients.
enum { SGD = 0, ADAM = 1, ADAMW = 2 };
typedef struct {
  ulong p, g, m, v, next_p, next_m, next_v, count;
} Chunk;

GROUP_KERNEL void update(ARRAY(lr), ARRAY(step), ARRAY(gradient_scale), ARRAY(finite), ARRAY(chunks), ARRAY(p),
                         ARRAY(g), ARRAY(m), ARRAY(v), ARRAY(next_p), ARRAY(next_m), ARRAY(next_v), uint first_chunk,
                         float momentum, float dampening, float beta1, float beta2, float log_beta1, float log_beta2,
                         float eps, float decay) {
  const Chunk chunk = OF(Chunk, chunks)[first_chunk + get_group_id(0)];
  const uint n = (uint)chunk.count;
  const __global float* p_from = (const __global float*)(p_buffer + chunk.p);
  const __global STORED(TG)* g_from = (const __global STORED(TG)*)(g_buffer + chunk.g);
  const __global float* m_from = (const __global float*)(m_buffer + chunk.m);
  const __global float* v_from = (const __global float*)(v_buffer + chunk.v);
  __global float* p_to = (__global float*)(next_p_buffer + chunk.next_p);
  __global float* m_to = (__global float*)(next_m_buffer + chunk.next_m);
  __global float* v_to = (__global float*)(next_v_buffer + chunk.next_v);
  const float rate = OF(float, lr)[0], scale = OF(float, gradient_scale)[0], t = (float)(OF(int, step)[0] + 1);
  const bool apply = OF(float, finite)[0] != 0;
  // 1 − βᵗ, without cancellation for β near 1.
  const float correction1 = -expm1(t * log_beta1), correction2 = -expm1(t * log_beta2);
  EACH_VECTOR(i, n) {
    floatW w = LOAD(f32, p_from, i, n, 0.0f), d = LOAD(TG, g_from, i, n, 0.0f) * scale;
#if STATES >= 1
    floatW m1 = LOAD(f32, m_from, i, n, 0.0f);
#endif
#if STATES >= 2
    floatW v2 = LOAD(f32, v_from, i, n, 0.0f);
#endif
    if (apply) {
#if KIND == 0
      d += decay * w;
#if STATES >= 1
      m1 = t == 1.0f ? d : momentum * m1 + (1.0f - dampening) * d;
#ifdef NESTEROV
      d += momentum * m1;
#else
      d = m1;
#endif
#endif
      w -= rate * d;
#else
#if KIND == 1
      d += decay * w;
#else
      w -= rate * decay * w;
#endif
      m1 = beta1 * m1 + (1.0f - beta1) * d;
      v2 = beta2 * v2 + (1.0f - beta2) * d * d;
      w -= rate * (m1 / correction1) / (sqrt(v2 / correction2) + eps);
#endif
    }
    STORE(f32, p_to, i, n, w);
#if STATES >= 1
    STORE(f32, m_to, i, n, m1);
#endif
#if STATES >= 2
    STORE(f32, v_to, i, n, v2);
#endif
  }
}
#else
// T: storage of the tensors. partial[first_chunk + work-group] = Σ x².
typedef struct {
  ulong x, count;
} Chunk;

GROUP_KERNEL void squares(ARRAY(chunks), ARRAY(x), ARRAY(partial), uint first_chunk) {
  GROUP_SCRATCH
  const uint place = first_chunk + get_group_id(0);
  const Chunk chunk = OF(Chunk, chunks)[place];
  const __global STORED(T)* from = (const __global STORED(T)*)(x_buffer + chunk.x);
  const uint n = (uint)chunk.count;
  floatW total = (floatW)0.0f;
  EACH_VECTOR(i, n) {
    const floatW e = LOAD(T, from, i, n, 0.0f);
    total += e * e;
  }
  const float sum = GROUP_SUM(total);
  if (LANE == 0) OF(float, partial)[place] = sum;
}
#endif
