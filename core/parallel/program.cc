#include "core/parallel/program.h"

#include <algorithm>

#include "core/graph/verify.h"
#include "core/parallel/passes.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// What passes must leave of a plan beside a sound graph: gradients of the shapes of what is updated.
void VerifyPlan(NamedGraph& plan, const std::string& pass) {
  Verify(plan.graph, pass);
  for (const auto& [parameter, gradient] : plan.gradients) {
    const Node& input = plan.graph.node(parameter.node);
    const auto fits = [&] {
      const Shape& whole = IsPiece(*input.input) ? input.input->part->whole : input.outputs[0].shape;
      return gradient.node < 0 || (gradient.node < plan.graph.size() && plan.graph.type(gradient).shape == whole);
    };
    if (!input.input || input.input->role != Role::kParameter || !fits())
      throw BuildError(fmt::format("the gradients after {} are broken: that of {}", pass, input.name));
  }
}

// The forward graphs. Parameters are made first and by the same function, so that plans of all kinds name them alike.
NamedGraph Forward(const Workload& workload, const ProgramOptions& o, const std::string& name, BucketUse buckets) {
  const bool averaged = name == "evaluate_ema";
  NamedGraph plan{name, {}, buckets, name != "evaluate" && !averaged};
  nn::Context context(plan.graph, plan.trains, o.seed);
  if (averaged) context.averages = AverageOf("");
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

void RewritePlan(NamedGraph& plan, const std::string& pass, const Rule& rule, const InputRule& inputs) {
  plan.graph = Rewrite(pass, plan.graph, rule, inputs, [&](const Rewriting& rewriting) {
    const auto follow = [&](Ref& ref) {
      if (ref.node < 0) return;
      const Value value = rewriting.Map(ref);
      if (!value) throw BuildError(fmt::format("{} lost a gradient of the plan {}", pass, plan.name));
      ref = value.ref();
    };
    for (GradientOf& pair : plan.gradients) {
      follow(pair.parameter);
      follow(pair.gradient);
    }
    for (Ref& flat : plan.flat_gradients) follow(flat);
    for (SharedBucket& bucket : plan.shared) follow(bucket.sums);
    for (StateMove& move : plan.moves) {
      follow(move.state);
      follow(move.next);
    }
    follow(plan.loss_scale);
    follow(plan.finite);
    for (Ref& first : plan.steps) follow(first);
  });
}

StatusOr<Program> BuildProgram(const Workload& workload, const ProgramOptions& o, int rank) {
  for (const Pass& pass : Passes()) {
    const Status legal = pass.legal(o);
    if (!legal.ok()) return Annotate(legal, pass.name);
  }
  Program program;
  program.mesh = o.mesh;
  program.rank = rank;
  Mesh grouped = o.mesh;
  if (!o.hierarchical_allreduce || o.mesh.data == 1) grouped.nodes.clear();  // nobody needs communicators of nodes
  SY_ASSIGN_OR_RETURN(program.groups, GroupsOf(grouped, rank));
  try {
    if (!o.evaluation_only) program.plans.push_back(Forward(workload, o, "update", {o.accumulation > 1, true}));
    program.plans.push_back(Forward(workload, o, "evaluate", {}));
    if (!o.evaluation_only && o.optimizer.ema_decay > 0)
      program.plans.push_back(Forward(workload, o, "evaluate_ema", {}));
    for (const Pass& pass : Passes()) {
      pass.apply(program, o);
      for (NamedGraph& plan : program.plans) VerifyPlan(plan, pass.name);
    }
  } catch (const BuildError& error) {
    return InvalidArgument("the model {} cannot be built: {}", workload.name, error.what());
  }
  return program;
}

}  // namespace switchyard
