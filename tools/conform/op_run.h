// Runs one op on one device through the ABI and watches what it touches: every buffer lies between guard bytes, outputs
// and scratch are poisoned before the launch, inputs are compared with what was put there. Used for the plugin under
// test and for the reference alike. One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/runtime/device/device.h"
#include "tools/conform/values.h"

namespace switchyard::conform {

// An op at fixed shapes, with its data.
struct Problem {
  std::string op;
  std::vector<uint8_t> attributes;
  std::vector<sy_tensor> inputs, outputs;
  std::vector<std::vector<double>> values;  // of the inputs, in row-major order
};

// What the engine grants a kernel, for one launch: KernelOptions of core/plan.
constexpr uint64_t kWorkspaceLimit = uint64_t{1} << 32;

struct PrepareMode {
  bool paired_forward = false;
  const Kernel* forward = nullptr;
  std::vector<uint8_t> accumulate;  // per output; empty: none
  uint32_t determinism = SY_DETERMINISM_ANY;
  uint64_t workspace_limit = kWorkspaceLimit;
  uint32_t tuning = SY_TUNING_HEURISTIC;
  bool without_inputs = false, without_outputs = false;  // counts, but no arrays
  std::optional<uint32_t> attribute_bytes;               // to tell of fewer than the problem has
  uint32_t op_version = 1;
};
StatusOr<Kernel> PrepareOp(Device& device, const Problem& problem, const PrepareMode& mode = {});

// Device memory between guards. The payload starts at `lead` bytes, a multiple of the device's alignment.
class GuardedBuffer {
 public:
  static StatusOr<GuardedBuffer> Make(Device& device, uint64_t bytes, int lead_alignments);
  Status Write(const Bytes& payload);
  StatusOr<Bytes> Read() const;  // kInternal if a guard was overwritten
  sy_place place() const { return buffer_.at(lead_); }
  uint64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  Buffer buffer_;
  uint64_t lead_ = 0, bytes_ = 0;
};

// A kernel bound to buffers of its own.
class BoundOp {
 public:
  struct Mode {
    bool in_place = false;                             // give outputs the places of the inputs that the kernel declared
    std::vector<std::vector<double>> initial_outputs;  // accumulate: what the outputs hold before; empty: poison
    std::shared_ptr<GuardedBuffer> residual;           // a backward's: written by its forward
    int first_lead = 1;                                // varies the offsets
  };
  static StatusOr<std::unique_ptr<BoundOp>> Make(Device& device, const Problem& problem, const Kernel& kernel,
                                                 Mode mode);
  ~BoundOp();  // waits for launches that nobody has collected
  BoundOp(const BoundOp&) = delete;
  BoundOp& operator=(const BoundOp&) = delete;
  // Refreshes inputs, poisons outputs, launches, waits, checks guards and inputs; the outputs as doubles.
  StatusOr<std::vector<std::vector<double>>> Run();
  // The three parts of Run, to interleave several bindings.
  Status Fill();
  Status Launch();
  StatusOr<std::vector<std::vector<double>>> Collect();
  const std::shared_ptr<GuardedBuffer>& residual() const { return residual_; }
  const Stream& stream() const { return stream_; }

 private:
  BoundOp() = default;
  Device* device_ = nullptr;
  const Problem* problem_ = nullptr;
  Mode mode_;
  std::vector<int> shared_with_;  // per output: the input whose place it takes, or -1
  std::vector<std::shared_ptr<GuardedBuffer>> inputs_, outputs_;
  std::vector<Bytes> written_inputs_;  // by the last Fill
  std::optional<GuardedBuffer> workspace_, persistent_, constants_;
  std::shared_ptr<GuardedBuffer> residual_;
  Stream stream_;
  BoundKernel bound_;
  bool launched_ = false;
};

// Prepare, bind and run once.
StatusOr<std::vector<std::vector<double>>> RunOp(Device& device, const Problem& problem, const PrepareMode& mode = {});

}  // namespace switchyard::conform
