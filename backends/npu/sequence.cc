#include "backends/npu/sequence.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace switchyard {
namespace {

constexpr uint64_t kScratchAlignment = 512;

aclDataType ToAcl(sy_dtype dtype) {
  switch (dtype) {
    case SY_F32:
      return ACL_FLOAT;
    case SY_BF16:
      return ACL_BF16;
    case SY_F16:
      return ACL_FLOAT16;
    case SY_I32:
      return ACL_INT32;
    case SY_U8:
      return ACL_UINT8;
    case SY_I64:
      return ACL_INT64;
    default:
      return ACL_DOUBLE;
  }
}

Dims Contiguous(const Dims& dims) {
  Dims strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

std::string ToText(const Dims& dims) {
  std::string text = "(";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + ")";
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

bool IsFloat(aclDataType dtype) { return dtype == ACL_FLOAT || dtype == ACL_BF16 || dtype == ACL_FLOAT16; }

}  // namespace

int64_t Count(const Dims& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

int64_t BytesOf(aclDataType dtype) {
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

Operand MakeOperand(Operand::Home home, size_t index, const sy_tensor& tensor) {
  Operand operand;
  operand.home = home;
  operand.index = index;
  operand.dtype = ToAcl(tensor.dtype);
  operand.dims.assign(tensor.dims, tensor.dims + tensor.rank);
  operand.strides.assign(tensor.strides, tensor.strides + tensor.rank);
  if (tensor.rank == 0) operand.dims = operand.strides = {1};
  return operand;
}

bool Operand::IsContiguous() const {
  const Dims wanted = Contiguous(dims);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1 && strides[i] != wanted[i]) return false;
  }
  return true;
}

Operand Operand::Reshaped(const Dims& to) const {
  Operand view = *this;
  view.dims = to.empty() ? Dims{1} : to;
  view.strides = Contiguous(view.dims);
  return view;
}

Operand Operand::Permuted(const std::vector<int>& axes) const {
  Operand view = *this;
  for (size_t i = 0; i < axes.size(); ++i) {
    view.dims[i] = dims[static_cast<size_t>(axes[i])];
    view.strides[i] = strides[static_cast<size_t>(axes[i])];
  }
  return view;
}

Operand Operand::Transposed() const {
  Operand view = *this;
  std::swap(view.dims[dims.size() - 1], view.dims[dims.size() - 2]);
  std::swap(view.strides[dims.size() - 1], view.strides[dims.size() - 2]);
  return view;
}

Operand Operand::ChannelsFirst() const {
  std::vector<int> axes = {0, static_cast<int>(dims.size()) - 1};
  for (int axis = 1; axis + 1 < static_cast<int>(dims.size()); ++axis) axes.push_back(axis);
  Operand view = Permuted(axes);
  view.format = dims.size() == 5 ? ACL_FORMAT_NCDHW : ACL_FORMAT_NCHW;
  return view;
}

Operand Operand::Part(size_t axis, int64_t begin, int64_t extent, int64_t step) const {
  Operand view = *this;
  view.offset += begin * strides[axis];
  view.dims[axis] = extent;
  view.strides[axis] *= step;
  return view;
}

Operand Operand::Expanded(const Dims& to) const {
  Operand view = *this;
  view.dims = to;
  view.strides.assign(to.size(), 0);
  const size_t lead = to.size() - dims.size();
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == to[lead + i]) view.strides[lead + i] = strides[i];
  }
  return view;
}

Handed::~Handed() {
  for (const aclTensor* each : tensors_) acl_.aclDestroyTensor(each);
  for (const aclScalar* each : scalars_) acl_.aclDestroyScalar(each);
  for (const aclIntArray* each : integers_) acl_.aclDestroyIntArray(each);
  for (const aclBoolArray* each : flags_) acl_.aclDestroyBoolArray(each);
}

aclTensor* Handed::To(const Operand& operand) {
  if (operand.home == Operand::kNone) return nullptr;
  if (next_.tensor < tensors_.size()) return tensors_[next_.tensor++];
  int64_t extent = operand.offset + 1;  // elements from the home's first to the view's last
  for (size_t i = 0; i < operand.dims.size(); ++i) extent += (operand.dims[i] - 1) * operand.strides[i];
  tensors_.push_back(acl_.aclCreateTensor(operand.dims.data(), operand.dims.size(), operand.dtype,
                                          operand.strides.data(), operand.offset, operand.format, &extent, 1,
                                          resolver_(operand)));
  return tensors_[next_.tensor++];
}

