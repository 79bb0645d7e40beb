// capture/2 on CUDA graphs. The mode is relaxed: the ABI lets alloc and free be called at any time, also by the thread
// that captures, and neither orders anything on a stream of ours. Streams that wait for an event of the capture are
// drawn in (stream.cc). All or nothing: what a capture cannot hold spoils it (Recording::spoiled; CUDA invalidates it
// besides where the call reached it), `end` then says so and leaves no graph. The streams are usable again after `end`,
// whatever it answers.
// https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__STREAM.html (cudaStreamBeginCapture)
#include <memory>
#include <new>
#include <utility>

#include "backends/cuda/profiler.h"
#include "backends/cuda/stream.h"

struct sy_graph {
  cudaGraphExec_t executable = nullptr;
};

namespace switchyard {
namespace {

sy_status Begin(sy_device* device, sy_stream* stream, const sy_capture_options* options, sy_error* error) {
  if (stream == nullptr) return SY_FAIL(error, SY_INVALID, "cuda: capture needs a stream");
  if (stream->recording != nullptr)
    return OnStream(stream, SY_FAIL(error, SY_INVALID, "cuda: the stream is being captured already"));
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  return Guarded(error, [&]() -> sy_status {
    SY_TRY(Enter(device->index, error));
    auto recording = std::make_shared<Recording>();
    recording->streams.push_back(stream);
    SY_CUDA(error, cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeRelaxed));
    stream->recording = std::move(recording);
    return SY_OK;
  });
}

sy_status End(sy_device* device, sy_stream* stream, sy_graph** graph, sy_error* error) {
  *graph = nullptr;
  if (stream == nullptr || stream->recording == nullptr || stream->recording->streams.front() != stream)
    return SY_FAIL(error, SY_INVALID, "cuda: end of a capture that was not begun on the stream");
  const std::shared_ptr<const Recording> ended = stream->recording;
  for (sy_stream* const joined : ended->streams) joined->recording = nullptr;
  SY_TRY(Enter(device->index, error));
  cudaGraph_t recorded = nullptr;
  SY_CUDA(error, cudaStreamEndCapture(stream->stream, &recorded));
  std::unique_ptr<sy_graph> made(new (std::nothrow) sy_graph);
  cudaError_t code = cudaSuccess;
  // Its nodes keep the priorities of the streams that recorded them, and the first replay finds it on the device.
  if (made != nullptr && !ended->spoiled) {
    code = cudaGraphInstantiate(&made->executable, recorded, cudaGraphInstantiateFlagUseNodePriority);
    if (code == cudaSuccess) {
      code = cudaGraphUpload(made->executable, stream->stream);
      if (code != cudaSuccess) LogFailure(*device, cudaGraphExecDestroy(made->executable), "cudaGraphExecDestroy");
    }
  }
  LogFailure(*device, cudaGraphDestroy(recorded), "cudaGraphDestroy");
  if (ended->spoiled) return SY_FAIL(error, SY_UNSUPPORTED, "cuda: something that was to be captured was refused");
  if (made == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for a graph");
  SY_CUDA(error, code);
  *graph = made.release();
  return SY_OK;
}

sy_status LaunchGraph(sy_device* device, sy_graph* graph, sy_stream* stream, sy_error* error) {
  return OnStream(stream, Guarded(error, [&]() -> sy_status {
                    SY_TRY(Enter(device->index, error));
                    const cudaStream_t target = stream ? stream->stream : device->own.stream;
                    {
                      const Span span(*device->profiler, "captured graph", stream, target);
                      SY_CUDA(error, cudaGraphLaunch(graph->executable, target));
                    }
                    if (stream == nullptr) SY_CUDA(error, cudaStreamSynchronize(target));
                    return SY_OK;
                  }));
}

void ReleaseGraph(sy_device* device, sy_graph* graph) {
  if (graph == nullptr) return;
  if (Enter(device->index, nullptr) == SY_OK)
    LogFailure(*device, cudaGraphExecDestroy(graph->executable), "cudaGraphExecDestroy");
  delete graph;
}

}  // namespace

const sy_capture_v2 kCudaCapture = {
    .header = SY_HEADER(sy_capture_v2), .begin = Begin, .end = End, .launch = LaunchGraph, .release = ReleaseGraph};

}  // namespace switchyard
