#include "tools/conform/training_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/abi/ops.h"
#include "core/base/random.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

constexpr int64_t kSamples = 48, kFeatures = 17, kHidden = 29, kClasses = 5;
constexpr int kSteps = 25;

struct Tensor {
  sy_tensor shape;
  std::vector<double> values;
};

template <typename A>
std::vector<uint8_t> BytesOfAttributes(A attributes) {
  std::vector<uint8_t> bytes(sizeof(A));
  std::memcpy(bytes.data(), &attributes, sizeof(A));
  return bytes;
}

// Runs ops on the device, or on the reference where the device does not take them. The first failure stays.
class Machine {
 public:
  Machine(Device& device, Device& reference) : device_(device), reference_(reference) {}

  std::vector<Tensor> Run(const char* op, std::vector<uint8_t> attributes, const std::vector<Tensor>& inputs,
                          const std::vector<sy_tensor>& outputs) {
    Problem problem{op, std::move(attributes), {}, outputs, {}};
    for (const Tensor& input : inputs) {
      problem.inputs.push_back(input.shape);
      problem.values.push_back(input.values);
    }
    auto results = RunOp(device_, problem);
    if (results.status().code() == absl::StatusCode::kUnimplemented) {
      fallbacks_.insert(op);
      results = RunOp(reference_, problem);
    }
    if (!results.ok()) {
      if (status_.ok()) status_ = Annotate(results.status(), op);
      results = std::vector<std::vector<double>>(outputs.size());
    }
    std::vector<Tensor> tensors;
    for (size_t o = 0; o < outputs.size(); ++o) {
      tensors.push_back({outputs[o], (*results)[o]});
      tensors.back().values.resize(static_cast<size_t>(Elements(outputs[o])));
    }
    return tensors;
  }
  const Status& status() const { return status_; }
  const std::set<std::string>& fallbacks() const { return fallbacks_; }

 private:
  Device& device_;
  Device& reference_;
  Status status_;
  std::set<std::string> fallbacks_;
};

Tensor Matmul(Machine& machine, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  sy_matmul_attributes attributes{};
  attributes.alpha = 1;
  attributes.transpose_a = transpose_a;
  attributes.transpose_b = transpose_b;
  const int64_t m = a.shape.dims[transpose_a ? 1 : 0], n = b.shape.dims[transpose_b ? 0 : 1];
  return machine.Run("matmul", BytesOfAttributes(attributes), {a, b}, {Contiguous(SY_F32, {m, n})})[0];
}

Tensor Pointwise(Machine& machine, std::vector<sy_instruction> program, const std::vector<Tensor>& inputs) {
  sy_pointwise_attributes attributes{};
  attributes.instruction_count = static_cast<uint32_t>(program.size());
  attributes.output_count = 1;
  attributes.outputs[0] = static_cast<int32_t>(inputs.size() + program.size() - 1);
  std::copy(program.begin(), program.end(), attributes.instructions);
  return machine.Run("pointwise", BytesOfAttributes(attributes), inputs, {inputs[0].shape})[0];
}

// AdamW on both weights at once; states are moved along.
void Update(Machine& machine, int step, std::vector<Tensor>& weights, std::vector<Tensor>& m, std::vector<Tensor>& v,
            const std::vector<Tensor>& gradients) {
  sy_optimizer_attributes attributes{};
  attributes.kind = SY_OPTIMIZER_ADAMW;
  attributes.beta1 = 0.9f;
  attributes.beta2 = 0.999f;
  attributes.eps = 1e-6f;
  attributes.weight_decay = 0.01f;
  const sy_tensor one = Contiguous(SY_F32, {1});
  std::vector<Tensor> inputs = {{one, {0.02}}, {one, {double(step)}}, {one, {1}}, {one, {1}}};
  std::vector<sy_tensor> outputs;
  for (size_t k = 0; k < weights.size(); ++k) {
    for (const Tensor& tensor : {weights[k], gradients[k], m[k], v[k]}) inputs.push_back(tensor);
    outputs.insert(outputs.end(), 3, weights[k].shape);
  }
  const auto results = machine.Run("optimizer_update", BytesOfAttributes(attributes), inputs, outputs);
  for (size_t k = 0; k < weights.size(); ++k) {
    weights[k] = results[3 * k];
    m[k] = results[3 * k + 1];
    v[k] = results[3 * k + 2];
  }
}

