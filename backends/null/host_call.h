/* "null.host_call/1": an interface of this plugin's own, for collectives made for its memory (tests/doubles): what a driver lets its libraries
 * put on a stream. The engine knows nothing of it. */
#ifndef SWITCHYARD_BACKENDS_NULL_HOST_CALL_H_
#define SWITCHYARD_BACKENDS_NULL_HOST_CALL_H_

#include "core/abi/base.h"

typedef struct sy_null_host_call_v1 {
  sy_header header;
  /* Queues `function`, in order on `stream`; where the stream is being captured it is recorded. `release` ends the context once no stream and no
   * graph has a use for it; it is called once where this answers SY_OK, in any thread. What the function answers becomes the stream's. */
  sy_status (*enqueue)(sy_device* device, sy_stream* stream, sy_status (*function)(void* context, sy_error* error), void* context,
                       void (*release)(void* context), sy_error* error);
} sy_null_host_call_v1;

#endif /* SWITCHYARD_BACKENDS_NULL_HOST_CALL_H_ */
