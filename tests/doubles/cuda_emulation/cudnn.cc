// Stands in for libcudnn: the functions that backends/cuda looks up, with one family of engines, for graphs of a
// product of halves and pointwise operations behind it, on the stream of the runtime's double; of any other graph it
// says that there is no engine. It keeps the rules that programs trip over: descriptors that are not finalised, shapes
// and dtypes that do not fit, rows and addresses that are not aligned to 16 bytes, places that are missing are refused.
// Arithmetic is in f32, and a tensor that lies in memory is rounded to its dtype before others read it. There are three
// engines (Way), of which the heuristics offer two; the fastest kernel is one of the third, which has to be asked for.
// CUDNN_DOUBLE_DELAY_US adds a time to each; with CUDNN_DOUBLE_REFUSES=engines there is none for anything, with =plans
// no plan is finalised, as where what compiles the kernels is missing. Thread-safe: as the library, one descriptor
// belongs to one thread at a time until it is finalised.
// https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cudnn_graph.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/faults.h"

namespace {

constexpr int64_t kWorkspaceBytes = 256;
constexpr int64_t kEngines = 3, kOffered = 2;  // the heuristics offer the first two
constexpr int64_t kKernels = 4;                // of engine 2, by CUDNN_KNOB_TYPE_KERNEL_CFG

// What a configuration comes to.
struct Way {
  Way() = default;
  Way(int64_t engine, int64_t kernel) : supported(engine != 2 || kernel != 0) {
    if (engine == 0) workspace_bytes = int64_t{1} << 60;  // more than anybody has
    if (engine == 1) workspace_bytes = kWorkspaceBytes;   // which it writes
    ms = engine == 1 || kernel == 1 ? 6 : kernel == 2 ? 0 : 4;
  }
  bool supported = true;
  int64_t workspace_bytes = 0;
  int ms = 0;  // that it takes longer
};

struct Descriptor;
using Shared = std::shared_ptr<const Descriptor>;

struct Attribute {
  cudnnBackendAttributeType_t type{};
  std::vector<char> bytes;
  std::vector<Shared> descriptors;  // of CUDNN_TYPE_BACKEND_DESCRIPTOR, in place of bytes
};

struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes;
  int64_t engine = -1, kernel = -1;  // of a configuration and its engine

  template <typename T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), found->second.bytes.data(), values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  T One(cudnnBackendAttributeName_t name, T otherwise) const {
    const auto found = attributes.find(name);
    if (found != attributes.end() && found->second.bytes.size() >= sizeof(T))
      std::memcpy(&otherwise, found->second.bytes.data(), sizeof(T));
    return otherwise;
  }
  Shared Child(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() || found->second.descriptors.empty() ? nullptr : found->second.descriptors[0];
  }
};

// What a handle points to: a descriptor outlives it where others hold it.
struct Owner {
  std::shared_ptr<Descriptor> descriptor;
};
Owner& Of(cudnnBackendDescriptor_t handle) { return *static_cast<Owner*>(handle); }

// One cudnnHandle_t.
struct Context {
  cudaStream_t stream = nullptr;
};

size_t ElementBytes(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_DOUBLE:
      return 8;
    default:
      return 4;
  }
}

