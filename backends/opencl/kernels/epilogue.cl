// What happens to t = alpha·op(a)·op(b) before it becomes c, as core/abi/ops.h lists it. The pointers are those of one
// row; n is its first column of WIDTH. TC: storage of c and of what lies as c does; TBIAS: of the bias.
enum { BIAS = 1, SAVE_PREACTIVATION = 2, ACTIVATION_GRADIENT = 4, RESIDUAL = 8, ACCUMULATE = 16 };
static void finish(floatW t, __global STORED(TC) * c, const __global STORED(TBIAS) * bias,
                   __global STORED(TC) * preactivation, const __global STORED(TC) * residual, uint n, uint N,
                   int activation, uint flags) {
  if (flags & BIAS) t += LOAD(TBIAS, bias, n, N, 0.0f);
  if (flags & ACTIVATION_GRADIENT) {
    t *= activation_slope(activation, LOAD(TC, preactivation, n, N, 0.0f));
  } else {
    if (flags & SAVE_PREACTIVATION) STORE(TC, preactivation, n, N, t);
    t = activate(activation, t);
  }
  if (flags & RESIDUAL) t += LOAD(TC, residual, n, N, 0.0f);
  if (flags & ACCUMULATE) t += LOAD(TC, c, n, N, 0.0f);
  STORE(TC, c, n, N, t);
}
