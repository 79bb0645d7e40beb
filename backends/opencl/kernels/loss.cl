// cross_entropy, its gradient, and the rank of the label.   T: storage of logits; SOFT: targets (also T) for labels.
// The target y of a row is onehot(label)·(1 − s) + s/C; a label beyond the classes makes it, and the loss, not a
// number.

static bool is_ignored(int label, int ignore_index) { return label < 0 || label == ignore_index; }

GROUP_KERNEL void cross_entropy(ARRAY(logits), ARRAY(labels), ARRAY(loss), ARRAY(logsumexp), uint rows, uint columns,
                                float smoothing, int ignore_index) {
  GROUP_SCRATCH
  EACH_ROW(row, rows) {
    const __global STORED(T)* x = OF(STORED(T), logits) + (ulong)row * columns;
    floatW most = (floatW)-INFINITY, sum = (floatW)0.0f;
    EACH_VECTOR(i, columns) most = fmax(most, LOAD(T, x, i, columns, -INFINITY));
    const float largest = GROUP_MAX(most);
    EACH_VECTOR(i, columns) sum += exp(LOAD(T, x, i, columns, -INFINITY) - largest);
    const float relative = log(GROUP_SUM(sum));  // of the sum of exponentials to the largest
    // Σ y·x and Σ y, of which loss = lse·Σ y − Σ y·x; by differences from the largest, so that nothing cancels.
    floatW product = (floatW)0.0f, weight = (floatW)0.0f;
#ifdef SOFT
    const __global STORED(T)* target = OF(STORED(T), labels) + (ulong)row * columns;
    EACH_VECTOR(i, columns) {
      const floatW y = LOAD(T, target, i, columns, 0.0f);
      product += select(y * (relative - (LOAD(T, x, i, columns, 0.0f) - largest)), (floatW)0.0f, y == 0.0f);
    }
#endif
    if (smoothing != 0) EACH_VECTOR(i, columns) weight += LOAD(T, x, i, columns, largest) - largest;
    // Not in a branch: PoCL 3.1 loses `product` across a barrier there.
    const float even = (relative - GROUP_SUM(weight) / columns) * smoothing;
#ifdef SOFT
    const float value = GROUP_SUM(product) * (1 - smoothing) + even;
#else
    const int label = OF(int, labels)[row];
    float value = 0;
    if (label >= (int)columns && !is_ignored(label, ignore_index)) {
      value = NAN;
    } else if (!is_ignored(label, ignore_index)) {
      value = (relative - (AT(T, x, label) - largest)) * (1 - smoothing) + even;
    }
#endif
    if (LANE == 0) {
      OF(float, loss)[row] = value;
      OF(float, logsumexp)[row] = largest + relative;
    }
  }
}

GROUP_KERNEL void cross_entropy_backward(ARRAY(logits), ARRAY(labels), ARRAY(logsumexp), ARRAY(dloss), ARRAY(dlogits),
                                         uint rows, uint columns, float smoothing, int ignore_index) {
  GROUP_SCRATCH
  EACH_ROW(row, rows) {
    const __global STORED(T)* x = OF(STORED(T), logits) + (ulong)row * columns;
    __global STORED(T)* to = OF(STORED(T), dlogits) + (ulong)row * columns;
    const float lse = OF(float, logsumexp)[row], scale = OF(float, dloss)[row], even = smoothing / columns;
#ifdef SOFT
    const __global STORED(T)* target = OF(STORED(T), labels) + (ulong)row * columns;
    floatW weight = (floatW)0.0f;
    EACH_VECTOR(i, columns) weight += LOAD(T, target, i, columns, 0.0f);
    const float total = GROUP_SUM(weight) * (1 - smoothing) + smoothing;
    EACH_VECTOR(i, columns) {
      const floatW y = LOAD(T, target, i, columns, 0.0f) * (1 - smoothing) + even;
      STORE(T, to, i, columns, scale * (exp(LOAD(T, x, i, columns, 0.0f) - lse) * total - y));
    }
#else
    const int label = OF(int, labels)[row];
    const bool ignored = is_ignored(label, ignore_index);
    const float every = label >= (int)columns ? NAN : even;
    EACH_VECTOR(i, columns) {
      const floatW p = exp(LOAD(T, x, i, columns, 0.0f) - lse);
      STORE(T, to, i, columns, ignored ? (floatW)0.0f : scale * (p - every));
    }
#if LANES > 1
    barrier(CLK_GLOBAL_MEM_FENCE);
#endif
    if (LANE == 0 && !ignored && label < (int)columns) {
      PUT(T, to, label, scale * (exp(AT(T, x, label) - lse) - (1 - smoothing) - even));
    }
#endif
  }
}

// What is not a number never counts for the label.
GROUP_KERNEL void label_rank(ARRAY(logits), ARRAY(labels), ARRAY(rank), uint rows, uint columns) {
  GROUP_SCRATCH
  EACH_ROW(row, rows) {
    const __global STORED(T)* x = OF(STORED(T), logits) + (ulong)row * columns;
    const int label = OF(int, labels)[row];
    const bool known = label >= 0 && label < (int)columns;
    const float own = known ? AT(T, x, label) : 0.0f;
    float above = 0;
    for (uint i = LANE; known && i < columns; i += LANES) {
      const float other = AT(T, x, i);
      const bool below = other < own || (other == own && i > (uint)label);
      if (i != (uint)label && !below) above += 1;
    }
    const float count = OVER_GROUP(SUM, above);
    if (LANE == 0) OF(int, rank)[row] = known ? (int)count : (int)columns;
  }
}
