// Gradients of low rank, on ranks that one process plays: the means that PyTorch's hook finds, what is left over for
// the next update, one rank instead of several, and matrices that have nothing to send.
#include "core/parallel/power_sgd.h"

#include <cmath>

#include "core/base/random.h"
#include "core/graph/gradients.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/data_parallel.h"
#include "core/parallel/mesh_interpreter.h"
#include "gmock/gmock.h"
#include "tests/graph/fixtures.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

using Numbers = std::vector<float>;

// Parameters of the fixture (tools/fixtures/record_power_sgd.py), with their gradients.
const std::map<std::string, Shape> kLowRankParameters = {
    {"wide", {24, 40}}, {"tall", {30, 12}}, {"kernel", {8, 3, 3, 3}}, {"square", {6, 6}}, {"bias", {7}}};

Numbers Symmetric(const std::string& name, int64_t count) {
  RandomStream words(Key(HashName(name)));
  Numbers values(static_cast<size_t>(count));
  for (float& value : values) value = 2 * UnitFloat(words.Next32()) - 1;
  return values;
}
Numbers GradientOfRank(const std::string& name, int rank, int64_t step) {
  Numbers own = Symmetric(fmt::format("gradient/{}/{}/{}", name, rank, step), Elements(kLowRankParameters.at(name)));
  const Numbers common = Symmetric("gradient/" + name, Elements(kLowRankParameters.at(name)));
  for (size_t i = 0; i < own.size(); ++i) own[i] += 10 * common[i];
  return own;
}

// ‖found − expected‖ / ‖expected‖.
double RelativeError(const Numbers& found, const Numbers& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0, all = 0;
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    difference += std::pow(double{found[i]} - expected[i], 2);
    all += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / all);
}

struct LowRankRun {
  int world = 2, rank = 1;
  float scale = 1;  // of the loss
  std::optional<float> predivide = {};
  DType wire = DType::kF32;
  bool adds = false;  // a micro-batch before has left its sums
};

// The step in which ranks exchange gradients that are told: "gradient/<parameter>" → "mean/<parameter>".
Graph LowRankStep(const LowRankRun& given, BucketUse use) {
  Graph graph;
  DataParallelOptions options;
  options.world = given.world;
  options.group = kDataGroup;
  options.power_sgd = {given.rank, 2};
  options.seed = 7;
  options.predivide = given.predivide;
  options.wire = given.wire;
  options.bucket_bytes = options.first_bucket_bytes = 4800;  // "wide" and the rest
  std::vector<Value> parameters;
  Value loss;
  for (const auto& [name, shape] : kLowRankParameters) {
    parameters.push_back(graph.Input(name, {DType::kF32, shape}, {Role::kParameter, {}, true}));
    const Value product =
        ops::Sum(ops::Mul(parameters.back(), graph.Input("gradient/" + name, {DType::kF32, shape}, {})));
    loss = loss ? ops::Add(loss, product) : product;
  }
  const Value scale = graph.Input("scale", {DType::kF32, {1}}, {Role::kState, {}, false});
  const std::vector<Value> gradients =
      Gradients(ops::Mul(ops::Scale(loss, 1 / PredivisionOf(options)), scale), parameters);
  std::vector<ParameterGradient> pairs;
  for (size_t i = 0; i < parameters.size(); ++i) pairs.push_back({parameters[i], gradients[i]});
  const Buckets buckets = AddDataParallel(graph, pairs, options, use, false, scale);
  if (use.reduces) {
    EXPECT_GT(buckets.flat.size(), 1u);
  }
  for (const ParameterGradient& pair : buckets.gradients)
    graph.Output("mean/" + graph.node(pair.parameter.ref().node).name, ops::Div(pair.gradient, scale));
  for (const StateMove& move : buckets.moves) graph.Assign(graph.value(move.state), graph.value(move.next));
  return graph;
}

