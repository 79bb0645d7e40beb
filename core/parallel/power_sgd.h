// Means of gradients over ranks, of which little is sent: PowerSGD (Vogels, Karimireddy, Jaggi 2019, "PowerSGD",
// algorithms 1 and 2). A gradient g of this rank is a matrix (n, m): its first dimension and the rest. With what
// earlier updates left out, e, and the factor Q (m, r) of the update before:
//
//   x = g + e;  P = orthonormal(Σ x·orthonormal(Q));  Q = Σ xᵀ·P / W;  M = P·Qᵀ;  e = x − M
//
// Sums are over the W ranks of the data group; M stands for the mean. All is linear in Σx, so that W ranks find what
// one finds of the mean gradient. Columns of Q that are zero, as all are at first, are drawn from N(0, 1) by the seed
// and the parameter's name; columns that depend on those before them become zero instead of being divided by nothing.
//
// Of a parameter that the ranks of a tensor group divide each compresses its part, over its own data group, as a matrix
// by itself: nothing of it passes between tensor ranks, and what is left is of rank r in each part, so that other
// tensor ranks find other numbers. Stages of a pipeline compress what they have.
//
// State, f32: "power_sgd_error/<parameter>" in its shape, different on each data rank, and
// "power_sgd_factor/<parameter>", Qᵀ (r, m), equal on all of them. Both are in units of the unscaled gradient. The
// error of a divided parameter is divided as it is. The factors of its parts are one matrix (r, m) side by side where
// columns are divided, and where rows are, one (T·r, m) below each other, of T tensor ranks. Thread-safe: pure
// functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

struct PowerSgdOptions {
  int rank = 0;          // r; 0: gradients are sent as they are
  int64_t start = 1000;  // updates of the run that send them as they are, before the others
};
inline constexpr int kLargestPowerSgdRank = 64;  // a column is cleared of those before it, one after the other

// Is there less to send of a gradient of this shape? (n + m)·r·2 < n·m. Of a divided parameter the whole shape decides.
bool IsCompressed(const Shape& shape, int rank);

// Which of the ranks that divide parameters this is.
struct TensorPlace {
  int ranks = 1, rank = 0;
};

struct LowRankState {
  std::string name;
  TensorType type;  // on this rank
  InputInfo info;
  const Shape& whole() const { return info.part ? WholeShape(*info.part) : type.shape; }
};
// Of a parameter, an input: the error and the factor that an update of this rank keeps; none if it is not compressed.
std::vector<LowRankState> LowRankStatesOf(const Node& parameter, int rank, TensorPlace place);

// Is a state of this name one of these?
bool IsPowerSgdState(const std::string& name);

// What `state`, an input, becomes with an update that is made.
struct StateMove {
  Ref state, next;
};

// A gradient of this rank, f32 in the parameter's shape.
struct LowRankGradient {
  Value parameter, gradient;
};

struct LowRankSums {
  int rank = 1, world = 1;
  TensorPlace place = {};
  uint64_t seed = 0;
  float factor = 1;  // of the gradients given, to make them the means over this rank's samples
  Value scale;       // f32 (1), the loss scale that they carry, and the means are to carry; or none
  std::function<Value(const Value& flat, const std::string& name)> sum;  // over the ranks; f32 (n)
};

// M times the scale, f32 in the parameters' shapes, bucket by bucket, in the order in which buckets finish: the P of a
// bucket travel together, and so do its Q. moves: gets two for each gradient, its error's first.
std::vector<std::vector<Value>> AddLowRankMeans(Graph& graph, const std::vector<std::vector<LowRankGradient>>& buckets,
                                                const LowRankSums& sums, std::vector<StateMove>* moves);

}  // namespace switchyard
