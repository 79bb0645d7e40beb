// What every program starts with. LANES work-items form a work-group and share its task; each handles WIDTH
// neighbouring elements at once as a floatW. A CPU gets LANES = 1 and WIDTH = its vectors, everything else LANES = 64 …
// 256 and WIDTH = 1, so that one source is a vector loop there and coalesced accesses here.
//
// A tensor is two arguments, a buffer and a byte offset: `ARRAY(x)` declares it, `OF(float, x)` points to it.
//
// Storage types f32, bf16, f16, i32, i64 and u8 are read and written as f32. For each there is (T = its name)
//   S_T                                what lies in memory
//   float  at_T(p, i)                  element i
//   void   put_T(p, i, x)
//   floatW load_T(p, i, end, fill)     elements i … i + WIDTH − 1; `fill` for those at and beyond `end`
//   void   store_T(p, i, end, v)       nothing at and beyond `end`
// LOAD(T, …) and its like call them where T is a macro.
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#if WIDTH == 1
#define SUFFIX
#define VLOAD(p) (*(p))
#define VSTORE(v, p) (*(p) = (v))
#else
#define SUFFIX WIDTH
#define VLOAD(p) CAT(vload, WIDTH)(0, p)
#define VSTORE(v, p) CAT(vstore, WIDTH)(v, 0, p)
#endif
typedef CAT(float, SUFFIX) floatW;
typedef CAT(int, SUFFIX) intW;
typedef CAT(uint, SUFFIX) uintW;
typedef CAT(ushort, SUFFIX) ushortW;
#define TO_FLOAT CAT(convert_float, SUFFIX)
#define AS_FLOAT CAT(as_float, SUFFIX)
#define AS_UINT CAT(as_uint, SUFFIX)

#define ARRAY(name) __global char *name##_buffer, ulong name##_offset
#define OF(type, name) ((__global type*)(name##_buffer + name##_offset))

typedef float S_f32;
typedef ushort S_bf16;
typedef half S_f16;
typedef int S_i32;
typedef long S_i64;
typedef uchar S_u8;

#define STORAGE(T, AT, PUT, LOADW, STOREW)                                         \
  static float at_##T(const __global S_##T* p, uint i) { return AT; }              \
  static void put_##T(__global S_##T* p, uint i, float x) { PUT; }                 \
  static floatW load_##T(const __global S_##T* p, uint i, uint end, float fill) {  \
    if (i + WIDTH <= end) return LOADW;                                            \
    float v[WIDTH];                                                                \
    for (uint l = 0; l < WIDTH; ++l) v[l] = i + l < end ? at_##T(p, i + l) : fill; \
    return VLOAD(v);                                                               \
  }                                                                                \
  static void store_##T(__global S_##T* p, uint i, uint end, floatW x) {           \
    if (i + WIDTH <= end) {                                                        \
      STOREW;                                                                      \
      return;                                                                      \
    }                                                                              \
    float v[WIDTH];                                                                \
    VSTORE(x, v);                                                                  \
    for (uint l = 0; l < WIDTH && i + l < end; ++l) put_##T(p, i + l, v[l]);       \
  }

