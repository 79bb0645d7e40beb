// Single ops on odd shapes against what PyTorch computed: results, every gradient, state, and the optimizers step by
// step (ops.safetensors, described in tests/fixtures/README.md). On each plugin, with the reference plugin beside it
// for what the plugin lacks.
#include "core/graph/gradients.h"
#include "core/graph/ops/attention.h"
#include "core/graph/ops/convolution.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/softmax.h"
#include "core/optim/optimizer.h"
#include "core/train/tensor_file.h"
#include "nlohmann/json.hpp"
#include "tests/graph/fixtures.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr const char* kFile = "ops.safetensors";
constexpr double kTolerance = 1e-5;  // of a tensor's norm
// Attributes are f32, PyTorch's are f64: 1 − 0.999 differs by 1.3e-5 of itself, which the bias correction takes out
// again.
constexpr double kMomentTolerance = 2e-5;
constexpr float kLr = 1;  // where a case names none

using Json = nlohmann::json;
using Inputs = std::map<std::string, Value>;

// A graph under construction for one case, with the case's tensors as its inputs.
struct Case {
  std::string name;
  Json attributes;
  HostTensors tensors;
  std::vector<int32_t> labels;
  Graph graph;

  std::string op() const { return attributes["op"]; }
  Value Input(const std::string& tensor, Role role = Role::kBatch) {
    return graph.Input(tensor, {DType::kF32, tensors.at(tensor).shape}, {role, {}, true});
  }
};

int ActivationOf(const std::string& op) {
  const std::map<std::string, int> activations = {{"gelu_erf", SY_ACTIVATION_GELU},
                                                  {"gelu_tanh", SY_ACTIVATION_GELU_TANH},
                                                  {"relu", SY_ACTIVATION_RELU},
                                                  {"silu", SY_ACTIVATION_SILU}};
  const auto found = activations.find(op);
  return found == activations.end() ? SY_ACTIVATION_NONE : found->second;
}

// q, k, v (B, H, T, D) [, bias (H, T, T)] → (B, H, T, D)
Value AttentionCase(const Case& c, const Inputs& in) {
  std::vector<Value> parts;
  for (const char* name : {"q", "k", "v"}) {
    const Value part = ops::Transpose(in.at(name), {0, 2, 1, 3});
    parts.push_back(ops::Reshape(part, {part.dim(0), part.dim(1), 1, part.dim(2), part.dim(3)}));
  }
  const Value bias = in.contains("bias") ? in.at("bias") : Value();
  return ops::Transpose(ops::Attention(ops::Concat(parts, 2), bias, {}, c.attributes["scale"]), {0, 2, 1, 3});
}

// The weight comes as (out, in/groups, kernel…).
Value ConvolutionCase(const Case& c, const Inputs& in) {
  std::vector<int> axes = {0};
  for (int axis = 2; axis < in.at("weight").rank(); ++axis) axes.push_back(axis);
  axes.push_back(1);
  ops::WindowOptions o;
  o.stride = c.attributes["stride"];
  o.padding = c.attributes["padding"];
  o.dilation = c.attributes["dilation"];
  o.groups = c.attributes["groups"];
  return ops::Convolution(in.at("x"), ops::Transpose(in.at("weight"), axes), in.at("bias"), o);
}

Value BatchNormCase(Case& c, const Inputs& in) {
  const Value mean = c.Input("running_mean", Role::kState), var = c.Input("running_var", Role::kState);
  const float eps = c.attributes["eps"];
  const ops::BatchNormed normed =
      ops::BatchNorm(in.at("x"), in.at("weight"), in.at("bias"), mean, var, eps, c.attributes["momentum"]);
  c.graph.Output("running_mean_after", normed.running_mean);
  c.graph.Output("running_var_after", normed.running_var);
  c.graph.Output("y_eval", ops::BatchNormInference(in.at("x"), in.at("weight"), in.at("bias"), mean, var, eps));
  return normed.y;
}

Value ResizeCase(const Case& c, const Inputs& in) {
  const int mode = c.attributes["mode"] == "nearest" ? SY_RESIZE_NEAREST : SY_RESIZE_LINEAR;
  return ops::Resize(in.at("x"), c.attributes["size"].get<Shape>(), mode, c.attributes.value("align_corners", false));
}

Value PoolCase(const Case& c, const Inputs& in) {
  ops::PoolOptions o;
  o.kernel = c.attributes["kernel_size"];
  o.stride = c.attributes["stride"];
  o.padding = c.attributes["padding"];
  o.average = c.op().starts_with("avg");
  o.count_include_pad = c.attributes.value("count_include_pad", true);
  return ops::Pool(in.at("x"), o);
}

