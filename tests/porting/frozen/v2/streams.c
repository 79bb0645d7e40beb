/* frozen_streams: a device backend of eight functions. The device here is host memory; your driver's calls take its place.
 * It has no kernels, so every op runs on the reference plugin, through copies: correct, slow, and a place to start. */
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/plugin.h"

enum { DEVICES = 1, ALIGNMENT = 256 };
static const uint64_t MEMORY = (uint64_t)1 << 32; /* bytes of each device */
static _Atomic uint64_t in_use[DEVICES];          /* alloc and free may be called from any thread */

struct sy_device {
  int32_t index;
  pthread_mutex_t mutex; /* guards streams */
  sy_stream* streams;    /* a list */
};
struct sy_buffer {
  char* address;
  uint64_t bytes;
};

/* Every refusal says what was expected and what was found. The caller may pass no sy_error at all. */
static sy_status refuse(sy_error* error, sy_status status, const char* format, ...) {
  if (error == NULL || !SY_HAS(sy_error, error, message)) return status;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  return status;
}

/* Every struct of the caller may carry extensions; one that is required must be understood. We know none. */
static sy_status understand(const void* given, sy_error* error) {
  const sy_extension* unknown = sy_required_extension(given);
  return unknown == NULL ? SY_OK : refuse(error, SY_UNSUPPORTED, "the extension %s is unknown", unknown->name);
}

static sy_status count_devices(sy_instance* instance, int32_t* count, sy_error* error) {
  *count = DEVICES; /* where the driver or the hardware is missing: SY_UNSUPPORTED, and the reason in error->message */
  return SY_OK;
}

static sy_status query_device(sy_instance* instance, int32_t index, sy_device_info* info, sy_error* error) {
  if (understand(info, error) != SY_OK) return SY_UNSUPPORTED;
  if (index < 0 || index >= DEVICES) return refuse(error, SY_INVALID, "no device %d of %d", (int)index, DEVICES);
  sy_device_info filled = {0};
  snprintf(filled.name, sizeof filled.name, "frozen_streams device %d", (int)index);
  memcpy(filled.uuid, "frozen_streams", sizeof "frozen_streams" < 12 ? sizeof "frozen_streams" : 12);
  memcpy(filled.uuid + 12, &index, sizeof index); /* the same for the same device in every process */
  filled.memory_bytes = MEMORY;
  filled.free_bytes = MEMORY - in_use[index];
  filled.alignment = ALIGNMENT;
  filled.address_kind = SY_ADDRESS_OPAQUE;              /* the engine never reads or writes our memory itself */
  filled.flags = SY_DEVICE_SHAREABLE | SY_DEVICE_ASYNC; /* several processes may drive it at once */
  filled.dtypes = 1u << SY_F32;                         /* those that it has kernels for; copies know only bytes */
  /* The caller's struct may be smaller or larger than ours: fill what fits behind its header. */
  size_t bytes = info->header.size < sizeof filled ? info->header.size : sizeof filled;
  if (bytes > sizeof(sy_header))
    memcpy((char*)info + sizeof(sy_header), (char*)&filled + sizeof(sy_header), bytes - sizeof(sy_header));
  return SY_OK;
}

