#include "backends/cuda/tuning.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace switchyard {
namespace {

constexpr int kWarmUps = 2, kRuns = 8;

struct TimedEvent {
  const sy_device& device;
  cudaEvent_t event = nullptr;
  ~TimedEvent() {
    if (event) LogFailure(device, cudaEventDestroy(event), "cudaEventDestroy");
  }
};

}  // namespace

std::string TuningCacheName(const sy_device& device, const std::string& version) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device.index) != cudaSuccess) return "";
  return Format("cuda-gemm-1-%s-%d-%s", properties.name, device.sm_count, version.c_str());
}

Scratch::~Scratch() {
  if (address_) LogFailure(device_, cudaFree(address_), "cudaFree");
}

// Filled with the numbers, over and over.
sy_status Scratch::Allocate(int64_t wanted, cudaStream_t stream, sy_error* error) {
  const auto bytes = static_cast<size_t>(wanted);
  SY_CUDA(error, cudaMalloc(&address_, bytes));
  const std::vector<uint16_t>& numbers = NumbersToMeasureOn();
  size_t filled = std::min(bytes, numbers.size() * sizeof numbers[0]);
  SY_CUDA(error, cudaMemcpyAsync(address_, numbers.data(), filled, cudaMemcpyHostToDevice, stream));
  while (filled < bytes) {
    const size_t more = std::min(filled, bytes - filled);
    SY_CUDA(error, cudaMemcpyAsync(address() + filled, address_, more, cudaMemcpyDeviceToDevice, stream));
    filled += more;
  }
  return SY_OK;
}

sy_status MeasureRuns(const sy_device& device, cudaStream_t stream, const std::function<sy_status()>& run, float* ms,
                      sy_error* error) {
  TimedEvent begin{device}, end{device};
  SY_CUDA(error, cudaEventCreateWithFlags(&begin.event, cudaEventDefault));
  SY_CUDA(error, cudaEventCreateWithFlags(&end.event, cudaEventDefault));
  for (int i = 0; i < kWarmUps; ++i) SY_TRY(run());
  SY_CUDA(error, cudaEventRecord(begin.event, stream));
  for (int i = 0; i < kRuns; ++i) SY_TRY(run());
  SY_CUDA(error, cudaEventRecord(end.event, stream));
  SY_CUDA(error, cudaEventSynchronize(end.event));
  SY_CUDA(error, cudaEventElapsedTime(ms, begin.event, end.event));
  *ms /= kRuns;
  return SY_OK;
}

sy_status MeasureKernel(const Kernel& kernel, float* ms, sy_error* error) {
  const sy_device& device = *kernel.device;
  const cudaStream_t stream = device.own.stream;
  std::vector<Scratch> operands;
  const auto allocate = [&](uint64_t bytes, char** address) -> sy_status {
    SY_TRY(operands.emplace_back(device).Allocate(static_cast<int64_t>(bytes), stream, error));
    *address = operands.back().address();
    return SY_OK;
  };
  auto bound = std::make_unique<Bound>();
  bound->kernel = &kernel;
  for (const auto& [tensors, addresses] :
       {std::pair(&kernel.inputs, &bound->inputs), {&kernel.outputs, &bound->outputs}})
    for (const sy_tensor& tensor : *tensors)
      SY_TRY(allocate(static_cast<uint64_t>(Bytes(tensor)), &addresses->emplace_back()));
  if (kernel.workspace_bytes > 0) SY_TRY(allocate(kernel.workspace_bytes, &bound->workspace));
  SY_TRY(kernel.Bind(&bound, error));
  const LaunchContext context{stream};
  return MeasureRuns(
      device, stream, [&] { return kernel.Run(*bound, context, error); }, ms, error);
}

}  // namespace switchyard
