/* Switchyard plugin ABI, edition 2: the types that every interface shares. C11; also valid C++.
 *
 * The whole of what both sides promise is one page, PROMISES.md. In short:
 *  - Every versioned struct starts with sy_header. Structs are append-only: a reader reads a field only if header.size covers it
 *    (SY_HAS), and a writer that is handed a smaller struct than it knows fills only what fits. Whoever fills a struct of the other side
 *    leaves its header as it found it.
 *  - Every function takes first the object to which it belongs (sy_instance, sy_device or sy_communicator), and what may grow is an
 *    options struct, which may be NULL: all of its fields are then zero.
 *  - What a partner does not know (a dtype, an op, a reduction, an attribute, a required extension) is SY_UNSUPPORTED, never SY_INVALID.
 *  - Nothing but C crosses the boundary: no C++ type, no exception, no ownership of memory from malloc. A plugin never aborts, exits or throws.
 *  - Memory is (buffer handle, byte offset). Only a device whose address kind is SY_ADDRESS_HOST may be dereferenced by the host.
 *  - Threads: different objects may be used concurrently; PROMISES.md says function by function what else may.
 */
#ifndef SWITCHYARD_ABI_BASE_H_
#define SWITCHYARD_ABI_BASE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SY_ABI_MAJOR 2
#define SY_ABI_MINOR 1

typedef struct sy_header {
  uint32_t size;         /* sizeof the struct as its writer knows it, bytes */
  uint16_t major, minor; /* version of the headers with which its writer was built */
  const struct sy_extension* next; /* what the struct itself has no room for; NULL: nothing */
} sy_header;

/* One link of the chain behind header.next. Anybody may invent one; the name keeps them apart. */
typedef struct sy_extension {
  sy_header header;      /* size of the whole extension; header.next: the next link */
  const char* name;      /* "vendor.topic/1" */
  uint32_t required;     /* 1: whoever does not know the name answers SY_UNSUPPORTED; 0: it may be ignored */
} sy_extension;

#define SY_HEADER(type) {(uint32_t)sizeof(type), SY_ABI_MAJOR, SY_ABI_MINOR, NULL}
/* The first required link of a chain, or NULL: what a reader that knows no extension must refuse. */
static inline const sy_extension* sy_required_extension(const sy_header* header) {
  const sy_extension* link = header == NULL ? NULL : header->next;
  while (link != NULL && !link->required) link = link->header.next;
  return link;
}
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

/* Filled by the callee when it returns anything but SY_OK and SY_IN_PROGRESS, SY_UNSUPPORTED included (say which op and why); untouched
 * otherwise. What a call answers through any other pointer is read on SY_OK only. Every function accepts error == NULL. */
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

/* An array. Fixed for the whole of edition 2: it is used in arrays. The engine sends row-major contiguous ones; a kernel that is handed other
 * strides takes them or refuses in prepare. */
#define SY_MAX_RANK 8
typedef struct sy_tensor {
  sy_dtype dtype;
  int32_t rank;                  /* 0 … SY_MAX_RANK; rank 0 is one element */
  int64_t dims[SY_MAX_RANK];     /* elements, outermost first */
  int64_t strides[SY_MAX_RANK];  /* elements */
} sy_tensor;

/* Bytes of `elements` elements, which lie close together: 0 for an unknown dtype. */
static inline uint64_t sy_dtype_bytes(sy_dtype dtype, uint64_t elements) { return (elements * sy_dtype_bits(dtype) + 7) / 8; }

typedef struct sy_instance sy_instance; /* what one sy_plugin_create made; owned by the plugin, lives as long as the process */
typedef struct sy_device sy_device;   /* one opened device; owned by the plugin */
typedef struct sy_buffer sy_buffer;   /* one allocation; owned by the plugin */
typedef struct sy_stream sy_stream;
typedef struct sy_event sy_event;

/* A place in memory: `buffer` at `offset` (bytes), or host memory at `host` where buffer is NULL; offset is 0 then. */
typedef struct sy_place {
  sy_buffer* buffer;
  void* host;
  uint64_t offset;
} sy_place;

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_BASE_H_ */
