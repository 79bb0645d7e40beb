// capture/1 on CUDA graphs. The mode is relaxed: the ABI lets alloc and free be called at any time, also by the thread
// that captures, and neither orders anything on a stream of ours. All or nothing: a call that a capture cannot hold
// invalidates it, and `end` then fails with its reason and leaves no graph; the stream is usable again.
// https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__STREAM.html (cudaStreamBeginCapture)
#include <memory>
#include <new>

#include "backends/cuda/profiler.h"

struct sy_graph {
  sy_device* device = nullptr;
  cudaGraphExec_t executable = nullptr;
};

namespace switchyard {
namespace {

sy_status Begin(sy_device* device, sy_stream* stream, sy_error* error) {
  if (stream == nullptr) return SY_FAIL(error, SY_INVALID, "cuda: capture needs a stream");
  SY_TRY(Enter(device->index, error));
  SY_CUDA(error, cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeRelaxed));
  return SY_OK;
}

sy_status End(sy_device* device, sy_stream* stream, sy_graph** graph, sy_error* error) {
  *graph = nullptr;
  if (stream == nullptr) return SY_FAIL(error, SY_INVALID, "cuda: capture needs a stream");
  SY_TRY(Enter(device->index, error));
  std::unique_ptr<sy_graph> made(new (std::nothrow) sy_graph{device, nullptr});
  cudaGraph_t recorded = nullptr;
  SY_CUDA(error, cudaStreamEndCapture(stream->stream, &recorded));
  if (made == nullptr) {
    LogFailure(cudaGraphDestroy(recorded), "cudaGraphDestroy");
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for a graph");
  }
  const cudaError_t code = cudaGraphInstantiate(&made->executable, recorded, 0);
  LogFailure(cudaGraphDestroy(recorded), "cudaGraphDestroy");
  if (code != cudaSuccess) return CudaFailed(error, code, "cudaGraphInstantiate");
  *graph = made.release();
  return SY_OK;
}

sy_status LaunchGraph(sy_graph* graph, sy_stream* stream, sy_error* error) {
  sy_device* device = graph->device;
  SY_TRY(Enter(device->index, error));
  return Guarded(error, [&]() -> sy_status {
    const cudaStream_t target = stream ? stream->stream : device->own.stream;
    {
      const Span span(*device->profiler, "captured segment", stream, target);
      SY_CUDA(error, cudaGraphLaunch(graph->executable, target));
    }
    if (stream == nullptr) SY_CUDA(error, cudaStreamSynchronize(target));
    return SY_OK;
  });
}

void ReleaseGraph(sy_graph* graph) {
  if (graph == nullptr) return;
  if (Enter(graph->device->index, nullptr) == SY_OK)
    LogFailure(cudaGraphExecDestroy(graph->executable), "cudaGraphExecDestroy");
  delete graph;
}

}  // namespace

const sy_capture_v1 kCudaCapture = {
    .header = SY_HEADER(sy_capture_v1), .begin = Begin, .end = End, .launch = LaunchGraph, .release = ReleaseGraph};

}  // namespace switchyard
