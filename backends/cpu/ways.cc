#include "backends/cpu/ways.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "core/abi/tuning.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastRounds = 5, kMostRounds = 25;
constexpr auto kTime = std::chrono::milliseconds(100);  // for all ways together, after the least rounds
constexpr double kPays = 0.95;  // of the first way's time: what is less than that is the machine's own variation

bool MayMeasure(const Request& request) {
  return request.tuning >= SY_TUNING_MEASURE && request.determinism == SY_DETERMINISM_ANY;
}

std::string TensorsText(const std::vector<sy_tensor>& tensors) {
  std::string text;
  for (const sy_tensor& tensor : tensors) {
    text += ',';
    text += TypeName(tensor.dtype);
    for (int d = 0; d < tensor.rank; ++d) text += (d > 0 ? "x" : ":") + std::to_string(tensor.dims[d]);
  }
  return text;
}

// All that the choice depends on.
std::string KeyOf(const Request& request) {
  std::string key = Format("%s,%d", request.op, request.device->threads);
  key += TensorsText(request.inputs) + ",to" + TensorsText(request.outputs) + ",";
  for (const uint8_t adds : request.accumulate) key += adds ? '+' : '=';
  const auto* bytes = static_cast<const unsigned char*>(request.attributes);
  for (uint32_t i = 0; i < request.attributes_size; ++i) key += Format("%02x", bytes[i]);
  return key;
}

struct FreeOperand {
  void operator()(char* memory) const { std::free(memory); }
};
using OperandMemory = std::unique_ptr<char, FreeOperand>;

// On huge pages where device memory is, too.
OperandMemory Operand(uint64_t bytes) {
  constexpr uint64_t kPage = 4096, kHugePage = uint64_t{2} << 20;
  const uint64_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  const uint64_t whole = std::max<uint64_t>(1, (bytes + alignment - 1) / alignment) * alignment;
  OperandMemory memory(static_cast<char*>(std::aligned_alloc(alignment, whole)));
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) (void)::madvise(memory.get(), whole, MADV_HUGEPAGE);
  const std::vector<uint16_t>& numbers = NumbersToMeasureOn();
  const uint64_t period = numbers.size() * sizeof numbers[0];
  for (uint64_t at = 0; at < whole; at += period)
    std::memcpy(memory.get() + at, numbers.data(), std::min(period, whole - at));
  return memory;
}

KernelPointer First(const std::vector<Way>& ways) {
  for (const Way& way : ways)
    if (KernelPointer made = way.make()) return made;
  return nullptr;
}

// Which of the kernels is the fastest, the first where none is by more than the machine's own variation; each in turn
// on the same operands, so that what else the machine does meets all of them. One that fails
// is not chosen, unless all do.
size_t Fastest(const Request& request, const std::vector<KernelPointer>& kernels) {
  std::vector<OperandMemory> operands;
  Arguments arguments;
  for (const auto& [tensors, addresses] :
       {std::pair(&request.inputs, &arguments.inputs), {&request.outputs, &arguments.outputs}}) {
    for (const sy_tensor& tensor : *tensors)
      addresses->push_back(operands.emplace_back(Operand(static_cast<uint64_t>(Bytes(tensor)))).get());
  }
  uint64_t workspace = 0;
  for (const KernelPointer& kernel : kernels) workspace = std::max(workspace, kernel->workspace_bytes);
  arguments.workspace = operands.emplace_back(Operand(workspace)).get();
  std::vector<std::unique_ptr<sy_bound>> bound(kernels.size());
  std::vector<sy_launch> launch(kernels.size());
  for (size_t i = 0; i < kernels.size(); ++i) bound[i] = kernels[i]->Bind(arguments, &launch[i]);

  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> least(kernels.size(), kNever);
  std::vector<bool> failed(kernels.size());
  const auto began = Clock::now();
  for (int round = 0; round < kMostRounds; ++round) {
    if (round >= kLeastRounds && Clock::now() - began > kTime) break;
    for (size_t i = 0; i < kernels.size(); ++i) {
      sy_error ignored{SY_HEADER(sy_error)};
      const auto start = Clock::now();
      const sy_status status = launch[i](bound[i].get(), nullptr, &ignored);
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      least[i] = std::min(least[i], seconds);
      if (status != SY_OK) failed[i] = true;
    }
  }
  for (size_t i = 0; i < kernels.size(); ++i)
    if (failed[i]) least[i] = kNever;
  const auto best = std::min_element(least.begin(), least.end());
  return *best < kPays * least[0] ? static_cast<size_t>(best - least.begin()) : 0;
}

}  // namespace

KernelPointer FirstOrFastest(const Request& request, const std::vector<Way>& ways) {
  if (!MayMeasure(request)) return First(ways);
  TuningCache& choices = request.device->Choices();
  const std::string key = KeyOf(request);
  const auto chosen = [&] { return choices.Find(key).value_or(""); };
  const std::string known = chosen();
  for (const Way& way : ways) {
    if (known != way.name) continue;
    if (KernelPointer made = way.make()) return made;
  }
  std::vector<KernelPointer> kernels;
  std::vector<std::string> names;
  for (const Way& way : ways) {  // which may measure others of its own: so before our turn
    KernelPointer made = way.make();
    // What was planned with the first way fits with every other.
    if (made == nullptr || (!kernels.empty() && made->workspace_bytes > kernels[0]->workspace_bytes)) continue;
    kernels.push_back(std::move(made));
    names.push_back(way.name);
  }
  if (kernels.empty()) return nullptr;
  size_t best = 0;
  if (kernels.size() > 1) {
    const TuningCache::Turn turn(choices);
    const auto at = std::find(names.begin(), names.end(), chosen());
    if (at != names.end()) return std::move(kernels[static_cast<size_t>(at - names.begin())]);
    try {
      best = Fastest(request, kernels);
      choices.Keep(key, names[best], true);
    } catch (const std::bad_alloc&) {  // no memory to measure in
    }
  }
  return std::move(kernels[best]);
}

}  // namespace switchyard
