// A model's training step and evaluation on one device, without a run around them: what parity tests feed with recorded
// weights and batches. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/train/classification.h"
#include "models/weights.h"
#include "tests/plan/world.h"

namespace switchyard {

class StepRun {
 public:
  // AdamW as it was recorded: rate 1e-3 at every step, betas 0.9 and 0.999, eps 1e-8, weight decay 0.05, no clipping. A
  // test failure and nullptr where the model cannot be compiled.
  static std::unique_ptr<StepRun> Make(TestDevice& test, const ResolvedModel& model, int64_t batch,
                                       DType precision = DType::kF32);
  // The same of another task: the batch inputs are images and labels, evaluation gives eval_logits.
  static std::unique_ptr<StepRun> Make(TestDevice& test, const Workload& workload, DType precision = DType::kF32);

  // In our names and layout; state of the model is among them.
  void SetParameters(const HostTensors& values);
  HostTensors Parameters() const;
  size_t Elements(const std::string& name) const;  // of a named input or output
  std::vector<float> Get(const std::string& name) const;

  // One update; the loss of the batch before it. images (batch, H, W, C), labels (batch).
  double Step(const std::vector<float>& images, const std::vector<int32_t>& labels);
  // Of the first step, as the optimizer saw them: its first moment is then (1 − beta1)·gradient.
  HostTensors GradientsOfFirstStep() const;
  // (batch, classes), row by row, of the evaluation plan.
  std::vector<float> Logits(const std::vector<float>& images);

 private:
  HostTensors Download(const std::string& prefix, bool with_state) const;
  std::unique_ptr<Layout> layout_;
  std::unique_ptr<Plan> step_plan_, evaluation_plan_, halves_plan_;  // the last: null where no weight has a half copy
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Instance> step_, evaluation_, halves_;
  Stream stream_;
};

// A plugin by name, or nullptr where it is not in this build.
std::unique_ptr<TestDevice> OpenOrNull(const std::string& plugin, int threads = 1);

// The numbers of tests/fixtures that are no floats.
std::vector<int32_t> ReadLabels(const std::string& file, const std::string& name);

// Weights by the formula of tests/fixtures/README.md, in our names and layout. factor: of two and more dimensions.
HostTensors FormulaWeights(const ResolvedModel& model, const std::string& format = "timm", float factor = 0.035f);
// Element i is 2·UnitFloat(word i of Key(HashName(name))) − 1.
std::vector<float> Symmetric(const std::string& name, int64_t count);

// ‖found − expected‖ / ‖expected‖ over the elements that float arithmetic determines: the k third of attn.qkv.bias,
// whose true gradient is zero, is left out.
double RelativeError(const std::string& name, const std::vector<float>& found, const std::vector<float>& expected);

// Of large tensors a fixture holds the norms, <kind>_norm/NAME, and some elements, <kind>_samples/NAME: compares both
// with `found`, in timm's layout.
void ExpectCloseToSamples(const std::string& file, const ResolvedModel& model, HostTensors found,
                          const std::string& kind, double tolerance);

}  // namespace switchyard
