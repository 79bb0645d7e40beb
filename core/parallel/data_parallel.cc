#include "core/parallel/data_parallel.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/hierarchical_all_reduce.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

constexpr int64_t kAlignment = 64;  // elements: every parameter's part starts at a multiple of 256 bytes on any device

using Share = DataParallelOptions::Share;

struct Bucket {
  std::vector<size_t> members;  // indices into the gradients
  int64_t elements = 0;         // of the members, padded
  int64_t shared = 0;           // with zeros behind them, so that it divides over the ranks
  uint64_t limit = 0;           // of its bytes
};

std::string PlaceOf(size_t bucket) { return fmt::format("gradients/{}", bucket); }

int64_t Padded(int64_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<Bucket> FillBuckets(const std::vector<ParameterGradient>& gradients, const DataParallelOptions& options) {
  std::vector<size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // A gradient finishes where its node stands in the backward pass.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return gradients[a].gradient.ref() < gradients[b].gradient.ref(); });
  std::vector<Bucket> buckets;
  std::map<bool, size_t> open;  // by ParameterGradient::read_in_half: the bucket that takes the next
  for (const size_t i : order) {
    const int64_t size = Padded(gradients[i].parameter.type().elements());
    const auto [last, first] = open.emplace(gradients[i].read_in_half, buckets.size());
    if (first || static_cast<uint64_t>(buckets[last->second].elements + size) * 4 > buckets[last->second].limit) {
      last->second = buckets.size();
      buckets.emplace_back().limit = options.delay_reduction ? std::numeric_limits<uint64_t>::max()
                                     : first ? std::min(options.first_bucket_bytes, options.bucket_bytes)
                                             : options.bucket_bytes;
    }
    buckets[last->second].members.push_back(i);
    buckets[last->second].elements += size;
  }
  // By the gradient that makes them full.
  std::stable_sort(buckets.begin(), buckets.end(), [&](const Bucket& a, const Bucket& b) {
    return gradients[a.members.back()].gradient.ref() < gradients[b.members.back()].gradient.ref();
  });
  const int64_t unit = options.world * kAlignment;
  for (Bucket& bucket : buckets) bucket.shared = (bucket.elements + unit - 1) / unit * unit;
  return buckets;
}

// The members one behind the other, with zeros between where a member does not end at a multiple of the alignment.
// `sums`: what the bucket holds of earlier micro-batches, or none. `place`: where it lies; "": it does not outlast the
// step. divides: over the ranks.
Value Flatten(Graph& graph, const std::vector<ParameterGradient>& gradients, const Bucket& bucket, const Value& sums,
              const std::string& place, bool divides) {
  std::vector<Value> parts;
  int64_t start = 0;
  // Behind the gradient before them: written earlier, they would take the bucket's memory from then on.
  const auto add_zeros = [&](int64_t elements, const Value& after) {
    if (elements == 0) return;
    parts.push_back(ops::Full(graph, {elements}, 0));
    if (place.empty()) graph.mutable_node(parts.back().ref().node).control.push_back(after.ref().node);
  };
  for (const size_t i : bucket.members) {
    const int64_t elements = gradients[i].gradient.type().elements();
    const Value gradient = ops::Reshape(ops::Cast(gradients[i].gradient, DType::kF32), {elements});
    parts.push_back(sums ? ops::Accumulate(ops::Slice(sums, 0, start, elements), gradient) : gradient);
    const int64_t gap = Padded(elements) - elements;
    add_zeros(gap, gradients[i].gradient);
    start += elements + gap;
  }
  if (divides) add_zeros(bucket.shared - bucket.elements, gradients[bucket.members.back()].gradient);
  const Value flat = graph.Add("concat", parts, Attributes(sy_axes_attributes{}))[0];
  graph.mutable_node(flat.ref().node).bucket = place;
  return flat;
}

// A sum over the ranks, of a bucket or a part of one, in f32.
Value Finished(const Value& sum, const DataParallelOptions& options) {
  return ops::Scale(ops::Cast(sum, DType::kF32), PredivisionOf(options) / static_cast<float>(options.world));
}

// The bucket summed over the ranks.
Value Reduced(const Value& flat, const DataParallelOptions& options, size_t bucket) {
  const std::string name = fmt::format("all_reduce/{}", bucket);
  const Value sent = ops::Cast(flat, options.wire);
  return Finished(HasHierarchy(options.nodes) ? HierarchicalAllReduce(sent, options.nodes, options.rank, name)
                                              : ops::AllReduce(sent, SY_SUM, 1, options.group, name),
                  options);
}

SharedBucket SharedOf(const Bucket& bucket, const std::vector<ParameterGradient>& gradients, const Value& sums) {
  SharedBucket shared{{}, bucket.shared, gradients[bucket.members[0]].read_in_half, sums ? sums.ref() : Ref()};
  int64_t start = 0;
  for (const size_t i : bucket.members) {
    shared.members.push_back({i, start});
    start += Padded(gradients[i].parameter.type().elements());
  }
  return shared;
}

// The buckets, with means over the ranks that little was sent for (power_sgd.h); of gradients that are not compressed
// the sums, as Reduced. One rank finds of the mean gradient what several find.
std::vector<Value> Compressed(Graph& graph, const std::vector<ParameterGradient>& gradients,
                              const std::vector<Bucket>& buckets, const DataParallelOptions& options, bool adds,
                              const Value& loss_scale, std::vector<StateMove>* moves) {
  std::vector<std::vector<LowRankGradient>> low(buckets.size());
  std::vector<Value> plain(buckets.size());  // of each bucket, one behind the other
  std::map<size_t, int64_t> place;  // by gradient: its number in `low`, or where it begins in `plain`, of its bucket
  const auto is_low = [&](size_t i) {
    const Node& parameter = graph.node(gradients[i].parameter.ref().node);
    return !LowRankStatesOf(parameter, options.power_sgd.rank, options.tensor).empty();
  };
  // Such tensors are sent behind the others, so that these lie where kernels can read and write them.
  const auto is_odd = [&](size_t i) {
    const Shape& shape = gradients[i].parameter.shape();
    const int64_t elements = Elements(shape);
    return is_low(i) ? shape[0] % kAlignment != 0 || elements / shape[0] % kAlignment != 0 : elements % kAlignment != 0;
  };
  for (size_t b = 0; b < buckets.size(); ++b) {
    const Value sums =
        adds ? graph.Input(PlaceOf(b), {DType::kF32, {buckets[b].elements}}, {Role::kGradient, {}, false}) : Value();
    std::map<size_t, int64_t> starts;
    int64_t start = 0;
    for (const size_t i : buckets[b].members) {
      starts[i] = start;
      start += Padded(gradients[i].gradient.type().elements());
    }
    std::vector<size_t> members = buckets[b].members;
    std::stable_partition(members.begin(), members.end(), [&](size_t i) { return !is_odd(i); });
    std::vector<Value> others;
    int64_t sent = 0;
    for (const size_t i : members) {
      const int64_t elements = gradients[i].gradient.type().elements();
      Value own = ops::Reshape(ops::Cast(gradients[i].gradient, DType::kF32), {elements});
      if (adds) own = ops::Add(ops::Slice(sums, 0, starts[i], elements), own);
      if (is_low(i)) {
        place[i] = static_cast<int64_t>(low[b].size());
        low[b].push_back({gradients[i].parameter, ops::Reshape(own, gradients[i].parameter.shape())});
      } else {
        place[i] = std::exchange(sent, sent + elements);
        others.push_back(own);
      }
    }
    if (others.empty()) continue;
    plain[b] = ops::Concat(others, 0);
    if (options.world > 1) plain[b] = Reduced(plain[b], options, b);
  }
  LowRankSums sums{options.power_sgd.rank, options.world, options.tensor, options.seed, 1, loss_scale, {}};
  if (options.world > 1) sums.factor = PredivisionOf(options);
  sums.sum = [&](const Value& flat, const std::string& name) {
    if (options.world == 1) return flat;
    return HasHierarchy(options.nodes) ? HierarchicalAllReduce(flat, options.nodes, options.rank, name)
                                       : ops::AllReduce(flat, SY_SUM, 1, options.group, name);
  };
  const auto means = AddLowRankMeans(graph, low, sums, moves);
  std::vector<Value> flats;
  for (size_t b = 0; b < buckets.size(); ++b) {
    std::vector<Value> parts;
    for (const size_t i : buckets[b].members) {
      const int64_t elements = gradients[i].gradient.type().elements();
      parts.push_back(is_low(i) ? ops::Reshape(means[b][static_cast<size_t>(place[i])], {elements})
                                : ops::Slice(plain[b], 0, place[i], elements));
      if (const int64_t gap = Padded(elements) - elements; gap > 0) parts.push_back(ops::Full(graph, {gap}, 0));
    }
    flats.push_back(graph.Add("concat", parts, Attributes(sy_axes_attributes{}))[0]);
    graph.mutable_node(flats[b].ref().node).bucket = PlaceOf(b);
  }
  return flats;
}

// This rank's part of the buckets' sums, added to what it has of earlier micro-batches. Buckets are of the step, and a
// bucket is reduced when the one before has been, so that there are few at a time.
void ReduceParts(Graph& graph, const std::vector<ParameterGradient>& gradients, const std::vector<Bucket>& buckets,
                 const DataParallelOptions& options, BucketUse use, Buckets* result) {
  int before = -1;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const Value flat = Flatten(graph, gradients, buckets[b], {}, "", true);
    const std::string name = fmt::format("reduce_scatter/{}", b);
    const Value sent = ops::Cast(flat, options.wire);
    const int first = graph.size();
    const Value part = HasHierarchy(options.nodes)
                           ? HierarchicalReduceScatter(sent, options.nodes, options.rank, name)
                           : ops::ReduceScatter(sent, SY_SUM, options.world, options.group, name);
    if (before >= 0) graph.mutable_node(first).control.push_back(before);
    before = part.ref().node;
    Value sums = Finished(part, options);
    if (use.adds || !use.reduces) {
      const Value kept = graph.Input(PlaceOf(b), sums.type(), {Role::kGradient, {}, false});
      if (use.adds) sums = ops::Add(kept, sums);
      if (!use.reduces) graph.Assign(kept, sums);
    }
    if (use.reduces) result->shared.push_back(SharedOf(buckets[b], gradients, sums));
    for (const size_t i : buckets[b].members)
      result->places.push_back({graph.node(gradients[i].parameter.ref().node).name, "", 0, 0});
  }
}

}  // namespace

