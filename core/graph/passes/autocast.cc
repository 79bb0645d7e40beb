#include "core/graph/passes/autocast.h"

#include <algorithm>
#include <map>

#include "core/graph/op.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/passes/rewrite.h"

namespace switchyard {
namespace {

bool IsHalfOp(const Node& node) { return PrecisionOf(node) == Precision::kHalf; }

bool GivesOn(const Node& node) {
  const Precision precision = PrecisionOf(node);
  return precision == Precision::kSelects || precision == Precision::kBetween;
}

// What a residual stream runs through: elementwise ops that take what comes, and norms.
bool IsOnResidualStream(const Node& node) {
  const Precision precision = PrecisionOf(node);
  if (precision == Precision::kReaders) return true;
  return TraitsOf(node.op).pointwise && (precision == Precision::kWidest || precision == Precision::kSelects);
}

// By node: do half ops alone read result 0, directly or through views and what selects? `or_stream`: or what a
// residual stream runs through.
std::vector<char> OnlyHalfOpsRead(const Graph& graph, const IdLists& users, bool or_stream) {
  std::vector<char> only(static_cast<size_t>(graph.size()), 0);
  for (int id = static_cast<int>(graph.size()) - 1; id >= 0; --id) {
    bool read = false, by_others = false;
    for (const int user : users[id]) {
      const Node& reader = graph.node(user);
      if (std::find(reader.inputs.begin(), reader.inputs.end(), Ref{id, 0}) == reader.inputs.end()) continue;
      const bool gives_on = TraitsOf(reader.op).view || GivesOn(reader);
      read = true;
      by_others |= !IsHalfOp(reader) && !(or_stream && IsOnResidualStream(reader)) &&
                   !(gives_on && only[static_cast<size_t>(user)] != 0);
    }
    only[static_cast<size_t>(id)] = read && !by_others;
  }
  return only;
}

// By node: is its result on the way to a product or to what a residual stream runs through? A loss is not.
std::vector<char> OnTheWay(const Graph& graph, const IdLists& users) {
  std::vector<char> on_the_way(static_cast<size_t>(graph.size()), 0);
  for (int id = static_cast<int>(graph.size()) - 1; id >= 0; --id) {
    on_the_way[static_cast<size_t>(id)] = std::any_of(users[id].begin(), users[id].end(), [&](int user) {
      const Node& reader = graph.node(user);
      return IsHalfOp(reader) || IsOnResidualStream(reader) || on_the_way[static_cast<size_t>(user)] != 0;
    });
  }
  return on_the_way;
}

// The widest floating dtype among the values; nothing where none is floating.
std::optional<DType> WidestFloating(const std::vector<Value>& values) {
  std::optional<DType> widest;
  for (const Value& value : values) {
    if (IsFloating(value.dtype())) widest = widest ? Widest(*widest, value.dtype()) : value.dtype();
  }
  return widest;
}

// Does the value come from outside the graph, as a parameter or with the batch?
bool IsGiven(const Value& value) {
  const auto& input = value.graph().node(value.ref().node).input;
  return input && (input->role == Role::kParameter || input->average || input->role == Role::kBatch);
}
bool IsParameter(const Value& value) {
  const auto& input = value.graph().node(value.ref().node).input;
  return input && (input->role == Role::kParameter || input->average);
}

}  // namespace

Graph Autocast(const Graph& forward, const AutocastOptions& options) {
  const auto users = forward.Users();
  const DType half = options.half;
  const std::vector<char> only_half_ops_read = OnlyHalfOpsRead(forward, users, options.residuals_in_half);
  const std::vector<char> on_the_way = options.residuals_in_half ? OnTheWay(forward, users) : std::vector<char>();
  const bool half_model = options.level != AmpLevel::kO1;
  std::map<Ref, Value> halves;  // one half copy per new value
  return Rewrite("autocast", forward, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = forward.node(id);
    const OpTraits& traits = TraitsOf(node.op);
    std::vector<Value> inputs = r.Map(node.inputs);
    Wanted wanted = WantedOf(node);
    const auto to_half = [&](Value& v) {
      if (!IsFloating(v.dtype()) || v.dtype() == half) return;
      Value& copy = halves[v.ref()];
      if (!copy) copy = ops::Cast(v, half, node.where);
      v = copy;
    };
    // A parameter that the op takes in f32 alone, with the digits of a half.
    const auto round_parameters = [&] {
      for (Value& v : inputs) {
        if (options.norms_in_f32 || !IsParameter(v)) continue;
        to_half(v);
        v = ops::Cast(v, DType::kF32, node.where);
      }
    };
    if (traits.structural && !traits.view) {  // states and outputs keep their dtype
      for (size_t i = 0; i < inputs.size(); ++i)
        inputs[i] = ops::Cast(inputs[i], forward.type(node.inputs[i]).dtype, node.where);
      return r.result.Clone(node, inputs);
    }
    switch (PrecisionOf(node)) {
      case Precision::kHalf:
        for (int i = 0; i < traits.half_inputs; ++i) to_half(inputs[i]);
        wanted.dtypes[0] = half;
        break;
      case Precision::kFull:
        round_parameters();
        if (options.level == AmpLevel::kO3) {
          if (traits.wide_sums) wanted.dtypes[0] = inputs[0].dtype();
          break;
        }
        for (Value& v : inputs) {
          if (IsFloating(v.dtype())) v = ops::Cast(v, DType::kF32, node.where);
        }
        break;
      case Precision::kReaders:
        round_parameters();
        if (half_model || only_half_ops_read[static_cast<size_t>(id)] != 0) wanted.dtypes[0] = half;
        break;
      case Precision::kSelects:
      case Precision::kBetween:
      case Precision::kWidest: {
        const bool wanted_half = GivesOn(node) && only_half_ops_read[static_cast<size_t>(id)] != 0;
        const bool in_stream = options.residuals_in_half && on_the_way[static_cast<size_t>(id)] != 0;
        const bool narrow =
            (wanted_half || in_stream) &&
            std::any_of(inputs.begin(), inputs.end(), [&](const Value& v) { return v.dtype() == half; });
        for (Value& v : inputs) {
          if (narrow || (half_model && IsGiven(v))) to_half(v);
        }
        if (const std::optional<DType> widest = WidestFloating(inputs)) {
          for (Value& v : inputs) {
            if (traits.one_dtype) v = ops::Cast(v, *widest, node.where);
          }
          for (DType& dtype : wanted.dtypes) {
            if (IsFloating(dtype)) dtype = *widest;
          }
        }
        break;
      }
    }
    return r.result.Clone(node, inputs, wanted);
  });
}

}  // namespace switchyard