struct Tensor {
  explicit Tensor(const Descriptor& d)
      : type(d.One(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT)),
        dims(d.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(d.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
        id(d.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, -1)),
        is_virtual(d.One(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false)),
        by_value(d.One(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)) {}

  int64_t Elements() const {
    int64_t count = 1;
    for (const int64_t extent : dims) count *= extent;
    return count;
  }
  // Where element i of a (d[0], d[1], d[2]) tensor lies; extents of 1 are repeated along the others.
  int64_t At(int64_t i, const std::vector<int64_t>& whole) const {
    int64_t at = 0;
    for (size_t axis = dims.size(); axis-- > 0; i /= whole[axis])
      if (dims[axis] != 1) at += i % whole[axis] * strides[axis];
    return at;
  }
  bool Spreads(const std::vector<int64_t>& whole) const {
    if (dims.size() != whole.size()) return false;
    for (size_t axis = 0; axis < whole.size(); ++axis)
      if (dims[axis] != whole[axis] && dims[axis] != 1) return false;
    return true;
  }
  // Rows start at multiples of 16 bytes, along the axis whose elements lie side by side.
  bool Aligned() const {
    const int64_t bytes = type == CUDNN_DATA_FLOAT ? 4 : 2;
    for (size_t axis = 0; axis < dims.size(); ++axis)
      if (strides[axis] != 1 && dims[axis] != 1 && strides[axis] * bytes % 16 != 0) return false;
    return true;
  }
  float Get(const void* data, int64_t i) const {
    if (type == CUDNN_DATA_FLOAT) return static_cast<const float*>(data)[i];
    if (type == CUDNN_DATA_BFLOAT16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    return __half2float(static_cast<const __half*>(data)[i]);
  }
  void Set(void* data, int64_t i, float value) const {
    if (type == CUDNN_DATA_FLOAT) {
      static_cast<float*>(data)[i] = value;
    } else if (type == CUDNN_DATA_BFLOAT16) {
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
    } else {
      static_cast<__half*>(data)[i] = __float2half_rn(value);
    }
  }

  cudnnDataType_t type;
  std::vector<int64_t> dims, strides;
  int64_t id;
  bool is_virtual, by_value;
};

bool IsHalf(const Tensor& t) { return t.type == CUDNN_DATA_BFLOAT16 || t.type == CUDNN_DATA_HALF; }

float Gelu(float x) { return 0.5f * x * (1 + std::erf(x * 0.70710678f)); }
float GeluGradient(float x) {
  return 0.5f * (1 + std::erf(x * 0.70710678f)) + x * 0.39894228f * std::exp(-0.5f * x * x);
}

struct Operation {
  bool product = false;
  cudnnPointwiseMode_t mode{};
  std::vector<Tensor> inputs;  // of the gradient of an activation: dy, x
  std::optional<Tensor> output;
};

// Nothing where the engines do not take it.
std::optional<Operation> Read(const Descriptor& d) {
  Operation o;
  const auto input = [&](cudnnBackendAttributeName_t name) {
    if (const Shared tensor = d.Child(name)) o.inputs.emplace_back(*tensor);
  };
  const auto output = [&](cudnnBackendAttributeName_t name) {
    if (const Shared tensor = d.Child(name)) o.output.emplace(*tensor);
  };
  if (d.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
    o.product = true;
    input(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    input(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    output(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    return o;
  }
  if (d.type != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) return std::nullopt;
  o.mode = d.Child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)->One(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
  input(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC);
  input(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  input(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  output(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  output(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC);
  return o;
}

// The shapes of an operation fit together.
bool IsConsistent(const Operation& o) {
  if (!o.output) return false;
  const std::vector<int64_t>& dims = o.output->dims;
  if (!o.product) {
    const size_t operands = o.mode == CUDNN_POINTWISE_ADD || o.mode == CUDNN_POINTWISE_GELU_BWD ? 2
                            : o.mode == CUDNN_POINTWISE_GELU_FWD                                ? 1
                                                                                                : o.inputs.size();
    return o.inputs.size() == operands &&
           std::all_of(o.inputs.begin(), o.inputs.end(), [&](const Tensor& t) { return t.Spreads(dims); });
  }
  if (o.inputs.size() != 2 || dims.size() < 2) return false;
  const std::vector<int64_t>&a = o.inputs[0].dims, &b = o.inputs[1].dims;
  if (a.size() != dims.size() || b.size() != dims.size()) return false;
  const size_t row = dims.size() - 2, column = dims.size() - 1;
  for (size_t axis = 0; axis < row; ++axis)
    if (a[axis] != dims[axis] || b[axis] != dims[axis]) return false;
  return a[row] == dims[row] && b[column] == dims[column] && a[column] == b[row];
}

// A product, and pointwise operations on what it gives.
std::optional<std::vector<Operation>> Fusible(const Descriptor& graph) {
  std::vector<Operation> operations;
  const auto found = graph.attributes.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (found == graph.attributes.end()) return std::nullopt;
  for (const Shared& each : found->second.descriptors) {
    const std::optional<Operation> read = Read(*each);
    if (!read || read->product != operations.empty() || read->output->dims.size() != 3) return std::nullopt;
    if (!read->product && read->mode != CUDNN_POINTWISE_ADD && read->mode != CUDNN_POINTWISE_GELU_FWD &&
        read->mode != CUDNN_POINTWISE_GELU_BWD)
      return std::nullopt;
    std::vector<Tensor> touched = read->inputs;
    touched.push_back(*read->output);
    for (const Tensor& t : touched)
      if (t.by_value || (!t.is_virtual && !t.Aligned())) return std::nullopt;
    operations.push_back(*read);
  }
  if (operations.empty() || !IsHalf(operations[0].inputs[0]) ||
      operations[0].inputs[0].type != operations[0].inputs[1].type)
    return std::nullopt;
  return operations;
}

// One execution of a plan.
struct Execution {
  std::vector<Operation> operations;
  std::map<int64_t, void*> places;
  char* workspace = nullptr;
  Way way;

  void Run() const {
    static const auto delay = std::chrono::microseconds(doubles::NumberFrom("CUDNN_DOUBLE_DELAY_US", 0, 0, 1'000'000));
    std::this_thread::sleep_for(delay + std::chrono::milliseconds(way.ms));
    if (workspace != nullptr) std::memset(workspace, 0x5A, kWorkspaceBytes);
    std::map<int64_t, std::vector<float>> values;  // of what operations gave, in row-major order
    for (const Operation& o : operations) {
      const Tensor& y = *o.output;
      std::vector<float> result = o.product ? Product(o) : Pointwise(o, values);
      for (int64_t i = 0; i < y.Elements(); ++i) {
        if (y.is_virtual) continue;
        void* const place = places.at(y.id);
        const int64_t at = y.At(i, y.dims);
        y.Set(place, at, result[static_cast<size_t>(i)]);
        result[static_cast<size_t>(i)] = y.Get(place, at);
      }
      values[y.id] = std::move(result);
    }
  }
  std::vector<float> Product(const Operation& o) const {
    const Tensor &a = o.inputs[0], &b = o.inputs[1], &c = *o.output;
    const int64_t batch = c.dims[0], m = c.dims[1], n = c.dims[2], k = a.dims[2];
    const void *const left = places.at(a.id), *const right = places.at(b.id);
    std::vector<float> result(static_cast<size_t>(batch * m * n));
    for (int64_t g = 0; g < batch; ++g)
      for (int64_t row = 0; row < m; ++row)
        for (int64_t p = 0; p < k; ++p) {
          const float factor = a.Get(left, g * a.strides[0] + row * a.strides[1] + p * a.strides[2]);
          const int64_t first = g * b.strides[0] + p * b.strides[1];
          for (int64_t column = 0; column < n; ++column)
            result[static_cast<size_t>((g * m + row) * n + column)] +=
                factor * b.Get(right, first + column * b.strides[2]);
        }
    return result;
  }
  std::vector<float> Pointwise(const Operation& o, const std::map<int64_t, std::vector<float>>& values) const {
    const Tensor& y = *o.output;
    const auto operand = [&](const Tensor& t, int64_t i) {
      const auto given = values.find(t.id);
      return given != values.end() ? given->second[static_cast<size_t>(i)] : t.Get(places.at(t.id), t.At(i, y.dims));
    };
    std::vector<float> result(static_cast<size_t>(y.Elements()));
    for (int64_t i = 0; i < y.Elements(); ++i) {
      const float x = operand(o.inputs[0], i);
      result[static_cast<size_t>(i)] = o.mode == CUDNN_POINTWISE_ADD        ? x + operand(o.inputs[1], i)
                                       : o.mode == CUDNN_POINTWISE_GELU_BWD ? x * GeluGradient(operand(o.inputs[1], i))
                                                                            : Gelu(x);
    }
    return result;
  }
};

bool Refuses(const char* what) {
  const char* const refused = std::getenv("CUDNN_DOUBLE_REFUSES");
  if (refused == nullptr) return false;
  if (std::strcmp(refused, "engines") != 0 && std::strcmp(refused, "plans") != 0)
    doubles::BadSetting("CUDNN_DOUBLE_REFUSES", refused, "engines or plans");
  return std::strcmp(refused, what) == 0;
}

// The graph that an engine, a configuration or a plan is for.
Shared GraphOf(const Descriptor& d) { return d.Child(CUDNN_ATTR_ENGINE_OPERATION_GRAPH); }

cudnnStatus_t Finalize(Descriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: {
      const Tensor t(d);
      const bool known = t.type == CUDNN_DATA_FLOAT || IsHalf(t);
      return known && !t.dims.empty() && t.dims.size() == t.strides.size() && t.id >= 0 ? CUDNN_STATUS_SUCCESS
                                                                                        : CUDNN_STATUS_BAD_PARAM;
    }
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return d.Child(CUDNN_ATTR_OPERATION_MATMUL_DESC) && IsConsistent(*Read(d)) ? CUDNN_STATUS_SUCCESS
                                                                                 : CUDNN_STATUS_BAD_PARAM;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return d.Child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR) && IsConsistent(*Read(d)) ? CUDNN_STATUS_SUCCESS
                                                                                             : CUDNN_STATUS_BAD_PARAM;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return d.attributes.count(CUDNN_ATTR_OPERATIONGRAPH_OPS) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR: {
      const Shared graph = GraphOf(d);
      d.engine = d.One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1);
      if (graph == nullptr || d.engine < 0) return CUDNN_STATUS_BAD_PARAM;
      return d.engine < kEngines && !Refuses("engines") && Fusible(*graph) ? CUDNN_STATUS_SUCCESS
                                                                           : CUDNN_STATUS_NOT_SUPPORTED;
    }
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: {
      const Shared engine = d.Child(CUDNN_ATTR_ENGINECFG_ENGINE), knob = d.Child(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
      if (engine == nullptr) return CUDNN_STATUS_BAD_PARAM;
      if (knob != nullptr) {
        d.kernel = knob->One<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, -1);
        if (engine->engine != 2 || d.kernel < 0 || d.kernel >= kKernels ||
            knob->One(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_KNOB_TYPE_COUNTS) != CUDNN_KNOB_TYPE_KERNEL_CFG)
          return CUDNN_STATUS_BAD_PARAM;
      }
      d.engine = engine->engine;
      d.attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH].descriptors = {GraphOf(*engine)};
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const Shared configuration = d.Child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      if (configuration == nullptr || d.One<void*>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, nullptr) == nullptr)
        return CUDNN_STATUS_BAD_PARAM;
      if (Refuses("plans")) return CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING;
      return Way(configuration->engine, configuration->kernel).supported ? CUDNN_STATUS_SUCCESS
                                                                         : CUDNN_STATUS_NOT_SUPPORTED;
    }
    default:
      return CUDNN_STATUS_SUCCESS;
  }
}

// A descriptor that the library fills: the caller has created it, and it comes back finalised.
cudnnStatus_t FillDescriptor(cudnnBackendDescriptor_t handle, cudnnBackendDescriptorType_t type, const Shared& graph,
                             int64_t engine) {
  Descriptor& d = *Of(handle).descriptor;
  if (d.type != type || d.finalized) return CUDNN_STATUS_BAD_PARAM;
  d.attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH].descriptors = {graph};
  d.engine = engine;
  d.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Heuristics(const Descriptor& d, int64_t capacity, int64_t* count, void* values) {
  const Shared graph = d.Child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  const auto mode = d.One(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_FALLBACK);
  if (graph == nullptr) return CUDNN_STATUS_BAD_PARAM;
  *count = mode == CUDNN_HEUR_MODE_A && !Refuses("engines") && Fusible(*graph) ? kOffered : 0;
  if (capacity == 0) return CUDNN_STATUS_SUCCESS;
  *count = std::min(*count, capacity);
  for (int64_t engine = 0; engine < *count; ++engine)
    if (const cudnnStatus_t status = FillDescriptor(static_cast<cudnnBackendDescriptor_t*>(values)[engine],
                                                    CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, graph, engine);
        status != CUDNN_STATUS_SUCCESS)
      return status;
  return CUDNN_STATUS_SUCCESS;
}

// Of engine 2, the one that says which kernel runs.
cudnnStatus_t Knobs(const Descriptor& d, int64_t capacity, int64_t* count, void* values) {
  *count = d.engine == 2 ? 1 : 0;
  if (*count == 0 || capacity == 0) return CUDNN_STATUS_SUCCESS;
  return FillDescriptor(*static_cast<cudnnBackendDescriptor_t*>(values), CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, nullptr,
                        d.engine);
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (!cudaDoubleHasContext()) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cudnnHandle_t>(new (std::nothrow) Context);
  return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<Context*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Context*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() {
  return static_cast<size_t>(doubles::NumberFrom("CUDNN_DOUBLE_VERSION", CUDNN_VERSION, 1, 10'000'000));
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING ? "a prerequisite of the double is missing"
                                                                           : "an error of the double";
}
void cudnnGetLastErrorString(char* text, size_t size) {
  if (size > 0) text[0] = '\0';
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* handle) {
  auto* owner = new (std::nothrow) Owner{std::make_shared<Descriptor>()};
  if (owner == nullptr) return CUDNN_STATUS_ALLOC_FAILED;
  owner->descriptor->type = type;
  *handle = owner;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t handle) {
  delete &Of(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  Descriptor& d = *Of(handle).descriptor;
  if (d.finalized || count < 1 || values == nullptr) return CUDNN_STATUS_BAD_PARAM;
  Attribute attribute{type, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      const Shared child = Of(static_cast<const cudnnBackendDescriptor_t*>(values)[i]).descriptor;
      if (!child->finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
      attribute.descriptors.push_back(child);
    }
  } else {
    const auto* const bytes = static_cast<const char*>(values);
    attribute.bytes.assign(bytes, bytes + static_cast<size_t>(count) * ElementBytes(type));
  }
  d.attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  Descriptor& d = *Of(handle).descriptor;
  if (d.finalized) return CUDNN_STATUS_BAD_PARAM;
  const cudnnStatus_t status = Finalize(d);
  d.finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t capacity, int64_t* count, void* values) {
  const Descriptor& d = *Of(handle).descriptor;
  if (!d.finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) return Heuristics(d, capacity, count, values);
  if (name == CUDNN_ATTR_ENGINE_KNOB_INFO) return Knobs(d, capacity, count, values);
  *count = 0;
  if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) return CUDNN_STATUS_SUCCESS;  // none
  if (capacity < 1) return CUDNN_STATUS_BAD_PARAM;
  *count = 1;
  switch (name) {
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      return FillDescriptor(*static_cast<cudnnBackendDescriptor_t*>(values), CUDNN_BACKEND_ENGINE_DESCRIPTOR,
                            GraphOf(d), d.engine);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      *static_cast<int64_t*>(values) = d.engine;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      *static_cast<int64_t*>(values) = kEngines;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_INFO_TYPE:
      *static_cast<cudnnBackendKnobType_t*>(values) = CUDNN_KNOB_TYPE_KERNEL_CFG;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE:
      *static_cast<int64_t*>(values) = kKernels - 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: {
      const Shared configuration = d.Child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      *static_cast<int64_t*>(values) = Way(configuration->engine, configuration->kernel).workspace_bytes;
      return CUDNN_STATUS_SUCCESS;
    }
    default:
      return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_handle,
                                  cudnnBackendDescriptor_t pack_handle) {
  const Descriptor &plan = *Of(plan_handle).descriptor, &pack = *Of(pack_handle).descriptor;
  if (!plan.finalized || !pack.finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  if (!cudaDoubleHasContext()) return CUDNN_STATUS_NOT_INITIALIZED;
  const Shared configuration = plan.Child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const auto operations = Fusible(*GraphOf(*configuration));
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto addresses = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (!operations || ids.size() != addresses.size()) return CUDNN_STATUS_BAD_PARAM;
  auto execution = std::make_unique<Execution>();
  execution->operations = *operations;
  execution->way = {configuration->engine, configuration->kernel};
  if (execution->way.workspace_bytes > 0) {
    execution->workspace = pack.One<char*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
    if (execution->workspace == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (reinterpret_cast<uintptr_t>(addresses[i]) % 16 != 0) return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    execution->places[ids[i]] = addresses[i];
  }
  // Every tensor that is not virtual has a place.
  for (const Operation& o : *operations) {
    std::vector<Tensor> touched = o.inputs;
    touched.push_back(*o.output);
    for (const Tensor& t : touched)
      if (!t.is_virtual && execution->places[t.id] == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  }
  static const char kernel = 0;
  const cudaError_t code = cudaDoubleLaunch(
      &kernel, reinterpret_cast<Context*>(handle)->stream,
      [](void* data) { static_cast<const Execution*>(data)->Run(); }, execution.release(),
      [](void* data) { delete static_cast<Execution*>(data); });
  return code == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