float PredivisionOf(const DataParallelOptions& options) {
  const auto world = static_cast<float>(options.world);
  return options.world > 1 ? options.predivide.value_or(world) : world;
}

Buckets AddDataParallel(Graph& graph, const std::vector<ParameterGradient>& given, const DataParallelOptions& options,
                        BucketUse use, bool zero_fill, const Value& loss_scale) {
  if (options.predivide && !(*options.predivide > 0))
    throw BuildError(fmt::format("gradients divided by {:g}: expected a number above 0", *options.predivide));
  std::vector<ParameterGradient> gradients = given;
  std::vector<std::string> unused;
  graph.SetPhase(Phase::kBackward);
  for (ParameterGradient& g : gradients) {
    if (g.gradient) continue;
    unused.push_back(graph.node(g.parameter.ref().node).name);
    if (zero_fill) g.gradient = ops::Full(graph, g.parameter.shape(), 0);
  }
  if (!unused.empty() && !zero_fill) {
    throw BuildError(
        fmt::format("parameters that the loss does not depend on: {}; remove them, or pass --find_unused_parameters to "
                    "count their gradients as zero",
                    fmt::join(unused, ", ")));
  }
  graph.SetPhase(Phase::kUpdate);
  Buckets result;
  const auto buckets = FillBuckets(gradients, options);
  if (options.share == Share::kSums) {
    ReduceParts(graph, gradients, buckets, options, use, &result);
    graph.SetPhase(Phase::kForward);
    return result;
  }
  if (use.reduces) result.gradients.resize(gradients.size());
  const std::vector<Value> compressed =
      use.compresses ? Compressed(graph, gradients, buckets, options, use.adds, loss_scale, &result.moves)
                     : std::vector<Value>();
  for (size_t b = 0; b < buckets.size(); ++b) {
    const std::string place = PlaceOf(b);
    // What the bucket becomes where no collective works in it.
    const bool copied = options.wire != DType::kF32 || HasHierarchy(options.nodes) ||
                        PredivisionOf(options) != static_cast<float>(options.world);
    const bool reduces = use.reduces && options.world > 1 && !use.compresses;
    Value sums;
    if (!use.compresses && (use.adds || !use.reduces || (reduces && copied)))
      sums = graph.Input(place, {DType::kF32, {buckets[b].elements}}, {Role::kGradient, {}, false});
    Value flat =
        use.compresses ? compressed[b] : Flatten(graph, gradients, buckets[b], use.adds ? sums : Value(), place, false);
    if (!use.reduces) {
      graph.Assign(sums, flat);
    } else if (reduces) {
      flat = Reduced(flat, options, b);
      if (copied) graph.Assign(sums, flat);
    }
    if (use.reduces) result.flat.push_back(flat);
    if (use.reduces && options.share == Share::kUpdate) {
      const int64_t share = buckets[b].shared / options.world, begin = PartOfRank(options.nodes, options.rank) * share;
      const int64_t held = std::min(share, buckets[b].elements - begin);
      result.shared.push_back(SharedOf(buckets[b], gradients, held > 0 ? ops::Slice(flat, 0, begin, held) : Value()));
    }
    int64_t start = 0;
    for (const size_t i : buckets[b].members) {
      const Shape& shape = gradients[i].parameter.shape();
      const int64_t elements = Elements(shape);
      result.places.push_back({graph.node(gradients[i].parameter.ref().node).name, place, start, elements});
      if (use.reduces)
        result.gradients[i] = {gradients[i].parameter, ops::Reshape(ops::Slice(flat, 0, start, elements), shape)};
      start += Padded(elements);
    }
  }
  graph.SetPhase(Phase::kForward);
  return result;
}

}  // namespace switchyard
