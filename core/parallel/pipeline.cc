#include "core/parallel/pipeline.h"

#include <map>
#include <utility>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/half_weights.h"
#include "core/parallel/passes.h"
#include "core/parallel/pipeline_cut.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// The part of one stage of a graph, for some micro-batches.
class Stage {
 public:
  Stage(const CutGraph& cut, int stage, int micro_batches)
      : cut_(cut), stage_(stage), values_(static_cast<size_t>(micro_batches)) {
    // All of its weights, whatever the plan reads, as who shares and gathers them expects.
    for (const Role role : {Role::kParameter, Role::kState, Role::kCopy}) {
      for (const int id : cut.graph.Inputs(role)) {
        if (cut.StageOf(id) == stage && (role != Role::kState || cut.graph.node(id).input->average)) At({id, 0}, 0);
      }
    }
  }

  Graph result;

  // The value of a micro-batch; what may be computed anywhere is where it is not yet.
  Value At(Ref ref, int micro_batch) {
    auto& values = values_[static_cast<size_t>(micro_batch)];
    const Node& node = cut_.graph.node(ref.node);
    const bool shared = node.input && node.input->role != Role::kBatch;
    auto& place = shared ? shared_ : values;
    if (const auto found = place.find(ref); found != place.end()) return found->second;
    if (node.input) {
      const std::string name = node.input->role == Role::kBatch ? MicroBatchInput(node.name, micro_batch) : node.name;
      return place[ref] = result.Input(name, node.outputs[0], *node.input, node.where);
    }
    if (cut_.StageOf(ref.node) != kAnywhere)
      throw BuildError(fmt::format("pipeline stage {} needs {} before it can be there", stage_, node.name));
    Copy(ref.node, micro_batch);
    return values.at(ref);
  }

  int PartOf(const StageStep& step) const { return step.chunk * cut_.stages + stage_; }

  void Run(const StageStep& step) {
    const int begin = result.size();
    for (int id = 0; id < cut_.graph.size(); ++id) {
      const Node& node = cut_.graph.node(id);
      if (cut_.PartOf(id) == PartOf(step) && !node.input && !IsKept(node) && IsLate(node) == step.backward)
        Copy(id, step.micro_batch);
    }
    for (int id = begin; id < result.size(); ++id) {
      if (result.node(id).input) continue;
      first_values_.push_back({id, 0});
      break;
    }
  }
  const std::vector<Ref>& first_values() const { return first_values_; }  // of the steps that were run

  void Communicate(const Transfer& message) {
    if (message.from != stage_ && message.to != stage_) return;
    const std::string& name = cut_.graph.node(message.value.node).name;
    result.SetPhase(message.backward ? Phase::kBackward : Phase::kForward);
    if (message.from == stage_) {
      ops::Send(At(message.value, message.micro_batch), message.to, kPipelineGroup, "send/" + name);
    } else {
      values_[static_cast<size_t>(message.micro_batch)][message.value] =
          ops::Receive(result, cut_.graph.type(message.value), message.from, kPipelineGroup, "receive/" + name);
    }
    result.SetPhase(Phase::kForward);
  }

  // From now on, micro-batches read what this forward step makes of the model's state.
  void MoveStates(const StageStep& step) {
    for (const auto& [state, value] : Assignments()) {
      if (cut_.PartOf(state.node) != PartOf(step)) continue;
      At(state, step.micro_batch);
      shared_[state] = At(value, step.micro_batch);
    }
  }
  // `states`: as they were when the step began.
  void AssignStates() {
    for (const auto& [state, value] : Assignments())
      result.Assign(result.FindInput(cut_.graph.node(state.node).name), shared_.at(state));
  }

 private:
  std::vector<std::pair<Ref, Ref>> Assignments() const {
    std::vector<std::pair<Ref, Ref>> found;
    for (const Node& node : cut_.graph.nodes()) {
      if (IsAssign(node) && cut_.StageOf(node.inputs[0].node) == stage_)
        found.push_back({node.inputs[0], node.inputs[1]});
    }
    return found;
  }

  void Copy(int id, int micro_batch) {
    const Node& node = cut_.graph.node(id);
    std::vector<Value> inputs;
    for (const Ref& input : node.inputs) inputs.push_back(At(input, micro_batch));
    auto& values = values_[static_cast<size_t>(micro_batch)];
    const std::vector<Value> made = result.Clone(cut_.graph, id, inputs);
    const auto copy_of = [&](int earlier) {
      const auto found = values.find({earlier, 0});
      return found == values.end() ? -1 : found->second.ref().node;
    };
    const int copy = result.size() - 1;
    if (node.forward >= 0) result.SetForward(copy, copy_of(node.forward));
    if (node.repeats >= 0) result.SetRepeats(copy, copy_of(node.repeats));
    for (const int earlier : node.control) {
      if (copy_of(earlier) >= 0) result.AddControl(copy, copy_of(earlier));
    }
    for (const Value& value : made) values[{id, value.ref().output}] = value;
  }

