/* kernel/2: prepare, bind, launch. All searching, packing and sizing happens in prepare; bind fixes the buffers; launch is one pointer call.
 * What a kernel needs beyond addresses (generated code, tables) is made in prepare: bind, launch and unbind change nothing that bindings share.
 * Every op is optional: prepare answers SY_UNSUPPORTED and the core decomposes the op or runs it on the reference plugin.
 * The ops themselves (names, inputs, outputs, attributes, formulas) are listed in core/abi/ops.h. */
#ifndef SWITCHYARD_ABI_KERNEL_H_
#define SWITCHYARD_ABI_KERNEL_H_

#include "core/abi/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sy_kernel sy_kernel; /* one op at fixed shapes */
typedef struct sy_bound sy_bound;   /* one kernel at fixed places */

enum { /* classes of repeatability; each includes those before */
  SY_DETERMINISM_ANY = 0,
  SY_DETERMINISM_RUN = 1,  /* same bits for the same inputs, device, shapes and thread count, every time */
  SY_DETERMINISM_EXACT = 2 /* and every row (slice along the first axis) has the bits that it has in a batch of any other size, on any thread count */
};
enum { SY_TUNING_NONE = 0, SY_TUNING_HEURISTIC = 1, SY_TUNING_MEASURE = 2 };

typedef struct sy_prepare_request {
  sy_header header;
  const char* op;              /* "matmul" */
  uint32_t op_version;         /* 1 */
  uint32_t attributes_size;    /* bytes; 0 where the op has none */
  const void* attributes;      /* the op's struct of ops.h. Fields that a smaller one lacks read as zero; what a larger one has behind the fields that
                                * the plugin knows must be zero, or the answer is SY_UNSUPPORTED */
  uint32_t input_count, output_count;
  const sy_tensor* inputs;
  const sy_tensor* outputs;
  uint64_t workspace_limit;    /* bytes; prepare answers SY_UNSUPPORTED rather than exceed it */
  uint32_t determinism;        /* SY_DETERMINISM_*: the least that is required; an unknown class is SY_UNSUPPORTED */
  uint32_t tuning;             /* SY_TUNING_*; an unknown level is read as the nearest known */
  uint32_t paired_forward;     /* 1: a backward node will follow; residual_bytes may be asked for */
  sy_kernel* forward;          /* for a backward op: the paired forward kernel, or NULL */
  const uint8_t* accumulate;   /* output_count flags: 1 = add to what the output holds; NULL = none. SY_UNSUPPORTED if it cannot */
  const char* tag;             /* profiler tag, stable for the kernel's life; may be NULL */
} sy_prepare_request;

/* Filled by prepare. `inplace` points to host memory of output_count entries, set to -1 before the call. */
typedef struct sy_kernel_info {
  sy_header header;
  uint64_t workspace_bytes;    /* scratch during one launch */
  uint64_t persistent_bytes;   /* lives as long as a binding: packed weights, dropout state; zeroed by the core before the first launch */
  uint64_t constant_bytes;     /* tables that every binding reads and write_constants fills once */
  uint64_t residual_bytes;     /* forward only: opaque bytes that it leaves for its paired backward */
  int32_t* inplace;            /* inplace[o] = i: output o may share its place with input i (same bytes), with the same results; -1: it may not */
  uint32_t determinism;        /* the class it reaches */
  uint32_t capturable;         /* 1: its launches may be recorded (capture/2) */
  const char* second_choice;   /* 2.1. Why the plugin's faster way was not taken for this op here, in words for the user; NULL or missing: this is its
                                * first choice. Lives as long as the kernel */
} sy_kernel_info;

typedef struct sy_binding {
  sy_header header;
  const sy_place* inputs;      /* input_count; always device buffers */
  const sy_place* outputs;     /* output_count */
  sy_place workspace;          /* contents undefined before and after each launch */
  sy_place persistent, residual; /* residual: written by the forward, read by the paired backward */
  sy_place constants;
} sy_binding;

/* One launch: `run(bound, stream, error)`. On an ASYNC device it enqueues and returns; otherwise it has finished on return. */
typedef sy_status (*sy_launch)(sy_bound* bound, sy_stream* stream, sy_error* error);

typedef struct sy_kernel_v2 {
  sy_header header;
  sy_status (*prepare)(sy_device* device, const sy_prepare_request* request, sy_kernel** kernel, sy_kernel_info* info, sy_error* error);
  sy_status (*bind)(sy_device* device, sy_kernel* kernel, const sy_binding* binding, sy_bound** bound, sy_launch* launch, sy_error* error);
  void (*unbind)(sy_device* device, sy_bound* bound); /* the caller has waited for its launches and released the graphs that name it */
  void (*release)(sy_device* device, sy_kernel* kernel); /* after all of its bindings; a backward may outlive its forward */
  /* Mandatory where a kernel asks for constant_bytes: writes them, in order on `stream`, before the first launch of a binding that names `constants`. */
  sy_status (*write_constants)(sy_device* device, sy_kernel* kernel, sy_stream* stream, sy_place constants, sy_error* error);
} sy_kernel_v2;

/* region/2: the plugin claims a connected subgraph and compiles it whole. Nodes come in topological order; a tensor is named by index
 * into `tensors`. The claimed region is then prepared, bound and launched like one kernel whose inputs and outputs are listed here. */
typedef struct sy_region_node {
  const char* op;
  const void* attributes;
  uint32_t attributes_size;
  uint32_t input_count, output_count;
  const uint32_t* inputs;      /* indices into sy_region.tensors */
  const uint32_t* outputs;
} sy_region_node;
typedef struct sy_region {
  sy_header header;
  uint32_t tensor_count, node_count, input_count, output_count;
  const sy_tensor* tensors;
  const sy_region_node* nodes;
  const uint32_t* inputs;
  const uint32_t* outputs;
} sy_region;
typedef struct sy_region_v2 {
  sy_header header;
  /* claims[n] = 0: not claimed; k ≥ 1: node n belongs to region k. Regions must be convex. */
  sy_status (*partition)(sy_device* device, const sy_region* graph, uint32_t* claims, sy_error* error);
  sy_status (*prepare)(sy_device* device, const sy_region* region, uint64_t workspace_limit, sy_kernel** kernel, sy_kernel_info* info, sy_error* error);
} sy_region_v2;

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_KERNEL_H_ */
