// What an op file sees. A Request is one prepare call, copied and checked; a Kernel is what prepare makes of it: a
// sequence of launches, each a function of a compiled program with its arguments and its grid. Operands are named, not
// placed; bind gives every launch a cl_kernel of its own with all arguments set, so that a launch in the step is one
// clEnqueueNDRangeKernel.
//
//   sy_status PrepareSoftmax(const Request& r, Kernel& k) {
//     if (!r.HasCounts(1, 1, 1) || …) return SY_UNSUPPORTED;
//     k.Add("softmax", "softmax", Define("T", r.inputs[0])).In(0).Out(0).Uint(rows).Uint(columns).Groups(rows);
//     return SY_OK;
//   }
//
// Kernels take each tensor as two arguments, ARRAY(x) in the source: a buffer and a byte offset. Thread-safe: a kernel
// is constant after prepare, and its bindings share nothing but it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/opencl/device.h"
#include "core/abi/op_request.h"
#include "core/abi/ops.h"

namespace switchyard {

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
// A compiler option: " -DT=f32".
std::string Define(const char* macro, sy_dtype dtype);
inline std::string Define(const char* macro, const sy_tensor& tensor) { return Define(macro, tensor.dtype); }
std::string Define(const char* macro, int64_t value);

struct Request : OpRequest {
  sy_device* device = nullptr;
};

// A tensor operand of a launch before it is placed: `offset` in bytes.
struct Operand {
  enum Kind : uint8_t { kInput, kOutput, kScratch, kPanels } kind;
  size_t index = 0;
  uint64_t offset = 0;
  Operand Plus(uint64_t bytes) const { return {kind, index, offset + bytes}; }
};
inline Operand In(size_t i) { return {Operand::kInput, i, 0}; }
inline Operand Out(size_t o) { return {Operand::kOutput, o, 0}; }

class Launch {
 public:
  Launch(cl_program program, std::string function) : program_(program), function_(std::move(function)) {}
  Launch& Array(const Operand& operand);
  Launch& In(size_t i) { return Array(switchyard::In(i)); }
  Launch& Out(size_t o) { return Array(switchyard::Out(o)); }
  Launch& Memory(cl_mem memory, uint64_t offset);  // placed already
  Launch& Uint(int64_t value);                     // 0 … 2^32 − 1
  Launch& Int(int32_t value);
  Launch& Ulong(int64_t value);
  Launch& Float(double value);
  // A struct of the kernel's source, by value: 32-bit fields only, so that both sides lay it out alike.
  template <typename S>
  Launch& Struct(const S& value) {
    return Scalar(&value, sizeof value);
  }
  // The same where the source is generated, and with it the struct.
  Launch& Words(const std::vector<uint32_t>& words) { return Scalar(words.data(), words.size() * sizeof words[0]); }
  // The grid, in work-groups of `lanes` work-items along the first axis (Kernel::Add sets the device's).
  Launch& Groups(int64_t x, int64_t y = 1, int64_t z = 1);
  Launch& Lanes(uint32_t x, uint32_t y = 1);

 private:
  friend class Kernel;
  friend class Bound;
  struct Argument {
    bool is_array = false;
    Operand operand{};
    cl_mem memory = nullptr;
    uint64_t offset = 0;  // of `memory`
    std::string value;    // a scalar's bytes
  };
  Launch& Scalar(const void* value, size_t bytes);
  cl_program program_;
  std::string function_;
  std::vector<Argument> arguments_;
  size_t groups_[3] = {1, 1, 1}, lanes_[2] = {1, 1};
};

struct Places {
  const sy_place *inputs, *outputs;
  sy_place workspace;
  uint64_t panels;  // bytes from the workspace to the panels
};

class Kernel {
 public:
  explicit Kernel(const Request& request);

  // The program of kernels/`source`.cl (several names: one after the other), compiled with `options`. A failure to
  // compile is kept in status(), and its message in the request's error.
  cl_program Compile(const std::string& source, const std::string& options);
  cl_program CompileText(const std::string& text);
  // One more launch of `function` of such a program.
  Launch& Add(cl_program program, const std::string& function);
  Launch& Add(const std::string& source, const std::string& function, const std::string& options = "") {
    return Add(Compile(source, options), function);
  }
  // A region of the workspace, `bytes` long.
  Operand Scratch(int64_t bytes);
  // Workspace that successive launches share: whoever asks gets the same region, large enough for all.
  Operand Panels(int64_t bytes);
  // Makes launches at bind, when places are known; they come before the others. `memory` holds what they refer to
  // besides places.
  using AtBind = std::function<sy_status(const Places&, std::vector<Launch>*, MemoryHandle* memory, sy_error*)>;
  AtBind at_bind;
  std::vector<int32_t> inplace;  // one per output, -1: none
  void Tag(const char* tag) { tag_ = tag; }

  sy_device* device() const { return device_; }
  sy_status status() const { return status_; }
  uint64_t workspace_bytes() const { return scratch_bytes_ + panel_bytes_; }

 private:
  friend class Bound;
  void Keep(sy_status status) {
    if (status_ == SY_OK) status_ = status;
  }
  sy_device* device_;
  sy_error* error_;  // during prepare
  sy_status status_ = SY_OK;
  const char* tag_ = "";
  std::vector<uint64_t> input_bytes_, output_bytes_;
  std::vector<Launch> launches_;
  uint64_t scratch_bytes_ = 0, panel_bytes_ = 0;
};

// How a matrix is cut for TILE_OF: `groups` tiles of rows_each × columns_each.
struct Tiling {
  int64_t rows_each, columns_each, groups;
};
Tiling TileOver(const sy_device& device, int64_t rows, int64_t columns);
// Work-groups for EACH_ROW, and rows for one work-group where each takes a share.
int64_t RowGroups(const sy_device& device, int64_t rows);
int64_t RowShare(const sy_device& device, int64_t rows);

// SY_OK, or a refusal (SY_REFUSE, Require…) with its reason in the request's error.
using PrepareFunction = sy_status (*)(const Request& request, Kernel& kernel);

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

}  // namespace switchyard
