// A model, a dataset and an op of one's own, outside the tree: trained through what find_package(switchyard) gives.
//   program DEVICE
// The op has a kernel on the device of sdk/device; elsewhere it runs by its decomposition.
#include <cstdio>

#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/nn/layers.h"
#include "core/train/trainer.h"
#include "squareplus.h"

using namespace switchyard;

struct Bars : Dataset {  // 16 x 16 grey images of a standing bar, in the left or the right half
  std::string name() const override { return "bars"; }
  int64_t size() const override { return 64; }
  int channels() const override { return 1; }
  Augmentation augmentation() const override { return Augmentation::kNone; }
  const std::vector<std::string>& class_names() const override { return classes; }
  Status Read(int64_t index, Sample* sample) const override {
    const int column = static_cast<int>(index % 16);
    sample->label = column / 8;
    sample->image.Reshape(16, 16, 1);
    for (int i = 0; i < 256; ++i) sample->image.bytes[i] = i % 16 == column ? 255 : 0;
    return OkStatus();
  }
  std::vector<std::string> classes = {"left", "right"};
};

Value Root(const Value& x, const Attributes& attributes) {  // √(x² + b)
  const float b = attributes.as<example_squareplus_attributes>().b;
  return ops::Unary(SY_PW_SQRT, ops::AddScalar(ops::Mul(x, x), b));
}

void RegisterSquareplus() {
  RegisterOp({.name = "example_squareplus",
              .summary = "(x + sqrt(x^2 + b))/2",
              .infer = SameType,
              .gradient =
                  [](Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
                    const Value x = graph.value(graph.node(id).inputs[0]);
                    return graph.Add("example_squareplus_backward", {x, dy[0]}, graph.node(id).attributes);
                  },
              .decompose = [](Graph&, const Node& node, const std::vector<Value>& in) -> std::vector<Value> {
                return {ops::Scale(ops::Add(in[0], Root(in[0], node.attributes)), 0.5f)};
              }});
  RegisterOp({.name = "example_squareplus_backward",
              .summary = "its gradient",
              .infer =
                  [](const Signature& call) {
                    call.RequireInputs(2);
                    call.Require(call[0] == call[1], "x and dy must have one type");
                    return std::vector<TensorType>{call[0]};
                  },
              .decompose = [](Graph&, const Node& node, const std::vector<Value>& in) -> std::vector<Value> {
                const Value slope = ops::AddScalar(ops::Div(in[0], Root(in[0], node.attributes)), 1);
                return {ops::Scale(ops::Mul(in[1], slope), 0.5f)};
              }});
}

Value Network(nn::Context& context, const Value& images) {
  example_squareplus_attributes attributes{};
  attributes.b = 4;
  const Value pixels = ops::Reshape(images, {images.dim(0), -1});
  const Value hidden = nn::Linear(context, "hidden", pixels, 32);
  return nn::Linear(context, "head", hidden.graph().Add("example_squareplus", {hidden}, Attributes(attributes))[0], 2);
}

StatusOr<TrainingResult> Train(const char* device) {
  TrainConfig config;
  config.dataset = "bars";
  config.epochs = 10;
  config.batch_size = 16;
  config.lr = 0.01f;
  config.weight_decay = config.clip = config.label_smoothing = 0;
  const TrainableModel model = {.name = "bar_net",
                                .architecture = {{"model", "bar_net"}},
                                .image_size = 16,
                                .channels = 1,
                                .classes = 2,
                                .build = Network};
  SY_ASSIGN_OR_RETURN(const auto world, World::Join({.device = device}));
  const Bars bars;
  SY_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(config, model, bars, bars, *world));
  return trainer->Train();
}

int main(int, char** arguments) {
  RegisterSquareplus();
  const auto result = Train(arguments[1]);
  std::puts(result.ok() ? fmt::format("top-1 {:.1f} %", 100 * result->evaluation.metrics.at("top1")).c_str()
                        : Message(result.status()).c_str());
  return result.ok() && result->evaluation.metrics.at("top1") > 0.95 ? 0 : 1;
}
