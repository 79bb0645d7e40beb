// What an op file sees: a Request (one prepare call, copied and checked), and Kernel, the class that it derives. A
// kernel is an op at fixed shapes; bound to places it becomes Arguments; Run computes. Op files register one Prepare
// function per op (Registration). Thread-safe: a kernel is immutable after prepare, and its bindings share
// nothing but it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backends/cpu/device.h"
#include "backends/cpu/vector/kernels.h"
#include "core/abi/op_request.h"
#include "core/abi/ops.h"

struct sy_kernel {};
struct sy_bound {
  virtual ~sy_bound() = default;
};

namespace switchyard {

struct Request : OpRequest {
  const sy_device* device = nullptr;
};

struct Arguments {
  std::vector<char*> inputs, outputs;
  char* workspace = nullptr;

  template <typename T>
  const T* Input(size_t i) const {
    return reinterpret_cast<const T*>(inputs[i]);
  }
  template <typename T>
  T* Output(size_t i) const {
    return reinterpret_cast<T*>(outputs[i]);
  }
  template <typename T>
  T* Workspace(uint64_t offset = 0) const {
    return reinterpret_cast<T*>(workspace + offset);
  }
};

class Kernel : public sy_kernel {
 public:
  explicit Kernel(const Request& request)
      : device(request.device),
        inplace(request.outputs.size(), -1),
        inputs(request.inputs),
        outputs(request.outputs),
        accumulate(request.accumulate) {}
  virtual ~Kernel() = default;
  virtual void Run(const Arguments& arguments) const = 0;
  // For kernels that bind more than addresses. Several threads may bind one kernel at once.
  virtual std::unique_ptr<sy_bound> Bind(Arguments arguments, sy_launch* launch) const;

  // The addresses of a binding; false where a place does not lie inside its buffer.
  bool Locate(const sy_binding& binding, Arguments* arguments, sy_error* error) const;
  // The rows view of input i or output o.
  Rows In(const Arguments& a, size_t i) const { return {a.inputs[i], inputs[i].dtype}; }
  Rows Out(const Arguments& a, size_t o) const { return {a.outputs[o], outputs[o].dtype}; }

  const sy_device* device;
  uint64_t workspace_bytes = 0;
  std::vector<int32_t> inplace;

 protected:
  std::vector<sy_tensor> inputs, outputs;
  std::vector<uint8_t> accumulate;
};

using KernelPointer = std::unique_ptr<Kernel>;
// nullptr after having filled request.error; the status is SY_UNSUPPORTED for whatever a Prepare refuses.
using PrepareFunction = KernelPointer (*)(const Request& request);

// An op's row in the plugin's table. Defined at namespace scope beside the op's code, it enters itself when the plugin
// is loaded, so that an op is one file: const Registration kSoftmax{"softmax", PrepareSoftmax, 0};
struct Registration {
  Registration(const char* name, PrepareFunction function, size_t bytes);
  static const Registration* Find(const char* op);  // nullptr where there is none

  const char* const op;
  const PrepareFunction prepare;
  const size_t attribute_bytes;  // of its struct; 0: it has none
  const Registration* const next;
};

// Fails a Prepare.
#define SY_REFUSE(request, ...) (SY_FAIL((request).error, SY_UNSUPPORTED, __VA_ARGS__), nullptr)

}  // namespace switchyard
