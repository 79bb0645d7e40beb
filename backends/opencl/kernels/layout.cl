// Strided copies of raw elements.   E: an unsigned integer as wide as an element. X_UNIT, Y_UNIT: neighbours along the
// innermost axis are neighbours in x, in y.
// Strides are in elements, modulo 2^32 as all arithmetic on them, so that they may be negative.
typedef struct {
  uint extent[8], x[8], y[8];
} Walk;

// outer: how many axes lie outside of the innermost one.
GROUP_KERNEL void copy(ARRAY(x), ARRAY(y), Walk walk, uint outer, uint x_start, uint y_start, uint x_step, uint y_step,
                       uint rows, uint columns, uint rows_each, uint columns_each) {
  TILE_OF(rows, columns, rows_each, columns_each)
  for (uint row = first_row; row < last_row; ++row) {
    uint rest = row, x_at = x_start, y_at = y_start;
    for (uint axis = outer; axis-- > 0;) {
      const uint index = rest % walk.extent[axis];
      rest /= walk.extent[axis];
      x_at += index * walk.x[axis];
      y_at += index * walk.y[axis];
    }
    const __global E* from = OF(E, x);
    __global E* to = OF(E, y);
    EACH_VECTOR_OF_TILE(i) {
#if defined(X_UNIT) && defined(Y_UNIT)
      if (i + WIDTH <= last) {
        VSTORE(VLOAD(from + x_at + i), to + y_at + i);
        continue;
      }
#endif
      for (uint l = i; l < min(last, i + WIDTH); ++l) {
#if defined(X_UNIT)
        const uint source = x_at + l;
#else
        const uint source = x_at + l * x_step;
#endif
#if defined(Y_UNIT)
        to[y_at + l] = from[source];
#else
        to[y_at + l * y_step] = from[source];
#endif
      }
    }
  }
}

GROUP_KERNEL void fill(ARRAY(y), ulong bits, uint rows, uint columns, uint rows_each, uint columns_each) {
  TILE_OF(rows, columns, rows_each, columns_each)
  for (uint row = first_row; row < last_row; ++row) {
    EACH_VECTOR_OF_TILE(i) {
      for (uint l = i; l < min(last, i + WIDTH); ++l) OF(E, y)[(ulong)row * columns + l] = (E)bits;
    }
  }
}

// y (count, columns) = rows of table (table_rows, columns); an index outside is clamped.
GROUP_KERNEL void gather(ARRAY(table), ARRAY(indices), ARRAY(y), uint table_rows, uint rows, uint columns,
                         uint rows_each, uint columns_each) {
  TILE_OF(rows, columns, rows_each, columns_each)
  for (uint row = first_row; row < last_row; ++row) {
    const int index = clamp(OF(int, indices)[row], 0, (int)table_rows - 1);
    const __global E* from = OF(E, table) + (ulong)index * columns;
    __global E* to = OF(E, y) + (ulong)row * columns;
    EACH_VECTOR_OF_TILE(i) {
      if (i + WIDTH <= last) {
        VSTORE(VLOAD(from + i), to + i);
        continue;
      }
      for (uint l = i; l < last; ++l) to[l] = from[l];
    }
  }
}

// y = x, rows of `columns` elements; those of samples that `flips` marks have their runs of `run` in reverse order.
GROUP_KERNEL void flip(ARRAY(x), ARRAY(flips), ARRAY(y), uint rows_per_sample, uint run, uint rows, uint columns,
                       uint rows_each, uint columns_each) {
  TILE_OF(rows, columns, rows_each, columns_each)
  for (uint row = first_row; row < last_row; ++row) {
    const bool flipped = OF(uchar, flips)[row / rows_per_sample] != 0;
    const __global E* from = OF(E, x) + (ulong)row * columns;
    __global E* to = OF(E, y) + (ulong)row * columns;
    EACH_VECTOR_OF_TILE(i) {
      for (uint l = i; l < min(last, i + WIDTH); ++l) to[l] = from[flipped ? columns - run - l + 2 * (l % run) : l];
    }
  }
}
