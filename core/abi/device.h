/* device/1: devices, memory, streams and events, and the optional memory_ext/1, capture/1 and profiler/1.
 * Mandatory: the first eight functions. A synchronous plugin leaves everything below `synchronize` NULL: the core then passes
 * stream == NULL everywhere and takes each call as finished when it returns. */
#ifndef SWITCHYARD_ABI_DEVICE_H_
#define SWITCHYARD_ABI_DEVICE_H_

#include "core/abi/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SY_ADDRESS_HOST = 0, SY_ADDRESS_OPAQUE = 1 }; /* may the host dereference what native_address returns? */

enum { /* sy_device_info.flags */
  SY_DEVICE_ASYNC = 1u << 0,         /* has streams and events; launches never block the host */
  SY_DEVICE_SHAREABLE = 1u << 1,     /* several processes may drive it at once (CPU, OpenCL on a CPU) */
  SY_DEVICE_ADJACENT_IDS = 1u << 2,  /* a job's device ids must be consecutive */
  SY_DEVICE_CPU_CORES = 1u << 3      /* it computes on the host's cores: local ranks share them and are pinned */
};

typedef struct sy_device_info {
  sy_header header;
  char name[128];              /* "AMD EPYC 9554", "NVIDIA H200" */
  uint8_t uuid[16];            /* equal for the same physical device in every process */
  uint64_t memory_bytes;       /* total */
  uint64_t free_bytes;         /* now; 0 = unknown */
  uint64_t largest_allocation; /* bytes; 0 = memory_bytes */
  uint32_t alignment;          /* every allocation is aligned to it, and the core aligns every offset to it; a power of two */
  uint32_t address_kind;       /* SY_ADDRESS_* */
  uint32_t flags;              /* SY_DEVICE_* */
  uint32_t dtypes;             /* bit 1 << SY_F32 …: storage dtypes for which it has kernels */
  double static_loss_scale;    /* default for fp16; 0 = the engine's dynamic scaling */
  double peak_flops;           /* f32, per second; 0 = unknown */
} sy_device_info;

typedef struct sy_open_options {
  sy_header header;
  int32_t threads;             /* host threads that the device may use; 0 = its own choice. SY_DEVICE_CPU_CORES only */
  const int32_t* cores;        /* `threads` core ids to pin to, or NULL: do not pin */
  uint32_t deterministic;      /* 1: only kernels whose results are repeatable bit for bit */
} sy_open_options;

typedef struct sy_stream_options {
  sy_header header;
  int32_t priority;            /* 0 normal, 1 high (communication) */
} sy_stream_options;

typedef struct sy_device_v1 {
  sy_header header;
  /* Number of devices that can be opened now. SY_OK with 0 is legal; a message in `error` then says why ("no CUDA driver"). */
  sy_status (*count)(int32_t* count, sy_error* error);
  sy_status (*open)(int32_t index, const sy_open_options* options, sy_device** device, sy_error* error);
  void (*close)(sy_device* device); /* every buffer, stream, event and kernel of it was released before */
  sy_status (*query)(int32_t index, sy_device_info* info, sy_error* error); /* without opening */
  sy_status (*alloc)(sy_device* device, uint64_t bytes, sy_buffer** buffer, sy_error* error); /* contents undefined; bytes ≥ 1 */
  void (*free)(sy_device* device, sy_buffer* buffer); /* after the work that uses it has finished; NULL is ignored */
  /* Host→device, device→host or device→device (never host→host), in order on `stream`. With a stream the call returns at once and host
   * memory stays valid until the copy has finished; without one it has finished on return. bytes == 0 is legal. */
  sy_status (*copy)(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes, sy_error* error);
  /* Waits for `stream`, or for the whole device where stream is NULL. Returns the first error of the work waited for; it stays. */
  sy_status (*synchronize)(sy_device* device, sy_stream* stream, sy_error* error);

  /* With SY_DEVICE_ASYNC */
  sy_status (*stream_create)(sy_device* device, const sy_stream_options* options, sy_stream** stream, sy_error* error);
  void (*stream_destroy)(sy_device* device, sy_stream* stream);
  sy_status (*event_create)(sy_device* device, sy_event** event, sy_error* error);
  void (*event_destroy)(sy_device* device, sy_event* event); /* after the work that names it has finished */
  sy_status (*event_record)(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error);
  sy_status (*event_query)(sy_device* device, sy_event* event, sy_error* error); /* SY_OK, SY_IN_PROGRESS or its first error */
  sy_status (*event_synchronize)(sy_device* device, sy_event* event, sy_error* error);
  sy_status (*stream_wait)(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error);

  /* Optional for everyone: sets bytes (NULL: the core copies from a host pattern). stream as in copy. */
  sy_status (*fill)(sy_device* device, sy_stream* stream, sy_place destination, uint8_t value, uint64_t bytes, sy_error* error);
} sy_device_v1;

enum { SY_MEMORY_HOST = 0, SY_MEMORY_CUDA = 1, SY_MEMORY_NPU = 2, SY_MEMORY_KIND_COUNT = 3 };

/* memory_ext/1: what joins devices and collectives. Each function may be NULL. */
typedef struct sy_memory_ext_v1 {
  sy_header header;
  /* The address that a collective of memory kind `*kind` can use for (buffer, 0): a host pointer, a CUdeviceptr … */
  sy_status (*native_address)(sy_device* device, sy_buffer* buffer, void** address, int32_t* kind, sy_error* error);
  /* A buffer over memory that somebody else owns (a collective's shared segment) and that outlives it. free() only forgets it. */
  sy_status (*import_memory)(sy_device* device, void* address, int32_t kind, uint64_t bytes, sy_buffer** buffer, sy_error* error);
  /* Host memory that copies quickly (pinned). */
  sy_status (*host_alloc)(sy_device* device, uint64_t bytes, void** address, sy_error* error);
  void (*host_free)(sy_device* device, void* address);
  /* The handle on which a collective of the device's memory kind orders its work for `stream`: a cudaStream_t, an aclrtStream … It stays the stream's own. */
  sy_status (*native_stream)(sy_device* device, sy_stream* stream, void** handle, sy_error* error);
} sy_memory_ext_v1;

/* capture/1: records a run of launches once and replays it with one call. All or nothing. */
typedef struct sy_graph sy_graph;
typedef struct sy_capture_v1 {
  sy_header header;
  sy_status (*begin)(sy_device* device, sy_stream* stream, sy_error* error);
  sy_status (*end)(sy_device* device, sy_stream* stream, sy_graph** graph, sy_error* error);
  sy_status (*launch)(sy_graph* graph, sy_stream* stream, sy_error* error);
  void (*release)(sy_graph* graph);
} sy_capture_v1;

/* profiler/1: spans of device work, for the trace of a run. */
typedef struct sy_span {
  const char* tag;        /* the prepare request's profiler tag; the plugin's copy */
  const sy_stream* stream;
  uint64_t start_ns, end_ns; /* of one device clock */
} sy_span;
typedef struct sy_profiler_v1 {
  sy_header header;
  sy_status (*start)(sy_device* device, sy_error* error);
  /* Copies up to `capacity` finished spans; *count says how many, and calls may be repeated until it is 0. */
  sy_status (*drain)(sy_device* device, sy_span* spans, uint32_t capacity, uint32_t* count, uint64_t* host_minus_device_ns /* CLOCK_MONOTONIC minus the device's clock */, sy_error* error);
  sy_status (*stop)(sy_device* device, sy_error* error);
} sy_profiler_v1;

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_DEVICE_H_ */
