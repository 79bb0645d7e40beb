// cuDNN on one device: its functions, its handle, and graphs of operations built with the backend API. An
// OperationGraph is described by tensors and operations, finalised into the first execution plan that the heuristics
// offer, the workspace limit allows and the numerics permit, or into one of a certain engine, and run through a
// VariantPack, which names the places.
// While describing, failures are thrown as CudnnError (cuDNN has hundreds of calls that only fail on what it does not
// support) and caught by Prepare, which refuses the op. Thread-safe: a graph is immutable after Build; the handle is
// guarded while a plan is enqueued.
// https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html
#pragma once

#include <cudnn_graph.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/cuda/device.h"

// What cuDNN 9.8 added to plan for GPUs that are not present, where the headers are older; an older library refuses it.
#if CUDNN_VERSION < 90800
inline constexpr auto CUDNN_ATTR_ENGINEHEUR_DEVICEPROP = static_cast<cudnnBackendAttributeName_t>(204);
inline constexpr auto CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP = static_cast<cudnnBackendAttributeName_t>(407);
inline constexpr auto CUDNN_ATTR_ENGINE_DEVICEPROP = static_cast<cudnnBackendAttributeName_t>(1307);
inline constexpr auto CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION = static_cast<cudnnBackendAttributeName_t>(2702);
inline constexpr auto CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR = static_cast<cudnnBackendDescriptorType_t>(38);
#endif

namespace switchyard {

#define SY_CUDNN_FUNCTIONS(X)      \
  X(cudnnCreate)                   \
  X(cudnnDestroy)                  \
  X(cudnnSetStream)                \
  X(cudnnGetVersion)               \
  X(cudnnGetErrorString)           \
  X(cudnnGetLastErrorString)       \
  X(cudnnBackendCreateDescriptor)  \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendSetAttribute)      \
  X(cudnnBackendGetAttribute)      \
  X(cudnnBackendFinalize)          \
  X(cudnnBackendExecute)

struct CudnnFunctions {
#define SY_DECLARE(name) std::remove_reference_t<decltype(::name)>* name = nullptr;
  SY_CUDNN_FUNCTIONS(SY_DECLARE)
#undef SY_DECLARE
  std::string reason;  // why they are not there; else empty
};
const CudnnFunctions& CudnnLibrary();

class Cudnn {
 public:
  // Null, with the reason, where the library is missing or refuses.
  static std::unique_ptr<Cudnn> Open(const sy_device& device, std::string* reason);
  ~Cudnn();
  cudnnHandle_t handle() const { return handle_; }
  size_t version() const { return CudnnLibrary().cudnnGetVersion(); }  // 91900 is 9.19.0
  sy_status Execute(cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack, cudaStream_t stream, sy_error* error);

 private:
  explicit Cudnn(const sy_device& device) : device_(device) {}

  const sy_device& device_;
  cudnnHandle_t handle_ = nullptr;
  std::mutex mutex_;  // the handle's stream
};

struct CudnnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A backend descriptor under construction, and then finalised. Throws CudnnError.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const sy_device& device, cudnnBackendDescriptorType_t type);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~CudnnDescriptor();

  cudnnBackendDescriptor_t handle() const { return handle_; }
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                       const void* values);
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const auto& value) {
    return Set(name, type, 1, &value);
  }
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    return Set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
  }
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
  }
  CudnnDescriptor& Finalize();
  int64_t Int64(cudnnBackendAttributeName_t name) const;

 private:
  const sy_device* device_;
  cudnnBackendDescriptor_t handle_ = nullptr;
};

using TensorDims = std::vector<int64_t>;
cudnnDataType_t CudnnType(sy_dtype dtype);

class OperationGraph {
 public:
  explicit OperationGraph(sy_device& device) : device_(device) {}

  // A tensor at a place: `id` names it in the pack. Strides in elements.
  const CudnnDescriptor& Tensor(int64_t id, sy_dtype dtype, const TensorDims& dims, const TensorDims& strides);
  // One that only exists inside the graph.
  const CudnnDescriptor& Virtual(sy_dtype dtype, const TensorDims& dims, const TensorDims& strides);
  // An f32 constant of rank `rank`, read from the host when the plan is enqueued.
  const CudnnDescriptor& Constant(int64_t id, size_t rank, float value);

