// Convolution's columns, pooling and resizing over (N, spatial, C); two-dimensional images have depth 1. Each
// work-group takes some pixels, its work-items the channels.   T: storage.
typedef struct {
  int in[3], out[3], kernel_size[3], stride[3], dilation[3], before[3];
} Window;

static uint3 position_of(uint at, const int* extent) {
  return (uint3)(at / (extent[2] * extent[1]), at / extent[2] % extent[1], at % extent[2]);
}
#define VOLUME(extent) ((uint)((extent)[0] * (extent)[1] * (extent)[2]))
// The input position along an axis that tap k of the window at output o reads.
#define READ_AT(w, axis, o, k) ((int)(o) * (w).stride[axis] - (w).before[axis] + (int)(k) * (w).dilation[axis])
#define INSIDE(extent, i) ((i) >= 0 && (i) < (extent))

// columns (pixels, groups, taps, C/groups) f32: what each output pixel's windows see, zero outside.
GROUP_KERNEL void image_to_columns(ARRAY(x), ARRAY(columns), Window w, uint pixels, uint channels, uint groups) {
  const uint taps = VOLUME(w.kernel_size), per_group = channels / groups;
  EACH_ROW(row, pixels * taps) {
    const uint tap = row % taps, pixel = row / taps, image = pixel / VOLUME(w.out);
    const uint3 k = position_of(tap, w.kernel_size), o = position_of(pixel % VOLUME(w.out), w.out);
    const int d = READ_AT(w, 0, o.x, k.x), y = READ_AT(w, 1, o.y, k.y), z = READ_AT(w, 2, o.z, k.z);
    const bool inside = INSIDE(w.in[0], d) && INSIDE(w.in[1], y) && INSIDE(w.in[2], z);
    const ulong from = inside ? (((ulong)image * w.in[0] + d) * w.in[1] + y) * w.in[2] + z : 0;
    for (uint g = 0; g < groups; ++g) {
      const __global STORED(T)* source = OF(STORED(T), x) + from * channels + g * per_group;
      __global float* to = OF(float, columns) + (((ulong)pixel * groups + g) * taps + tap) * per_group;
      EACH_VECTOR(c, per_group)
      STORE(f32, to, c, per_group, inside ? LOAD(T, source, c, per_group, 0.0f) : (floatW)0.0f);
    }
  }
}

// The transpose of image_to_columns: each input pixel adds up what it was read for.
GROUP_KERNEL void columns_to_image(ARRAY(columns), ARRAY(x), Window w, uint pixels, uint channels, uint groups,
                                   uint accumulate) {
  const uint taps = VOLUME(w.kernel_size), per_group = channels / groups;
  EACH_ROW(pixel, pixels) {
    const uint image = pixel / VOLUME(w.in);
    const uint3 i = position_of(pixel % VOLUME(w.in), w.in);
    for (uint g = 0; g < groups; ++g) {
      __global STORED(T)* to = OF(STORED(T), x) + (ulong)pixel * channels + g * per_group;
      EACH_VECTOR(c, per_group) {
        floatW sum = accumulate ? LOAD(T, to, c, per_group, 0.0f) : (floatW)0.0f;
        for (uint tap = 0; tap < taps; ++tap) {
          const uint3 k = position_of(tap, w.kernel_size);
          const int d = (int)i.x + w.before[0] - (int)k.x * w.dilation[0],
                    y = (int)i.y + w.before[1] - (int)k.y * w.dilation[1],
                    z = (int)i.z + w.before[2] - (int)k.z * w.dilation[2];
          if (d < 0 || y < 0 || z < 0 || d % w.stride[0] || y % w.stride[1] || z % w.stride[2]) continue;
          const int od = d / w.stride[0], oy = y / w.stride[1], oz = z / w.stride[2];
          if (od >= w.out[0] || oy >= w.out[1] || oz >= w.out[2]) continue;
          const ulong o = (((ulong)image * w.out[0] + od) * w.out[1] + oy) * w.out[2] + oz;
          sum += LOAD(f32, OF(float, columns) + ((o * groups + g) * taps + tap) * per_group, c, per_group, 0.0f);
        }
        STORE(T, to, c, per_group, sum);
      }
    }
  }
}

