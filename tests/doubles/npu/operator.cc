#include "tests/doubles/npu/operator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace simulator {

int64_t Count(const Dims& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

size_t SizeOf(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT16:
    case ACL_BF16:
      return 2;
    case ACL_UINT8:
    case ACL_BOOL:
      return 1;
    case ACL_INT64:
    case ACL_DOUBLE:
      return 8;
    default:
      return 4;
  }
}

std::string ToText(const Dims& dims) {
  std::string text = "(";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + ")";
}

bool IsFloat(aclDataType dtype) { return dtype == ACL_FLOAT || dtype == ACL_FLOAT16 || dtype == ACL_BF16; }

bool IsContiguous(const aclTensor& tensor) {
  int64_t stride = 1;
  for (size_t i = tensor.dims.size(); i-- > 0;) {
    if (tensor.dims[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.dims[i];
  }
  return true;
}

bool Broadcast(const Dims& a, const Dims& b, Dims* result) {
  const Dims &longer = a.size() >= b.size() ? a : b, &shorter = a.size() >= b.size() ? b : a;
  *result = longer;
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& dim = (*result)[longer.size() - shorter.size() + i];
    if (dim == 1) dim = shorter[i];
    if (shorter[i] != 1 && shorter[i] != dim) return false;
  }
  return true;
}

char* Begin(const aclTensor& tensor) {
  if (!*tensor.alive) return nullptr;
  int64_t extent = 1;
  for (size_t i = 0; i < tensor.dims.size(); ++i) extent += (tensor.dims[i] - 1) * tensor.strides[i];
  const size_t size = SizeOf(tensor.dtype);
  return Translate(static_cast<char*>(tensor.address) + static_cast<size_t>(tensor.offset) * size,
                   static_cast<size_t>(extent) * size);
}

float ToFloat(uint16_t half, aclDataType dtype) {
  uint32_t bits;
  float value;
  if (dtype == ACL_BF16) {
    bits = uint32_t{half} << 16;
  } else {
    const uint32_t sign = uint32_t{half} >> 15 << 31, exponent = half >> 10 & 31, mantissa = half & 1023;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(mantissa), -24);
    bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
  }
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t ToHalf(float value, aclDataType dtype) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (dtype == ACL_BF16) {
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 64);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7E00;
  if (magnitude >= 65520) return sign | 0x7C00;  // rounds to infinity
  if (magnitude < 0x1p-14f) return static_cast<uint16_t>(sign | std::lrint(std::ldexp(magnitude, 24)));
  std::memcpy(&bits, &magnitude, sizeof bits);
  bits += 0xFFF + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | ((bits >> 13) - (112u << 10)));
}

double ReadElement(const char* address, aclDataType dtype) {
  const auto as = [address](auto value) {
    std::memcpy(&value, address, sizeof value);
    return value;
  };
  switch (dtype) {
    case ACL_FLOAT:
      return static_cast<double>(as(float{}));
    case ACL_INT32:
      return static_cast<double>(as(int32_t{}));
    case ACL_INT64:
      return static_cast<double>(as(int64_t{}));
    case ACL_UINT8:
    case ACL_BOOL:
      return static_cast<double>(as(uint8_t{}));
    default:
      return double{ToFloat(as(uint16_t{}), dtype)};
  }
}

void WriteElement(char* address, aclDataType dtype, double value) {
  const auto put = [address](auto element) { std::memcpy(address, &element, sizeof element); };
  switch (dtype) {
    case ACL_FLOAT:
      return put(static_cast<float>(value));
    case ACL_INT32:
      return put(static_cast<int32_t>(std::isnan(value) ? 0 : std::clamp(value, -2147483648.0, 2147483647.0)));
    case ACL_INT64:
      return put(static_cast<int64_t>(value));
    case ACL_BOOL:
      return put(static_cast<uint8_t>(value != 0));
    case ACL_UINT8:
      return put(static_cast<uint8_t>(std::isnan(value) ? 0 : std::clamp(value, 0.0, 255.0)));
    default:
      return put(ToHalf(static_cast<float>(value), dtype));
  }
}