class LowRank : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }
  void Begin(const LowRankRun& given) {
    given_ = given;
    mesh_ = std::make_unique<MeshInterpreter>(Mesh{.data = given.world}, *test_->device);
    for (int rank = 0; rank < given.world; ++rank) Set(rank, "scale", {given.scale});
  }
  void Set(int rank, const std::string& name, const Numbers& values) {
    mesh_->Set(rank, name, values.data(), values.size() * sizeof(float));
  }
  Numbers Get(int rank, const std::string& name) const {
    const auto bytes = mesh_->Get(rank, name);
    EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
    Numbers values(bytes.ok() ? bytes->size() / sizeof(float) : 0);
    if (bytes.ok()) std::copy_n(bytes->data(), bytes->size(), reinterpret_cast<char*>(values.data()));
    return values;
  }
  bool Compresses(const std::string& name) const { return IsCompressed(kLowRankParameters.at(name), given_.rank); }
  void Run(BucketUse use) {
    const Graph graph = LowRankStep(given_, use);
    const Status ran = mesh_->Run(std::vector<const Graph*>(static_cast<size_t>(given_.world), &graph));
    ASSERT_TRUE(ran.ok()) << Message(ran);
  }
  // gradients(name, rank): of this step.
  template <typename F>
  void Exchange(bool compresses, const F& gradients) {
    for (int rank = 0; rank < given_.world; ++rank) {
      for (const auto& [name, shape] : kLowRankParameters) Set(rank, "gradient/" + name, gradients(name, rank));
    }
    Run({false, true, compresses});
  }

  LowRankRun given_;
  std::unique_ptr<TestDevice> test_;
  std::unique_ptr<MeshInterpreter> mesh_;
};

TEST_F(LowRank, FindsTheMeansAndErrorsOfPyTorch) {
  for (const int r : {1, 2, 4}) {
    const HostTensors recorded = ReadFixture("power_sgd.safetensors", fmt::format("r{}/", r));
    for (const LowRankRun& given : {LowRankRun{2, r}, LowRankRun{2, r, 1024}, LowRankRun{2, r, 8, 1}}) {
      Begin(given);
      int compressed = 0;
      for (const auto& [name, shape] : kLowRankParameters) {
        const auto start = recorded.find("start/" + name);
        ASSERT_EQ(start != recorded.end(), Compresses(name)) << name << " of rank " << r;
        if (start == recorded.end()) continue;
        ++compressed;
        const int64_t m = start->second.shape[0];
        Numbers transposed(start->second.values.size());
        for (int64_t i = 0; i < m; ++i) {
          for (int k = 0; k < r; ++k) transposed[k * m + i] = start->second.values[i * r + k];
        }
        for (int rank = 0; rank < 2; ++rank) Set(rank, "power_sgd_factor/" + name, transposed);
      }
      EXPECT_GE(compressed, r == 4 ? 1 : 3);
      for (int step = 0; step < 5; ++step) {
        SCOPED_TRACE(fmt::format("rank {}, loss times {}, step {}", r, given.scale, step));
        Exchange(step >= 2, [&](const std::string& name, int rank) { return GradientOfRank(name, rank, step); });
        for (const auto& [name, shape] : kLowRankParameters) {
          const Numbers& expected = recorded.at(fmt::format("mean/{}/{}", name, step)).values;
          EXPECT_LE(RelativeError(Get(0, "mean/" + name), expected), 1e-5) << name;
          EXPECT_EQ(Get(1, "mean/" + name), Get(0, "mean/" + name)) << name;
        }
      }
      for (const auto& [name, shape] : kLowRankParameters) {
        for (int rank = 0; rank < 2 && Compresses(name); ++rank) {
          EXPECT_LE(RelativeError(Get(rank, "power_sgd_error/" + name),
                                  recorded.at(fmt::format("error/{}/{}", name, rank)).values),
                    1e-5)
              << name;
        }
      }
    }
  }
}

