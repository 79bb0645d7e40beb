// How a reference op is written: a table entry with a name, a check of shapes and dtypes, and the formula.
//
//   void CheckSoftmax(Check& check) { check.Operands(1, 1) && check.Floats() && check.Output("y", 0, check.Dims(0)); }
//   void RunSoftmax(Call& call) { const Array& x = call.input(0); Array& y = call.output(0); … }
//   const Operation kSoftmax{"softmax", 0, CheckSoftmax, RunSoftmax};
//
// Check keeps its first complaint; every test returns false from then on. Run is called only on what its check has let
// through. Thread-safe: operations are constants once the plugin is loaded; a Check or a Call belongs to one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "backends/reference/tensor.h"
#include "core/abi/boundary.h"
#include "core/abi/kernel.h"
#include "core/abi/ops.h"

namespace switchyard {

// One op at fixed shapes: what prepare was asked.
struct Problem {
  std::string op;
  std::vector<sy_tensor> inputs, outputs;
  std::vector<std::byte> attributes;  // the op's struct
  template <typename A>
  const A& As() const {
    return *reinterpret_cast<const A*>(attributes.data());
  }
};

class Check {
 public:
  explicit Check(const Problem& problem) : problem_(problem) {}

  template <typename A>
  const A& attributes() const {
    return problem_.As<A>();
  }
  size_t input_count() const { return problem_.inputs.size(); }
  size_t output_count() const { return problem_.outputs.size(); }
  Dims InputDims(size_t i) const { return DimsOf(problem_.inputs[i]); }
  Dims OutputDims(size_t o) const { return DimsOf(problem_.outputs[o]); }
  sy_dtype InputType(size_t i) const { return problem_.inputs[i].dtype; }

  // Each returns whether all is well so far; operands are looked at only after Operands said yes.
  bool Need(bool condition, const std::string& complaint);
  bool Knows(bool condition, const std::string& complaint);         // false: a later version of the op may have it
  bool Operands(size_t inputs, size_t outputs);                     // exact counts
  bool Floats();                                                    // every operand is a float …
  bool FloatsExcept(std::initializer_list<size_t> integer_inputs);  // … but these, which are i32 or i64
  bool Rank(const char* name, size_t input, size_t rank);
  bool Input(const char* name, size_t i, const Dims& dims);
  bool Output(const char* name, size_t o, const Dims& dims);
  bool OneElement(const char* name, const sy_tensor& tensor);
  const Problem& problem() const { return problem_; }

  bool ok() const { return complaint_.empty(); }
  const std::string& complaint() const { return complaint_; }
  sy_status status() const { return status_; }  // SY_INVALID, or SY_UNSUPPORTED for what Knows did not

 private:
  bool Complain(bool wrong, sy_status status, const std::string& complaint);
  bool Match(const char* name, const sy_tensor& tensor, const Dims& dims);
  const Problem& problem_;
  std::string complaint_;
  sy_status status_ = SY_OK;
};

// One launch: inputs loaded, outputs zero and of the right shape.
class Call {
 public:
  Call(const Problem& problem, const void* const* inputs);
  template <typename A>
  const A& attributes() const {
    return problem_.As<A>();
  }
  size_t input_count() const { return inputs_.size(); }
  size_t output_count() const { return outputs_.size(); }
  const Array& input(size_t i) const { return inputs_[i]; }
  Array& output(size_t o) { return outputs_[o]; }
  Array AsStored(size_t o) const;                              // output o as readers will see it, rounded to its dtype
  bool double_precision() const { return double_precision_; }  // some operand is f64

 private:
  const Problem& problem_;
  std::vector<Array> inputs_, outputs_;
  bool double_precision_ = false;
};

// Defined at namespace scope beside its formula, an operation enters itself into the table when the plugin is loaded.
struct Operation {
  using CheckFunction = void (*)(Check& check);
  using RunFunction = void (*)(Call& call);
  // Input that output o is an update of, or -1; null: the first input of the same dtype and dims.
  using UpdatesFunction = int (*)(const Problem& problem, size_t o);
  Operation(const char* name, size_t attributes_size, CheckFunction check, RunFunction run,
            UpdatesFunction updates = nullptr);

  const char* const name;
  const size_t attributes_size;  // bytes of its struct in ops.h; 0: none
  const CheckFunction check;
  const RunFunction run;
  const UpdatesFunction updates;
  const Operation* const next;
};

// nullptr where there is no op of that name.
const Operation* FindOperation(std::string_view name);

double Activate(int32_t activation, double x);  // SY_ACTIVATION_*
double ActivationDerivative(int32_t activation, double x);

}  // namespace switchyard
