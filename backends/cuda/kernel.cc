// kernel/2: the table of ops, and prepare, bind and launch. No exception crosses the boundary.
#include "backends/cuda/kernel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/profiler.h"
#include "backends/cuda/stream.h"

namespace switchyard {
namespace {
constinit const Registration* last_registered = nullptr;
}

Registration::Registration(const char* name, PrepareFunction function, size_t bytes, Provider by)
    : op(name), prepare(function), attribute_bytes(bytes), provider(by), next(std::exchange(last_registered, this)) {}

const Registration* Registration::Find(const char* op, Provider by) {
  const Registration* row = last_registered;
  while (row != nullptr && (row->provider != by || std::strcmp(row->op, op) != 0)) row = row->next;
  return row;
}

namespace {

sy_status Prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  *kernel = nullptr;
  const sy_prepare_request request = ReadStruct(given);
  if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
  if (request.op == nullptr) return SY_FAIL(error, SY_INVALID, "prepare: the request names no op");
  const Registration* const rows[] = {Registration::Find(request.op, kTailored),
                                      Registration::Find(request.op, kLibrary), Registration::Find(request.op, kOwn)};
  const auto* const* first =
      std::find_if(std::begin(rows), std::end(rows), [](const auto* row) { return row != nullptr; });
  const Registration* const op = first != std::end(rows) ? *first : nullptr;
  if (op == nullptr) return SY_FAIL(error, SY_UNSUPPORTED, "%s: not an op of the cuda plugin", request.op);
  if (request.determinism > SY_DETERMINISM_RUN)
    return SY_FAIL(error, SY_UNSUPPORTED, "%s: results may depend on the batch split", op->op);
  SY_TRY(Enter(device->index, error));
  return Guarded(error, [&]() -> sy_status {
    Request r;
    r.device = device;
    r.deterministic = device->deterministic || request.determinism == SY_DETERMINISM_RUN;
    SY_TRY(ReadOpRequest(request, op->op, op->attribute_bytes, &r, error));
    if (!r.RequireContiguous()) return SY_UNSUPPORTED;
    sy_error refusal{SY_HEADER(sy_error)};  // of a row; the caller's error stays as it was where another row takes it
    r.error = &refusal;
    KernelPointer made;
    bool missed = false;
    r.missed = &missed;
    std::string reason;  // of the first that was missed
    for (const Registration* row : rows) {
      if (row == nullptr || made != nullptr) continue;
      if (missed && reason.empty()) reason = refusal.message;
      made = row->prepare(r);
      if (made && made->second_choice.empty()) made->second_choice = reason;
      missed |= made != nullptr;  // what is wrong with a kernel that was made, below, is no rule
      if (made && made->workspace_bytes > request.workspace_limit) {
        SY_REFUSE_OP(r, "needs %llu bytes of workspace, the limit is %llu",
                     static_cast<unsigned long long>(made->workspace_bytes),
                     static_cast<unsigned long long>(request.workspace_limit));
        made.reset();
      } else if (made && r.deterministic && !made->repeatable) {
        SY_REFUSE_OP(r, "no kernel whose results are repeatable");
        made.reset();
      }
    }
    if (made == nullptr) {
      if (error != nullptr) FillStruct(error, refusal);
      return FirstLoss(device->index, nullptr) == SY_OK ? SY_UNSUPPORTED : SY_DEVICE_LOST;
    }
    made->tag = device->profiler->Keep(request.tag ? request.tag : op->op);
    sy_kernel_info filled{};
    filled.workspace_bytes = made->workspace_bytes;
    filled.determinism = made->repeatable ? SY_DETERMINISM_RUN : SY_DETERMINISM_ANY;
    filled.capturable = made->capturable;
    if (!made->second_choice.empty()) filled.second_choice = made->second_choice.c_str();
    if (SY_HAS(sy_kernel_info, info, inplace)) {
      filled.inplace = info->inplace;
      if (info->inplace) std::copy(made->inplace.begin(), made->inplace.end(), info->inplace);
    }
    FillStruct(info, filled);
    *kernel = made.release();
    return SY_OK;
  });
}

sy_status RunBound(sy_bound* bound, sy_stream* stream, sy_error* error) {
  const auto* b = static_cast<const Bound*>(bound);
  sy_device* device = b->kernel->device;
  return OnStream(stream, Guarded(error, [&]() -> sy_status {
                    SY_TRY(Enter(device->index, error));
                    const LaunchContext context{stream ? stream->stream : device->own.stream};
                    const Span span(*device->profiler, b->kernel->tag, stream, context.stream);
                    SY_TRY(b->kernel->Run(*b, context, error));
                    if (stream == nullptr) SY_CUDA(error, cudaStreamSynchronize(context.stream));
                    return SY_OK;
                  }));
}

// Loads the code of what a kernel launches, cuBLASLt's and cuDNN's included. CUDA loads it at the first launch
// otherwise ("lazy loading"), and may wait for all work of the context meanwhile: for a collective on another stream
// that waits for a peer, which waits for this very kernel. CUDA_MODULE_LOADING=EAGER would do, at the price of all of
// the libraries' kernels in device memory, and only where it is set before the first call of CUDA, which a plugin of a
// running program cannot. So the launches are recorded once into a graph, which loads what it names when it is
// instantiated, and that is thrown away: nothing runs. Where no stream of a peer is waited for yet: before the first
// step, in bind. https://docs.nvidia.com/cuda/cuda-c-programming-guide/#lazy-loading ("Concurrent Kernel Execution")
// A kernel that cannot be loaded so may run all the same: only the loss of the device is an error, the rest a warning.
// A binding that launches nothing, such as a copy onto itself, loads nothing: the next one does.
sy_status Load(const Bound& bound, sy_error* error) {
  sy_device& device = *bound.kernel->device;
  const std::lock_guard lock(device.loading.mutex);
  const cudaStream_t stream = device.loading.stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  size_t nodes = 0;
  sy_error reason{SY_HEADER(sy_error)};
  const sy_status status = [&]() -> sy_status {
    SY_CUDA(&reason, cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    const sy_status recorded = Guarded(&reason, [&] { return bound.kernel->Run(bound, {stream}, &reason); });
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    SY_TRY(recorded);
    SY_CUDA(&reason, ended);
    SY_CUDA(&reason, cudaGraphGetNodes(graph, nullptr, &nodes));
    if (nodes == 0) return SY_OK;
    SY_CUDA(&reason, cudaGraphInstantiate(&executable, graph, 0));
    return SY_OK;
  }();
  if (executable != nullptr) LogFailure(device, cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  if (graph != nullptr) LogFailure(device, cudaGraphDestroy(graph), "cudaGraphDestroy");
  if (status == SY_OK) {
    bound.kernel->loaded = nodes > 0;
    return SY_OK;
  }
  bound.kernel->loaded = true;  // as far as it can be
  cudaGetLastError();           // of a capture that was given up: the next launch is not to answer it
  SY_TRY(FirstLoss(device.index, error));
  if (!std::exchange(device.loading.warned, true))
    device.instance->Log(2, Format("cuda: the code of %s, and perhaps of others, is loaded at its first launch, where "
                                   "ranks may wait for each other: %.300s",
                                   bound.kernel->tag, reason.message));
  return SY_OK;
}

sy_status Bind(sy_device*, sy_kernel* kernel, const sy_binding* given, sy_bound** bound, sy_launch* launch,
               sy_error* error) {
  *bound = nullptr;
  if (!KnowsExtensions(given, error)) return SY_UNSUPPORTED;
  const auto* k = static_cast<const Kernel*>(kernel);
  SY_TRY(Enter(k->device->index, error));
  return Guarded(error, [&]() -> sy_status {
    const sy_binding binding = ReadStruct(given);
    auto made = std::make_unique<Bound>();
    made->kernel = k;
    const auto resolve = [&](const sy_place& place, uint64_t bytes, const char* what, size_t i, char** address) {
      if (place.buffer == nullptr) return SY_FAIL(error, SY_INVALID, "bind: %s %zu is not a device buffer", what, i);
      if (place.offset > place.buffer->bytes || bytes > place.buffer->bytes - place.offset)
        return SY_FAIL(error, SY_INVALID, "bind: %s %zu: %llu bytes at offset %llu leave a buffer of %llu", what, i,
                       static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(place.offset),
                       static_cast<unsigned long long>(place.buffer->bytes));
      *address = Address(place);
      return static_cast<sy_status>(SY_OK);
    };
    made->inputs.resize(k->inputs.size());
    made->outputs.resize(k->outputs.size());
    for (size_t i = 0; i < k->inputs.size(); ++i)
      SY_TRY(resolve(binding.inputs[i], static_cast<uint64_t>(Bytes(k->inputs[i])), "input", i, &made->inputs[i]));
    for (size_t o = 0; o < k->outputs.size(); ++o)
      SY_TRY(resolve(binding.outputs[o], static_cast<uint64_t>(Bytes(k->outputs[o])), "output", o, &made->outputs[o]));
    if (k->workspace_bytes > 0)
      SY_TRY(resolve(binding.workspace, k->workspace_bytes, "workspace", 0, &made->workspace));
    SY_TRY(k->Bind(&made, error));
    if (k->capturable && !k->loaded) SY_TRY(Load(*made, error));
    *bound = made.release();
    *launch = RunBound;
    return SY_OK;
  });
}

void Unbind(sy_device*, sy_bound* bound) { delete bound; }
void Release(sy_device*, sy_kernel* kernel) { delete static_cast<Kernel*>(kernel); }

}  // namespace

const sy_kernel_v2 kCudaKernels = {
    .header = SY_HEADER(sy_kernel_v2), .prepare = Prepare, .bind = Bind, .unbind = Unbind, .release = Release};

Kernel::Kernel(const Request& request)
    : device(request.device),
      inputs(request.inputs),
      outputs(request.outputs),
      accumulate(request.accumulate),
      inplace(request.outputs.size(), -1) {}

sy_status Kernel::Bind(std::unique_ptr<Bound>*, sy_error*) const { return SY_OK; }

}  // namespace switchyard