  CudnnDescriptor& Add(cudnnBackendDescriptorType_t operation);  // set its attributes, then Finalize it
  // y = mode(x [, b]), arithmetic in f32.
  void Pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
                 const CudnnDescriptor& y);
  // dx = dy · mode'(x), for the gradient of an activation.
  void PointwiseGradient(cudnnPointwiseMode_t mode, const CudnnDescriptor& dy, const CudnnDescriptor& x,
                         const CudnnDescriptor& dx);
  void Reduce(cudnnReduceTensorOp_t mode, const CudnnDescriptor& x, const CudnnDescriptor& y);
  void Matmul(const CudnnDescriptor& a, const CudnnDescriptor& b, const CudnnDescriptor& c);
  void Reshape(const CudnnDescriptor& x, const CudnnDescriptor& y);

  // Finds a plan. `strict`: f32 arithmetic on f32 data, no TF32. `described`: the properties of the GPU to plan for
  // (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR); nullptr: the one of the device's handle. `first`: how many of the
  // configurations that the heuristics offer, best first, are left out. Throws CudnnError where there is none.
  void Build(uint64_t workspace_limit, bool deterministic, bool strict, const CudnnDescriptor* described = nullptr,
             int64_t first = 0);
  // Takes one engine, whatever the heuristics say: those that know the graph are among 0 to EngineCount. `kernel`:
  // which of its kernels; -1: its own choice. Throws CudnnError where that cannot be.
  void BuildOf(int64_t engine, int64_t kernel, uint64_t workspace_limit, bool deterministic, bool strict,
               const CudnnDescriptor* described = nullptr);
  int64_t EngineCount(const CudnnDescriptor* described = nullptr);
  int64_t KernelCount(int64_t engine, const CudnnDescriptor* described = nullptr);  // 0: it leaves no choice
  uint64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t engine() const { return engine_; }                // the library's number of what the plan runs on
  int64_t configuration() const { return configuration_; }  // of the heuristics', counted from 0, after Build

  // The places of one binding: (id, address) of every Tensor; constants are added.
  CudnnDescriptor Pack(const std::vector<std::pair<int64_t, void*>>& places, void* workspace) const;
  sy_status Run(const CudnnDescriptor& pack, cudaStream_t stream, sy_error* error) const;

 private:
  struct Value {
    int64_t id;
    float value;
  };
  const CudnnDescriptor& AddTensor(int64_t id, cudnnDataType_t type, const TensorDims& dims, const TensorDims& strides,
                                   bool is_virtual, bool by_value);
  void Finish(const CudnnDescriptor* described);  // the graph's description
  CudnnDescriptor Engine(int64_t index, const CudnnDescriptor* described) const;
  std::vector<CudnnDescriptor> Children(const CudnnDescriptor& from, cudnnBackendAttributeName_t name,
                                        cudnnBackendDescriptorType_t type) const;
  std::vector<CudnnDescriptor> Configurations(const CudnnDescriptor& heuristics) const;
  // Makes it the plan. Throws CudnnError where the limit or the numerics that are required do not allow it.
  void Take(const CudnnDescriptor& configuration, uint64_t workspace_limit, bool deterministic, bool strict,
            const CudnnDescriptor* described);
  // The number of its engine, or nothing where that has not the numerics that are required.
  std::optional<int64_t> Permitted(const CudnnDescriptor& configuration, bool deterministic, bool strict) const;

  sy_device& device_;
  std::deque<CudnnDescriptor> tensors_, operations_;  // addresses stay
  std::deque<Value> constants_;                       // their addresses are in the packs
  int64_t next_virtual_ = int64_t{1} << 32;
  std::unique_ptr<CudnnDescriptor> graph_, plan_;
  uint64_t workspace_bytes_ = 0;
  int64_t engine_ = -1, configuration_ = -1;
};

}  // namespace switchyard