// The window of an image at output o: its average, or its maximum and which tap holds it first.
static floatW look(const __global STORED(T) * image, Window w, uint3 o, uint c, uint channels, uint average,
                   uint count_include_pad, intW* first_tap) {
  floatW result = average ? (floatW)0.0f : (floatW)-INFINITY;
  uint inside = 0, tap = 0;
  *first_tap = (intW)-1;
  for (int kd = 0; kd < w.kernel_size[0]; ++kd) {
    for (int ky = 0; ky < w.kernel_size[1]; ++ky) {
      for (int kz = 0; kz < w.kernel_size[2]; ++kz, ++tap) {
        const int d = READ_AT(w, 0, o.x, kd), y = READ_AT(w, 1, o.y, ky), z = READ_AT(w, 2, o.z, kz);
        if (!INSIDE(w.in[0], d) || !INSIDE(w.in[1], y) || !INSIDE(w.in[2], z)) continue;
        const floatW v = LOAD(T, image + (((ulong)d * w.in[1] + y) * w.in[2] + z) * channels, c, channels, 0.0f);
        if (average) {
          result += v;
        } else {
          const intW better = inside == 0 ? (intW)-1 : (v > result) | (isnan(v) & ~isnan(result));
          result = select(result, v, better);
          *first_tap = select(*first_tap, (intW)tap, better);
        }
        ++inside;
      }
    }
  }
  return average ? result / (count_include_pad ? tap : inside) : result;
}

GROUP_KERNEL void pool(ARRAY(x), ARRAY(y), Window w, uint pixels, uint channels, uint average, uint count_include_pad) {
  EACH_ROW(pixel, pixels) {
    const uint3 o = position_of(pixel % VOLUME(w.out), w.out);
    const __global STORED(T)* image = OF(STORED(T), x) + (ulong)(pixel / VOLUME(w.out)) * VOLUME(w.in) * channels;
    EACH_VECTOR(c, channels) {
      intW tap;
      STORE(T, OF(STORED(T), y) + (ulong)pixel * channels, c, channels,
            look(image, w, o, c, channels, average, count_include_pad, &tap));
    }
  }
}

GROUP_KERNEL void pool_backward(ARRAY(x), ARRAY(dy), ARRAY(dx), Window w, uint pixels, uint channels, uint average,
                                uint count_include_pad) {
  EACH_ROW(pixel, pixels) {
    const uint image = pixel / VOLUME(w.in);
    const uint3 i = position_of(pixel % VOLUME(w.in), w.in);
    const __global STORED(T)* from = OF(STORED(T), x) + (ulong)image * VOLUME(w.in) * channels;
    EACH_VECTOR(c, channels) {
      floatW sum = (floatW)0.0f;
      int tap = 0;
      for (int kd = 0; kd < w.kernel_size[0]; ++kd) {
        for (int ky = 0; ky < w.kernel_size[1]; ++ky) {
          for (int kz = 0; kz < w.kernel_size[2]; ++kz, ++tap) {
            const int d = (int)i.x + w.before[0] - kd, y = (int)i.y + w.before[1] - ky, z = (int)i.z + w.before[2] - kz;
            if (d < 0 || y < 0 || z < 0 || d % w.stride[0] || y % w.stride[1] || z % w.stride[2]) continue;
            const uint3 o = (uint3)(d / w.stride[0], y / w.stride[1], z / w.stride[2]);
            if (o.x >= (uint)w.out[0] || o.y >= (uint)w.out[1] || o.z >= (uint)w.out[2]) continue;
            const ulong at = (((ulong)image * w.out[0] + o.x) * w.out[1] + o.y) * w.out[2] + o.z;
            const floatW g = LOAD(T, OF(STORED(T), dy) + at * channels, c, channels, 0.0f);
            if (average) {
              uint inside = 1, taps = 1;
              const uint place[3] = {o.x, o.y, o.z};
              for (int axis = 0; axis < 3; ++axis) {
                const int start = READ_AT(w, axis, place[axis], 0);
                inside *= min(w.in[axis], start + w.kernel_size[axis]) - max(0, start);
                taps *= w.kernel_size[axis];
              }
              sum += g / (count_include_pad ? taps : inside);
            } else {
              intW first_tap;
              look(from, w, o, c, channels, 0, 0, &first_tap);
              sum += select((floatW)0.0f, g, first_tap == (intW)tap);
            }
          }
        }
      }
      STORE(T, OF(STORED(T), dx) + (ulong)pixel * channels, c, channels, sum);
    }
  }
}

