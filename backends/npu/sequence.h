// What an op becomes here: a sequence of the runtime's operators over views of the kernel's inputs, outputs, scratch
// and constants. An op file builds one from shapes alone; prepare sizes it, bind turns it into executors at
// addresses.
//
//   const Operand y = s.Destination(r, 0);                    // f32: output 0, or scratch that Deliver stores there
//   s.Emit(op.Softmax, s.Wide(x), int64_t{axis}, y);          // any operator, operands by value
//   return s.Deliver(r, 0, y);
//
// Arithmetic is in f32 whatever the tensors hold (the ABI's rule); Wide and Deliver convert at the edges. Scratch is a
// stack: what a Scope's lifetime took is free after it, as operators run in order. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/npu/device.h"
#include "core/abi/boundary.h"
#include "core/abi/kernel.h"
#include "core/abi/ops.h"

namespace switchyard {

using Dims = std::vector<int64_t>;
int64_t Count(const Dims& dims);
int64_t BytesOf(aclDataType dtype);  // of one element

// A strided view of the bytes at `home`. Dims, strides and offset are in elements; there is at least one axis.
struct Operand {
  enum Home { kInput, kOutput, kScratch, kConstant, kNone };
  Home home = kNone;
  size_t index = 0;         // kInput, kOutput: which
  uint64_t start = 0;       // kScratch: byte offset
  void* address = nullptr;  // kConstant
  aclDataType dtype = ACL_FLOAT;
  Dims dims, strides;
  int64_t offset = 0;
  aclFormat format = ACL_FORMAT_ND;  // what its axes mean, for operators that ask

  int64_t count() const { return Count(dims); }
  bool IsContiguous() const;
  Operand Reshaped(const Dims& to) const;                // of a contiguous operand, to as many elements
  Operand Permuted(const std::vector<int>& axes) const;  // result axis i is axis axes[i]
  Operand Transposed() const;                            // the last two axes swapped
  Operand ChannelsFirst() const;                         // of (N, spatial, C) the view (N, C, spatial), so named
  Operand Part(size_t axis, int64_t begin, int64_t extent, int64_t step = 1) const;
  Operand Expanded(const Dims& to) const;  // axes of extent 1 and missing leading ones repeated (stride 0)
  // Whether both begin in the same allocation: what was written to one needs no copy to the other.
  bool SamePlaceAs(const Operand& other) const {
    return home == other.home && index == other.index && start == other.start;
  }
};
Operand MakeOperand(Operand::Home home, size_t index, const sy_tensor& tensor);

struct Scalar {
  double value;
  aclDataType dtype = ACL_FLOAT;  // or ACL_INT32
};
struct Flags {  // an aclBoolArray
  std::vector<uint8_t> values;
};

// The tensors, scalars and arrays that one round of planning handed to operators; they live as long as its executors.
class Handed {
 public:
  // Where an operand's home lies; nullptr everywhere while sizes are asked.
  using Resolver = std::function<char*(const Operand&)>;
  Handed(const Runtime& acl, Resolver resolver) : acl_(acl), resolver_(std::move(resolver)) {}
  Handed(const Handed&) = delete;
  Handed& operator=(const Handed&) = delete;
  ~Handed();

  // From here on the same objects once more, in the order in which they were asked for.
  void Again() { next_ = {}; }
  aclTensor* To(const Operand& operand);  // Operand of home kNone: an absent optional tensor
  aclScalar* To(Scalar scalar);
  aclIntArray* To(const Dims& values);
  aclBoolArray* To(const Flags& flags);
  template <typename Plain>
  Plain To(Plain value) {
    return value;
  }

 private:
  const Runtime& acl_;
  Resolver resolver_;
  std::vector<aclTensor*> tensors_;
  std::vector<aclScalar*> scalars_;
  std::vector<aclIntArray*> integers_;
  std::vector<aclBoolArray*> flags_;
  struct {
    size_t tensor = 0, scalar = 0, integers = 0, flags = 0;
  } next_;
};

struct Step {
  const char* name;
  std::function<aclnnStatus(Handed&, uint64_t* workspace, aclOpExecutor** executor)> plan;
  RunFunction run;
};

// One prepare call, checked as far as all ops share it. In a region, operands lie where the region put them.
struct Request {
  std::string op;
  const void* attributes = nullptr;
  uint32_t attributes_size = 0;
  std::vector<Operand> inputs, outputs;
  std::vector<uint8_t> accumulate;  // one per output
  std::vector<int32_t> inplace;     // one per output, -1; builders may allow more
  sy_error* error = nullptr;

