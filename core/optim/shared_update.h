// The optimizer's update shared by the ranks of a group (Rajbhandari et al. 2020, "ZeRO", stages 1 and 2). Gradients
// lie in flat buckets that divide evenly over the ranks; each rank updates what lies in one part of each bucket,
// pieces of parameters, and has the moments of those alone. The new parameters are gathered bucket by bucket: two are
// on their way or copied to their places at a time. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

struct ParameterGradient {
  Value parameter;  // an input of role kParameter, f32; a piece where ranks share the parameters
  Value gradient;   // of the same shape, floating; none where an update is shared
  Value half = {};  // an input of a half type and the same shape that becomes the new parameter, rounded; or none. Of a
                    // parameter that is a piece it may be whole
  bool read_in_half = false;  // all that plans read of the parameter is its half copy
};

// A bucket of gradients, and what this rank has of their sums.
struct SharedBucket {
  struct Member {
    size_t tensor = 0;  // an index into the parameters
    int64_t start = 0;  // of its elements in the bucket
  };
  std::vector<Member> members;  // one behind the other
  int64_t elements = 0;         // of the bucket, a multiple of the ranks
  bool read_in_half = false;    // as of the members, which are alike
  Ref sums;  // f32 (elements / ranks): this rank's part; it may end behind the last member. Node −1: none lies there
};

// Parts of `ranks` ranks of a group (an index as in Program::groups), in their order.
struct GatherStep {
  int ranks = 1, group = 0;
};

struct SharedUpdate {
  int ranks = 1;
  int part = 0;   // of each bucket, which this rank updates: its place in the group, or another order of the ranks
  int group = 0;  // an index as in Program::groups
  std::vector<GatherStep> gathers;  // one behind the other, they bring the parts of a bucket together in their order
  std::vector<SharedBucket> buckets;
};

// What this rank updates of a tensor: elements [begin, begin + elements) of it, which lie at `at` in its part of the
// bucket. No elements: nothing, and the values are none.
struct Piece {
  size_t tensor = 0, bucket = 0;
  int64_t begin = 0, elements = 0, at = 0;
  Value parameter, gradient;  // (elements)
};

// Of a tensor of so many elements that begins at `start` of a bucket; no values.
Piece PieceOf(const SharedBucket& bucket, int64_t start, int64_t elements, const SharedUpdate& shared);
// A piece of a tensor of shape `whole`, which itself may be a part.
Part PartOfPiece(const Piece& piece, const Shape& whole, const std::optional<Part>& of, const SharedUpdate& shared);

bool IsPiece(const InputInfo& info);                // is all that this rank has of the input a piece?
const Part* DividedWeight(const InputInfo& info);   // the part of a weight that ranks of a model divide; or null
const Shape& UpdatedShape(const Value& parameter);  // of what ranks share the update of: a parameter, whole or a part

// Of every member, bucket by bucket. Parameters may be pieces already.
std::vector<Piece> PiecesOf(Graph& graph, const std::vector<ParameterGradient>& tensors, const SharedUpdate& shared,
                            Graph::Location where);

// The input that holds state of a piece, "moment1/w": the piece's elements, or a zero where it has none.
Value StateOf(const Piece& piece, const Value& parameter, const std::string& name, const SharedUpdate& shared,
              Graph::Location where);

// The elements of a bucket (elements) in `dtype`, of which this rank has those of `held`: (where in its part, (n) of
// that type), in order. after: nodes behind which the first gather stands.
Value GatherBucket(Graph& graph, const SharedBucket& bucket, const SharedUpdate& shared,
                   const std::vector<std::pair<int64_t, Value>>& held, DType dtype, const std::string& name,
                   const std::vector<int>& after = {}, Graph::Location where = Graph::Location::current());

// Brings together what is new of the buckets of which ranks have something whole: the parameters, or their half copies,
// which are gathered in their type. Two buckets are on their way or copied to their places at a time.
class ParameterGathers {
 public:
  // done(tensor, the new value of what is whole of it) assigns it. All must outlive the object.
  ParameterGathers(Graph& graph, const std::vector<ParameterGradient>& tensors, const SharedUpdate& shared,
                   std::function<void(size_t tensor, const Value& whole)> done, Graph::Location where)
      : graph_(graph), tensors_(tensors), shared_(shared), done_(std::move(done)), where_(where) {}

  // Of each bucket in turn. updated: its pieces' new elements, and where in this rank's part they are, in order; after:
  // what depends on all reductions, since a rank may have nothing to update of a bucket and would gather it before
  // others have reduced.
  void Gather(size_t bucket, const std::vector<std::pair<int64_t, Value>>& updated, const Value& after);
  void Finish();  // behind the last

 private:
  struct Gathered {
    const SharedBucket* bucket;
    Value whole;
  };
  void Copy(const Gathered& gathered);

  Graph& graph_;
  const std::vector<ParameterGradient>& tensors_;
  const SharedUpdate& shared_;
  const std::function<void(size_t, const Value&)> done_;
  const Graph::Location where_;
  std::optional<Gathered> last_;  // that is not copied yet
  int copied_ = -1;               // the last node that reads what was gathered of the bucket before
};

}  // namespace switchyard
