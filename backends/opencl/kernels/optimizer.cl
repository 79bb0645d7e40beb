// optimizer_update: SGD with momentum (Sutskever et al., 2013), Adam (Kingma and Ba, 2014), AdamW (Loshchilov and
// Hutter, 2017), LAMB (You et al., 2020) and LARS (You et al., 2017); and the sums behind squared_norm. All run over
// chunks: stretches of tensors that lie in the same buffers, at byte offsets in a table, one work-group each.
#ifdef KIND
// KIND: SY_OPTIMIZER_*. STATES: how many moments there are. TG: storage of gradients; TH: of the half copies, where
// there are some. In `flags`: NESTEROV. COUPLED: the decay is part of LAMB's gradient. RATIO: a ratio of norms scales
// the step of LAMB or LARS.
enum { NESTEROV = 1, COUPLED = 2, RATIO = 4 };
#define SGD 0
#define ADAM 1
#define ADAMW 2
#define LAMB 3
#define LARS 4
typedef struct {
  ulong p, g, m, v, next_p, next_m, next_v, next_h, count, place, first, parts;
} Chunk;
#define FROM(type, name) ((const __global type*)(name##_buffer + chunk.name))
#define TO(type, name) ((__global type*)(name##_buffer + chunk.name))
#define UPDATE_ARGUMENTS                                                                                              \
  ARRAY(lr), ARRAY(step), ARRAY(gradient_scale), ARRAY(finite), ARRAY(chunks), ARRAY(p), ARRAY(g), ARRAY(m),          \
      ARRAY(v), ARRAY(next_p), ARRAY(next_m), ARRAY(next_v), ARRAY(next_h), ARRAY(sums), uint first_chunk,            \
      float momentum, float dampening, float beta1, float beta2, float gain, float log_beta1, float log_beta2,        \
      float eps, float decay, float trust, uint flags

// Adam, AdamW, LAMB: the direction of the step, by moments that become the next ones. 1 − βᵗ without cancellation for β
// near 1.
#define DIRECTION(w, d, m1, v2)                                                                                       \
  adaptive_direction(w, d, &m1, &v2, beta1, beta2, gain, -expm1(t * log_beta1), -expm1(t * log_beta2), eps, decay,    \
                     flags)
static floatW adaptive_direction(floatW w, floatW d, floatW* m1, floatW* v2, float beta1, float beta2, float gain,
                                 float correction1, float correction2, float eps, float decay, uint flags) {
#if KIND == ADAM
  d += decay * w;
#elif KIND == LAMB
  if (flags & COUPLED) d += decay * w;
#endif
  *m1 = beta1 * *m1 + gain * d;
  *v2 = beta2 * *v2 + (1.0f - beta2) * d * d;
  const floatW u = (*m1 / correction1) / (sqrt(*v2 / correction2) + eps);
#if KIND == LAMB
  if (!(flags & COUPLED)) return u + decay * w;
#endif
  return u;
}

// x, and 0 from lane `count` on.
static floatW first_lanes(floatW x, uint count) {
  float lanes[WIDTH];
  VSTORE(x, lanes);
  for (uint lane = count; lane < WIDTH; ++lane) lanes[lane] = 0.0f;
  return VLOAD(lanes);
}

// sums[2·place …] = Σ p², Σ of the squares of LAMB's direction or of LARS' gradient, over the chunk.
GROUP_KERNEL void norms(UPDATE_ARGUMENTS) {
  GROUP_SCRATCH
  const Chunk chunk = OF(Chunk, chunks)[first_chunk + get_group_id(0)];
  const uint n = (uint)chunk.count;
  const float scale = OF(float, gradient_scale)[0], t = OF(float, step)[0] + 1;
  floatW weight = (floatW)0.0f, other = (floatW)0.0f;
  EACH_VECTOR(i, n) {
    const floatW w = LOAD(f32, FROM(float, p), i, n, 0.0f);
    floatW d = LOAD(TG, FROM(STORED(TG), g), i, n, 0.0f) * scale;
#if KIND == LAMB
    floatW m1 = LOAD(f32, FROM(float, m), i, n, 0.0f), v2 = LOAD(f32, FROM(float, v), i, n, 0.0f);
    d = DIRECTION(w, d, m1, v2);
    if (i + WIDTH > n) d = first_lanes(d, n - i);  // without eps it is 0/0 beyond the tensor
#endif
    weight += w * w;
    other += d * d;
  }
  const float weights = GROUP_SUM(weight), others = GROUP_SUM(other);
  if (LANE == 0) {
    OF(float, sums)[2 * chunk.place] = weights;
    OF(float, sums)[2 * chunk.place + 1] = others;
  }
}

// What scales the tensor's step, from the sums over its chunks.
static float ratio_of(Chunk chunk, const __global float* sums, float trust, float decay, float eps, uint flags) {
#if KIND == LAMB || KIND == LARS
  if (!(flags & RATIO)) return 1.0f;
  float weights = 0, others = 0;
  for (ulong k = chunk.first; k < chunk.first + chunk.parts; ++k) {
    weights += sums[2 * k];
    others += sums[2 * k + 1];
  }
  if (weights == 0 || others == 0) return 1.0f;
  const float weight = sqrt(weights), other = sqrt(others);
#if KIND == LARS
  return trust * weight / (other + decay * weight + eps);
#else
  return weight / other;
#endif
#else
  return 1.0f;
#endif
}

GROUP_KERNEL void update(UPDATE_ARGUMENTS) {
  const Chunk chunk = OF(Chunk, chunks)[first_chunk + get_group_id(0)];
  const uint n = (uint)chunk.count;
  const float rate = OF(float, lr)[0], scale = OF(float, gradient_scale)[0], t = OF(float, step)[0] + 1;
  const float step_rate = rate * ratio_of(chunk, OF(float, sums), trust, decay, eps, flags);
  const bool apply = OF(float, finite)[0] != 0;
  EACH_VECTOR(i, n) {
    floatW w = LOAD(f32, FROM(float, p), i, n, 0.0f), d = LOAD(TG, FROM(STORED(TG), g), i, n, 0.0f) * scale;
#if STATES >= 1
    floatW m1 = LOAD(f32, FROM(float, m), i, n, 0.0f);
#endif
#if STATES >= 2
    floatW v2 = LOAD(f32, FROM(float, v), i, n, 0.0f);
#endif
    if (apply) {
#if STATES == 2
      const floatW u = DIRECTION(w, d, m1, v2);
#if KIND == ADAMW
      w -= rate * decay * w;
#endif
      w -= step_rate * u;
#else
      d += decay * w;
#if KIND == LARS
      d *= step_rate;  // its moment holds steps, not gradients
#endif
#if STATES == 1
      m1 = t == 1.0f ? d : momentum * m1 + (1.0f - dampening) * d;
      if (flags & NESTEROV) {
        d += momentum * m1;
      } else {
        d = m1;
      }
#endif
#if KIND == LARS
      w -= d;
#else
      w -= rate * d;
#endif
#endif
    }
    STORE(f32, TO(float, next_p), i, n, w);
#if STATES >= 1
    STORE(f32, TO(float, next_m), i, n, m1);
#endif
#if STATES >= 2
    STORE(f32, TO(float, next_v), i, n, v2);
#endif
#ifdef TH
    STORE(TH, TO(STORED(TH), next_h), i, n, w);
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