// What is not sent is not lost: Σ over updates of W·mean, and the errors of all ranks, are Σ of all gradients.
TEST_F(LowRank, KeepsWhatItLeavesOut) {
  for (const LowRankRun& given : {LowRankRun{4, 1}, LowRankRun{3, 2, 64}}) {
    Begin(given);
    std::map<std::string, Numbers> sent, gradients;
    for (int step = 0; step < 6; ++step) {
      Exchange(true, [&](const std::string& name, int rank) {
        const Numbers own = GradientOfRank(name, rank, step);
        Numbers& sum = gradients[name];
        sum.resize(own.size());
        for (size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
        return own;
      });
      for (const auto& [name, shape] : kLowRankParameters) {
        const Numbers mean = Get(0, "mean/" + name);
        Numbers& sum = sent[name];
        sum.resize(mean.size());
        for (size_t i = 0; i < mean.size(); ++i) sum[i] += static_cast<float>(given.world) * mean[i];
      }
    }
    for (const auto& [name, shape] : kLowRankParameters) {
      if (Compresses(name)) {
        EXPECT_GT(RelativeError(sent[name], gradients[name]), 1e-3) << name << " is compressed";
        for (int rank = 0; rank < given.world; ++rank) {
          const Numbers error = Get(rank, "power_sgd_error/" + name);
          for (size_t i = 0; i < error.size(); ++i) sent[name][i] += error[i];
        }
      }
      EXPECT_LE(RelativeError(sent[name], gradients[name]), 1e-5) << name;
    }
  }
}

// A gradient of rank r is sent whole.
TEST_F(LowRank, SendsAMatrixOfItsRankWhole) {
  Begin({2, 2});
  const auto of_rank_two = [](const std::string& name, int rank) {
    const Shape& shape = kLowRankParameters.at(name);
    const int64_t n = shape[0], m = Elements(shape) / n;
    const Numbers left = Symmetric("left/" + name, 2 * n), right = Symmetric("right/" + name, 2 * m);
    Numbers product(static_cast<size_t>(n * m));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < m; ++k)
        product[i * m + k] = static_cast<float>(rank + 1) * left[i] * right[k] + left[n + i] * right[m + k];
    }
    return product;
  };
  Exchange(true, of_rank_two);
  for (const std::string name : {"wide", "tall", "kernel"}) {
    Numbers mean = of_rank_two(name, 0);
    const Numbers other = of_rank_two(name, 1);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = (mean[i] + other[i]) / 2;
    ASSERT_TRUE(Compresses(name));
    EXPECT_LE(RelativeError(Get(0, "mean/" + name), mean), 1e-5) << name;
  }
}

// No gradient, and one of lower rank than is asked for, leave no division by nothing behind; and the factor that such
// an update makes zero is drawn anew.
TEST_F(LowRank, TakesZeroAndDependentColumns) {
  Begin({2, 2});
  const auto finite = [&] {
    for (const std::string kind : {"mean/", "power_sgd_error/", "power_sgd_factor/"}) {
      for (const auto& [name, shape] : kLowRankParameters) {
        if (kind != "mean/" && !Compresses(name)) continue;
        for (const float value : Get(1, kind + name)) ASSERT_TRUE(std::isfinite(value)) << kind << name;
      }
    }
  };
  const auto zero = [](const std::string& name, int) {
    return Numbers(static_cast<size_t>(Elements(kLowRankParameters.at(name))), 0);
  };
  const auto ones = [](const std::string& name, int) {
    return Numbers(static_cast<size_t>(Elements(kLowRankParameters.at(name))), 3);
  };
  Exchange(true, zero);
  finite();
  EXPECT_EQ(Get(0, "mean/wide"), zero("wide", 0));
  EXPECT_EQ(Get(0, "power_sgd_factor/wide"), Numbers(80, 0));
  for (int round = 0; round < 2; ++round) {
    Exchange(true, ones);
    finite();
    EXPECT_LE(RelativeError(Get(0, "mean/wide"), ones("wide", 0)), 1e-6);
    Exchange(true, zero);  // but for what rounding has left over
    finite();
  }
}

// A gradient that is not finite on one rank is none on all, as in a sum; so is one whose squares are too large.
TEST_F(LowRank, PassesOnWhatIsNotFinite) {
  for (const float bad : {INFINITY, NAN, 1e25f}) {
    Begin({2, 1});
    Exchange(true, [&](const std::string& name, int rank) {
      Numbers own = GradientOfRank(name, rank, 0);
      if (rank == 1) own[3] = bad;
      return own;
    });
    for (int rank = 0; rank < 2; ++rank) {
      const Numbers mean = Get(rank, "mean/wide");
      EXPECT_TRUE(std::any_of(mean.begin(), mean.end(), [](float value) { return !std::isfinite(value); })) << bad;
    }
  }
}

