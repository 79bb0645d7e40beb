// device/2's streams and events. Streams do not wait for CUDA's default stream; a high priority is the highest that the
// device has. An event that was never recorded is complete, as in CUDA. Thread-safe as device/2 demands.
#pragma once

#include "backends/cuda/device.h"

namespace switchyard {

// `status`, of a call that enqueues on `stream`: a refusal spoils the capture that the stream is in.
inline sy_status OnStream(sy_stream* stream, sy_status status) {
  if (status != SY_OK && stream != nullptr && stream->recording != nullptr) stream->recording->spoiled = true;
  return status;
}

sy_status CreateStream(sy_device* device, const sy_stream_options* options, sy_stream** stream, sy_error* error);
void DestroyStream(sy_device* device, sy_stream* stream);
// Waits for all work of the device's streams.
sy_status SynchronizeStreams(sy_device* device, sy_error* error);
sy_status CreateEvent(sy_device* device, const sy_event_options* options, sy_event** event, sy_error* error);
void DestroyEvent(sy_device* device, sy_event* event);
sy_status RecordEvent(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error);
sy_status QueryEvent(sy_device* device, sy_event* event, sy_error* error);
sy_status SynchronizeEvent(sy_device* device, sy_event* event, sy_error* error);
sy_status WaitForEvent(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error);

}  // namespace switchyard
