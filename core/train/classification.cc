#include "core/train/classification.h"

#include "core/graph/ops/loss.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace {

Value Images(Graph& graph, const ClassificationOptions& o) {
  return graph.Input("images", {DType::kF32, {o.batch, o.height, o.width, o.channels}}, {Role::kBatch, {}, false});
}

Value Labels(Graph& graph, const ClassificationOptions& o) {
  return graph.Input("labels", {DType::kI32, {o.batch}}, {Role::kBatch, {}, false});
}

}  // namespace

Workload ClassificationWorkload(const std::string& name, const ModelFunction& model, const ClassificationOptions& o) {
  Workload workload;
  workload.name = name;
  workload.loss = [=](nn::Context& context) {
    const Value logits = model(context, Images(context.graph, o));
    return ops::Mean(ops::CrossEntropy(logits, Labels(context.graph, o), o.label_smoothing));
  };
  workload.evaluate = [=](nn::Context& context) {
    Graph& graph = context.graph;
    const Value logits = model(context, Images(graph, o)), labels = Labels(graph, o);
    graph.Output("eval_loss", ops::CrossEntropy(logits, labels));
    graph.Output("eval_rank", ops::LabelRank(logits, labels));
    graph.Output("eval_logits", ops::Cast(logits, DType::kF32));
  };
  return workload;
}

}  // namespace switchyard
