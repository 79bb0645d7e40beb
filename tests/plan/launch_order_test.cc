// Ranks that share a group call its collectives in one order, whatever part of the weights each of them updates.
#include "core/plan/launch_order.h"

#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/parallel/program.h"
#include "core/train/classification.h"
#include "fmt/ranges.h"
#include "gtest/gtest.h"
#include "models/model.h"

namespace switchyard {
namespace {

// Plan by plan the collectives of a rank's program, in the order in which the rank submits them.
std::vector<std::string> Submitted(const ProgramOptions& options, int rank, bool early, uint64_t prefetch_bytes) {
  ModelOptions small;
  small.name = "mlp";
  small.own = {{"width", 32}};
  const auto model = ResolveModel(small);
  EXPECT_TRUE(model.ok()) << Message(model.status());
  if (!model.ok()) return {};
  ClassificationOptions batch;
  batch.batch = 4;
  batch.height = batch.width = model->image_size;
  batch.channels = model->channels;
  const auto build = [&](nn::Context& context, const Value& images) { return BuildModel(*model, context, images); };
  const auto program = BuildProgram(ClassificationWorkload(small.name, build, batch), options, rank);
  EXPECT_TRUE(program.ok()) << Message(program.status());
  if (!program.ok()) return {};
  std::vector<std::string> calls;
  for (const NamedGraph& plan : program->plans) {
    for (const int id : LaunchOrder(plan.graph, early, prefetch_bytes)) {
      const Node& node = plan.graph.node(id);
      if (IsCollective(node.op)) calls.push_back(plan.name + " " + node.op + " " + node.name);
    }
  }
  return calls;
}

class OrderOfCollectives : public testing::TestWithParam<std::tuple<int, int>> {};  // zero, tensor ranks

TEST_P(OrderOfCollectives, IsTheSameOnAllRanks) {
  ProgramOptions options;
  options.zero = std::get<0>(GetParam());
  options.mesh.tensor = std::get<1>(GetParam());
  options.mesh.data = 4 / options.mesh.tensor;
  options.mesh.nodes = {0, 0, 1, 1};
  if (options.mesh.tensor == 1) options.hierarchical_allreduce = true;
  if (options.zero == 0) options.power_sgd = {.rank = 1, .start = 2};
  for (const uint64_t bucket_bytes : {uint64_t{1000}, uint64_t{20000}}) {
    options.bucket_bytes = bucket_bytes;
    for (const int accumulation : {1, 2}) {
      options.accumulation = accumulation;
      for (const auto& [early, prefetch_bytes] :
           {std::pair{true, uint64_t{0}}, {true, uint64_t{1} << 16}, {false, uint64_t{0}}}) {
        SCOPED_TRACE(fmt::format("buckets of {} bytes, {} micro-steps, {}, {} bytes ahead", bucket_bytes, accumulation,
                                 early ? "early" : "as needed", prefetch_bytes));
        const auto expected = Submitted(options, 0, early, prefetch_bytes);
        EXPECT_GT(expected.size(), 2u);
        for (int rank = 1; rank < options.mesh.size(); ++rank)
          ASSERT_EQ(fmt::format("{}", fmt::join(Submitted(options, rank, early, prefetch_bytes), "\n")),
                    fmt::format("{}", fmt::join(expected, "\n")))
              << "rank " << rank;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, OrderOfCollectives,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(1, 2)));

}  // namespace
}  // namespace switchyard
