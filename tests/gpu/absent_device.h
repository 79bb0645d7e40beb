// cuDNN plans for GPUs that are not here: the library works from a description of a device ("deviceless" compilation,
// cuDNN 9.8), so that the graphs which the plugin describes can be shown to the real library anywhere, and finalised
// into plans by the plugin's own Build. Which engine a plan has and how much workspace it takes is compared with what
// is written in plans_cudnn_VERSION.txt beside this file: one line a plan, and none that no test asks for. The plans of
// another version of the library need only be there, within the limit, and the test is skipped, which says so. Nothing
// runs. For tests of this: CUDNN_PLANS_FOLDER, where the files are instead, and CUDNN_PLANS_VERSION, whose is read.
// https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "backends/cuda/cudnn.h"
#include "backends/cuda/kernel.h"

namespace switchyard {

// Named after the GPU; what the driver of one answers to cudaDeviceGetAttribute.
struct AbsentDevice {
  const char* name;
  int capability;  // 100·major + 10·minor
  int multiprocessors, shared_bytes, l2_bytes;
};
constexpr AbsentDevice kAbsentDevices[] = {{"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040},
                                           {"NVIDIA H200", 900, 132, 232448, 62914560}};

constexpr uint64_t kWorkspaceLimit = uint64_t{1} << 32;  // as the program's (core/plan/kernels.h)

inline CudnnDescriptor Describe(const sy_device& opened, const AbsentDevice& device) {
  const std::string text =
      Format(R"({"deviceVer":%d,"driverVer":13000,"cudaDeviceId":0,"maxGridSize":[2147483647,65535,65535],)"
             R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":%d,"warpSize":32,)",
             device.capability, device.multiprocessors) +
      Format(R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":%d,"reservedSharedMemoryPerBlock":1024,)"
             R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,)",
             device.shared_bytes) +
      Format(
          R"("pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1410000,"memClockRateKHz":1593000,)"
          R"("l2CacheSize":%d,"totalGlobalMem":80000000000,"deviceName":"%s"})",
          device.l2_bytes, device.name);
  CudnnDescriptor properties(opened, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties
      .Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()), text.data())
      .Finalize();
  return properties;
}

// How many engines the heuristics offer for `graph` on `device` that the plugin would take. Throws CudnnError.
inline int64_t PermittedEngines(const OperationGraph& graph, const AbsentDevice& device, bool deterministic,
                                bool strict) {
  const CudnnDescriptor properties = Describe(graph.device_, device);
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : graph.operations_) operations.push_back(operation.handle());
  CudnnDescriptor finished(graph.device_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  finished
      .Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(operations.size()),
           operations.data())
      .Finalize();
  int64_t permitted = 0;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    CudnnDescriptor heuristics(graph.device_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, finished)
        .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode)
        .Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties)
        .Finalize();
    for (const CudnnDescriptor& configuration : graph.Configurations(heuristics))
      permitted += graph.Permitted(configuration, deterministic, strict).has_value();
  }
  return permitted;
}

// With which the project was measured (RESULTS.md): its plans are written.
constexpr size_t kMeasuredVersion = 91900;

inline size_t PlansVersion() {
  const char* const given = std::getenv("CUDNN_PLANS_VERSION");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : CudnnLibrary().cudnnGetVersion();
}

// The lines that are written for the installed version; empty: none are.
inline const std::set<std::string>& WrittenPlans() {
  static const std::set<std::string> written = [] {
    const char* const given = std::getenv("CUDNN_PLANS_FOLDER");
    const std::filesystem::path folder = given != nullptr ? given : PLANS_FOLDER;
    EXPECT_TRUE(std::filesystem::exists(folder)) << folder;
    std::ifstream file(folder / Format("plans_cudnn_%zu.txt", PlansVersion()));
    std::set<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  }();
  return written;
}

// The lines that ExpectPlan found to be as they are written.
inline std::set<std::string>& FoundPlans() {
  static std::set<std::string> found;
  return found;
}

// Of the written lines those that are `ours` were all found: no plan is written that no test asks for any more. The
// last call of a test, which it ends as skipped where nothing was compared.
template <typename Ours>
void ExpectNoneIsLeft(const Ours& ours) {
  if (WrittenPlans().empty() && !testing::Test::HasFailure()) {
    const std::string reason =
        Format("of cuDNN %zu no plans are written: engines and workspaces were compared with nothing", PlansVersion());
    if (PlansVersion() == kMeasuredVersion) FAIL() << reason;
    GTEST_SKIP() << reason;
  }
  for (const std::string& line : WrittenPlans())
    EXPECT_TRUE(line.empty() || !ours(line) || FoundPlans().contains(line))
        << "written, and no test finds it: " << line;
}
inline bool IsOfAttention(const std::string& line) { return line.find(" attention") != line.npos; }
inline bool IsOfGelu(const std::string& line) { return line.find(" with GELU") != line.npos; }

// Finalises a plan as the plugin does on a GPU, and compares it with what is written. `what`: a name of its own.
inline void ExpectPlan(OperationGraph& graph, const AbsentDevice& device, const std::string& what, bool deterministic,
                       bool strict) {
  const CudnnDescriptor properties = Describe(graph.device_, device);
  std::string line = Format("%s, %s, %s: ", device.name, what.c_str(), deterministic ? "repeatable" : "any order");
  try {
    graph.Build(kWorkspaceLimit, deterministic, strict, &properties);
  } catch (const CudnnError& failure) {
    ADD_FAILURE() << line << "no plan: " << failure.what();
    return;
  }
  line += Format("engine %lld, %llu bytes of workspace", static_cast<long long>(graph.engine()),
                 static_cast<unsigned long long>(graph.workspace_bytes()));
  EXPECT_TRUE(WrittenPlans().empty() || WrittenPlans().contains(line)) << "not written: " << line;
  FoundPlans().insert(line);
}

inline sy_tensor TensorOf(sy_dtype dtype, const std::vector<int64_t>& dims) {
  sy_tensor tensor{};
  tensor.dtype = dtype;
  tensor.rank = static_cast<int32_t>(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    tensor.dims[i] = dims[i];
    tensor.strides[i] = stride;
    stride *= dims[i];
  }
  return tensor;
}

class CudnnGraphs : public testing::Test {
 protected:
  void SetUp() override {
    device_.instance = &instance_;
    if (!CudnnLibrary().reason.empty()) GTEST_SKIP() << CudnnLibrary().reason;
    if (CudnnLibrary().cudnnGetVersion() < 90800) GTEST_SKIP() << "cuDNN before 9.8 plans for present devices only";
    if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr)
      GTEST_SKIP() << "no libcuda.so.1: run it with that of driver_that_loads_nothing.c";
  }
  Request Asking(std::vector<sy_tensor> inputs, std::vector<sy_tensor> outputs, bool deterministic) {
    Request request;
    request.device = &device_;
    request.accumulate.assign(outputs.size(), 0);
    request.inputs = std::move(inputs);
    request.outputs = std::move(outputs);
    request.deterministic = deterministic;
    return request;
  }
  sy_instance instance_;  // that nobody serves: nothing is logged
  sy_device device_;
};

}  // namespace switchyard