  const CutGraph& cut_;
  const int stage_;
  std::vector<std::map<Ref, Value>> values_;  // by micro-batch
  std::vector<Ref> first_values_;
  std::map<Ref, Value> shared_;  // inputs that micro-batches have in common, and states as they are now
};

// Steps and messages in the order of their time; `done` after each step.
template <typename Done>
void Play(const CutGraph& cut, const StageTimes& times, int number, Stage& stage, const Done& done) {
  const std::vector<Transfer> messages = MessagesOf(cut, times);
  size_t next = 0;
  const auto communicate = [&](double until) {
    while (next < messages.size() && messages[next].time <= until) stage.Communicate(messages[next++]);
  };
  const auto& steps = times.steps[static_cast<size_t>(number)];
  for (size_t i = 0; i < steps.size(); ++i) {
    communicate(times.spans[static_cast<size_t>(number)][i].begin);
    stage.Run(steps[i]);
    done(steps[i]);
  }
  if (!messages.empty()) communicate(messages.back().time);
}

// The owner's value on all stages.
Value OnAllStages(Stage& stage, const CutGraph& cut, int number, Ref shown, const Value& own, const std::string& name) {
  const int owner = cut.StageOf(shown.node);
  if (owner == kAnywhere) return own;
  const TensorType& type = cut.graph.type(shown);
  const Value value = owner == number ? own : ops::Full(stage.result, type.shape, 0, type.dtype);
  return ops::Broadcast(value, owner, kPipelineGroup, "broadcast/" + name);
}

void CutTraining(NamedGraph& plan, const StageCut& stages, int number, int micro_batches) {
  const CutGraph cut = Cut(plan, stages);
  Stage stage(cut, number, micro_batches);
  std::vector<GradientOf> own;
  for (const GradientOf& pair : plan.gradients) {
    if (cut.StageOf(pair.parameter.node) == number) own.push_back(pair);
  }
  if (own.empty()) throw BuildError(fmt::format("pipeline stage {} of {} has no parameters", number, stages.stages));
  std::vector<Value> sums(own.size());
  std::map<Ref, Value> shown;  // outputs, added up
  Play(cut, TrainingTimes(stages, micro_batches), number, stage, [&](const StageStep& step) {
    stage.result.SetPhase(step.backward ? Phase::kBackward : Phase::kForward);
    for (size_t i = 0; step.backward && i < own.size(); ++i) {
      if (own[i].gradient.node < 0 || cut.PartOf(own[i].parameter.node) != stage.PartOf(step)) continue;
      const Value gradient = ops::Cast(stage.At(own[i].gradient, step.micro_batch), DType::kF32);
      sums[i] = sums[i] ? ops::Accumulate(sums[i], gradient) : gradient;
    }
    for (const Node& node : plan.graph.nodes()) {
      if (step.backward || !IsOutput(node) || cut.PartOf(node.inputs[0].node) != stage.PartOf(step)) continue;
      Value& sum = shown[node.inputs[0]];
      const Value value = stage.At(node.inputs[0], step.micro_batch);
      sum = sum ? ops::Add(sum, value) : value;
    }
    stage.result.SetPhase(Phase::kForward);
    if (!step.backward) stage.MoveStates(step);
  });
  plan.gradients.clear();
  for (size_t i = 0; i < own.size(); ++i)
    plan.gradients.push_back({stage.At(own[i].parameter, 0).ref(), sums[i] ? sums[i].ref() : Ref()});
  if (plan.loss_scale.node >= 0) plan.loss_scale = stage.At(plan.loss_scale, 0).ref();
  stage.AssignStates();
  for (const Node& node : plan.graph.nodes()) {
    if (!IsOutput(node)) continue;
    const Ref ref = node.inputs[0];
    const auto sum = shown.find(ref);
    const Value mean = sum == shown.end() ? Value() : ops::Scale(sum->second, 1.0f / static_cast<float>(micro_batches));
    stage.result.Output(node.name, OnAllStages(stage, cut, number, ref, mean, node.name), node.where);
  }
  plan.graph = std::move(stage.result);
  plan.steps = stage.first_values();
  plan.buckets.adds = false;  // the sums are in the graph
}

