#include "backends/cuda/cudnn.h"

#include <algorithm>
#include <array>

#include "backends/cuda/library.h"

namespace switchyard {
namespace {

constexpr int64_t kByteAlignment = 16;
#define SY_TEXT_OF(x) #x
#define SY_TEXT(x) SY_TEXT_OF(x)
constexpr char kLibrary[] = "libcudnn.so." SY_TEXT(CUDNN_MAJOR);

CudnnFunctions Load() {
  CudnnFunctions functions;
  SharedLibrary library(kLibrary);
#define SY_BIND(name) library.Bind(#name, &functions.name);
  SY_CUDNN_FUNCTIONS(SY_BIND)
#undef SY_BIND
  functions.reason = library.reason();
  return functions;
}

std::string Reason(cudnnStatus_t code) {
  std::array<char, 256> last{};
  CudnnLibrary().cudnnGetLastErrorString(last.data(), last.size() - 1);
  std::string text = CudnnLibrary().cudnnGetErrorString(code);
  if (last[0] != '\0') text += std::string(": ") + last.data();
  return text;
}

void Check(cudnnStatus_t code, const char* call) {
  if (code != CUDNN_STATUS_SUCCESS) throw CudnnError(std::string(call) + ": " + Reason(code));
}

CudnnDescriptor PointwiseFunction(const sy_device& device, cudnnPointwiseMode_t mode) {
  CudnnDescriptor function(device, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  function.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Finalize();
  return function;
}

}  // namespace

const CudnnFunctions& CudnnLibrary() {
  static const CudnnFunctions functions = Load();
  return functions;
}

std::unique_ptr<Cudnn> Cudnn::Open(const sy_device& device, std::string* reason) {
  *reason = CudnnLibrary().reason;
  if (!reason->empty()) return nullptr;
  std::unique_ptr<Cudnn> cudnn(new Cudnn(device));
  if (const cudnnStatus_t code = CudnnLibrary().cudnnCreate(&cudnn->handle_); code != CUDNN_STATUS_SUCCESS) {
    *reason = "cudnnCreate: " + Reason(code);
    return nullptr;
  }
  return cudnn;
}

Cudnn::~Cudnn() {
  if (handle_ != nullptr && CudnnLibrary().cudnnDestroy(handle_) != CUDNN_STATUS_SUCCESS)
    device_.instance->Log(2, "cuda: cudnnDestroy failed");
}

sy_status Cudnn::Execute(cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack, cudaStream_t stream,
                         sy_error* error) {
  const std::lock_guard lock(mutex_);
  cudnnStatus_t code = CudnnLibrary().cudnnSetStream(handle_, stream);
  if (code == CUDNN_STATUS_SUCCESS) code = CudnnLibrary().cudnnBackendExecute(handle_, plan, pack);
  if (code == CUDNN_STATUS_SUCCESS) return SY_OK;
  if (CUDNN_STATUS_CATEGORY(code) == CUDNN_STATUS_EXECUTION_FAILED)  // the device's own error says more
    if (const cudaError_t last = cudaPeekAtLastError(); last != cudaSuccess)
      return CudaFailed(error, last, "cudnnBackendExecute");
  return LibraryFailed(error, SY_INTERNAL, code, Reason(code).c_str(), "cudnnBackendExecute");
}

CudnnDescriptor::CudnnDescriptor(const sy_device& device, cudnnBackendDescriptorType_t type) : device_(&device) {
  Check(CudnnLibrary().cudnnBackendCreateDescriptor(type, &handle_), "cudnnBackendCreateDescriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (handle_ != nullptr && CudnnLibrary().cudnnBackendDestroyDescriptor(handle_) != CUDNN_STATUS_SUCCESS)
    device_->instance->Log(2, "cuda: cudnnBackendDestroyDescriptor failed");
}

CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                      const void* values) {
  const cudnnStatus_t code = CudnnLibrary().cudnnBackendSetAttribute(handle_, name, type, count, values);
  if (code != CUDNN_STATUS_SUCCESS) throw CudnnError(Format("attribute %d: %.300s", name, Reason(code).c_str()));
  return *this;
}

CudnnDescriptor& CudnnDescriptor::Finalize() {
  Check(CudnnLibrary().cudnnBackendFinalize(handle_), "cudnnBackendFinalize");
  return *this;
}

int64_t CudnnDescriptor::Int64(cudnnBackendAttributeName_t name) const {
  int64_t value = 0, count = 0;
  Check(CudnnLibrary().cudnnBackendGetAttribute(handle_, name, CUDNN_TYPE_INT64, 1, &count, &value),
        "cudnnBackendGetAttribute");
  return value;
}

cudnnDataType_t CudnnType(sy_dtype dtype) {
  return dtype == SY_BF16 ? CUDNN_DATA_BFLOAT16 : dtype == SY_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

const CudnnDescriptor& OperationGraph::AddTensor(int64_t id, cudnnDataType_t type, const TensorDims& dims,
                                                 const TensorDims& strides, bool is_virtual, bool by_value) {
  CudnnDescriptor& tensor = tensors_.emplace_back(device_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims)
      .Set(CUDNN_ATTR_TENSOR_STRIDES, strides)
      .Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kByteAlignment);
  if (is_virtual) tensor.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  if (by_value) tensor.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  return tensor.Finalize();
}

const CudnnDescriptor& OperationGraph::Tensor(int64_t id, sy_dtype dtype, const TensorDims& dims,
                                              const TensorDims& strides) {
  return AddTensor(id, CudnnType(dtype), dims, strides, false, false);
}

const CudnnDescriptor& OperationGraph::Virtual(sy_dtype dtype, const TensorDims& dims, const TensorDims& strides) {
  return AddTensor(next_virtual_++, CudnnType(dtype), dims, strides, true, false);
}

const CudnnDescriptor& OperationGraph::Constant(int64_t id, size_t rank, float value) {
  constants_.push_back({id, value});
  const TensorDims ones(rank, 1);
  return AddTensor(id, CUDNN_DATA_FLOAT, ones, ones, false, true);
}

CudnnDescriptor& OperationGraph::Add(cudnnBackendDescriptorType_t operation) {
  return operations_.emplace_back(device_, operation);
}

void OperationGraph::Pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
                               const CudnnDescriptor& y) {
  const CudnnDescriptor function = PointwiseFunction(device_, mode);  // it lives until what refers to it is finalised
  CudnnDescriptor& operation = Add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                                   .Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function)
                                   .Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
                                   .Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b != nullptr) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  operation.Finalize();
}