// The mean loss of every step.
std::vector<double> Train(Machine& machine, uint64_t seed) {
  const auto random = [&](std::vector<int64_t> dims, double scale, uint64_t key) {
    Tensor tensor{Contiguous(SY_F32, dims), {}};
    tensor.values = Random(Fill::kNormal, 0, tensor.shape, Key(seed, key));
    for (double& v : tensor.values) v *= scale;
    return tensor;
  };
  const Tensor x = random({kSamples, kFeatures}, 1, 1), teacher = random({kFeatures, kClasses}, 1, 2);
  Tensor labels{Contiguous(SY_I32, {kSamples}), {}};
  for (int64_t s = 0; s < kSamples; ++s) {
    std::vector<double> scores(kClasses);
    for (int64_t i = 0; i < kFeatures * kClasses; ++i) {
      scores[i % kClasses] += x.values[s * kFeatures + i / kClasses] * teacher.values[i];
    }
    labels.values.push_back(static_cast<double>(std::max_element(scores.begin(), scores.end()) - scores.begin()));
  }
  std::vector<Tensor> weights = {random({kHidden, kFeatures}, 0.2, 3), random({kClasses, kHidden}, 0.2, 4)};
  std::vector<Tensor> m, v;
  for (const Tensor& weight : weights) {
    m.push_back({weight.shape, std::vector<double>(weight.values.size())});
    v.push_back(m.back());
  }
  sy_cross_entropy_attributes loss_attributes{};
  loss_attributes.ignore_index = -100;
  const std::vector<uint8_t> loss_bytes = BytesOfAttributes(loss_attributes);
  const sy_tensor rows = Contiguous(SY_F32, {kSamples});
  const Tensor mean{rows, std::vector<double>(kSamples, 1.0 / kSamples)};

  std::vector<double> losses;
  for (int step = 0; step < kSteps && machine.status().ok(); ++step) {
    const Tensor before = Matmul(machine, x, false, weights[0], true);
    const Tensor hidden = Pointwise(machine, {{SY_PW_RELU, 0, 0, 0, 0}}, {before});
    const Tensor logits = Matmul(machine, hidden, false, weights[1], true);
    const auto loss = machine.Run("cross_entropy", loss_bytes, {logits, labels}, {rows, rows});
    double sum = 0;
    for (const double l : loss[0].values) sum += l;
    losses.push_back(sum / kSamples);

    const Tensor dlogits =
        machine.Run("cross_entropy_backward", loss_bytes, {logits, labels, loss[1], mean}, {logits.shape})[0];
    const Tensor dhidden = Matmul(machine, dlogits, false, weights[1], false);
    const Tensor dbefore =
        Pointwise(machine, {{SY_PW_RELU_GRAD, 1, 0, 0, 0}, {SY_PW_MUL, 0, 2, 0, 0}}, {dhidden, before});
    const std::vector<Tensor> gradients = {Matmul(machine, dbefore, true, x, false),
                                           Matmul(machine, dlogits, true, hidden, false)};
    Update(machine, step, weights, m, v, gradients);
  }
  return losses;
}

}  // namespace

void CheckTraining(Recorder& recorder, Device& device, Device& reference, uint64_t seed) {
  if (!recorder.Wants("train/mlp") && !recorder.Wants("train/native")) return;
  Machine tested(device, reference), expected(reference, reference);
  const std::vector<double> losses = Train(tested, seed), expected_losses = Train(expected, seed);
  recorder.Run("train/mlp", [&]() -> Status {
    SY_RETURN_IF_ERROR(tested.status());
    SY_RETURN_IF_ERROR(expected.status());
    for (int step = 0; step < kSteps; ++step) {
      if (!(std::fabs(losses[step] - expected_losses[step]) <= 1e-3)) {
        return Internal("step {}: loss {}, on the reference {}", step, losses[step], expected_losses[step]);
      }
    }
    if (losses.back() > 0.5 * losses.front()) {
      return Internal("the loss fell only from {} to {} in {} steps", losses.front(), losses.back(), kSteps);
    }
    return OkStatus();
  });
  recorder.Run("train/native", [&]() -> Status {
    if (tested.fallbacks().empty()) return OkStatus();
    return Unimplemented("on the reference ran: {}", fmt::join(tested.fallbacks(), ", "));
  });
}

}  // namespace switchyard::conform
