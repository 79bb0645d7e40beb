// capture/2: a stream that is being captured keeps its commands instead of running them; a replay is one command that
// runs them all.
#include <utility>

#include "backends/null/device.h"
#include "core/abi/boundary.h"

struct sy_graph {
  std::shared_ptr<const switchyard::Graph> graph;
};

namespace switchyard {
namespace {

sy_status Begin(sy_device*, sy_stream* stream, const sy_capture_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (stream == nullptr) return Refuse(error, SY_INVALID, "capture: expected a stream");
  return Guarded(error, [&] { return stream->stream->BeginCapture(error); });
}

sy_status End(sy_device*, sy_stream* stream, sy_graph** graph, sy_error* error) {
  if (stream == nullptr) return Refuse(error, SY_INVALID, "capture: expected a stream");
  return Guarded(error, [&] {
    auto captured = std::make_unique<sy_graph>();
    const sy_status status = stream->stream->EndCapture(&captured->graph, error);
    if (status == SY_OK) *graph = captured.release();
    return status;
  });
}

sy_status Launch(sy_device* device, sy_graph* graph, sy_stream* stream, sy_error* error) {
  Command command{Command::Kind::kReplay};
  command.graph = graph->graph;
  return Submit(device, stream, std::move(command), error);
}

void Release(sy_device*, sy_graph* graph) { delete graph; }

}  // namespace

const sy_capture_v2 kNullCapture = {
    .header = SY_HEADER(sy_capture_v2), .begin = Begin, .end = End, .launch = Launch, .release = Release};

}  // namespace switchyard
