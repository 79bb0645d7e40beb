#include "backends/null/host_call.h"

#include "backends/null/device.h"
#include "core/abi/boundary.h"

namespace switchyard {
namespace {

sy_status Enqueue(sy_device*, sy_stream* stream, sy_status (*function)(void*, sy_error*), void* context,
                  void (*release)(void*), sy_error* error) {
  if (stream == nullptr) return Refuse(error, SY_INVALID, "host_call: expected a stream");
  return Guarded(error, [&] {
    auto call = std::make_shared<HostCall>(function, context);
    Command command{Command::Kind::kCall};
    command.call = call;
    const sy_status status = stream->stream->Enqueue(std::move(command), error);
    if (status == SY_OK) call->release = release;
    return status;
  });
}

}  // namespace

const sy_null_host_call_v1 kNullHostCall = {.header = SY_HEADER(sy_null_host_call_v1), .enqueue = Enqueue};

}  // namespace switchyard