aclScalar* Handed::To(Scalar scalar) {
  if (next_.scalar < scalars_.size()) return scalars_[next_.scalar++];
  auto number = static_cast<float>(scalar.value);
  auto whole = static_cast<int32_t>(scalar.value);
  void* const value = scalar.dtype == ACL_INT32 ? static_cast<void*>(&whole) : &number;
  scalars_.push_back(acl_.aclCreateScalar(value, scalar.dtype));
  return scalars_[next_.scalar++];
}

aclIntArray* Handed::To(const Dims& values) {
  if (next_.integers < integers_.size()) return integers_[next_.integers++];
  integers_.push_back(acl_.aclCreateIntArray(values.data(), values.size()));
  return integers_[next_.integers++];
}

aclBoolArray* Handed::To(const Flags& flags) {
  if (next_.flags < flags_.size()) return flags_[next_.flags++];
  static_assert(sizeof(bool) == sizeof(uint8_t));
  flags_.push_back(acl_.aclCreateBoolArray(reinterpret_cast<const bool*>(flags.values.data()), flags.values.size()));
  return flags_[next_.flags++];
}

sy_status Request::Expect(size_t inputs_expected, size_t outputs_expected) const {
  if (inputs.size() == inputs_expected && outputs.size() == outputs_expected) return SY_OK;
  return Refuse(error, SY_UNSUPPORTED,
                Text(op, ": expected ", inputs_expected, " inputs and ", outputs_expected, " outputs, found ",
                     inputs.size(), " and ", outputs.size()));
}

sy_status Request::ExpectDims(const char* name, const Operand& operand, const Dims& dims) const {
  if (operand.dims == dims || (dims.empty() && operand.dims == Dims{1})) return SY_OK;
  return Refuse(error, SY_UNSUPPORTED,
                Text(op, ": expected ", name, " of ", ToText(dims), ", found ", ToText(operand.dims)));
}

sy_status Request::ExpectFloats(std::initializer_list<size_t> integer_inputs) const {
  const auto complain = [&](const char* what, size_t which, const char* wanted) {
    return Refuse(error, SY_UNSUPPORTED, Text(op, ": ", what, " ", which, " must be ", wanted));
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool integer = std::find(integer_inputs.begin(), integer_inputs.end(), i) != integer_inputs.end();
    if (integer && inputs[i].dtype != ACL_INT32) return complain("input", i, "i32");
    if (!integer && !IsFloat(inputs[i].dtype)) return complain("input", i, "f32, bf16 or f16");
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!IsFloat(outputs[o].dtype)) return complain("output", o, "f32, bf16 or f16");
  }
  return SY_OK;
}

