#include "backends/cuda/tuning.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

namespace switchyard {
namespace {

constexpr int kWarmUps = 2, kRuns = 8;

std::string CacheFolder() {
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder && *folder) return std::string(folder) + "/switchyard";
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/switchyard";
  return "";
}

// Random words of 16 bits with the sign free and the exponent of f16 between 1 and 2, which is one between 1/8 and 2 in
// bf16 and in f32.
const std::vector<uint16_t>& Numbers() {
  static const std::vector<uint16_t> numbers = [] {
    std::vector<uint16_t> made(size_t{1} << 16);
    uint32_t state = 1;
    for (uint16_t& number : made) {
      state = state * 1664525 + 1013904223;  // Knuth, "The Art of Computer Programming", volume 2, 3.3.4
      number = static_cast<uint16_t>(state >> 16 & 0x81FF) | 0x3E00;
    }
    return made;
  }();
  return numbers;
}

struct TimedEvent {
  const sy_device& device;
  cudaEvent_t event = nullptr;
  ~TimedEvent() {
    if (event) LogFailure(device, cudaEventDestroy(event), "cudaEventDestroy");
  }
};

}  // namespace

// A line of the file: the key, a space, the value.
TuningCache::TuningCache(const sy_device& device, const std::string& version) {
  cudaDeviceProp properties{};
  const std::string folder = CacheFolder();
  if (folder.empty() || cudaGetDeviceProperties(&properties, device.index) != cudaSuccess) return;
  std::string model = properties.name;
  for (char& c : model)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  path_ = Format("%s/cuda-gemm-1-%s-%d-%s", folder.c_str(), model.c_str(), device.sm_count, version.c_str());
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);)
    if (const size_t space = line.find(' '); space != std::string::npos)
      values_[line.substr(0, space)] = line.substr(space + 1);
}

std::optional<std::string> TuningCache::Find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

void TuningCache::Keep(const std::string& key, const std::string& value, bool measured) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  if (!measured || path_.empty()) return;
  const std::string line = key + " " + value + "\n";
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  // One short append is one write: ranks that share the file do not tear each other's lines.
  if (std::FILE* file = std::fopen(path_.c_str(), "a")) {
    std::fwrite(line.data(), 1, line.size(), file);
    std::fclose(file);
  }
}

Scratch::~Scratch() {
  if (address_) LogFailure(device_, cudaFree(address_), "cudaFree");
}

// Filled with Numbers, over and over.
sy_status Scratch::Allocate(int64_t wanted, cudaStream_t stream, sy_error* error) {
  const auto bytes = static_cast<size_t>(wanted);
  SY_CUDA(error, cudaMalloc(&address_, bytes));
  const std::vector<uint16_t>& numbers = Numbers();
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
