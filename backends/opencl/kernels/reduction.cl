// Reductions of x (outer, reduced, inner) over its middle axis. Large ones are cut into `parts` of `share` elements,
// whose results a second launch reduces.   T, TY: storage of x and y. WHAT: the reduction.
#define START (WHAT == MAX ? -INFINITY : WHAT == MIN ? INFINITY : 0.0f)
#if WHAT == SUM_OF_SQUARES
#define TAKE(total, v) ((total) + (v) * (v))
#elif WHAT == SUM
#define TAKE(total, v) ((total) + (v))
#else
#define TAKE(total, v) select(total, v, BETTER(WHAT, total, v))
#endif

// inner = 1: y (outer, parts).
GROUP_KERNEL void reduce_rows(ARRAY(x), ARRAY(y), uint outer, uint parts, uint reduced, uint share, float scale,
                              uint accumulate) {
  GROUP_SCRATCH
  const __global STORED(T)* from = OF(STORED(T), x);
  EACH_ROW(row, outer * parts) {
    const uint first = row % parts * share, last = min(reduced, first + share);
    const __global STORED(T)* run = from + (ulong)(row / parts) * reduced;
    floatW total = (floatW)START;
    for (uint i = first + LANE * WIDTH; i < last; i += LANES * WIDTH) {
      const floatW v = LOAD(T, run, i, last, START);
      total = TAKE(total, v);
    }
    const float value = scale * OVER_GROUP(WHAT, across(WHAT, total));
    if (LANE == 0) PUT(TY, OF(STORED(TY), y), row, accumulate ? AT(TY, OF(STORED(TY), y), row) + value : value);
  }
}

// y (outer, parts, inner); neighbouring work-items take neighbouring columns.
#define BLOCK (LANES == 1 ? 4 : 1)
GROUP_KERNEL void reduce_columns(ARRAY(x), ARRAY(y), uint inner, uint parts, uint reduced, uint share, float scale,
                                 uint accumulate) {
  const uint blocks = (inner + BLOCK * LANES * WIDTH - 1) / (BLOCK * LANES * WIDTH), group = get_group_id(0);
  const uint column = group % blocks * BLOCK * LANES * WIDTH + LANE * WIDTH;
  const uint part = group / blocks % parts, o = group / blocks / parts;
  const uint first = part * share, last = min(reduced, first + share);
  const __global STORED(T)* from = OF(STORED(T), x) + (ulong)o * reduced * inner;
  __global STORED(TY)* to = OF(STORED(TY), y) + (ulong)(o * parts + part) * inner;
  floatW total[BLOCK];
  for (uint j = 0; j < BLOCK; ++j) total[j] = (floatW)START;
  for (uint r = first; r < last; ++r) {
    const __global STORED(T)* row = from + (ulong)r * inner;
#pragma unroll
    for (uint j = 0; j < BLOCK; ++j) {
      const floatW v = LOAD(T, row, column + j * LANES * WIDTH, inner, START);
      total[j] = TAKE(total[j], v);
    }
  }
  for (uint j = 0; j < BLOCK; ++j) {
    const uint i = column + j * LANES * WIDTH;
    if (i >= inner) continue;
    floatW v = scale * total[j];
    if (accumulate) v += LOAD(TY, to, i, inner, 0.0f);
    STORE(TY, to, i, inner, v);
  }
}