static sy_status open_device(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device,
                             sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  if (index < 0 || index >= DEVICES) return refuse(error, SY_INVALID, "no device %d of %d", (int)index, DEVICES);
  *device = malloc(sizeof **device);
  if (*device == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  (*device)->index = index;
  (*device)->streams = NULL;
  pthread_mutex_init(&(*device)->mutex, NULL);
  return SY_OK;
}

static void close_device(sy_device* device) {
  pthread_mutex_destroy(&device->mutex);
  free(device);
}

static void free_buffer(sy_device* device, sy_buffer* buffer) {
  if (buffer == NULL) return;
  in_use[device->index] -= buffer->bytes;
  free(buffer->address);
  free(buffer);
}

static sy_status alloc_buffer(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                              sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  if (bytes == 0) return refuse(error, SY_INVALID, "alloc: expected at least 1 byte");
  sy_buffer* made = calloc(1, sizeof *made);
  if (made == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  uint64_t before = atomic_fetch_add(&in_use[device->index], bytes);
  made->bytes = bytes;
  if (before <= MEMORY && bytes <= MEMORY - before)
    made->address = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  if (made->address == NULL) { /* the device goes on working after it */
    free_buffer(device, made);
    return refuse(error, SY_OUT_OF_MEMORY, "alloc of %llu bytes: %llu of %llu are in use", (unsigned long long)bytes,
                  (unsigned long long)before, (unsigned long long)MEMORY);
  }
  *buffer = made;
  return SY_OK;
}

/* The address of `bytes` at a place, in host or device memory, or NULL. */
static char* resolve(sy_place place, uint64_t bytes) {
  if (place.buffer == NULL) return place.host;
  if (place.offset > place.buffer->bytes || bytes > place.buffer->bytes - place.offset) return NULL;
  return place.buffer->address + place.offset;
}

/* Streams: a queue and a thread that works it off in order. On real hardware each function below is one call of the
 * driver. */
typedef struct command {
  enum { COPY, LAUNCH, RECORD, WAIT } kind;
  void* to; /* COPY */
  const void* from;
  uint64_t bytes;
  const sy_bound* bound; /* LAUNCH */
  sy_event* event;       /* RECORD, WAIT: until this record has completed */
  uint64_t record;
  struct command* next;
} command;

struct sy_event {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t recorded, completed;
};

struct sy_stream {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  command *first, **end;
  uint64_t queued, done;
  bool closing;
  sy_stream* next; /* of the device */
};

static void compute(const sy_bound* bound);

static void wait_for_record(sy_event* event, uint64_t record) {
  pthread_mutex_lock(&event->mutex);
  while (event->completed < record) pthread_cond_wait(&event->changed, &event->mutex);
  pthread_mutex_unlock(&event->mutex);
}

static void run_command(const command* c) {
  if (c->kind == COPY) memmove(c->to, c->from, c->bytes);
  if (c->kind == LAUNCH) compute(c->bound);
  if (c->kind == WAIT) wait_for_record(c->event, c->record);
  if (c->kind == RECORD) {
    pthread_mutex_lock(&c->event->mutex);
    c->event->completed = c->record;
    pthread_cond_broadcast(&c->event->changed);
    pthread_mutex_unlock(&c->event->mutex);
  }
}

static void* work(void* argument) {
  sy_stream* stream = argument;
  pthread_mutex_lock(&stream->mutex);
  for (;;) {
    while (stream->first == NULL && !stream->closing) pthread_cond_wait(&stream->changed, &stream->mutex);
    command* c = stream->first;
    if (c == NULL) break;
    stream->first = c->next;
    if (stream->first == NULL) stream->end = &stream->first;
    pthread_mutex_unlock(&stream->mutex);
    run_command(c);
    free(c);
    pthread_mutex_lock(&stream->mutex);
    ++stream->done;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->mutex);
  return NULL;
}

/* With a stream the call returns at once; without one it has finished on return. */
static sy_status submit(sy_stream* stream, command what, sy_error* error) {
  if (stream == NULL) {
    run_command(&what);
    return SY_OK;
  }
  command* c = malloc(sizeof *c);
  if (c == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  *c = what;
  c->next = NULL;
  pthread_mutex_lock(&stream->mutex);
  *stream->end = c;
  stream->end = &c->next;
  ++stream->queued;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
  return SY_OK;
}

static sy_status create_stream(sy_device* device, const sy_stream_options* options, sy_stream** stream,
                               sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  sy_stream* made = calloc(1, sizeof *made);
  if (made == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  made->end = &made->first;
  pthread_mutex_init(&made->mutex, NULL);
  pthread_cond_init(&made->changed, NULL);
  if (pthread_create(&made->thread, NULL, work, made) != 0) {
    free(made);
    return refuse(error, SY_INTERNAL, "no thread for a stream");
  }
  pthread_mutex_lock(&device->mutex);
  made->next = device->streams;
  device->streams = made;
  pthread_mutex_unlock(&device->mutex);
  *stream = made;
  return SY_OK;
}

static void destroy_stream(sy_device* device, sy_stream* stream) { /* after what is queued */
  pthread_mutex_lock(&device->mutex);
  sy_stream** place = &device->streams;
  while (*place != stream) place = &(*place)->next;
  *place = stream->next;
  pthread_mutex_unlock(&device->mutex);
  pthread_mutex_lock(&stream->mutex);
  stream->closing = true;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
  pthread_join(stream->thread, NULL);
  pthread_cond_destroy(&stream->changed);
  pthread_mutex_destroy(&stream->mutex);
  free(stream);
}

static void drain(sy_stream* stream) {
  pthread_mutex_lock(&stream->mutex);
  for (uint64_t until = stream->queued; stream->done < until;) pthread_cond_wait(&stream->changed, &stream->mutex);
  pthread_mutex_unlock(&stream->mutex);
}

/* Where the device can fail: answers the first error of the work waited for, and again each time. */
static sy_status synchronize(sy_device* device, sy_stream* stream, const sy_synchronize_options* options,
                             sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  if (stream != NULL) {
    drain(stream);
    return SY_OK;
  }
  pthread_mutex_lock(&device->mutex);
  for (sy_stream* each = device->streams; each != NULL; each = each->next) drain(each);
  pthread_mutex_unlock(&device->mutex);
  return SY_OK;
}

static sy_status create_event(sy_device* device, const sy_event_options* options, sy_event** event, sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  *event = calloc(1, sizeof **event);
  if (*event == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  pthread_mutex_init(&(*event)->mutex, NULL);
  pthread_cond_init(&(*event)->changed, NULL);
  return SY_OK;
}

static void destroy_event(sy_device* device, sy_event* event) { /* no work that has not finished names it */
  pthread_cond_destroy(&event->changed);
  pthread_mutex_destroy(&event->mutex);
  free(event);
}

static sy_status record_event(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error) {
  pthread_mutex_lock(&event->mutex);
  command c = {.kind = RECORD, .event = event, .record = ++event->recorded};
  pthread_mutex_unlock(&event->mutex);
  return submit(stream, c, error);
}

static sy_status query_event(sy_device* device, sy_event* event, sy_error* error) {
  pthread_mutex_lock(&event->mutex);
  sy_status status = event->completed < event->recorded ? SY_IN_PROGRESS : SY_OK;
  pthread_mutex_unlock(&event->mutex);
  return status;
}

static uint64_t latest_record(sy_event* event) {
  pthread_mutex_lock(&event->mutex);
  uint64_t record = event->recorded;
  pthread_mutex_unlock(&event->mutex);
  return record;
}

static sy_status synchronize_event(sy_device* device, sy_event* event, sy_error* error) {
  wait_for_record(event, latest_record(event));
  return SY_OK;
}

static sy_status wait_for_event(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error) {
  return submit(stream, (command){.kind = WAIT, .event = event, .record = latest_record(event)}, error);
}

static sy_status copy(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes,
                      const sy_copy_options* options, sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  if (destination.buffer == NULL && source.buffer == NULL) return refuse(error, SY_INVALID, "copy: host to host");
  if (bytes == 0) return SY_OK;
  char* to = resolve(destination, bytes);
  const char* from = resolve(source, bytes);
  if (to == NULL || from == NULL) {
    return refuse(error, SY_INVALID, "copy: %llu bytes do not lie inside the %s", (unsigned long long)bytes,
                  to == NULL ? "destination" : "source");
  }
  return submit(stream, (command){.kind = COPY, .to = to, .from = from, .bytes = bytes}, error);
}
/* kernel/2: a kernel is one op at fixed shapes, a binding one kernel at fixed places. Here: softmax over rows of f32
 * (core/abi/ops.h). */
struct sy_kernel {
  int64_t rows, columns;
};
struct sy_bound {
  sy_kernel kernel;
  const float* x;
  float* y;
};

/* All searching, packing and sizing belongs here. What is not taken is SY_UNSUPPORTED, and runs elsewhere. */
static sy_status prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** kernel, sy_kernel_info* info,
                         sy_error* error) {
  if (understand(given, error) != SY_OK || understand(info, error) != SY_OK) return SY_UNSUPPORTED;
  sy_prepare_request request = {0}; /* fields that a smaller struct of the caller lacks read as zero */
  memcpy(&request, given, given->header.size < sizeof request ? given->header.size : sizeof request);
  if (strcmp(request.op, "softmax") != 0) return refuse(error, SY_UNSUPPORTED, "%s: no kernel for it", request.op);
  if (request.op_version != 1) return refuse(error, SY_UNSUPPORTED, "softmax: version %u", request.op_version);
  if (request.determinism > SY_DETERMINISM_EXACT) /* what this kernel reaches, and so do all weaker classes */
    return refuse(error, SY_UNSUPPORTED, "softmax: determinism class %u", request.determinism);
  if (request.input_count != 1 || request.output_count != 1 || request.inputs == NULL || request.outputs == NULL)
    return refuse(error, SY_INVALID, "softmax: expected one input and one output");
  const sy_tensor *x = &request.inputs[0], *y = &request.outputs[0];
  if (x->dtype != SY_F32 || y->dtype != SY_F32) return refuse(error, SY_UNSUPPORTED, "softmax: only f32");
  if (request.accumulate != NULL && request.accumulate[0])
    return refuse(error, SY_UNSUPPORTED, "softmax: cannot accumulate");
  if (x->rank < 1 || y->rank != x->rank || memcmp(x->dims, y->dims, (size_t)x->rank * sizeof x->dims[0]) != 0) {
    return refuse(error, SY_INVALID, "softmax: expected an output of the input's dims");
  }
  int64_t rows = 1, stride = 1; /* only contiguous tensors */
  for (int32_t axis = x->rank - 1; axis >= 0; --axis) {
    if (x->dims[axis] != 1 && (x->strides[axis] != stride || y->strides[axis] != stride))
      return refuse(error, SY_UNSUPPORTED, "softmax: only contiguous tensors");
    if (axis < x->rank - 1) rows *= x->dims[axis];
    stride *= x->dims[axis];
  }
  *kernel = malloc(sizeof **kernel);
  if (*kernel == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  (*kernel)->rows = rows;
  (*kernel)->columns = x->dims[x->rank - 1];
  if (SY_HAS(sy_kernel_info, info, determinism))
    info->determinism = SY_DETERMINISM_EXACT; /* a row has the same bits every time and in any batch */
  return SY_OK;
}

static void compute(const sy_bound* bound) {
  int64_t columns = bound->kernel.columns;
  for (int64_t row = 0; row < bound->kernel.rows; ++row) {
    const float* x = bound->x + row * columns;
    float *y = bound->y + row * columns, largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < columns; ++c) largest = fmaxf(largest, x[c]);
    for (int64_t c = 0; c < columns; ++c) sum += y[c] = expf(x[c] - largest);
    for (int64_t c = 0; c < columns; ++c) y[c] /= sum;
  }
}

static sy_status launch(sy_bound* bound, sy_stream* stream, sy_error* error) {
  return submit(stream, (command){.kind = LAUNCH, .bound = bound}, error);
}

static sy_status bind_kernel(sy_device* device, sy_kernel* kernel, const sy_binding* binding, sy_bound** bound,
                             sy_launch* run, sy_error* error) {
  if (understand(binding, error) != SY_OK) return SY_UNSUPPORTED;
  uint64_t bytes = (uint64_t)(kernel->rows * kernel->columns) * sizeof(float);
  char *x = resolve(binding->inputs[0], bytes), *y = resolve(binding->outputs[0], bytes);
  if (x == NULL || y == NULL)
    return refuse(error, SY_INVALID, "softmax: %llu bytes do not lie inside their buffer", (unsigned long long)bytes);
  *bound = malloc(sizeof **bound);
  if (*bound == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  **bound = (sy_bound){*kernel, (const float*)(void*)x, (float*)(void*)y};
  *run = launch; /* one pointer call in the step: it searches, allocates and waits for nothing */
  return SY_OK;
}

static void unbind(sy_device* device, sy_bound* bound) { free(bound); } /* the engine has waited for its launches */
static void release(sy_device* device, sy_kernel* kernel) { free(kernel); }

static const sy_kernel_v2 kernel_interface = {SY_HEADER(sy_kernel_v2), prepare, bind_kernel, unbind, release};

static const sy_device_v2 device_interface = { /* the functions that are not named are NULL: not offered */
    .header = SY_HEADER(sy_device_v2), .count = count_devices, .open = open_device, .close = close_device,
    .query = query_device, .alloc = alloc_buffer, .free = free_buffer, .copy = copy, .synchronize = synchronize,
    .stream_create = create_stream, .stream_destroy = destroy_stream, .event_create = create_event,
    .event_destroy = destroy_event, .event_record = record_event, .event_query = query_event,
    .event_synchronize = synchronize_event, .stream_wait = wait_for_event};

static const void* get_interface(sy_instance* instance, const char* name) {
  if (strcmp(name, "device/2") == 0) return &device_interface;
  return strcmp(name, "kernel/2") == 0 ? &kernel_interface : NULL;
}

SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  if (understand(host, error) != SY_OK || understand(plugin, error) != SY_OK) return SY_UNSUPPORTED;
  if (!SY_HAS(sy_plugin, plugin, get_interface)) return refuse(error, SY_INVALID, "sy_plugin is too small");
  plugin->magic = SY_PLUGIN_MAGIC;
  plugin->name = "frozen_streams";
  plugin->version = "0.1.0";
  plugin->vendor = "you";
  plugin->instance = NULL; /* what comes first in each call: a struct of yours, to keep `host` and its settings in */
  plugin->get_interface = get_interface;
  return SY_OK;
}
