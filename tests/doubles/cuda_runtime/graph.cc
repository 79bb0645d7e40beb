// Capture and replay (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__STREAM.html,
// group__CUDART__GRAPH.html). A captured graph replays on the launching stream's thread, node by node, in an order that
// its edges allow.
#include <algorithm>
#include <map>
#include <set>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/cuda_runtime/error.h"
#include "tests/doubles/cuda_runtime/settings.h"
#include "tests/doubles/cuda_runtime/stream.h"

using namespace cuda_double;

struct CUgraph_st {
  std::shared_ptr<const std::vector<Node>> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<Node>> nodes;
  std::vector<int> order;
  bool has_priorities = false, uploaded = false;
};

namespace cuda_double {
namespace {

template <typename Handle>
std::set<Handle>& Known() {  // under Book()
  static auto& handles = *new std::set<Handle>;
  return handles;
}

// Has everything that other streams recorded been joined into the origin's last nodes?
bool Joined(const Capture& capture) {
  std::vector<bool> reached(capture.nodes.size());
  for (int node : capture.origin->tail_nodes) reached[node] = true;
  for (int node = static_cast<int>(capture.nodes.size()) - 1; node >= 0; --node) {
    if (!reached[node]) continue;
    for (int dependency : capture.nodes[node].dependencies) reached[dependency] = true;
  }
  for (const CUstream_st* stream : capture.streams) {
    for (int node : stream->tail_nodes) {
      if (!reached[node]) return false;
    }
  }
  return true;
}

// Nodes were recorded in an order that works; the other extreme runs, of the ready nodes, the one recorded last.
std::vector<int> ReplayOrder(const std::vector<Node>& nodes) {
  const int count = static_cast<int>(nodes.size());
  std::vector<int> order, missing(count);
  if (!GetSettings().replay_last_first) {
    for (int node = 0; node < count; ++node) order.push_back(node);
    return order;
  }
  std::vector<std::vector<int>> followers(count);
  std::set<int> ready;
  for (int node = 0; node < count; ++node) {
    missing[node] = static_cast<int>(nodes[node].dependencies.size());
    for (int dependency : nodes[node].dependencies) followers[dependency].push_back(node);
    if (missing[node] == 0) ready.insert(node);
  }
  while (!ready.empty()) {
    const int node = *ready.rbegin();
    ready.erase(node);
    order.push_back(node);
    for (int follower : followers[node]) {
      if (--missing[follower] == 0) ready.insert(follower);
    }
  }
  return order;
}

}  // namespace
}  // namespace cuda_double

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return Call([&] {
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->is_default) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture) return Break(*stream->capture, cudaErrorIllegalState);
    stream->capture = std::make_shared<Capture>();
    stream->capture->origin = stream;
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->streams = {stream};
    stream->tail_nodes.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return Call([&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *graph = nullptr;
    std::vector<Node> nodes;  // what they own may call the runtime: released after Book() is free, as below
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return cudaErrorIllegalState;
    if (capture->origin != stream) return Break(*capture, cudaErrorStreamCaptureUnmatched);
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
      return cudaErrorStreamCaptureWrongThread;
    }
    const bool joined = Joined(*capture);
    capture->ended = true;
    for (CUstream_st* participant : capture->streams) {
      participant->capture = nullptr;
      participant->tail_nodes.clear();
    }
    nodes.swap(capture->nodes);
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{std::make_shared<const std::vector<Node>>(std::move(nodes))};
    Known<cudaGraph_t>().insert(*graph);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return Call([&] {
    if (status == nullptr) return cudaErrorInvalidValue;
    if (!cudaDoubleHasContext()) return cudaErrorDeviceUninitialized;  // the thread has not chosen its device yet
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    *status = !stream->capture           ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

// How many there are; which, nobody asks.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return Call([&] {
    std::lock_guard lock(Book());
    if (nodes != nullptr || count == nullptr || Known<cudaGraph_t>().count(graph) == 0) return cudaErrorInvalidValue;
    *count = graph->nodes->size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return Call([&] {
    std::lock_guard lock(Book());
    if (executable == nullptr || Known<cudaGraph_t>().count(graph) == 0) return cudaErrorInvalidValue;
    if (Strikes("graph")) return cudaErrorMemoryAllocation;
    *executable = new CUgraphExec_st{graph->nodes, ReplayOrder(*graph->nodes),
                                     (flags & cudaGraphInstantiateFlagUseNodePriority) != 0};
    for (const Node& node : *graph->nodes)
      if (node.function != nullptr) Loaded().insert(node.function);
    Known<cudaGraphExec_t>().insert(*executable);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return Call([&] {
    std::lock_guard lock(Book());
    const bool known = Known<cudaGraphExec_t>().count(executable) != 0 && FindStream(stream) != nullptr;
    if (!known) return cudaErrorInvalidValue;
    executable->uploaded = true;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return Call([&] {
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr || Known<cudaGraphExec_t>().count(executable) == 0) return cudaErrorInvalidValue;
    if (stream->capture)
      return Break(*stream->capture, cudaErrorStreamCaptureUnsupported);  // no child graphs in this double
    if (Strikes("launch")) return cudaErrorLaunchOutOfResources;
    // CUDA itself would upload it now, and run all of its nodes alike.
    const bool ready = executable->uploaded && executable->has_priorities;
    if (!ready && GetSettings().graphs_ready) return cudaErrorNotSupported;
    ++GetCounts().graphs;
    if (executable->has_priorities)
      GetCounts().urgent += std::ranges::count_if(*executable->nodes, [&](const Node& node) {
        return node.work != nullptr && node.priority < stream->priority;
      });
    // An event that the graph records is pending from here on.
    std::map<int, std::shared_ptr<Mark>> recorded, awaited;
    for (int node : executable->order) {
      const cudaEvent_t records = (*executable->nodes)[node].records, awaits = (*executable->nodes)[node].awaits;
      for (const cudaEvent_t event : {records, awaits})
        if (event != nullptr && !Known(event)) return cudaErrorInvalidValue;
      if (records != nullptr) {
        records->mark = recorded[node] = std::make_shared<Mark>();
        records->capture = nullptr;
      } else if (awaits != nullptr) {
        awaited[node] = awaits->mark;  // null: never recorded
      }
    }
    return Submit(stream, [nodes = executable->nodes, order = executable->order, recorded = std::move(recorded),
                           awaited = std::move(awaited)] {
      for (int node : order) {
        if (const auto mark = recorded.find(node); mark != recorded.end()) {
          mark->second->Reach();
        } else if (const auto mark = awaited.find(node); mark != awaited.end()) {
          if (mark->second != nullptr) mark->second->Wait();
        } else {
          (*nodes)[node].work();
        }
      }
    });
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return Call([&] {
    std::unique_ptr<CUgraphExec_st> gone;
    std::lock_guard lock(Book());
    if (Known<cudaGraphExec_t>().erase(executable) == 0) return cudaErrorInvalidValue;
    gone.reset(executable);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Call([&] {
    std::unique_ptr<CUgraph_st> gone;
    std::lock_guard lock(Book());
    if (Known<cudaGraph_t>().erase(graph) == 0) return cudaErrorInvalidValue;
    gone.reset(graph);
    return cudaSuccess;
  });
}

}  // extern "C"
