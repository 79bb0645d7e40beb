/* Switchyard plugin ABI, version 1: the types that every interface shares. C11; also valid C++.
 *
 * Rules of the whole ABI:
 *  - Every versioned struct starts with sy_header. Structs are append-only: a reader reads a field only if header.size covers it
 *    (SY_HAS), and a writer that is handed a smaller struct than it knows fills only what fits.
 *  - Nothing but C crosses the boundary: no C++ type, no exception, no ownership of memory from malloc. A plugin never aborts, exits or throws.
 *  - Memory is (buffer handle, byte offset). Only a device whose address kind is SY_ADDRESS_HOST may be dereferenced by the host.
 *  - Threads: different handles may be used concurrently; one stream or communicator is serialised by its caller. device.alloc, free,
 *    event_query, collective.poll and abort may be called from any thread at any time.
 */
#ifndef SWITCHYARD_ABI_BASE_H_
#define SWITCHYARD_ABI_BASE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SY_ABI_MAJOR 1
#define SY_ABI_MINOR 0

typedef struct sy_header {
  uint32_t size;         /* sizeof the struct as its writer knows it, bytes */
  uint16_t major, minor; /* version of the interface it belongs to */
} sy_header;

#define SY_HEADER(type) {(uint32_t)sizeof(type), SY_ABI_MAJOR, SY_ABI_MINOR}
/* True if the struct behind `pointer` is large enough to hold `field`. */
#define SY_HAS(type, pointer, field) ((pointer)->header.size >= offsetof(type, field) + sizeof(((type*)0)->field))

typedef int32_t sy_status;
enum {
  SY_OK = 0,
  SY_UNSUPPORTED = 1,   /* this op, dtype, shape or function is not offered; the caller has another way */
  SY_INVALID = 2,       /* the caller broke a contract */
  SY_OUT_OF_MEMORY = 3, /* the device goes on working after it */
  SY_TIMEOUT = 4,
  SY_DEVICE_LOST = 5,
  SY_ABORTED = 6,       /* abort() was called, or a peer is gone */
  SY_INTERNAL = 7,
  SY_IN_PROGRESS = 8    /* poll and event_query only: not an error */
};

/* Filled by the callee when it returns anything but SY_OK, SY_UNSUPPORTED included (say which op and why).
 * Every function accepts error == NULL. */
typedef struct sy_error {
  sy_header header;
  int64_t native_code;   /* cudaError_t, cl_int, MPI error … ; 0 where there is none */
  char message[512];     /* UTF-8, zero-terminated */
  char location[128];    /* "file:line" in the plugin */
} sy_error;

typedef int32_t sy_dtype;
enum { SY_F32 = 0, SY_BF16 = 1, SY_F16 = 2, SY_F64 = 3, SY_I32 = 4, SY_I64 = 5, SY_U8 = 6, SY_DTYPE_COUNT = 7 };
/* Bits of one element, and its name ("f32"). A dtype that these headers do not know has 0 bits and the name "unknown": ask before
 * a size is made of it. */
static inline uint32_t sy_dtype_bits(sy_dtype dtype) {
  static const uint8_t bits[SY_DTYPE_COUNT] = {32, 16, 16, 64, 32, 64, 8};
  return dtype >= 0 && dtype < SY_DTYPE_COUNT ? bits[dtype] : 0;
}
static inline const char* sy_dtype_name(sy_dtype dtype) {
  static const char* const names[SY_DTYPE_COUNT] = {"f32", "bf16", "f16", "f64", "i32", "i64", "u8"};
  return dtype >= 0 && dtype < SY_DTYPE_COUNT ? names[dtype] : "unknown";
}

/* A dense or strided array. Fixed for the whole of major version 1: it is used in arrays. */
#define SY_MAX_RANK 8
typedef struct sy_tensor {
  sy_dtype dtype;
  int32_t rank;                  /* 0 … SY_MAX_RANK; rank 0 is one element */
  int64_t dims[SY_MAX_RANK];     /* elements, outermost first */
  int64_t strides[SY_MAX_RANK];  /* elements; row-major contiguous unless a kernel said that it takes strided tensors */
} sy_tensor;

typedef struct sy_device sy_device;   /* one opened device; owned by the plugin */
typedef struct sy_buffer sy_buffer;   /* one allocation; owned by the plugin */
typedef struct sy_stream sy_stream;
typedef struct sy_event sy_event;

/* A place in memory: `buffer` at `offset`, or host memory at `host` where buffer is NULL. Bytes. */
typedef struct sy_place {
  sy_buffer* buffer;
  void* host;
  uint64_t offset;
} sy_place;

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_BASE_H_ */