  // The op's attributes; fields that an older caller does not know are zero.
  template <typename T>
  T Attributes() const {
    T result{};
    if (attributes != nullptr) std::memcpy(&result, attributes, std::min<size_t>(attributes_size, sizeof(T)));
    return result;
  }
  // SY_OK, or SY_UNSUPPORTED with what was expected and found.
  sy_status Expect(size_t inputs_expected, size_t outputs_expected) const;
  sy_status ExpectDims(const char* name, const Operand& operand, const Dims& dims) const;
  sy_status ExpectFloats(std::initializer_list<size_t> integer_inputs = {}) const;
};

class Sequence {
 public:
  Sequence(sy_device& device, const Operators& operators) : op(operators), device_(device) {}
  const Operators& op;

  // Appends operator(arguments …); its parameters are what To of each argument gives.
  template <typename Plan, typename... Arguments>
  void Emit(const Operator<Plan>& which, const Arguments&... arguments) {
    if (which.plan == nullptr || which.run == nullptr) {
      Fail(SY_UNSUPPORTED, Text("the NPU runtime has no ", which.name));
      return;
    }
    const auto plan = which.plan;
    steps_.push_back({which.name,
                      [plan, arguments...](Handed& handed, uint64_t* workspace, aclOpExecutor** executor) {
                        return plan(handed.To(arguments)..., workspace, executor);
                      },
                      which.run});
  }

  Operand Scratch(aclDataType dtype, const Dims& dims);
  Operand Constant(float value);                       // f32 (1)
  Operand Constant(const std::vector<float>& values);  // f32
  Operand Constant(const std::vector<int32_t>& values);
  Operand Constant(const std::vector<int64_t>& values);
  Operand Indices(int64_t count);  // i32 (count): 0, 1, 2 …

  // f32, converted if need be.
  Operand Wide(const Operand& x);
  // A contiguous copy, or `x` where it is contiguous.
  Operand Dense(const Operand& x);
  // Writes `value` to `to`, converting the dtype; added to what is there if `accumulate`.
  void Store(const Operand& value, const Operand& to, bool accumulate = false);
  // An f32 place to compute output `o` in, and what brings it to the output.
  Operand Destination(const Request& request, size_t o);
  sy_status Deliver(const Request& request, size_t o, const Operand& value);

  // f32 and elementwise with broadcasting; computed in `into` where it is given and has the result's dims, else in new
  // scratch.
  Operand Result(const Dims& dims, const Operand* into) {
    return into != nullptr && into->dtype == ACL_FLOAT && into->dims == dims ? *into : Scratch(ACL_FLOAT, dims);
  }
  template <typename Plan>
  Operand Unary(const Operator<Plan>& which, const Operand& a, const Operand* into = nullptr) {
    const Operand to = Result(a.dims, into);
    Emit(which, a, to);
    return to;
  }
  template <typename Plan>
  Operand Binary(const Operator<Plan>& which, const Operand& a, const Operand& b, const Operand* into = nullptr) {
    const Operand to = Result(BroadcastDims(a, b), into);
    Emit(which, a, b, to);
    return to;
  }
  Operand Add(const Operand& a, const Operand& b, double alpha = 1, const Operand* into = nullptr);  // a + alpha·b
  Operand Sub(const Operand& a, const Operand& b, const Operand* into = nullptr);
  Operand Mul(const Operand& a, const Operand& b, const Operand* into = nullptr) { return Binary(op.Mul, a, b, into); }
  Operand Scaled(const Operand& a, double factor, const Operand* into = nullptr);
  Operand Plus(const Operand& a, double term, const Operand* into = nullptr);
  Operand Where(const Operand& condition, const Operand& a, const Operand& b, const Operand* into = nullptr);
  // A comparison as bool, for Where.
  template <typename Plan>
  Operand Holds(const Operator<Plan>& which, const Operand& a, const Operand& b) {
    const Operand to = Scratch(ACL_BOOL, BroadcastDims(a, b));
    Emit(which, a, b, to);
    return to;
  }
  // f32, over `axes`, which stay with extent 1 if `keep`.
  Operand Sum(const Operand& a, const Dims& axes, bool keep);
  Operand Matmul(const Operand& a, const Operand& b);  // of equal dtypes, in that dtype

  // Scratch taken in its lifetime is given back at its end.
  class Scope {
   public:
    explicit Scope(Sequence& sequence) : sequence_(sequence), top_(sequence.top_) {}
    ~Scope() { sequence_.top_ = top_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Sequence& sequence_;
    const uint64_t top_;
  };

  const std::vector<Step>& steps() const { return steps_; }
  uint64_t scratch_bytes() const { return highest_; }
  // The first failure of building, also into `error`.
  sy_status Finished(sy_error* error) const;

 private:
  static Dims BroadcastDims(const Operand& a, const Operand& b);
  Operand ConstantOf(const std::string& bytes, aclDataType dtype, size_t count);
  void Fail(sy_status status, const std::string& message);

  sy_device& device_;
  std::vector<Step> steps_;
  uint64_t top_ = 0, highest_ = 0;
  sy_status status_ = SY_OK;
  sy_error error_{SY_HEADER(sy_error)};
};

}  // namespace switchyard