// The one or two positions along an axis of `in` that position o of `out` reads, with their weights, as
// torch.nn.functional.interpolate.
typedef struct {
  int at[2];
  float weight[2];
} Sources;
enum { NEAREST = 0, LINEAR = 1 };
static Sources sources_of(int mode, int align_corners, int in, int out, int o) {
  Sources s;
  if (mode == NEAREST) {
    s.at[0] = (int)((long)o * in / out);
    s.at[1] = 0;
    s.weight[0] = 1;
    s.weight[1] = 0;
    return s;
  }
  float x = align_corners ? (out > 1 ? o * ((float)(in - 1) / (float)(out - 1)) : 0.0f)
                          : fmax(0.0f, (o + 0.5f) * ((float)in / (float)out) - 0.5f);
  s.at[0] = min((int)x, in - 1);
  s.at[1] = min(s.at[0] + 1, in - 1);
  s.weight[1] = x - s.at[0];
  s.weight[0] = 1 - s.weight[1];
  return s;
}

GROUP_KERNEL void resize(ARRAY(x), ARRAY(y), Window w, uint pixels, uint channels, int mode, int align_corners) {
  EACH_ROW(pixel, pixels) {
    const uint3 o = position_of(pixel % VOLUME(w.out), w.out);
    const ulong image = (ulong)(pixel / VOLUME(w.out)) * VOLUME(w.in);
    const Sources d = sources_of(mode, align_corners, w.in[0], w.out[0], o.x),
                  r = sources_of(mode, align_corners, w.in[1], w.out[1], o.y),
                  q = sources_of(mode, align_corners, w.in[2], w.out[2], o.z);
    EACH_VECTOR(c, channels) {
      floatW sum = (floatW)0.0f;
      for (int corner = 0; corner < 8; ++corner) {
        const int a = corner & 1, b = corner >> 1 & 1, e = corner >> 2;
        const float weight = d.weight[a] * r.weight[b] * q.weight[e];
        if (weight == 0) continue;
        const ulong at = image + ((ulong)d.at[a] * w.in[1] + r.at[b]) * w.in[2] + q.at[e];
        sum += weight * LOAD(T, OF(STORED(T), x) + at * channels, c, channels, 0.0f);
      }
      STORE(T, OF(STORED(T), y) + (ulong)pixel * channels, c, channels, sum);
    }
  }
}

// How much of input position i along an axis goes into output o.
static float share_of(int mode, int align_corners, int in, int out, int o, int i) {
  const Sources s = sources_of(mode, align_corners, in, out, o);
  return (s.at[0] == i ? s.weight[0] : 0.0f) + (s.weight[1] != 0 && s.at[1] == i ? s.weight[1] : 0.0f);
}
// Bounds of the outputs that may read input i: those of i − 1 and i + 1, and one more for rounding.
#define FIRST_READER(in, out, i) max(0, (int)(((long)(i)-1) * (out) / (in)) - 2)
#define LAST_READER(in, out, i) min((out)-1, (int)(((long)(i) + 2) * (out) / (in)) + 2)

GROUP_KERNEL void resize_backward(ARRAY(dy), ARRAY(dx), Window w, uint pixels, uint channels, int mode,
                                  int align_corners) {
  EACH_ROW(pixel, pixels) {
    const uint3 i = position_of(pixel % VOLUME(w.in), w.in);
    const ulong image = (ulong)(pixel / VOLUME(w.in)) * VOLUME(w.out);
    EACH_VECTOR(c, channels) {
      floatW sum = (floatW)0.0f;
      for (int d = FIRST_READER(w.in[0], w.out[0], i.x); d <= LAST_READER(w.in[0], w.out[0], i.x); ++d) {
        const float deep = share_of(mode, align_corners, w.in[0], w.out[0], d, i.x);
        for (int r = FIRST_READER(w.in[1], w.out[1], i.y); deep != 0 && r <= LAST_READER(w.in[1], w.out[1], i.y); ++r) {
          const float high = deep * share_of(mode, align_corners, w.in[1], w.out[1], r, i.y);
          for (int q = FIRST_READER(w.in[2], w.out[2], i.z); high != 0 && q <= LAST_READER(w.in[2], w.out[2], i.z);
               ++q) {
            const float weight = high * share_of(mode, align_corners, w.in[2], w.out[2], q, i.z);
            if (weight == 0) continue;
            const ulong at = image + ((ulong)d * w.out[1] + r) * w.out[2] + q;
            sum += weight * LOAD(T, OF(STORED(T), dy) + at * channels, c, channels, 0.0f);
          }
        }
      }
      STORE(T, OF(STORED(T), dx) + (ulong)pixel * channels, c, channels, sum);
    }
  }
}