// The case's y.
Value Forward(Case& c, const Inputs& in) {
  const std::string op = c.op();
  if (op == "layer_norm") return ops::LayerNorm(in.at("x"), in.at("weight"), in.at("bias"), c.attributes["eps"]);
  if (op == "softmax") return ops::Softmax(in.at("x"));
  if (op == "log_softmax") return ops::Unary(SY_PW_LOG, ops::Softmax(in.at("x")));
  if (op == "sigmoid") return ops::Unary(SY_PW_SIGMOID, in.at("x"));
  if (op == "tanh") return ops::Unary(SY_PW_TANH, in.at("x"));
  if (ActivationOf(op) != SY_ACTIVATION_NONE) return ops::Activation(in.at("x"), ActivationOf(op));
  if (op == "attention") return AttentionCase(c, in);
  if (op.starts_with("conv")) return ConvolutionCase(c, in);
  if (op == "batch_norm") return BatchNormCase(c, in);
  if (op == "resize") return ResizeCase(c, in);
  if (op.starts_with("max_pool") || op.starts_with("avg_pool")) return PoolCase(c, in);
  ADD_FAILURE() << "no builder for " << op;
  return in.at("x");
}

// Compiles and runs; compares each output with the tensor of its name.
void RunAndCompare(Case& c, TestDevice& test) {
  const auto compiled = Compiled::Make(c.graph, test);
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  for (const auto& [name, tensor] : c.tensors) {
    if ((*compiled)->layout->Find(name) != nullptr) (*compiled)->Set(name, tensor.values);
  }
  if (!c.labels.empty()) (*compiled)->Set("labels", c.labels);
  const Status status = (*compiled)->instance->Run((*compiled)->stream);
  ASSERT_TRUE(status.ok()) << Message(status);
  for (const Node& node : c.graph.nodes()) {
    if (node.op != "output") continue;
    ASSERT_TRUE(c.tensors.contains(node.name)) << node.name;
    EXPECT_LE(RelativeError(node.name, (*compiled)->Get("output/" + node.name), c.tensors.at(node.name).values),
              kTolerance)
        << node.name;
  }
}

// Outputs d_NAME for each input that has one.
void OutputGradients(Case& c, const Value& loss, const Inputs& in) {
  std::vector<Value> wanted;
  std::vector<std::string> names;
  for (const auto& [name, value] : in) {
    if (!c.tensors.contains("d_" + name)) continue;
    wanted.push_back(value);
    names.push_back("d_" + name);
  }
  const std::vector<Value> gradients = Gradients(loss, wanted);
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_TRUE(gradients[i]) << names[i];
    c.graph.Output(names[i], gradients[i]);
  }
}

void DifferentiableCase(Case& c, TestDevice& test) {
  Inputs in;
  for (const auto& [name, tensor] : c.tensors) {
    if (c.tensors.contains("d_" + name)) in[name] = c.Input(name);
  }
  const Value y = Forward(c, in);
  c.graph.Output("y", y);
  OutputGradients(c, ops::Sum(ops::Mul(y, c.Input("dy"))), in);
  RunAndCompare(c, test);
}

// A label that is ignored is negative here; the mean is over the others.
void CrossEntropyCase(Case& c, TestDevice& test) {
  const Inputs in = {{"x", c.Input("x")}};
  const bool soft = c.tensors.contains("targets");
  const int ignored = c.attributes.value("ignore_index", -1);
  for (int32_t& label : c.labels) label = label == ignored ? -1 : label;
  const auto counted = soft ? in.at("x").dim(0)
                            : std::count_if(c.labels.begin(), c.labels.end(), [](int32_t label) { return label >= 0; });
  const Value labels = soft ? c.Input("targets") : c.graph.Input("labels", {DType::kI32, {in.at("x").dim(0)}}, {});
  const Value losses = ops::CrossEntropy(in.at("x"), labels, c.attributes.value("label_smoothing", 0.0f));
  const Value loss = ops::Scale(ops::Sum(losses), 1.0f / static_cast<float>(counted));
  c.graph.Output("loss", loss);
  OutputGradients(c, loss, in);
  RunAndCompare(c, test);
}

OptimizerOptions OptimizerOf(const Json& attributes) {
  OptimizerOptions o;
  const std::string kind = attributes["kind"];
  o.kind = kind == "adamw" ? SY_OPTIMIZER_ADAMW : kind == "adam" ? SY_OPTIMIZER_ADAM : SY_OPTIMIZER_SGD;
  o.weight_decay = attributes["weight_decay"];
  o.momentum = attributes.value("momentum", 0.0f);
  o.nesterov = attributes.value("nesterov", false);
  if (attributes.contains("betas")) {
    o.beta1 = attributes["betas"][0];
    o.beta2 = attributes["betas"][1];
    o.eps = attributes["eps"];
  }
  return o;
}