template <typename T>
Read<T>::Read(const aclTensor& tensor, const Dims& dims) {
  const char* begin = Begin(tensor);
  if (begin == nullptr) {
    valid_ = false;
    return;
  }
  if (std::is_same_v<T, float> && tensor.dtype == ACL_FLOAT && IsContiguous(tensor) && tensor.dims == dims) {
    direct_ = reinterpret_cast<const T*>(begin);
    return;
  }
  Dims strides(dims.size(), 0);
  const size_t lead = dims.size() - tensor.dims.size();
  for (size_t i = 0; i < tensor.dims.size(); ++i) {
    if (tensor.dims[i] != 1) strides[lead + i] = tensor.strides[i];
  }
  own_.resize(static_cast<size_t>(Count(dims)));
  const size_t size = SizeOf(tensor.dtype);
  if (tensor.dtype == ACL_FLOAT) {
    const auto* floats = reinterpret_cast<const float*>(begin);
    ForEach(dims, strides,
            [&](int64_t at, int64_t from) { own_[static_cast<size_t>(at)] = static_cast<T>(floats[from]); });
  } else {
    ForEach(dims, strides, [&](int64_t at, int64_t from) {
      own_[static_cast<size_t>(at)] =
          static_cast<T>(ReadElement(begin + static_cast<size_t>(from) * size, tensor.dtype));
    });
  }
}
template class Read<float>;
template class Read<double>;

Write::Write(const aclTensor& tensor) : tensor_(tensor), begin_(Begin(tensor)) {
  if (tensor.dtype == ACL_FLOAT && IsContiguous(tensor)) {
    direct_ = reinterpret_cast<float*>(begin_);
  } else {
    own_.resize(static_cast<size_t>(Count(tensor.dims)));
  }
}

void Write::Finish() {
  if (direct_ != nullptr) return;
  const size_t size = SizeOf(tensor_.dtype);
  ForEach(tensor_.dims, tensor_.strides, [&](int64_t at, int64_t to) {
    WriteElement(begin_ + static_cast<size_t>(to) * size, tensor_.dtype, double{own_[static_cast<size_t>(at)]});
  });
}

Outcome LostMemory(const char* name) {
  return {ACL_ERROR_RT_AICORE_EXCEPTION,
          std::string(name) + " touches device memory that is not allocated, or a tensor that was destroyed"};
}

Planner& Planner::Need(bool condition, const std::string& complaint) {
  if (ok() && !condition) code_ = Fail(kInvalid, std::string(name_) + ": " + complaint);
  return *this;
}

Planner::Planner(const char* name) : name_(name) {
  const char* refused = std::getenv("SWITCHYARD_NPU_SIMULATOR_REFUSES");
  Need(refused == nullptr || std::string(refused) != name, "this product does not have it");
}

Planner& Planner::Known(std::initializer_list<const aclTensor*> tensors) {
  for (const aclTensor* tensor : tensors) {
    if (!ok()) break;
    if (tensor == nullptr) {
      code_ = Fail(kNullPointer, std::string(name_) + ": a tensor is null");
      break;
    }
    Need(!tensor->dims.empty() && tensor->dims.size() <= 8, "1 to 8 axes are supported");
  }
  return *this;
}

Planner& Planner::Takes(std::initializer_list<const aclTensor*> tensors) {
  Known(tensors);
  for (const aclTensor* tensor : tensors) {
    if (ok()) Need(tensor->dtype != ACL_INT64 && tensor->dtype != ACL_DOUBLE, "64-bit elements are not supported");
  }
  return *this;
}

Planner& Planner::Floats(std::initializer_list<const aclTensor*> tensors) {
  Takes(tensors);
  for (const aclTensor* tensor : tensors) {
    if (ok())
      Need(IsFloat(tensor->dtype), "expected FLOAT, FLOAT16 or BFLOAT16, found dtype " + std::to_string(tensor->dtype));
  }
  return *this;
}