STORAGE(f32, p[i], p[i] = x, VLOAD(p + i), VSTORE(x, p + i))
// Round to nearest even; what is not a number stays so.
static ushort bits_bf16(float x) {
  const uint bits = as_uint(x);
  return isnan(x) ? (ushort)0x7fc0 : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static ushortW bitsW_bf16(floatW v) {
  const uintW bits = AS_UINT(v);
  const uintW rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return CAT(convert_ushort, SUFFIX)(select(rounded, (uintW)0x7fc0, isnan(v)));
}

STORAGE(bf16, as_float((uint)p[i] << 16), p[i] = bits_bf16(x), AS_FLOAT(CAT(convert_uint, SUFFIX)(VLOAD(p + i)) << 16),
        VSTORE(bitsW_bf16(x), p + i))
STORAGE(f16, vload_half(i, p), vstore_half_rte(x, i, p), CAT(vload_half, SUFFIX)(0, p + i),
        CAT(CAT(vstore_half, SUFFIX), _rte)(x, 0, p + i))
STORAGE(i32, (float)p[i], p[i] = convert_int_sat(x), TO_FLOAT(VLOAD(p + i)),
        VSTORE(CAT(CAT(convert_int, SUFFIX), _sat)(x), p + i))
STORAGE(i64, (float)p[i], p[i] = convert_long_sat(x), TO_FLOAT(VLOAD(p + i)),
        VSTORE(CAT(CAT(convert_long, SUFFIX), _sat)(x), p + i))
STORAGE(u8, (float)p[i], p[i] = convert_uchar_sat(x), TO_FLOAT(VLOAD(p + i)),
        VSTORE(CAT(CAT(convert_uchar, SUFFIX), _sat)(x), p + i))

#define STORED(T) CAT(S_, T)
#define AT(T, p, i) CAT(at_, T)(p, i)
#define PUT(T, p, i, x) CAT(put_, T)(p, i, x)
#define LOAD(T, p, i, end, fill) CAT(load_, T)(p, i, end, fill)
#define STORE(T, p, i, end, v) CAT(store_, T)(p, i, end, v)

// A work-group's kernel, its work-item's number, and its share of 0 … n − 1.
#define GROUP_KERNEL __attribute__((reqd_work_group_size(LANES, 1, 1))) __kernel
#define EACH_ROW(row, rows) for (uint row = get_group_id(0); row < (rows); row += get_num_groups(0))
#define EACH_VECTOR(i, n) for (uint i = LANE * WIDTH; i < (n); i += LANES * WIDTH)

// The rows and columns that a work-group takes where a matrix is cut into tiles of rows_each × columns_each.
#define TILE_OF(rows, columns, rows_each, columns_each)                                                               \
  const uint tiles_across = ((columns) + (columns_each)-1) / (columns_each);                                          \
  const uint first_row = get_group_id(0) / tiles_across * (rows_each), last_row = min(rows, first_row + (rows_each)); \
  const uint first = get_group_id(0) % tiles_across * (columns_each), last = min(columns, first + (columns_each));
#define EACH_VECTOR_OF_TILE(i) for (uint i = first + LANE * WIDTH; i < last; i += LANES * WIDTH)

#define SUM 0 /* SY_REDUCE_… */
#define MAX 1
#define MIN 2
#define SUM_OF_SQUARES 3
// One step of a reduction; max and min keep what is not a number.
#define BETTER(what, a, b) (isnan(b) | ((what) == MAX ? (b) > (a) : (b) < (a)))
static float combine(int what, float a, float b) {
  return what == SUM || what == SUM_OF_SQUARES ? a + b : BETTER(what, a, b) ? b : a;
}
static float across(int what, floatW v) {  // over the elements of a vector, halves first
  float x[WIDTH];
  VSTORE(v, x);
  for (uint apart = WIDTH / 2; apart > 0; apart /= 2) {
    for (uint l = 0; l < apart; ++l) x[l] = combine(what, x[l], x[l + apart]);
  }
  return x[0];
}

// over_group: the combination of every work-item's x, for all of them.
#if LANES == 1
#define LANE 0u
#define GROUP_SCRATCH
#define OVER_GROUP(what, x) (x)
#else
#define LANE ((uint)get_local_id(0))
#define GROUP_SCRATCH __local float group_scratch[LANES];
#define OVER_GROUP(what, x) over_group(what, x, group_scratch)
static float over_group(int what, float x, __local float* scratch) {
  scratch[LANE] = x;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint apart = LANES / 2; apart > 0; apart /= 2) {
    if (LANE < apart) scratch[LANE] = combine(what, scratch[LANE], scratch[LANE + apart]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float result = scratch[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  return result;
}
#endif
// Over a work-group's vectors.
#define GROUP_SUM(v) OVER_GROUP(SUM, across(SUM, v))
#define GROUP_MAX(v) OVER_GROUP(MAX, across(MAX, v))

// Of a batch of matrices, z = outer·inner_count + inner: where matrix z starts.
static ulong start_of(uint z, uint inner_count, ulong outer, ulong inner) {
  return z / inner_count * outer + z % inner_count * inner;
}
#define COLUMNS (2 * WIDTH) /* of a panel (pack.cl) */

// erf by Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26: off by at most 1.5e-7. `e` is exp(−x²).
static floatW erf_with(floatW x, floatW e) {
  const floatW t = 1.0f / (1.0f + 0.3275911f * fabs(x));
  const floatW p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
  return copysign(1.0f - p * e, x);
}
static floatW erf_w(floatW x) { return erf_with(x, exp(-x * x)); }

enum { NO_ACTIVATION = 0, GELU = 1, GELU_TANH = 2, RELU = 3, SILU = 4 };
#define GELU_SLOPE 0.7978845608f /* √(2/π) */
static floatW activate(int activation, floatW x) {
  switch (activation) {
    case GELU:
      return 0.5f * x * (1.0f + erf_w(0.70710678f * x));
    case GELU_TANH:
      return 0.5f * x * (1.0f + tanh(GELU_SLOPE * (x + 0.044715f * x * x * x)));
    case RELU:
      return select(x, (floatW)0.0f, x < 0.0f);
    case SILU:
      return x / (1.0f + exp(-x));
    default:
      return x;
  }
}
static floatW activation_slope(int activation, floatW x) {
  switch (activation) {
    case GELU: {
      const floatW e = exp(-0.5f * x * x);
      return 0.5f * (1.0f + erf_with(0.70710678f * x, e)) + 0.39894228f * x * e;
    }
    case GELU_TANH: {
      const floatW t = tanh(GELU_SLOPE * (x + 0.044715f * x * x * x));
      const floatW slope =
          0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_SLOPE * (1.0f + 3.0f * 0.044715f * x * x);
      return select(slope, 0.5f * (1.0f + t), fabs(x) > 1e4f);  // where 0 would meet x·x = inf
    }
    case RELU:
      return select((floatW)0.0f, (floatW)1.0f, x > 0.0f);
    case SILU: {
      const floatW s = 1.0f / (1.0f + exp(-x));
      return s * (1.0f + x * (1.0f - s));
    }
    default:
      return (floatW)1.0f;
  }
}
