// semaphore/1 out of what OpenCL 1.2 has. A stream that signals queues a marker, whose completion raises the count; a
// stream that waits queues a barrier behind a user event, which completes once the count is there. The driver tells of
// a marker by a callback, which may come after clFinish: whoever asks for the count looks at the markers first, so that
// it never falls behind what has finished. A stream that is seen to have failed does not raise the count any
// more: whoever waits for more is told of the failure. Thread-safe.
#pragma once

#include <memory>

#include "backends/opencl/stream.h"

namespace switchyard {

class Semaphore {
 public:
  Semaphore();
  sy_status Signal(uint64_t value, sy_error* error);  // SY_INVALID where the count is there already
  sy_status Query(uint64_t* value, sy_error* error);
  sy_status Wait(uint64_t value, uint64_t timeout_ms, sy_error* error);
  sy_status SignalAfter(Stream& stream, uint64_t value, sy_error* error);  // the work that is queued
  // Later work on `stream` waits.
  sy_status Before(cl_context context, Stream& stream, uint64_t value, sy_error* error);

 private:
  struct State;
  class View;
  static void CL_CALLBACK OnEnded(cl_event marker, cl_int status, void* state);
  std::shared_ptr<State> state_;  // and of callbacks that have not come yet
};

}  // namespace switchyard

struct sy_semaphore {
  switchyard::Semaphore semaphore;
};