void OperationGraph::PointwiseGradient(cudnnPointwiseMode_t mode, const CudnnDescriptor& dy, const CudnnDescriptor& x,
                                       const CudnnDescriptor& dx) {
  const CudnnDescriptor function = PointwiseFunction(device_, mode);
  Add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, dx)
      .Finalize();
}

void OperationGraph::Reduce(cudnnReduceTensorOp_t mode, const CudnnDescriptor& x, const CudnnDescriptor& y) {
  CudnnDescriptor function(device_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  function.Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode)
      .Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Finalize();
  Add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x)
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y)
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, function)
      .Finalize();
}

void OperationGraph::Matmul(const CudnnDescriptor& a, const CudnnDescriptor& b, const CudnnDescriptor& c) {
  CudnnDescriptor function(device_, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  function.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).Finalize();
  Add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, function)
      .Finalize();
}

void OperationGraph::Reshape(const CudnnDescriptor& x, const CudnnDescriptor& y) {
  Add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
      .Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x)
      .Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y)
      .Finalize();
}

// Descriptors of `type` with what the attribute of `from` holds.
std::vector<CudnnDescriptor> OperationGraph::Children(const CudnnDescriptor& from, cudnnBackendAttributeName_t name,
                                                      cudnnBackendDescriptorType_t type) const {
  const auto get = [&](int64_t capacity, int64_t* count, cudnnBackendDescriptor_t* handles) {
    Check(CudnnLibrary().cudnnBackendGetAttribute(from.handle(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, capacity, count,
                                                  handles),
          "cudnnBackendGetAttribute of descriptors");
  };
  int64_t offered = 0, filled = 0;
  get(0, &offered, nullptr);
  std::vector<CudnnDescriptor> children;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (int64_t i = 0; i < offered; ++i) handles.push_back(children.emplace_back(device_, type).handle());
  if (offered > 0) get(offered, &filled, handles.data());
  while (static_cast<int64_t>(children.size()) > filled) children.pop_back();
  return children;
}

// What the heuristics offer, best first.
std::vector<CudnnDescriptor> OperationGraph::Configurations(const CudnnDescriptor& heuristics) const {
  return Children(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
}

std::optional<int64_t> OperationGraph::Permitted(const CudnnDescriptor& configuration, bool deterministic,
                                                 bool strict) const {
  CudnnDescriptor engine(device_, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.handle();
  int64_t count = 0;
  Check(CudnnLibrary().cudnnBackendGetAttribute(configuration.handle(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &handle),
        "cudnnBackendGetAttribute of the engine");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  count = 0;
  Check(CudnnLibrary().cudnnBackendGetAttribute(handle, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                                notes.size(), &count, notes.data()),
        "cudnnBackendGetAttribute of the engine's numerical notes");
  const auto barred = [&](auto note) {
    return (deterministic && note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ||
           (strict && (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) ||
           note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
  };
  if (std::any_of(notes.begin(), notes.begin() + std::min<int64_t>(count, notes.size()), barred)) return std::nullopt;
  return engine.Int64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
}

void OperationGraph::Finish(const CudnnDescriptor* described) {
  if (graph_ != nullptr) return;
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.handle());
  auto graph = std::make_unique<CudnnDescriptor>(device_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph->Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(operations.size()),
             operations.data());
  if (described == nullptr) graph->Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, device_.cudnn->handle());
  graph->Finalize();
  graph_ = std::move(graph);
}

void OperationGraph::Take(const CudnnDescriptor& configuration, uint64_t workspace_limit, bool deterministic,
                          bool strict, const CudnnDescriptor* described) {
  const std::optional<int64_t> engine = Permitted(configuration, deterministic, strict);
  if (!engine) throw CudnnError("no engine has the numerics that are required");
  auto plan = std::make_unique<CudnnDescriptor>(device_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (described != nullptr) {
    plan->Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *described);
  } else {
    plan->Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, device_.cudnn->handle());
  }
  plan->Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration).Finalize();
  const int64_t bytes = plan->Int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  if (bytes < 0 || static_cast<uint64_t>(bytes) > workspace_limit)
    throw CudnnError(Format("an engine needs %lld bytes of workspace", static_cast<long long>(bytes)));
  workspace_bytes_ = static_cast<uint64_t>(bytes);
  engine_ = *engine;
  plan_ = std::move(plan);
}

void OperationGraph::Build(uint64_t workspace_limit, bool deterministic, bool strict, const CudnnDescriptor* described,
                           int64_t first) {
  Finish(described);
  std::string reason = "the heuristics offer no engine";
  int64_t offered = 0;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    try {
      CudnnDescriptor heuristics(device_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
      heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *graph_)
          .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
      if (described != nullptr) heuristics.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *described);
      heuristics.Finalize();
      for (const CudnnDescriptor& configuration : Configurations(heuristics)) {
        configuration_ = offered++;
        if (configuration_ < first) continue;
        try {
          return Take(configuration, workspace_limit, deterministic, strict, described);
        } catch (const CudnnError& error) {
          reason = error.what();
        }
      }
    } catch (const CudnnError& error) {
      reason = error.what();
    }
  }
  throw CudnnError(reason);
}