// Ranks find what one rank finds that has the mean of their gradients, whatever it took to send them.
TEST_F(LowRank, OfSeveralRanksIsThatOfOne) {
  Begin({1, 2});
  const auto mean_of_four = [](const std::string& name, int step) {
    Numbers mean(static_cast<size_t>(Elements(kLowRankParameters.at(name))));
    for (int rank = 0; rank < 4; ++rank) {
      const Numbers own = GradientOfRank(name, rank, step);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += own[i] / 4;
    }
    return mean;
  };
  std::vector<std::map<std::string, Numbers>> expected(3);
  for (int step = 0; step < 3; ++step) {
    Exchange(true, [&](const std::string& name, int) { return mean_of_four(name, step); });
    for (const auto& [name, shape] : kLowRankParameters) expected[step][name] = Get(0, "mean/" + name);
  }
  for (const LowRankRun& given : {LowRankRun{4, 2}, LowRankRun{4, 2, 256, 2}, LowRankRun{4, 2, 1, {}, DType::kBF16}}) {
    Begin(given);
    for (int step = 0; step < 3; ++step) {
      Exchange(true, [&](const std::string& name, int rank) { return GradientOfRank(name, rank, step); });
      for (const auto& [name, shape] : kLowRankParameters) {
        const bool rounds = given.wire != DType::kF32 && !Compresses(name);  // factors travel in f32
        EXPECT_LE(RelativeError(Get(3, "mean/" + name), expected[step][name]), rounds ? 1e-2 : 1e-5) << name;
      }
    }
  }
}

// What a bucket has held of earlier micro-batches is part of what is compressed, also of the error, and what it holds
// afterwards are the means.
TEST_F(LowRank, TakesTheSumsOfMicroBatches) {
  for (const bool splits : {false, true}) {
    Begin({2, 1});
    for (int step = 0; step < 2; ++step) {
      const auto share = [&](const std::string& name, int rank, float of) {
        Numbers own = GradientOfRank(name, rank, step);
        for (float& value : own) value *= of;
        return own;
      };
      if (!splits) {
        Exchange(true, [&](const std::string& name, int rank) { return share(name, rank, 1); });
        continue;
      }
      for (int rank = 0; rank < 2; ++rank) {
        for (const auto& [name, shape] : kLowRankParameters) Set(rank, "gradient/" + name, share(name, rank, 0.75f));
      }
      Run({false, false});
      for (int rank = 0; rank < 2; ++rank) {
        for (const auto& [name, shape] : kLowRankParameters) Set(rank, "gradient/" + name, share(name, rank, 0.25f));
      }
      Run({true, true, true});
    }
    static std::map<std::string, Numbers> whole;
    for (const auto& [name, shape] : kLowRankParameters) {
      for (const std::string kind : {"mean/", "power_sgd_error/"}) {
        if (kind != "mean/" && !Compresses(name)) continue;
        if (!splits) {
          whole[kind + name] = Get(0, kind + name);
        } else {
          EXPECT_LE(RelativeError(Get(0, kind + name), whole[kind + name]), 1e-5) << kind << name;
        }
      }
    }
  }
}

TEST(LowRankGradients, AreCompressedWhereThereIsLessToSend) {
  EXPECT_TRUE(IsCompressed({24, 40}, 4)) << "256 · 2 < 960";
  EXPECT_FALSE(IsCompressed({24, 40}, 8)) << "512 · 2 > 960";
  EXPECT_TRUE(IsCompressed({8, 3, 3, 3}, 3)) << "105 · 2 < 216";
  EXPECT_FALSE(IsCompressed({4, 4}, 1)) << "8 · 2 = 16";
  EXPECT_FALSE(IsCompressed({1024}, 1));
  EXPECT_FALSE(IsCompressed({}, 1));
  EXPECT_FALSE(IsCompressed({24, 40}, 0));
  for (const int64_t n : {1, 2, 7, 64}) {
    for (const int64_t m : {1, 5, 64, 4096})
      EXPECT_FALSE(IsCompressed({n, m}, static_cast<int>(std::min(n, m)))) << "of full rank";
  }
}

}  // namespace
}  // namespace switchyard
