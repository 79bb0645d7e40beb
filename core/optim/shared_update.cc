#include "core/optim/shared_update.h"

#include <algorithm>
#include <memory>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "fmt/format.h"

namespace switchyard {

std::vector<Piece> PiecesOf(Graph& graph, const std::vector<ParameterGradient>& tensors, const SharedUpdate& shared,
                            Graph::Location where) {
  std::vector<Piece> pieces;
  for (const SharedBucket& bucket : shared.buckets) {
    const int64_t share = bucket.elements / shared.ranks, first = shared.rank * share;
    for (const auto& [tensor, start] : bucket.members) {
      const Value& parameter = tensors[tensor].parameter;
      const int64_t all = parameter.type().elements();
      Piece piece{.tensor = tensor, .begin = std::clamp<int64_t>(first - start, 0, all)};
      piece.elements = std::clamp<int64_t>(first + share - start, 0, all) - piece.begin;
      if (piece.elements > 0) {
        piece.at = start + piece.begin - first;
        piece.parameter = ops::Slice(ops::Reshape(parameter, {all}, where), 0, piece.begin, piece.elements, 1, where);
        piece.gradient = ops::Slice(graph.value(bucket.sums), 0, piece.at, piece.elements, 1, where);
      }
      pieces.push_back(piece);
    }
  }
  return pieces;
}

Value StateOf(const Piece& piece, const Value& parameter, const std::string& name, const SharedUpdate& shared,
              Graph::Location where) {
  InputInfo info = {Role::kState};
  info.part = Part{parameter.shape(), {DividedAxis::kAllElements, 1, parameter.type().elements(), 1}};
  info.part->begin = piece.begin;
  info.part->end = piece.begin + piece.elements;
  info.part->group = shared.group;
  if (const auto& of = parameter.graph().node(parameter.ref().node).input->part)
    info.part->of = std::make_shared<const Part>(*of);
  return parameter.graph().Input(name, {DType::kF32, {std::max<int64_t>(1, piece.elements)}}, info, where);
}

void GatherPieces(Graph& graph, const std::vector<ParameterGradient>& tensors, const SharedUpdate& shared,
                  const std::vector<Piece>& pieces, const std::vector<Value>& updated, const Value& after,
                  const std::function<void(size_t tensor, const Value& whole)>& done, Graph::Location where) {
  size_t piece = 0;
  int gathered = after.ref().node;  // the node before
  std::vector<int> finished;        // by bucket: the last node that reads what was gathered
  for (const SharedBucket& bucket : shared.buckets) {
    std::vector<Value> parts;
    int64_t end = 0;
    const auto zeros_until = [&](int64_t begin) {
      if (begin > end) parts.push_back(ops::Full(graph, {begin - end}, 0, DType::kF32, where));
    };
    for (size_t m = 0; m < bucket.members.size(); ++m, ++piece) {
      const auto& [tensor, begin, elements, at, parameter, gradient] = pieces[piece];
      if (elements == 0) continue;
      zeros_until(at);
      parts.push_back(updated[piece]);
      end = at + elements;
    }
    zeros_until(bucket.elements / shared.ranks);
    const size_t b = finished.size();
    const Value whole = ops::AllGather(ops::Concat(parts, 0, where), shared.ranks, shared.group,
                                       fmt::format("parameters/{}", b), where);
    // In one order on all ranks, whatever each of them has to update.
    std::vector<int>& control = graph.mutable_node(whole.ref().node).control;
    control.push_back(gathered);
    if (b >= 2) control.push_back(finished[b - 2]);
    gathered = whole.ref().node;
    for (const auto& [tensor, start] : bucket.members) {
      const TensorType& type = tensors[tensor].parameter.type();
      done(tensor, ops::Reshape(ops::Slice(whole, 0, start, type.elements(), 1, where), type.shape, where));
    }
    finished.push_back(graph.size() - 1);
  }
}

}  // namespace switchyard
