/* device/2: devices, memory, streams and events; and the optional memory_ext/2, semaphore/1, peer/1, capture/2 and profiler/2.
 * Mandatory: the first eight functions. A synchronous plugin leaves the functions of streams and events NULL: the core then passes
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
  SY_DEVICE_CPU_CORES = 1u << 3,     /* it computes on the host's cores: local ranks share them and are pinned */
  SY_DEVICE_CAPTURES_STREAMS = 1u << 4 /* capture/2: waits for events draw other streams into a capture */
};

typedef struct sy_device_info {
  sy_header header;
  char name[128];              /* "AMD EPYC 9554", "NVIDIA H200" */
  uint8_t uuid[16];            /* equal for the same physical device in every process */
  uint64_t memory_bytes;       /* total */
  uint64_t free_bytes;         /* now; 0 = unknown */
  uint64_t largest_allocation; /* bytes; 0 = memory_bytes */
  uint32_t alignment;          /* every allocation is aligned to it, and the core aligns every offset to it; a power of two */
  uint32_t copy_granularity;   /* bytes: copy and fill are asked for multiples of it, at multiples of it, in device memory; a power of two, 0 = 1 */
  uint32_t address_kind;       /* SY_ADDRESS_* */
  uint32_t flags;              /* SY_DEVICE_* */
  uint64_t dtypes;             /* bit 1 << SY_F32 …: those for which it has kernels. Memory, copies and fills are of bytes and know none */
  /* What native_address of memory_ext/2 answers, as collectives name the memory that they reach: "host", "cuda", "npu", a vendor's own word.
   * Empty: nothing but this device reaches its memory. */
  char memory_kind[32];
  double static_loss_scale;    /* default for fp16; 0 = the engine's dynamic scaling */
  /* 2.1. The libraries under the plugin that the device runs on, with the versions that they give themselves when asked, for people:
   * "CUDA driver 12.8, cuDNN 9.7.1". One line of printable UTF-8, valid to the end of the process; NULL or missing: nothing to say. */
  const char* libraries;
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

typedef struct sy_alloc_options {
  sy_header header;
  uint32_t exportable;         /* 1: export_memory of peer/1 will be asked for it */
} sy_alloc_options;
typedef struct sy_copy_options {
  sy_header header;
} sy_copy_options;
typedef struct sy_fill_options {
  sy_header header;
} sy_fill_options;
typedef struct sy_synchronize_options {
  sy_header header;
} sy_synchronize_options;
typedef struct sy_event_options {
  sy_header header;
} sy_event_options;

typedef struct sy_device_v2 {
  sy_header header;
  /* Number of devices that can be opened now. Where there are none: SY_UNSUPPORTED, with the reason ("no CUDA driver"), or SY_OK and 0. */
  sy_status (*count)(sy_instance* instance, int32_t* count, sy_error* error);
  sy_status (*open)(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device, sy_error* error);
  void (*close)(sy_device* device); /* every buffer, stream, event, semaphore, graph and kernel of it was released before */
  sy_status (*query)(sy_instance* instance, int32_t index, sy_device_info* info, sy_error* error); /* without opening */
  sy_status (*alloc)(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer, sy_error* error); /* contents undefined; bytes ≥ 1 */
  void (*free)(sy_device* device, sy_buffer* buffer); /* after the work that uses it has finished and the graphs that name it were released; NULL is ignored */
  /* Host→device, device→host or device→device (never host→host), in order on `stream`. With a stream the call returns at once and host
   * memory stays valid until the copy has finished; without one it has finished on return. Source and destination do not overlap. bytes == 0 is legal. */
  sy_status (*copy)(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes, const sy_copy_options* options, sy_error* error);
  /* Waits for `stream`, or for the whole device where stream is NULL; not for what other threads queue meanwhile. Returns the first error of the
   * work waited for; it stays. */
  sy_status (*synchronize)(sy_device* device, sy_stream* stream, const sy_synchronize_options* options, sy_error* error);

  /* With SY_DEVICE_ASYNC */
  sy_status (*stream_create)(sy_device* device, const sy_stream_options* options, sy_stream** stream, sy_error* error);
  void (*stream_destroy)(sy_device* device, sy_stream* stream); /* what is queued still runs to its end, for which the call may wait */
  sy_status (*event_create)(sy_device* device, const sy_event_options* options, sy_event** event, sy_error* error);
  void (*event_destroy)(sy_device* device, sy_event* event); /* after the work that names it has finished */
  sy_status (*event_record)(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error);
  sy_status (*event_query)(sy_device* device, sy_event* event, sy_error* error); /* SY_OK, SY_IN_PROGRESS or its first error */
  sy_status (*event_synchronize)(sy_device* device, sy_event* event, sy_error* error);
  /* Later work on `stream` waits for what `event` recorded last. An event that was never recorded holds nothing up. */
  sy_status (*stream_wait)(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error);

  /* Optional for everyone: sets bytes (NULL: the core copies from a host pattern). stream as in copy. */
  sy_status (*fill)(sy_device* device, sy_stream* stream, sy_place destination, uint8_t value, uint64_t bytes, const sy_fill_options* options, sy_error* error);
} sy_device_v2;

/* memory_ext/2: what joins devices and collectives. Each function may be NULL. */
typedef struct sy_memory_ext_v2 {
  sy_header header;
  /* The address that a collective which reaches sy_device_info.memory_kind can use for (buffer, 0): a host pointer, a CUdeviceptr … */
  sy_status (*native_address)(sy_device* device, sy_buffer* buffer, void** address, sy_error* error);
  /* A buffer over memory of that kind, or another that the plugin knows, which somebody else owns (a collective's shared segment) and which
   * outlives it. free() only forgets it. SY_UNSUPPORTED for a kind that it does not know. */
  sy_status (*import_memory)(sy_device* device, void* address, const char* memory_kind, uint64_t bytes, sy_buffer** buffer, sy_error* error);
  /* Host memory that copies quickly (pinned). */
  sy_status (*host_alloc)(sy_device* device, uint64_t bytes, void** address, sy_error* error);
  void (*host_free)(sy_device* device, void* address);
  /* The handle on which a collective of the device's memory kind orders its work for `stream`: a cudaStream_t, an aclrtStream … It stays the stream's own. */
  sy_status (*native_stream)(sy_device* device, sy_stream* stream, void** handle, sy_error* error);
} sy_memory_ext_v2;

/* semaphore/1: a count below 2^63 that host and device raise and wait for. It starts at 0 and only grows; a wait for `value` ends once the count is at
 * least that, also when it is asked before anybody raised it. Host functions may be called from any thread at any time. */
typedef struct sy_semaphore sy_semaphore;
typedef struct sy_semaphore_options {
  sy_header header;
} sy_semaphore_options;
typedef struct sy_semaphore_v1 {
  sy_header header;
  sy_status (*create)(sy_device* device, const sy_semaphore_options* options, sy_semaphore** semaphore, sy_error* error);
  void (*destroy)(sy_device* device, sy_semaphore* semaphore); /* after the work that names it has finished */
  /* The host: raises the count (SY_INVALID if it is `value` or more already), reads it, waits at most `timeout_ms` (then SY_TIMEOUT). */
  sy_status (*signal)(sy_device* device, sy_semaphore* semaphore, uint64_t value, sy_error* error);
  sy_status (*query)(sy_device* device, sy_semaphore* semaphore, uint64_t* value, sy_error* error);
  sy_status (*wait)(sy_device* device, sy_semaphore* semaphore, uint64_t value, uint64_t timeout_ms, sy_error* error);
  /* Work on a stream, which the call only queues: raise the count (to what it is already: nothing happens, or SY_INVALID), hold later work of the
   * stream until it is reached. A stream that has failed holds nobody up: who waits for what it was to raise is let go, with its first error. */
  sy_status (*stream_signal)(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error);
  sy_status (*stream_wait)(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error);
} sy_semaphore_v1;

/* peer/1: memory of one device that another device, or another process of the same host and user, can copy from and to. */
typedef struct sy_peer_v1 {
  sy_header header;
  /* Describes the whole of `buffer` in at most `capacity` bytes (too few: SY_INVALID) that may be sent to another process; *bytes: how many. The buffer
   * lives until every importer has freed it; where its process ends before, copies from and to it fail or give undefined bytes, and nothing crashes. */
  sy_status (*export_memory)(sy_device* device, sy_buffer* buffer, void* description, uint32_t capacity, uint32_t* bytes, sy_error* error);
  /* A buffer of `device`, each time a new one, for what the same plugin exported in any process; for copy and fill only, not for kernels. free() ends
   * it. SY_UNSUPPORTED where this device cannot reach that memory; that or SY_INVALID, and never other memory, for what no export_memory wrote. */
  sy_status (*import_memory)(sy_device* device, const void* description, uint32_t bytes, sy_buffer** buffer, sy_error* error);
} sy_peer_v1;
enum { SY_MEMORY_DESCRIPTION_BYTES = 256 }; /* capacity that always suffices */

/* capture/2: records the work of a stream once and replays it with one call.
 * Between begin and end every launch, copy, fill and event_record on the stream is recorded and does not run; synchronize and a copy from or to host
 * memory that is not pinned are SY_UNSUPPORTED there, and so is whatever else cannot be recorded. Once something was refused, end answers
 * SY_UNSUPPORTED and gives no graph. After end, whatever it answers, the stream runs work as before, and nothing recorded has run.
 * With SY_DEVICE_CAPTURES_STREAMS one capture may hold several streams: whoever is made to wait for an event that was recorded in it is drawn
 * in, and its work is recorded too until end, behind what the event stands behind; such waits are edges of the graph. At end the stream of
 * begin has waited for all that was recorded on the others, or the answer is SY_UNSUPPORTED and there is no graph. All of these calls are of
 * one thread. Without the flag, and for events recorded elsewhere, a wait is SY_UNSUPPORTED. Each replay records the events anew.
 * A graph holds no resources of its bindings: buffers, bindings and events that it names live as long as it does. Replays of one graph are in
 * order on one stream. */
typedef struct sy_graph sy_graph;
typedef struct sy_capture_options {
  sy_header header;
} sy_capture_options;
typedef struct sy_capture_v2 {
  sy_header header;
  sy_status (*begin)(sy_device* device, sy_stream* stream, const sy_capture_options* options, sy_error* error);
  sy_status (*end)(sy_device* device, sy_stream* stream, sy_graph** graph, sy_error* error);
  sy_status (*launch)(sy_device* device, sy_graph* graph, sy_stream* stream, sy_error* error);
  void (*release)(sy_device* device, sy_graph* graph); /* after its replays have finished */
} sy_capture_v2;

/* profiler/2: spans of device work, for the trace of a run. */
typedef struct sy_span {
  const char* tag;        /* the prepare request's profiler tag; the plugin's copy, which lives as long as the device */
  const sy_stream* stream;
  uint64_t start_ns, end_ns; /* of one device clock */
} sy_span;
typedef struct sy_profiler_v2 {
  sy_header header;
  sy_status (*start)(sy_device* device, sy_error* error);
  /* Copies up to `capacity` finished spans; *count says how many, and calls may be repeated until it is 0. */
  sy_status (*drain)(sy_device* device, sy_span* spans, uint32_t capacity, uint32_t* count, uint64_t* host_minus_device_ns /* CLOCK_MONOTONIC minus the device's clock */, sy_error* error);
  sy_status (*stop)(sy_device* device, sy_error* error);
} sy_profiler_v2;

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_DEVICE_H_ */
