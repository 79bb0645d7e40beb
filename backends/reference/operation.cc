#include "backends/reference/operation.h"

#include <algorithm>
#include <utility>

namespace switchyard {

namespace {
constinit const Operation* last_entered = nullptr;
}

Operation::Operation(const char* op, size_t size, CheckFunction check_function, RunFunction run_function,
                     UpdatesFunction updates_function)
    : name(op),
      attributes_size(size),
      check(check_function),
      run(run_function),
      updates(updates_function),
      next(std::exchange(last_entered, this)) {}

const Operation* FindOperation(std::string_view name) {
  const Operation* operation = last_entered;
  while (operation != nullptr && name != operation->name) operation = operation->next;
  return operation;
}

bool Check::Complain(bool wrong, sy_status status, const std::string& complaint) {
  if (ok() && wrong) {
    complaint_ = problem_.op + ": " + complaint;
    status_ = status;
  }
  return ok();
}

bool Check::Need(bool condition, const std::string& complaint) { return Complain(!condition, SY_INVALID, complaint); }
bool Check::Knows(bool condition, const std::string& complaint) {
  return Complain(!condition, SY_UNSUPPORTED, complaint);
}

bool Check::Operands(size_t inputs, size_t outputs) {
  return Need(
      input_count() == inputs && output_count() == outputs,
      Text("expected ", inputs, " inputs and ", outputs, " outputs, found ", input_count(), " and ", output_count()));
}

bool Check::Floats() { return FloatsExcept({}); }

bool Check::FloatsExcept(std::initializer_list<size_t> integer_inputs) {
  for (size_t i = 0; i < input_count(); ++i) {
    const bool integer = std::find(integer_inputs.begin(), integer_inputs.end(), i) != integer_inputs.end();
    const sy_dtype dtype = InputType(i);
    Need(integer ? dtype == SY_I32 || dtype == SY_I64 : IsFloat(dtype),
         Text("input ", i, " must be ", integer ? "i32" : "a float", ", found ", ToText(problem_.inputs[i])));
  }
  for (size_t o = 0; o < output_count(); ++o) {
    Need(IsFloat(problem_.outputs[o].dtype),
         Text("output ", o, " must be a float, found ", ToText(problem_.outputs[o])));
  }
  return ok();
}

bool Check::Rank(const char* name, size_t input, size_t rank) {
  return Need(InputDims(input).size() == rank,
              Text(name, " must have rank ", rank, ", found ", ToText(InputDims(input))));
}

bool Check::Input(const char* name, size_t i, const Dims& dims) { return Match(name, problem_.inputs[i], dims); }
bool Check::Output(const char* name, size_t o, const Dims& dims) { return Match(name, problem_.outputs[o], dims); }

bool Check::Match(const char* name, const sy_tensor& tensor, const Dims& dims) {
  return Need(DimsOf(tensor) == dims, Text(name, " must be ", ToText(dims), ", found ", ToText(tensor)));
}

bool Check::OneElement(const char* name, const sy_tensor& tensor) {
  return Need(Count(DimsOf(tensor)) == 1, Text(name, " must have one element, found ", ToText(tensor)));
}

Call::Call(const Problem& problem, const void* const* inputs) : problem_(problem) {
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    inputs_.push_back(Load(problem.inputs[i], inputs[i]));
    double_precision_ |= problem.inputs[i].dtype == SY_F64;
  }
  for (const sy_tensor& tensor : problem.outputs) {
    const Dims dims = DimsOf(tensor);
    outputs_.push_back({dims, std::vector<double>(static_cast<size_t>(Count(dims)), 0.0)});
    double_precision_ |= tensor.dtype == SY_F64;
  }
}

Array Call::AsStored(size_t o) const {
  std::vector<char> memory(Extent(problem_.outputs[o]));
  Store(outputs_[o], problem_.outputs[o], memory.data(), false);
  return Load(problem_.outputs[o], memory.data());
}

}  // namespace switchyard
