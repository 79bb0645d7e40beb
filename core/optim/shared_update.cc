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
  for (size_t b = 0; b < shared.buckets.size(); ++b) {
    const SharedBucket& bucket = shared.buckets[b];
    for (const auto& [tensor, start] : bucket.members) {
      const Value& parameter = tensors[tensor].parameter;
      const int64_t all = Elements(UpdatedShape(parameter));
      Piece piece = PieceOf(bucket, start, all, shared);
      piece.tensor = tensor;
      piece.bucket = b;
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
  // Behind what this rank has of the bucket: written earlier, they would take the gathered tensor's place from then on.
  // Gathers of parameters that are read, which have no `after`, get no such edge: ranks order them by what is ready,
  // and an edge that some ranks have and others have not would make that order differ.
  std::vector<int> behind = after;
  if (!after.empty() && !held.empty()) behind = {held[0].second.ref().node};
  const auto zeros_until = [&](int64_t begin) {
    if (begin <= end) return;
    parts.push_back(ops::Full(graph, {begin - end}, 0, dtype, where));
    graph.mutable_node(parts.back().ref().node).control = behind;
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

void ParameterGathers::Gather(size_t bucket, const std::vector<std::pair<int64_t, Value>>& updated,
                              const Value& after) {
  const SharedBucket& gathered = shared_.buckets[bucket];
  const Value kept = WholeOf(tensors_[gathered.members[0].tensor]);
  if (!kept) return;
  std::vector<std::pair<int64_t, Value>> held;
  for (const auto& [at, elements] : updated) held.push_back({at, ops::Cast(elements, kept.dtype(), where_)});
  // In one order on all ranks, whatever each of them has to update.
  std::vector<int> before = {last_ ? last_->whole.ref().node : after.ref().node};
  if (copied_ >= 0) before.push_back(copied_);
  const std::string name = fmt::format("parameters/{}", bucket);
  const Value whole = GatherBucket(graph_, gathered, shared_, held, kept.dtype(), name, before, where_);
  if (last_) Copy(*last_);
  last_ = {&gathered, whole};
}

void ParameterGathers::Copy(const Gathered& gathered) {
  for (const auto& [tensor, start] : gathered.bucket->members) {
    const TensorType& type = WholeOf(tensors_[tensor]).type();
    done_(tensor, ops::Reshape(ops::Slice(gathered.whole, 0, start, type.elements(), 1, where_), type.shape, where_));
  }
  copied_ = graph_.size() - 1;
}

void ParameterGathers::Finish() {
  if (last_) Copy(*last_);
  last_.reset();
}

}  // namespace switchyard
