#include "core/parallel/program.h"

#include <algorithm>

#include "core/graph/gradients.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/passes/autocast.h"

namespace switchyard {
namespace {

// The value that output node `name` shows.
Value Shown(Graph& graph, const std::string& name) {
  for (const Node& node : graph.nodes()) {
    if (node.op == "output" && node.name == name) return graph.value(node.inputs[0]);
  }
  throw BuildError("the graph has no output " + name);
}

Status AutocastLegal(const ProgramOptions& o) {
  if (o.precision == DType::kF32 || o.precision == DType::kBF16) return OkStatus();
  return InvalidArgument("precision {}: expected fp32 or bf16", NameOf(o.precision));
}
void ApplyAutocast(Program& program, const ProgramOptions& o) {
  if (o.precision == DType::kF32) return;
  for (NamedGraph& plan : program.plans) plan.graph = Autocast(plan.graph, o.precision);
}

std::vector<Value> Parameters(Graph& graph) {
  std::vector<Value> parameters;
  for (const int id : graph.Inputs(Role::kParameter)) parameters.push_back(graph.value({id, 0}));
  return parameters;
}

Status TrainingLegal(const ProgramOptions& o) {
  if (o.accumulation < 1) return InvalidArgument("accumulation {}: expected at least 1", o.accumulation);
  if (o.mesh.pipeline > 1 || o.mesh.tensor > 1) {
    return Unimplemented("a mesh of {} x {} x {} ranks (data, pipeline, tensor): only data parallelism is there",
                         o.mesh.data, o.mesh.pipeline, o.mesh.tensor);
  }
  return OkStatus();
}

// Backward, buckets and update belong together: each works on the values that the one before has made.
void ApplyTraining(Program& program, const ProgramOptions& o) {
  DataParallelOptions data_parallel;
  data_parallel.world = o.mesh.data;
  data_parallel.group = kDataGroup;
  data_parallel.bucket_bytes = o.bucket_bytes;
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains) continue;
    Graph& graph = plan.graph;
    const std::vector<Value> parameters = Parameters(graph);
    const Value loss = Shown(graph, "loss");
    graph.SetPhase(Phase::kBackward);
    const std::vector<Value> gradients =
        Gradients(ops::Scale(loss, 1.0f / static_cast<float>(o.accumulation * o.mesh.data)), parameters);
    std::vector<ParameterGradient> pairs;
    for (size_t i = 0; i < parameters.size(); ++i) pairs.push_back({parameters[i], gradients[i]});
    const Buckets buckets = AddDataParallel(graph, pairs, data_parallel, plan.buckets, o.find_unused_parameters);
    if (!plan.buckets.reduces) continue;
    program.gradient_places = buckets.places;
    AddOptimizer(graph, buckets.gradients, buckets.flat, o.optimizer, o.table_length);
  }
}

// The forward graphs. Parameters are made first and by the same function, so that plans of all kinds name them alike.
NamedGraph Forward(const Workload& workload, const ProgramOptions& o, const std::string& name, BucketUse buckets) {
  NamedGraph plan{name, {}, buckets, name != "evaluate"};
  nn::Context context(plan.graph, plan.trains, o.seed);
  if (plan.trains) {
    plan.graph.Output("loss", workload.loss(context));
  } else {
    workload.evaluate(context);
  }
  return plan;
}

}  // namespace

const NamedGraph* Program::Find(const std::string& name) const {
  const auto found =
      std::find_if(plans.begin(), plans.end(), [&](const NamedGraph& plan) { return plan.name == name; });
  return found == plans.end() ? nullptr : &*found;
}

const std::vector<Pass>& Passes() {
  static const std::vector<Pass> passes = {{"autocast", AutocastLegal, ApplyAutocast},
                                           {"training", TrainingLegal, ApplyTraining}};
  return passes;
}

StatusOr<Program> BuildProgram(const Workload& workload, const ProgramOptions& o, int rank) {
  for (const Pass& pass : Passes()) {
    const Status legal = pass.legal(o);
    if (!legal.ok()) return Annotate(legal, pass.name);
  }
  Program program;
  program.mesh = o.mesh;
  program.rank = rank;
  SY_ASSIGN_OR_RETURN(program.groups, GroupsOf(o.mesh, rank));
  try {
    const auto add = [&](const char* name, BucketUse buckets) {
      program.plans.push_back(Forward(workload, o, name, buckets));
      return static_cast<int>(program.plans.size()) - 1;
    };
    if (!o.evaluation_only) {
      const int begin = o.accumulation > 1 ? add("begin", {false, false}) : 0;
      const int accumulate = o.accumulation > 2 ? add("accumulate", {true, false}) : 0;
      const int update = add("update", {o.accumulation > 1, true});
      for (int a = 0; a + 1 < o.accumulation; ++a) program.schedule.push_back({a == 0 ? begin : accumulate, a});
      program.schedule.push_back({update, o.accumulation - 1});
    }
    add("evaluate", {});
    for (const Pass& pass : Passes()) pass.apply(program, o);
  } catch (const BuildError& error) {
    return InvalidArgument("the model {} cannot be built: {}", workload.name, error.what());
  }
  return program;
}

}  // namespace switchyard
