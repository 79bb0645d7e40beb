#include "core/optim/shared_update.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "fmt/format.h"

namespace switchyard {

Piece PieceOf(const SharedBucket& bucket, int64_t start, int64_t elements, const SharedUpdate& shared) {
  const int64_t share = bucket.elements / shared.ranks, first = shared.part * share;
  Piece piece{.begin = std::clamp<int64_t>(first - start, 0, elements)};
  piece.elements = std::clamp<int64_t>(first + share - start, 0, elements) - piece.begin;
  if (piece.elements > 0) piece.at = start + piece.begin - first;
  return piece;
}

Part PartOfPiece(const Piece& piece, const Shape& whole, const std::optional<Part>& of, const SharedUpdate& shared) {
  Part part{whole, {DividedAxis::kAllElements, 1, Elements(whole), 1}};
  part.begin = piece.begin;
  part.end = piece.begin + piece.elements;
  part.group = shared.group;
  if (of) part.of = std::make_shared<const Part>(*of);
  return part;
}

bool IsPiece(const InputInfo& info) { return info.part && info.part->axis.dimension == DividedAxis::kAllElements; }

const Part* DividedWeight(const InputInfo& info) {
  return !info.part ? nullptr : IsPiece(info) ? info.part->of.get() : &*info.part;
}

const Shape& UpdatedShape(const Value& parameter) {
  const InputInfo& info = *parameter.graph().node(parameter.ref().node).input;
  return IsPiece(info) ? info.part->whole : parameter.shape();
}

std::vector<Piece> PiecesOf(Graph& graph, const std::vector<ParameterGradient>& tensors, const SharedUpdate& shared,
                            Graph::Location where) {
  std::vector<Piece> pieces;
  for (const SharedBucket& bucket : shared.buckets) {
    for (const auto& [tensor, start] : bucket.members) {
      const Value& parameter = tensors[tensor].parameter;
      const int64_t all = Elements(UpdatedShape(parameter));
      Piece piece = PieceOf(bucket, start, all, shared);
      piece.tensor = tensor;
      if (piece.elements > 0) {
        piece.parameter =
            IsPiece(*graph.node(parameter.ref().node).input)
                ? parameter
                : ops::Slice(ops::Reshape(parameter, {all}, where), 0, piece.begin, piece.elements, 1, where);
        piece.gradient = ops::Slice(graph.value(bucket.sums), 0, piece.at, piece.elements, 1, where);
      }
      pieces.push_back(piece);
    }
  }
  return pieces;
}

Value StateOf(const Piece& piece, const Value& parameter, const std::string& name, const SharedUpdate& shared,
              Graph::Location where) {
  const InputInfo& followed = *parameter.graph().node(parameter.ref().node).input;
  InputInfo info = {Role::kState};
  info.part = IsPiece(followed) ? followed.part : PartOfPiece(piece, parameter.shape(), followed.part, shared);
  return parameter.graph().Input(name, {DType::kF32, {std::max<int64_t>(1, piece.elements)}}, info, where);
}

Value GatherBucket(Graph& graph, const SharedBucket& bucket, const SharedUpdate& shared,
                   const std::vector<std::pair<int64_t, Value>>& held, DType dtype, const std::string& name,
                   const std::vector<int>& after, Graph::Location where) {
  std::vector<Value> parts;
  int64_t end = 0;
  const auto zeros_until = [&](int64_t begin) {
    if (begin > end) parts.push_back(ops::Full(graph, {begin - end}, 0, dtype, where));
  };
  for (const auto& [at, elements] : held) {
    zeros_until(at);
    parts.push_back(elements);
    end = at + elements.dim(0);
  }
  zeros_until(bucket.elements / shared.ranks);
  Value gathered = ops::Concat(parts, 0, where);
  std::vector<int> control = after;
  for (const GatherStep& step : shared.gathers) {
    gathered = ops::AllGather(gathered, step.ranks, step.group, name, where);
    graph.mutable_node(gathered.ref().node).control = std::exchange(control, {});
  }
  return gathered;
}

// What this rank has whole of a bucket's parameters, by one of them, for they are alike: the parameter; its half copy,
// where it has a piece of that; or none.
static Value WholeOf(const ParameterGradient& tensor) {
  const Value& parameter = tensor.parameter;
  return IsPiece(*parameter.graph().node(parameter.ref().node).input) ? tensor.half : parameter;
}

void GatherPieces(Graph& graph, const std::vector<ParameterGradient>& tensors, const SharedUpdate& shared,
                  const std::vector<Piece>& pieces, const std::vector<Value>& updated, const Value& after,
                  const std::function<void(size_t tensor, const Value& whole)>& done, Graph::Location where) {
  size_t piece = 0;
  int gathered = after.ref().node;  // the node before
  std::vector<int> finished;        // by gathered bucket: the last node that reads what was gathered
  for (size_t b = 0; b < shared.buckets.size(); ++b) {
    const SharedBucket& bucket = shared.buckets[b];
    const Value kept = WholeOf(tensors[bucket.members[0].tensor]);
    std::vector<std::pair<int64_t, Value>> held;
    for (size_t m = 0; m < bucket.members.size(); ++m, ++piece) {
      if (kept && pieces[piece].elements > 0)
        held.push_back({pieces[piece].at, ops::Cast(updated[piece], kept.dtype(), where)});
    }
    if (!kept) continue;
    // In one order on all ranks, whatever each of them has to update.
    std::vector<int> before = {gathered};
    if (finished.size() >= 2) before.push_back(finished[finished.size() - 2]);
    const Value whole =
        GatherBucket(graph, bucket, shared, held, kept.dtype(), fmt::format("parameters/{}", b), before, where);
    gathered = whole.ref().node;
    for (const auto& [tensor, start] : bucket.members) {
      const TensorType& type = WholeOf(tensors[tensor]).type();
      done(tensor, ops::Reshape(ops::Slice(whole, 0, start, type.elements(), 1, where), type.shape, where));
    }
    finished.push_back(graph.size() - 1);
  }
}

}  // namespace switchyard
