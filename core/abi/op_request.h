// For plugins written in C++: one call of prepare, copied and checked. A plugin derives its own Request from OpRequest,
// reads the call with ReadOpRequest, and lets each op say what it demands:
//
//   if (!r.HasCounts(1, 1, 1) || !r.RequireFloat(r.inputs[0], "x")) return refused;
//
// Each Has… and Require… is false, and has filled the request's error with the op's name, what was expected and what
// was found, unless what it says holds. Pure functions, thread-safe.
#ifndef SWITCHYARD_ABI_OP_REQUEST_H_
#define SWITCHYARD_ABI_OP_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/abi/boundary.h"
#include "core/abi/kernel.h"

namespace switchyard {

inline int64_t Elements(const sy_tensor& tensor) {
  int64_t n = 1;
  for (int i = 0; i < tensor.rank; ++i) n *= tensor.dims[i];
  return n;
}

inline int64_t DtypeBytes(sy_dtype dtype) { return sy_dtype_bits(dtype) / 8; }
inline const char* TypeName(sy_dtype dtype) { return sy_dtype_name(dtype); }

inline int64_t Bytes(const sy_tensor& tensor) { return Elements(tensor) * DtypeBytes(tensor.dtype); }
inline bool IsFloat(sy_dtype dtype) { return dtype == SY_F32 || dtype == SY_BF16 || dtype == SY_F16; }

inline bool IsContiguous(const sy_tensor& tensor) {
  int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.dims[i] > 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.dims[i];
  }
  return true;
}

inline bool SameDims(const sy_tensor& a, const sy_tensor& b) {
  return a.rank == b.rank && std::equal(a.dims, a.dims + a.rank, b.dims);
}

