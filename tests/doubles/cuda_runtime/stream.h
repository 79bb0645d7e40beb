// A stream is a thread with a queue: work runs in the order in which it was put there, after the call that put it there
// has returned. While a stream is captured, work is recorded as nodes of a graph instead. Events are marks in queues,
// or sets of nodes in a capture.
//
// One mutex, Book(), guards all bookkeeping (which handles exist, captures, what an event stands for); no call waits
// for work under it.
#ifndef SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_STREAM_H_
#define SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_STREAM_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace cuda_double {

// A point in a stream's work: reached once what was put there before it has finished.
struct Mark {
  std::atomic<bool> reached{false};
  std::chrono::steady_clock::time_point when;  // valid once reached

  void Reach();
  void Wait() const { reached.wait(false); }
};

using Work = std::function<void()>;

struct Node {
  Work work;
  std::vector<int> dependencies;   // indices of earlier nodes
  cudaEvent_t records = nullptr;   // in place of work: every replay records it
  cudaEvent_t awaits = nullptr;    // in place of work: every replay waits for what was recorded last before its launch
  const void* function = nullptr;  // of a kernel
  int priority = 0;                // that of the stream that recorded it
};

struct Capture {
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  std::thread::id thread;  // that began it
  bool invalid = false;
  bool ended = false;
  std::vector<Node> nodes;
  std::vector<cudaStream_t> streams;  // that take part
};

std::mutex& Book();

// The calling thread's device.
int CurrentDevice();

// Under Book(): the stream behind a handle (NULL and cudaStreamLegacy are the current device's default stream), or NULL
// where none is.
CUstream_st* FindStream(cudaStream_t handle);

// Under Book(): puts work on a stream, or records it as a node where the stream is captured. Once the device is lost,
// work is dropped. `function`: the kernel that the work is, if it is one.
cudaError_t Submit(CUstream_st* stream, Work work, const void* function = nullptr);

// Under Book(): the kernels whose code is loaded.
std::set<const void*>& Loaded();

// Under Book(): is there such an event?
bool Known(cudaEvent_t event);

// Under Book(): for calls that no capture may see (allocation, synchronisation): breaks the captures of the calling
// thread that forbid them, and answers cudaErrorStreamCaptureUnsupported if there was one.
cudaError_t RefuseInCapture();

// The same for a wait for the whole of the calling thread's device: it breaks every capture there, whatever its mode
// and whichever thread began it
// (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#prohibited-and-unhandled-operations).
cudaError_t RefuseInAnyCapture();

// Under Book(): marks a capture as broken and returns `error`.
cudaError_t Break(Capture& capture, cudaError_t error);

// Waits for all work of the calling thread's device.
void WaitForDevice();

}  // namespace cuda_double

struct CUstream_st {
  CUstream_st(int device, int priority, bool blocking, bool is_default);

  // Under Book(). Returns the mark after `work`.
  std::shared_ptr<cuda_double::Mark> Put(cuda_double::Work work);
  std::shared_ptr<cuda_double::Mark> Tail() const { return tail_; }
  std::thread Close();  // the thread, which ends after its last work and deletes the stream: join or detach it

  const int device, priority;
  const bool blocking, is_default;
  // While it is captured, under Book():
  std::shared_ptr<cuda_double::Capture> capture;
  std::vector<int> tail_nodes;

 private:
  struct Task {
    cuda_double::Work work;
    std::shared_ptr<cuda_double::Mark> mark;
  };
  void Run();

  std::shared_ptr<cuda_double::Mark> tail_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> queue_;
  bool closed_ = false;
  std::thread thread_;
};

struct CUevent_st {
  int device;
  bool timing;
  // Under cuda_double::Book(). Neither: never recorded, which counts as reached.
  std::shared_ptr<cuda_double::Mark> mark;
  std::shared_ptr<cuda_double::Capture> capture;
  std::vector<int> nodes;
};

#endif  // SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_STREAM_H_