void CutEvaluation(NamedGraph& plan, const StageCut& stages, int number) {
  const CutGraph cut = Cut(plan, stages);
  Stage stage(cut, number, 1);
  Play(cut, EvaluationTimes(stages), number, stage, [](const StageStep&) {});
  for (const Node& node : plan.graph.nodes()) {
    if (!IsOutput(node)) continue;
    const Ref ref = node.inputs[0];
    const int owner = cut.StageOf(ref.node);
    const Value own = owner == number || owner == kAnywhere ? stage.At(ref, 0) : Value();
    stage.result.Output(node.name, OnAllStages(stage, cut, number, ref, own, node.name), node.where);
  }
  plan.graph = std::move(stage.result);
}

Status PipelineLegal(const ProgramOptions& o) {
  if (o.interleave < 1) return InvalidArgument("--pp_interleave={}: expected 1 or more", o.interleave);
  if (o.mesh.pipeline <= 1) return OkStatus();
  if (!o.evaluation_only && o.accumulation < o.mesh.pipeline)
    return InvalidArgument(
        "--pp={0} with {1} micro-batch{2} an update: expected at least as many as stages, so that every stage has "
        "work; use --accumulation={0} or more",
        o.mesh.pipeline, o.accumulation, o.accumulation == 1 ? "" : "es");
  if (o.interleave > 1 && !o.evaluation_only && o.accumulation % o.mesh.pipeline != 0)
    return InvalidArgument(
        "--pp_interleave={} with {} micro-batches an update: expected a multiple of the {} stages, which take so many "
        "at a time; use --accumulation={}, or --pp_interleave=1",
        o.interleave, o.accumulation, o.mesh.pipeline, (o.accumulation / o.mesh.pipeline + 1) * o.mesh.pipeline);
  const auto refuse = [&](const std::string& what, const std::string& instead) {
    return Unimplemented("--pp={} with {}: not there yet; use {}", o.mesh.pipeline, what, instead);
  };
  if (o.zero > 1) return refuse(fmt::format("--zero={}", o.zero), "--zero=1");
  return OkStatus();
}

// By whole products: ranks of a tensor group may have parts of unequal size, and must be stages of the same blocks.
void ApplyStages(Program& program, const ProgramOptions& o) {
  if (o.mesh.pipeline <= 1) return;
  const NamedGraph* const update = program.Find("update");
  const NamedGraph& plan = update != nullptr ? *update : *program.Find("evaluate");
  program.stages = {o.mesh.pipeline, o.interleave, PartsOfBlocks(plan.graph, o.mesh.pipeline, o.interleave)};
  const CutGraph cut = Cut(plan, program.stages);
  for (int id = 0; id < plan.graph.size(); ++id) {
    const Node& node = plan.graph.node(id);
    if (node.input && (node.input->role == Role::kParameter || node.input->of_model))
      program.stages.part_of_weight[node.name] = cut.PartOf(id);
  }
}

void ApplyPipeline(Program& program, const ProgramOptions& o) {
  if (o.mesh.pipeline <= 1) return;
  const int number = o.mesh.StageOf(program.rank);
  std::vector<NamedGraph> plans;
  std::map<int, int> number_of;  // of the plans before, those that stay
  bool first = true;
  for (size_t i = 0; i < program.plans.size(); ++i) {
    NamedGraph& plan = program.plans[i];
    if (plan.trains && !plan.buckets.reduces) continue;  // the update does all micro-batches
    if (plan.name == "halves") continue;                 // a stage has those of its own weights
    number_of[static_cast<int>(i)] = static_cast<int>(plans.size());
    if (std::exchange(first, false)) program.elsewhere = WeightsElsewhere(plan, program.stages, number);
    if (plan.trains) {
      CutTraining(plan, program.stages, number, o.accumulation);
    } else {
      CutEvaluation(plan, program.stages, number);
    }
    plans.push_back(std::move(plan));
  }
  program.plans = std::move(plans);
  AddHalves(program);
  std::erase_if(program.schedule, [&](const Action& action) { return !number_of.contains(action.plan); });
  for (Action& action : program.schedule) action.plan = number_of.at(action.plan);
}

}  // namespace

std::string MicroBatchInput(const std::string& name, int micro_batch) {
  return micro_batch == 0 ? name : fmt::format("{}/micro_batch/{}", name, micro_batch);
}

Pass StagesPass() {
  return {"stages", [](const ProgramOptions&) { return OkStatus(); }, ApplyStages};
}
Pass PipelinePass() { return {"pipeline", PipelineLegal, ApplyPipeline}; }

}  // namespace switchyard