// "(2, 3)"
inline std::string DimsText(const int64_t* dims, size_t rank) {
  std::string text = "(";
  for (size_t i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + ")";
}

// Refuses a request, with the op's name and a reason; the value is SY_UNSUPPORTED.
#define SY_REFUSE_OP(request, ...)                      \
  ::switchyard::Refuse((request).error, SY_UNSUPPORTED, \
                       std::string((request).op) + ": " + ::switchyard::Format(__VA_ARGS__))

struct OpRequest {
  const char* op = "";  // lives as long as the plugin
  std::vector<sy_tensor> inputs, outputs;
  std::vector<uint8_t> accumulate;  // one per output: add to what it holds
  const void* attributes = nullptr;
  uint32_t attributes_size = 0;
  uint64_t workspace_limit = 0;  // bytes
  uint32_t tuning = 0;           // SY_TUNING_*
  uint32_t determinism = 0;      // SY_DETERMINISM_*: the least that is required
  sy_error* error = nullptr;

  // The op's attributes; fields that an older caller does not know are zero.
  template <typename T>
  T Attributes() const {
    T result = {};
    if (attributes) std::memcpy(&result, attributes, std::min<size_t>(attributes_size, sizeof(T)));
    return result;
  }

  bool HasCounts(size_t least_inputs, size_t most_inputs, size_t outputs_wanted) const {
    if (inputs.size() >= least_inputs && inputs.size() <= most_inputs && outputs.size() == outputs_wanted) return true;
    SY_REFUSE_OP(*this, "%zu inputs and %zu outputs, expected %zu to %zu and %zu", inputs.size(), outputs.size(),
                 least_inputs, most_inputs, outputs_wanted);
    return false;
  }
  bool RequireFloat(const sy_tensor& tensor, const char* name) const {
    if (IsFloat(tensor.dtype)) return true;
    SY_REFUSE_OP(*this, "%s has dtype %s, expected f32, bf16 or f16", name, TypeName(tensor.dtype));
    return false;
  }
  bool RequireDtype(const sy_tensor& tensor, sy_dtype dtype, const char* name) const {
    if (tensor.dtype == dtype) return true;
    SY_REFUSE_OP(*this, "%s has dtype %s, expected %s", name, TypeName(tensor.dtype), TypeName(dtype));
    return false;
  }
  bool RequireElements(const sy_tensor& tensor, int64_t elements, const char* name) const {
    if (Elements(tensor) == elements) return true;
    SY_REFUSE_OP(*this, "%s has %lld elements, expected %lld", name, static_cast<long long>(Elements(tensor)),
                 static_cast<long long>(elements));
    return false;
  }
  bool RequireDims(const sy_tensor& tensor, const std::vector<int64_t>& dims, const char* name) const {
    const auto rank = static_cast<size_t>(tensor.rank);
    if (rank == dims.size() && std::equal(dims.begin(), dims.end(), tensor.dims)) return true;
    SY_REFUSE_OP(*this, "%s has dims %s, expected %s", name, DimsText(tensor.dims, rank).c_str(),
                 DimsText(dims.data(), dims.size()).c_str());
    return false;
  }
  bool RequireDimsOf(const sy_tensor& tensor, const sy_tensor& like, const char* name) const {
    return RequireDims(tensor, std::vector<int64_t>(like.dims, like.dims + like.rank), name);
  }
  // y: the dims of x with each axis whose bit is set at 1, or without them; also (1) where none is left.
  bool RequireReduced(const sy_tensor& x, uint32_t axes, const sy_tensor& y) const {
    std::vector<int64_t> kept, left;
    for (int d = 0; d < x.rank; ++d) {
      const bool reduced = axes >> d & 1;
      kept.push_back(reduced ? 1 : x.dims[d]);
      if (!reduced) left.push_back(x.dims[d]);
    }
    const std::vector<int64_t> found(y.dims, y.dims + y.rank);
    if (axes >> x.rank == 0 && (found == kept || found == left || (left.empty() && found == std::vector<int64_t>{1})))
      return true;
    SY_REFUSE_OP(*this, "y has dims %s, which are not those of x, %s, without the axes of the mask %#x",
                 DimsText(y.dims, found.size()).c_str(), DimsText(x.dims, kept.size()).c_str(), axes);
    return false;
  }
  bool RequireContiguous() const {  // every tensor
    for (const auto* tensors : {&inputs, &outputs}) {
      for (const sy_tensor& tensor : *tensors) {
        if (!IsContiguous(tensor)) return SY_REFUSE_OP(*this, "takes contiguous tensors only"), false;
      }
    }
    return true;
  }
  bool Accumulates() const {  // any output
    return std::any_of(accumulate.begin(), accumulate.end(), [](uint8_t flag) { return flag != 0; });
  }
  bool RequireNoAccumulation() const {
    if (!Accumulates()) return true;
    SY_REFUSE_OP(*this, "cannot accumulate");
    return false;
  }
};

// Copies `given` (a ReadStruct) into *request. SY_INVALID, with a message, for what no edition allows: a missing
// pointer, a tensor of impossible rank, extents or size. SY_UNSUPPORTED for what another edition may mean: a version of
// the op other than 1, an unknown dtype, attributes that are more than `attribute_bytes` (0: the op has none) and not
// zero there, an extension that must be understood. What `request` then holds is sound; strides may be any.
inline sy_status ReadOpRequest(const sy_prepare_request& given, const char* op, size_t attribute_bytes,
                               OpRequest* request, sy_error* error) {
  if (!KnowsExtensions(&given, error)) return SY_UNSUPPORTED;
  if (given.op_version != 1) return SY_FAIL(error, SY_UNSUPPORTED, "%s: version %u, known is 1", op, given.op_version);
  if (attribute_bytes > 0 && (given.attributes == nullptr || given.attributes_size == 0)) {
    return SY_FAIL(error, SY_INVALID, "%s: no attributes, expected %zu bytes (core/abi/ops.h names the struct)", op,
                   attribute_bytes);
  }
  const auto* const bytes_of_attributes = static_cast<const char*>(given.attributes);
  for (size_t i = attribute_bytes; bytes_of_attributes != nullptr && i < given.attributes_size; ++i) {
    if (bytes_of_attributes[i] != 0) {
      return SY_FAIL(error, SY_UNSUPPORTED, "%s: %u bytes of attributes, of which the plugin knows %zu", op,
                     given.attributes_size, attribute_bytes);
    }
  }
  if ((given.input_count > 0 && given.inputs == nullptr) || (given.output_count > 0 && given.outputs == nullptr))
    return SY_FAIL(error, SY_INVALID, "%s: the request points to no tensors", op);
  request->op = op;
  request->error = error;
  request->inputs.assign(given.inputs, given.inputs + given.input_count);
  request->outputs.assign(given.outputs, given.outputs + given.output_count);
  for (const auto* tensors : {&request->inputs, &request->outputs}) {
    for (const sy_tensor& tensor : *tensors) {
      if (tensor.rank < 0 || tensor.rank > SY_MAX_RANK)
        return SY_FAIL(error, SY_INVALID, "%s: a tensor of rank %d", op, tensor.rank);
      if (sy_dtype_bits(tensor.dtype) == 0)
        return SY_FAIL(error, SY_UNSUPPORTED, "%s: the dtype %d is unknown", op, tensor.dtype);
      int64_t bytes = DtypeBytes(tensor.dtype);
      for (int i = 0; i < tensor.rank; ++i) {
        if (tensor.dims[i] < 1 || tensor.strides[i] < 0) {
          return SY_FAIL(error, SY_INVALID, "%s: an extent of %lld with stride %lld", op,
                         static_cast<long long>(tensor.dims[i]), static_cast<long long>(tensor.strides[i]));
        }
        if (__builtin_mul_overflow(bytes, tensor.dims[i], &bytes))
          return SY_FAIL(error, SY_INVALID, "%s: a tensor of more than 2^63 bytes", op);
      }
    }
  }
  request->accumulate.assign(given.output_count, 0);
  if (given.accumulate) request->accumulate.assign(given.accumulate, given.accumulate + given.output_count);
  request->attributes = given.attributes;
  request->attributes_size = given.attributes_size;
  request->workspace_limit = given.workspace_limit;
  request->tuning = given.tuning;
  request->determinism = given.determinism;
  return SY_OK;
}

}  // namespace switchyard

#endif  // SWITCHYARD_ABI_OP_REQUEST_H_