Planner& Planner::SameDtype(std::initializer_list<const aclTensor*> tensors) {
  for (const aclTensor* tensor : tensors) {
    if (ok()) Need(tensor->dtype == (*tensors.begin())->dtype, "the dtypes of its tensors differ");
  }
  return *this;
}

Planner& Planner::Shape(const aclTensor* tensor, const Dims& dims) {
  return ok() ? Need(tensor->dims == dims, "expected shape " + ToText(dims) + ", found " + ToText(tensor->dims))
              : *this;
}

aclnnStatus Planner::Give(Work work, uint64_t workspace_bytes, uint64_t* workspaceSize, aclOpExecutor** executor) {
  if (!ok()) return code_;
  *workspaceSize = workspace_bytes;
  *executor = new aclOpExecutor{name_, std::move(work), workspace_bytes};
  return ACL_SUCCESS;
}

aclnnStatus Launch(void* workspace, uint64_t workspace_bytes, aclOpExecutor* executor, aclrtStream stream) {
  if (executor == nullptr) return Fail(kNullPointer, "the executor is null");
  if (workspace_bytes < executor->workspace_bytes)
    return Fail(kInvalid, std::string(executor->name) + ": the workspace is smaller than it asked for");
  const aclError code = Enqueue(
      stream,
      [name = executor->name, work = executor->work, workspace, bytes = executor->workspace_bytes]() -> Outcome {
        if (bytes > 0) {
          char* scratch = Translate(workspace, bytes);
          if (scratch == nullptr) return LostMemory(name);
          std::memset(scratch, 0xEE, bytes);  // an operator's own scratch overlaps nothing that is needed
        }
        return work();
      });
  if (!executor->repeatable) delete executor;
  return code;
}

}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                                      const int64_t* stride, int64_t offset, aclFormat format, const int64_t*, uint64_t,
                                      void* tensorData) {
  return new aclTensor{
      dataType, Dims(viewDims, viewDims + viewDimsNum), Dims(stride, stride + viewDimsNum), offset, tensorData, format};
}
NPU_EXPORT aclnnStatus aclDestroyTensor(const aclTensor* tensor) {
  *tensor->alive = false;
  delete tensor;
  return ACL_SUCCESS;
}

NPU_EXPORT aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  if (dataType == ACL_INT64 || dataType == ACL_DOUBLE) return nullptr;
  return new aclScalar{ReadElement(static_cast<const char*>(value), dataType), dataType};
}
NPU_EXPORT aclnnStatus aclDestroyScalar(const aclScalar* scalar) {
  delete scalar;
  return ACL_SUCCESS;
}

NPU_EXPORT aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return new aclIntArray{Dims(value, value + size)};
}
NPU_EXPORT aclnnStatus aclDestroyIntArray(const aclIntArray* array) {
  delete array;
  return ACL_SUCCESS;
}

NPU_EXPORT aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return new aclBoolArray{std::vector<bool>(value, value + size)};
}
NPU_EXPORT aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) {
  delete array;
  return ACL_SUCCESS;
}

NPU_EXPORT aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  if (executor == nullptr) return Fail(kInner, "the executor is null");
  const char* once = std::getenv("SWITCHYARD_NPU_SIMULATOR_ONCE");
  if (!executor->may_repeat || (once != nullptr && std::strcmp(once, executor->name) == 0))
    return Fail(kInner, std::string(executor->name) + " cannot be made repeatable here");
  executor->repeatable = true;
  return ACL_SUCCESS;
}
NPU_EXPORT aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  delete executor;
  return ACL_SUCCESS;
}

#define NPU_SECOND_PHASE(name, ...)                                                                    \
  NPU_EXPORT aclnnStatus aclnn##name(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, \
                                     aclrtStream stream) {                                             \
    return Launch(workspace, workspaceSize, executor, stream);                                         \
  }
NPU_OPERATORS(NPU_SECOND_PHASE)