void OptimizerCase(Case& c, TestDevice& test) {
  const Value p = c.Input("p", Role::kParameter), g = c.graph.Input("g", p.type(), {});
  AddOptimizer(c.graph, {{p, g}}, {}, OptimizerOf(c.attributes), 1);
  const auto compiled = Compiled::Make(c.graph, test);
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  (*compiled)->Set("p", c.tensors.at("p").values);
  (*compiled)->Set("lr_table", std::vector<float>{c.attributes["lr"]});
  const auto part = [&](const std::string& name, int step) {
    const std::vector<float>& all = c.tensors.at(name).values;
    const auto size = static_cast<std::ptrdiff_t>(c.tensors.at("p").values.size());
    return std::vector<float>(all.begin() + step * size, all.begin() + (step + 1) * size);
  };
  for (int step = 0; step < c.attributes["steps"]; ++step) {
    (*compiled)->Set("g", part("gradients", step));
    const Status status = (*compiled)->instance->Run((*compiled)->stream);
    ASSERT_TRUE(status.ok()) << Message(status);
    EXPECT_LE(RelativeError("p", (*compiled)->Get("p"), part("p_after", step)), kTolerance) << "step " << step;
  }
  for (const auto& [state, moment] :
       {std::pair("exp_avg", "moment1"), std::pair("exp_avg_sq", "moment2"), std::pair("momentum_buffer", "moment1")}) {
    const auto recorded = c.tensors.find(std::string("state_") + state);
    if (recorded == c.tensors.end()) continue;
    EXPECT_LE(RelativeError(state, (*compiled)->Get(std::string(moment) + "/p"), recorded->second.values),
              kMomentTolerance)
        << state;
  }
}

// With plain SGD at rate 1 from zero, a parameter ends at the negative of its clipped gradient.
void ClippingCase(Case& c, TestDevice& test) {
  std::vector<ParameterGradient> pairs;
  for (const char* name : {"a", "b"}) {
    const Value gradient = c.Input(name);
    pairs.push_back(
        {c.graph.Input(std::string("parameter_") + name, gradient.type(), {Role::kParameter, {}, true}), gradient});
  }
  OptimizerOptions options;
  options.kind = SY_OPTIMIZER_SGD;
  options.weight_decay = 0;
  options.clip = c.attributes["max_norm"];
  AddOptimizer(c.graph, pairs, {}, options, 1);
  const auto compiled = Compiled::Make(c.graph, test);
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  (*compiled)->Set("lr_table", std::vector<float>{kLr});
  for (const char* name : {"a", "b"}) (*compiled)->Set(name, c.tensors.at(name).values);
  const Status status = (*compiled)->instance->Run((*compiled)->stream);
  ASSERT_TRUE(status.ok()) << Message(status);
  EXPECT_LE(RelativeError("norm", (*compiled)->Get("output/grad_norm"), c.tensors.at("norm").values), kTolerance);
  for (const std::string name : {"a", "b"}) {
    std::vector<float> clipped = (*compiled)->Get("parameter_" + name);
    for (float& value : clipped) value = -value;
    EXPECT_LE(RelativeError(name, clipped, c.tensors.at(name + "_clipped").values), kTolerance);
  }
}

class RecordedOps : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedOps, EqualPyTorchsResultsAndGradients) {
  const auto test = OpenOrNull(GetParam());
  if (test == nullptr) GTEST_SKIP() << "the " << GetParam() << " plugin is not in this build";
  const auto file = TensorFile::Open(std::string(SWITCHYARD_FIXTURES) + "/" + kFile);
  ASSERT_TRUE(file.ok()) << Message(file.status());
  const Json cases = Json::parse(file->metadata().at("cases"));
  int count = 0;
  for (const auto& [name, attributes] : cases.items()) {
    if (attributes["op"] == "schedule") continue;  // tables, not ops
    SCOPED_TRACE(name);
    Case c{name, attributes, ReadFixture(kFile, name + "/"), {}, {}};
    if (file->Find(name + "/labels") != nullptr) c.labels = ReadLabels(kFile, name + "/labels");
    if (c.op() == "optimizer") {
      OptimizerCase(c, *test);
    } else if (c.op() == "clip_grad_norm") {
      ClippingCase(c, *test);
    } else if (c.op() == "cross_entropy") {
      CrossEntropyCase(c, *test);
    } else {
      DifferentiableCase(c, *test);
    }
    ++count;
  }
  EXPECT_GE(count, 48) << "the fixture lost cases";
}

INSTANTIATE_TEST_SUITE_P(Plugins, RecordedOps, ::testing::ValuesIn(TestDevices({"cpu", "reference", "null"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard
