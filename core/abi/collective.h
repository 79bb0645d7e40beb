/* collective/2: communicators between processes. Mandatory: query, init, poll, send_recv_batch, abort, destroy, and request_poll and
 * request_release where calls complete by poll; the core composes the rest from send_recv_batch. Every call carries a tag (which node of the
 * plan) and a sequence number (how many calls came before on this communicator): a plugin that moves control data must compare them between ranks and
 * report a disagreement as SY_INVALID with both sides named. Results of half types are rounded to nearest, ties to even, once or at every step.
 * Addresses are of the memory kinds that query lists; the core stages anything else through host memory. */
#ifndef SWITCHYARD_ABI_COLLECTIVE_H_
#define SWITCHYARD_ABI_COLLECTIVE_H_

#include "core/abi/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sy_communicator sy_communicator;
typedef struct sy_request sy_request; /* a call that completes by poll; the caller's until it hands it to request_release */

enum { SY_SUM = 0, SY_MAX = 1, SY_MIN = 2, SY_PRODUCT = 3, SY_REDUCTION_COUNT = 4 };
enum { SY_COMPLETES_ON_STREAM = 0, /* as device work, in order on the given stream */ SY_COMPLETES_BY_POLL = 1 /* as a host request */ };
enum { /* sy_collective_info.flags */
  SY_COLLECTIVE_ONE_NODE = 1u << 0,        /* all ranks must share a host */
  SY_COLLECTIVE_DETERMINISTIC = 1u << 1,   /* fixed rank order: same bits every time */
  SY_COLLECTIVE_PROGRESSES_ALONE = 1u << 2,/* advances while the host computes */
  SY_COLLECTIVE_DISTINCT_DEVICES = 1u << 3,/* two ranks may not share a device (NCCL) */
  SY_COLLECTIVE_UNLAUNCHED = 1u << 4,      /* this process was not started by the launcher that it needs to join others (MPI without mpirun) */
  /* With SY_COMPLETES_ON_STREAM: a call on a stream that is being captured (capture/2) is recorded; each replay makes it again, with the addresses of the
   * call. Ranks replay as they would call: in the same order. The communicator outlives the graph, and abort frees replays as it frees calls. */
  SY_COLLECTIVE_CAPTURABLE = 1u << 5
};

typedef struct sy_collective_info {
  sy_header header;
  char name[64];
  uint32_t completion;                       /* SY_COMPLETES_* */
  uint32_t flags;                            /* SY_COLLECTIVE_* */
  const char* const* memory_kinds;           /* those that it reaches, as sy_device_info.memory_kind names them; ends with NULL; static */
  uint32_t alignment;                        /* of owned memory, bytes */
  const char* libraries;                     /* 2.1. As that of sy_device_info: "NCCL 2.25.1" */
} sy_collective_info;

/* A key-value store that all ranks share: how a communicator bootstraps. Values are bytes, less than 16 MiB with their
 * key (else SY_INVALID), and meant to be far smaller: all of them pass through one process. Keys are short text without
 * spaces. get waits until the key was put, the deadline passed (SY_TIMEOUT) or the run was aborted (SY_ABORTED). */
typedef struct sy_store {
  sy_header header;
  void* context;
  sy_status (*put)(void* context, const char* key, const void* value, uint32_t bytes, sy_error* error);
  sy_status (*get)(void* context, const char* key, void* value, uint32_t capacity, uint32_t* bytes, uint64_t timeout_ms, sy_error* error);
  /* Writes 32 bytes: HMAC-SHA-256 of the data, with a key that all ranks share and nobody else knows. By it the two ends of a connection of
   * the plugin's own prove to each other that they are of this run: each answers a random number of the other. What goes through put and
   * get may be seen by others. NULL: there is no such key. */
  void (*digest)(void* context, const void* data, uint32_t bytes, unsigned char* digest);
} sy_store;

typedef struct sy_init_request {
  sy_header header;
  int32_t rank, size;
  const int32_t* hosts;       /* size entries: node index of each rank */
  const char* name;           /* of the communicator; unique in the run, equal on all its ranks */
  const sy_store* store;      /* lives as long as the communicator and all that are split from it */
  uint64_t timeout_ms;        /* for init, and for any single call afterwards */
  /* The device whose memory will be named, or NULL for host memory; the backend that opened it, whose interfaces the collective may use on it;
   * and its number there. */
  sy_device* device;
  const sy_plugin* backend;
  int32_t device_index;
} sy_init_request;

typedef struct sy_call {
  sy_header header;
  const char* tag;            /* the plan's node name */
  uint64_t sequence;
  sy_stream* stream;          /* SY_COMPLETES_ON_STREAM: the stream to order on; else NULL */
  void* native_stream;        /* with `stream`: what memory_ext.native_stream of the device answers for it */
} sy_call;

typedef struct sy_transfer { /* one message of send_recv_batch */
  int32_t peer;
  int32_t is_send;
  void* address;
  uint64_t bytes;
} sy_transfer;

/* Every collective takes `count` elements of `dtype`. With SY_COMPLETES_BY_POLL it may return *request == NULL: it has finished already. In place: send == receive
 * (all_gather: send == receive + rank·count; reduce_scatter: receive == send + rank·count). */
typedef struct sy_collective_v2 {
  sy_header header;
  sy_status (*query)(sy_instance* instance, sy_collective_info* info, sy_error* error);
  sy_status (*init)(sy_instance* instance, const sy_init_request* request, sy_communicator** communicator, sy_error* error); /* does not wait for peers; SY_INVALID (here or at the first poll) for a rank outside the size */
  /* SY_IN_PROGRESS until init has finished on all ranks: never SY_OK before each of them was in init. Then SY_OK, or
   * its first error. Later too: SY_OK, or what has failed on a stream since. */
  sy_status (*poll)(sy_communicator* communicator, sy_error* error);
  /* All messages of the batch proceed together; the order between one pair of ranks is the order in the batches. */
  sy_status (*send_recv_batch)(sy_communicator*, const sy_call*, const sy_transfer* transfers, uint32_t count, sy_request** request, sy_error*);
  void (*abort)(sy_communicator* communicator); /* any thread, also more than once: every waiting call returns SY_ABORTED soon */
  void (*destroy)(sy_communicator* communicator); /* local: does not wait for peers; every request was released before; communicators split from it live on */
  /* With SY_COMPLETES_BY_POLL. SY_IN_PROGRESS, SY_OK or the error, which later polls repeat; makes progress. */
  sy_status (*request_poll)(sy_communicator* communicator, sy_request* request, sy_error* error);
  /* Gives the request back, once. One that has not ended is dropped: as if abort had been called, and on return the plugin touches neither the
   * request nor the memory of its call any more. It never waits for a peer. */
  void (*request_release)(sy_communicator* communicator, sy_request* request);

  /* Optional */
  sy_status (*all_reduce)(sy_communicator*, const sy_call*, const void* send, void* receive, uint64_t count, sy_dtype, int32_t reduction, sy_request**, sy_error*);
  /* receive: `count` elements; send: size · count */
  sy_status (*reduce_scatter)(sy_communicator*, const sy_call*, const void* send, void* receive, uint64_t count, sy_dtype, int32_t reduction, sy_request**, sy_error*);
  /* Mandatory with either: SY_OK if both take this reduction of this dtype, SY_UNSUPPORTED if not, or if one of them is unknown. */
  sy_status (*reduces)(sy_instance* instance, int32_t reduction, sy_dtype, sy_error*);
  /* send: `count` elements; receive: size · count */
  sy_status (*all_gather)(sy_communicator*, const sy_call*, const void* send, void* receive, uint64_t count, sy_dtype, sy_request**, sy_error*);
  sy_status (*broadcast)(sy_communicator*, const sy_call*, void* address, uint64_t count, sy_dtype, int32_t root, sy_request**, sy_error*);
  /* send, receive: size · count elements; block r goes to rank r */
  sy_status (*all_to_all)(sy_communicator*, const sy_call*, const void* send, void* receive, uint64_t count, sy_dtype, sy_request**, sy_error*);
  sy_status (*barrier)(sy_communicator*, const sy_call*, sy_request**, sy_error*);
  /* Ranks with equal color form a new communicator, ordered by key, ready at once. Called by all ranks with the same name, whatever their color;
   * color -1: none (*result = NULL). */
  sy_status (*split)(sy_communicator*, int32_t color, int32_t key, const char* name, sy_communicator** result, sy_error*);
  /* Calls of this thread up to group_end, on any communicators of the instance, proceed together. They may begin only at group_end: none of
   * them needs what another leaves, an event recorded on their streams before tells nothing of them, no request of theirs is polled before.
   * Calls of one communicator keep their order. A group that was begun is ended once, also where a call in it was refused. */
  sy_status (*group_begin)(sy_instance* instance, sy_error*);
  sy_status (*group_end)(sy_instance* instance, sy_error*);
  /* Memory that the collective owns (a shared segment, a window), of the first kind that query lists. Called by all ranks with the same sizes in
   * the same order. Collectives on addresses inside it may skip a copy. It lives until buffer_free or destroy. */
  sy_status (*buffer_alloc)(sy_communicator*, uint64_t bytes, void** address, sy_error*);
  void (*buffer_free)(sy_communicator*, void* address);
} sy_collective_v2;

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_COLLECTIVE_H_ */
