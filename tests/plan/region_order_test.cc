// The order of what communicates, where a plugin compiles parts of the graph whole.
#include "core/plan/region_order.h"

#include <algorithm>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/pointwise.h"
#include "gmock/gmock.h"

namespace switchyard {
namespace {

// A region of `early` and of `late`, which reads a message; between them, another message is sent.
struct Stage {
  Graph graph;
  int early, sent, received, late;
  std::vector<std::vector<int>> regions;
  std::vector<int> region_of;

  // depends: what is sent is computed from `early`.
  explicit Stage(bool depends) {
    const Value x = graph.Input("x", {DType::kF32, {8}}, {});
    const Value first = ops::AddScalar(x, 1);
    early = first.ref().node;
    ops::Send(depends ? ops::Scale(first, 2) : x, 1, 0, "sent");
    sent = graph.size() - 1;
    const Value message = ops::Receive(graph, x.type(), 1, 0, "received");
    received = message.ref().node;
    const Value last = ops::Add(first, message);
    late = last.ref().node;
    graph.Output("y", last);
    regions = {{early, late}};
    region_of.assign(static_cast<size_t>(graph.size()), -1);
    region_of[static_cast<size_t>(early)] = region_of[static_cast<size_t>(late)] = 0;
  }
  std::vector<int> Order() {
    const auto order = OrderWithRegions(graph, regions, region_of, "plugin");
    EXPECT_TRUE(order.ok()) << Message(order.status());
    return order.ok() ? *order : std::vector<int>();
  }
};

int PositionOf(const std::vector<int>& order, int item) {
  const auto found = std::find(order.begin(), order.end(), item);
  EXPECT_NE(found, order.end()) << item;
  return static_cast<int>(found - order.begin());
}

TEST(RegionOrder, MessagesKeepTheOrderInWhichTheyWereBuilt) {
  Stage stage(false);
  const std::vector<int> order = stage.Order();
  EXPECT_LT(PositionOf(order, stage.sent), PositionOf(order, stage.received));
  EXPECT_LT(PositionOf(order, stage.received), PositionOf(order, -1));
}

TEST(RegionOrder, ARegionThatWouldHaveToRunOnBothSidesOfAMessageIsTakenApart) {
  Stage stage(true);
  const std::vector<int> order = stage.Order();
  EXPECT_LT(PositionOf(order, stage.sent), PositionOf(order, stage.received));
  EXPECT_LT(PositionOf(order, stage.early), PositionOf(order, stage.sent));
  EXPECT_LT(PositionOf(order, stage.received), PositionOf(order, stage.late));
  EXPECT_EQ(stage.region_of, std::vector<int>(stage.region_of.size(), -1));
}

TEST(RegionOrder, ARegionThatIsNotConvexIsThePluginsFault) {
  Graph g;
  const Value input = g.Input("x", {DType::kF32, {8}}, {}), first = ops::AddScalar(input, 1),
              between = ops::Scale(first, 2), last = ops::AddScalar(between, 1);
  std::vector<int> region_of(static_cast<size_t>(g.size()), -1);
  for (const Value& member : {first, last}) region_of[static_cast<size_t>(member.ref().node)] = 0;
  const auto order = OrderWithRegions(g, {{first.ref().node, last.ref().node}}, region_of, "plugin");
  EXPECT_THAT(Message(order.status()), testing::HasSubstr("would have to run before itself"));
}

}  // namespace
}  // namespace switchyard
