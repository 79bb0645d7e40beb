// softmax over rows, and its gradient.   T: storage.
GROUP_KERNEL void softmax(ARRAY(x), ARRAY(y), uint rows, uint columns) {
  GROUP_SCRATCH
  EACH_ROW(row, rows) {
    const __global STORED(T)* from = OF(STORED(T), x) + (ulong)row * columns;
    __global STORED(T)* to = OF(STORED(T), y) + (ulong)row * columns;
    floatW most = (floatW)-INFINITY, sum = (floatW)0.0f;
    EACH_VECTOR(i, columns) most = fmax(most, LOAD(T, from, i, columns, -INFINITY));
    const float largest = GROUP_MAX(most);
    EACH_VECTOR(i, columns) sum += exp(LOAD(T, from, i, columns, -INFINITY) - largest);
    const float scale = 1.0f / GROUP_SUM(sum);
    EACH_VECTOR(i, columns) STORE(T, to, i, columns, exp(LOAD(T, from, i, columns, 0.0f) - largest) * scale);
  }
}

GROUP_KERNEL void softmax_backward(ARRAY(y), ARRAY(dy), ARRAY(dx), uint rows, uint columns) {
  GROUP_SCRATCH
  EACH_ROW(row, rows) {
    const ulong start = (ulong)row * columns;
    const __global STORED(T)*p = OF(STORED(T), y) + start, *g = OF(STORED(T), dy) + start;
    __global STORED(T)* to = OF(STORED(T), dx) + start;
    floatW sum = (floatW)0.0f;
    EACH_VECTOR(i, columns) sum += LOAD(T, p, i, columns, 0.0f) * LOAD(T, g, i, columns, 0.0f);
    const float dot = GROUP_SUM(sum);
    EACH_VECTOR(i, columns) {
      STORE(T, to, i, columns, LOAD(T, p, i, columns, 0.0f) * (LOAD(T, g, i, columns, 0.0f) - dot));
    }
  }
}