CudnnDescriptor OperationGraph::Engine(int64_t index, const CudnnDescriptor* described) const {
  CudnnDescriptor engine(device_, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.Set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, *graph_).Set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, index);
  if (described != nullptr) engine.Set(CUDNN_ATTR_ENGINE_DEVICEPROP, *described);
  engine.Finalize();
  return engine;
}

int64_t OperationGraph::EngineCount(const CudnnDescriptor* described) {
  Finish(described);
  return graph_->Int64(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
}

int64_t OperationGraph::KernelCount(int64_t index, const CudnnDescriptor* described) {
  Finish(described);
  const CudnnDescriptor engine = Engine(index, described);
  for (const CudnnDescriptor& knob :
       Children(engine, CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR)) {
    cudnnBackendKnobType_t type{};
    int64_t count = 0;
    Check(CudnnLibrary().cudnnBackendGetAttribute(knob.handle(), CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                                                  &count, &type),
          "cudnnBackendGetAttribute of a knob");
    if (type == CUDNN_KNOB_TYPE_KERNEL_CFG) return knob.Int64(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE) + 1;
  }
  return 0;
}

void OperationGraph::BuildOf(int64_t index, int64_t kernel, uint64_t workspace_limit, bool deterministic, bool strict,
                             const CudnnDescriptor* described) {
  Finish(described);
  const CudnnDescriptor engine = Engine(index, described);
  CudnnDescriptor configuration(device_, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  configuration.Set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  CudnnDescriptor choice(device_, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
  if (kernel >= 0) {
    choice.Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, CUDNN_KNOB_TYPE_KERNEL_CFG)
        .Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, kernel)
        .Finalize();
    configuration.Set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choice);
  }
  configuration.Finalize();
  Take(configuration, workspace_limit, deterministic, strict, described);
}

CudnnDescriptor OperationGraph::Pack(const std::vector<std::pair<int64_t, void*>>& places, void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  for (const auto& [id, address] : places) {
    if (reinterpret_cast<uintptr_t>(address) % kByteAlignment != 0)
      throw CudnnError("an operand is not aligned to 16 bytes");
    ids.push_back(id);
    addresses.push_back(address);
  }
  for (const Value& constant : constants_) {
    ids.push_back(constant.id);
    addresses.push_back(const_cast<float*>(&constant.value));
  }
  CudnnDescriptor pack(device_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(addresses.size()),
           addresses.data())
      .Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)
      .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .Finalize();
  return pack;
}

sy_status OperationGraph::Run(const CudnnDescriptor& pack, cudaStream_t stream, sy_error* error) const {
  return device_.cudnn->Execute(plan_->handle(), pack.handle(), stream, error);
}

}  // namespace switchyard