Operand Sequence::Scratch(aclDataType dtype, const Dims& dims) {
  Operand operand;
  operand.home = Operand::kScratch;
  operand.start = top_;
  operand.dtype = dtype;
  operand.dims = dims;
  operand.strides = Contiguous(dims);
  const auto bytes = static_cast<uint64_t>(operand.count() * BytesOf(dtype));
  top_ += (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  highest_ = std::max(highest_, top_);
  return operand;
}

Operand Sequence::ConstantOf(const std::string& bytes, aclDataType dtype, size_t count) {
  Operand operand;
  operand.home = Operand::kConstant;
  operand.dtype = dtype;
  operand.dims = {static_cast<int64_t>(count)};
  operand.strides = {1};
  sy_error error{SY_HEADER(sy_error)};
  if (const sy_status status = device_.Constant(bytes, &operand.address, &error); status != SY_OK)
    Fail(status, error.message);
  return operand;
}

Operand Sequence::Constant(float value) { return Constant(std::vector<float>{value}); }

Operand Sequence::Constant(const std::vector<float>& values) {
  return ConstantOf(BytesOf(values), ACL_FLOAT, values.size());
}

Operand Sequence::Constant(const std::vector<int32_t>& values) {
  return ConstantOf(BytesOf(values), ACL_INT32, values.size());
}

Operand Sequence::Constant(const std::vector<int64_t>& values) {
  return ConstantOf(BytesOf(values), ACL_INT64, values.size());
}

Operand Sequence::Indices(int64_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return Constant(values);
}

Operand Sequence::Wide(const Operand& x) {
  if (x.dtype == ACL_FLOAT) return x;
  const Operand wide = Scratch(ACL_FLOAT, x.dims);
  Emit(op.Cast, x, ACL_FLOAT, wide);
  return wide;
}

Operand Sequence::Dense(const Operand& x) {
  if (x.IsContiguous()) return x;
  const Operand dense = Scratch(x.dtype, x.dims);
  Emit(op.InplaceCopy, dense, x);
  return dense;
}

void Sequence::Store(const Operand& value, const Operand& to, bool accumulate) {
  if (accumulate) {
    const Scope scope(*this);
    const Operand sum = Add(Wide(to), Wide(value), 1, &to);
    if (!sum.SamePlaceAs(to)) Store(sum, to);
  } else if (value.dtype == to.dtype) {
    Emit(op.InplaceCopy, to, value);
  } else {
    Emit(op.Cast, value.Expanded(to.dims), to.dtype, to);
  }
}

Operand Sequence::Destination(const Request& request, size_t o) {
  const Operand& output = request.outputs[o];
  return output.dtype == ACL_FLOAT && !request.accumulate[o] ? output : Scratch(ACL_FLOAT, output.dims);
}

sy_status Sequence::Deliver(const Request& request, size_t o, const Operand& value) {
  if (!value.SamePlaceAs(request.outputs[o])) Store(value, request.outputs[o], request.accumulate[o] != 0);
  return SY_OK;
}

Operand Sequence::Add(const Operand& a, const Operand& b, double alpha, const Operand* into) {
  const Operand to = Result(BroadcastDims(a, b), into);
  Emit(op.Add, a, b, Scalar{alpha}, to);
  return to;
}

Operand Sequence::Sub(const Operand& a, const Operand& b, const Operand* into) {
  const Operand to = Result(BroadcastDims(a, b), into);
  Emit(op.Sub, a, b, Scalar{1}, to);
  return to;
}

Operand Sequence::Scaled(const Operand& a, double factor, const Operand* into) {
  const Operand to = Result(a.dims, into);
  Emit(op.Muls, a, Scalar{factor}, to);
  return to;
}

Operand Sequence::Plus(const Operand& a, double term, const Operand* into) {
  const Operand to = Result(a.dims, into);
  Emit(op.Adds, a, Scalar{term}, Scalar{1}, to);
  return to;
}

Operand Sequence::Where(const Operand& condition, const Operand& a, const Operand& b, const Operand* into) {
  Operand shape = a;
  shape.dims = BroadcastDims(a, b);
  const Operand to = Result(BroadcastDims(condition, shape), into);
  Emit(op.SWhere, condition, a, b, to);
  return to;
}

Operand Sequence::Sum(const Operand& a, const Dims& axes, bool keep) {
  Dims kept = a.dims, dropped;
  for (const int64_t axis : axes) kept[static_cast<size_t>(axis)] = 1;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) == axes.end()) dropped.push_back(kept[i]);
  }
  const Operand to = Scratch(ACL_FLOAT, kept);
  Emit(op.ReduceSum, a, axes, true, ACL_FLOAT, to);
  return keep ? to : to.Reshaped(dropped);
}

Operand Sequence::Matmul(const Operand& a, const Operand& b) {
  Dims dims = a.dims;
  dims.back() = b.dims.back();
  const Operand to = Scratch(a.dtype, dims);
  Emit(op.Matmul, a, b, to, int8_t{0});
  return to;
}

sy_status Sequence::Finished(sy_error* error) const {
  if (status_ != SY_OK && error != nullptr) FillStruct(error, error_);
  return status_;
}

Dims Sequence::BroadcastDims(const Operand& a, const Operand& b) {
  Dims dims = a.dims.size() >= b.dims.size() ? a.dims : b.dims;
  const Dims& shorter = a.dims.size() >= b.dims.size() ? b.dims : a.dims;
  const size_t lead = dims.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    if (dims[lead + i] == 1) dims[lead + i] = shorter[i];
  }
  return dims;
}

void Sequence::Fail(sy_status status, const std::string& message) {
  if (status_ != SY_OK) return;
  status_ = status;
  Refuse(&error_, status, message);
}

}  // namespace switchyard
