// A product of halves with the exact GELU, or its gradient, behind it, on cuDNN's fused engines: one launch, where
// cuBLASLt, whose GELU is the tanh approximation, needs a pass of our own besides (matmul.cc). Whether that pays
// depends on the rate of cuDNN's products, so it is taken only where both ways were measured. Its heuristics do not
// offer each engine that has the graph (9.19, H200: none of those with the instructions of that GPU), so the others are
// measured too. A graph of
//   t = op(a)·op(b) (+ bias), kept if asked for; c = gelu(t)    or    c = op(a)·op(b) · gelu'(preactivation)
// with f32 arithmetic; CUDNN_POINTWISE_GELU_FWD and _BWD are the form with erf.
// https://docs.nvidia.com/deeplearning/cudnn/backend/latest/developer/graph-api.html ("Generic Runtime Fusion Engines")
#include "backends/cuda/gelu_matmul.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <vector>

#include "backends/cuda/blas.h"
#include "backends/cuda/cudnn.h"
#include "backends/cuda/tuning.h"

namespace switchyard {
namespace {

// A plan is compiled when it is measured, which takes seconds: so many of those that the heuristics offer, and the
// kernels of the fastest engine for SWITCHYARD_CUDA_MEASURE_SECONDS.
constexpr int64_t kOffered = 4;

enum : int64_t { kA = 1, kB, kBias, kPreactivation, kC };

// One way of cuDNN's, in words for the cache: of an engine its kernel (-1: its own choice), or of what the heuristics
// offer one.
struct Plan {
  int64_t engine = -1, number = 0;  // engine -1: the heuristics'
  std::string Text() const {
    return Format("%lld %lld", static_cast<long long>(engine), static_cast<long long>(number));
  }
};

struct GeluBound : Bound {
  GeluBound(Bound&& bound, CudnnDescriptor&& made) : Bound(std::move(bound)), pack(std::move(made)) {}
  CudnnDescriptor pack;
};

class GeluMatmul : public Kernel {
 public:
  // Of a request that Takes answers yes to. Throws CudnnError.
  GeluMatmul(const Request& request, const sy_matmul_attributes& attributes)
      : Kernel(request), t_(attributes), graph_(*device) {
    Describe();
  }

  // Products that the graph above describes, with what matmul.cc has checked already.
  static bool Takes(const Request& r, const sy_matmul_attributes& t) {
    const sy_dtype dtype = r.inputs[0].dtype;
    const auto has_dtype = [&](const sy_tensor& tensor) { return tensor.dtype == dtype; };
    return t.activation == SY_ACTIVATION_GELU && t.alpha == 1 && !t.residual && !t.bias_gradient && !t.column_sums &&
           !(t.bias && t.activation_gradient) && !r.Accumulates() && (dtype == SY_BF16 || dtype == SY_F16) &&
           std::all_of(r.outputs.begin(), r.outputs.end(), has_dtype) &&
           (!t.activation_gradient || has_dtype(r.inputs[2])) &&
           (!t.bias || has_dtype(r.inputs[2]) || r.inputs[2].dtype == SY_F32);
  }

  // Throws CudnnError where there is no such plan, or the request does not allow it.
  void Prepare(const Request& request, const Plan& plan) {
    constexpr bool kDeterministic = true, kStrict = false;  // the same bits every time, of whichever plan
    if (plan.engine < 0) {
      graph_.Build(request.workspace_limit, kDeterministic, kStrict, nullptr, plan.number);
      if (graph_.configuration() != plan.number) throw CudnnError("the heuristics' plan is not permitted");
    } else {
      graph_.BuildOf(plan.engine, plan.number, request.workspace_limit, kDeterministic, kStrict);
    }
    workspace_bytes = graph_.workspace_bytes();
  }
  OperationGraph& graph() { return graph_; }
  // Names the problem and the library, one word.
  std::string Key() const {
    return Format("gelu,%zu,%lld,%lld,%lld,%lld,%d%d,%d%d,%d%d", device->cudnn->version(),
                  static_cast<long long>(batch_), static_cast<long long>(m_), static_cast<long long>(k_),
                  static_cast<long long>(n_), t_.transpose_a != 0, t_.transpose_b != 0, inputs[0].dtype,
                  t_.bias ? inputs[2].dtype : -1, t_.save_preactivation != 0, t_.activation_gradient != 0);
  }

  sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const override {
    const Bound& b = **bound;
    std::vector<std::pair<int64_t, void*>> places = {{kA, b.inputs[0]}, {kB, b.inputs[1]}, {kC, b.outputs[0]}};
    if (t_.bias) places.emplace_back(kBias, b.inputs[2]);
    if (t_.activation_gradient) places.emplace_back(kPreactivation, b.inputs[2]);
    if (KeepsPreactivation()) places.emplace_back(kPreactivation, b.outputs[1]);
    try {
      CudnnDescriptor pack = graph_.Pack(places, b.workspace);
      *bound = std::make_unique<GeluBound>(std::move(**bound), std::move(pack));
      return SY_OK;
    } catch (const CudnnError& failure) {
      return SY_FAIL(error, SY_INTERNAL, "matmul: %.400s", failure.what());
    }
  }

  sy_status Run(const Bound& bound, const LaunchContext& context, sy_error* error) const override {
    return graph_.Run(static_cast<const GeluBound&>(bound).pack, context.stream, error);
  }

 private:
  bool KeepsPreactivation() const { return t_.save_preactivation; }

  void Describe() {
    const sy_tensor &a = inputs[0], &c = outputs[0];
    m_ = c.dims[c.rank - 2];
    n_ = c.dims[c.rank - 1];
    k_ = a.dims[a.rank - (t_.transpose_a ? 2 : 1)];
    batch_ = Elements(c) / (m_ * n_);
    const auto strides = [](int64_t rows, int64_t columns, bool transposed) {
      return TensorDims{rows * columns, transposed ? 1 : columns, transposed ? rows : 1};
    };
    const TensorDims dims = {batch_, m_, n_}, rows = strides(m_, n_, false);
    const CudnnDescriptor& left = graph_.Tensor(kA, a.dtype, {batch_, m_, k_}, strides(m_, k_, t_.transpose_a));
    const CudnnDescriptor& right = graph_.Tensor(kB, a.dtype, {batch_, k_, n_}, strides(k_, n_, t_.transpose_b));
    const CudnnDescriptor& result = graph_.Tensor(kC, c.dtype, dims, rows);
    const auto preactivation = [&]() -> const CudnnDescriptor& {
      return KeepsPreactivation() || t_.activation_gradient ? graph_.Tensor(kPreactivation, a.dtype, dims, rows)
                                                            : graph_.Virtual(SY_F32, dims, rows);
    };
    if (t_.activation_gradient) {
      const CudnnDescriptor& product = graph_.Virtual(SY_F32, dims, rows);
      graph_.Matmul(left, right, product);
      graph_.PointwiseGradient(CUDNN_POINTWISE_GELU_BWD, product, preactivation(), result);
      return;
    }
    const CudnnDescriptor& t = preactivation();
    if (t_.bias) {
      const CudnnDescriptor& product = graph_.Virtual(SY_F32, dims, rows);
      const CudnnDescriptor& bias = graph_.Tensor(kBias, inputs[2].dtype, {1, 1, n_}, {n_, n_, 1});
      graph_.Matmul(left, right, product);
      graph_.Pointwise(CUDNN_POINTWISE_ADD, product, &bias, t);
    } else {
      graph_.Matmul(left, right, t);
    }
    graph_.Pointwise(CUDNN_POINTWISE_GELU_FWD, t, nullptr, result);
  }

  const sy_matmul_attributes t_;
  int64_t batch_ = 1, m_ = 0, k_ = 0, n_ = 0;
  OperationGraph graph_;
};

constexpr char kUsual[] = "usual";  // in the cache: the other way took least

// The race between the ways: who takes least so far.
class Race {
 public:
  Race(const Request& request, const sy_matmul_attributes& attributes, const Kernel& usual, std::chrono::seconds limit)
      : request_(request), t_(attributes), usual_(usual), seconds_(limit) {}

  // Measures every way, the usual one again at the end: a GPU that has waited while plans were compiled may be slower.
  // Throws CudnnError where cuDNN has none that can be used.
  sy_status Run(sy_error* error) {
    SY_TRY(MeasureKernel(usual_, &least_, error));
    times_ = Format("%.4f ms with a pass", static_cast<double>(least_));
    try {
      SY_TRY(TryAll(error));
    } catch (const CudnnError& failure) {
      if (refusal_.empty()) refusal_ = failure.what();
    }
    if (measured_ == 0) throw CudnnError(refusal_);
    float again = 0;
    SY_TRY(MeasureKernel(usual_, &again, error));
    if (again > least_) return SY_OK;
    best_.reset();
    chosen_ = kUsual;
    times_ += Format(", %.4f with a pass", static_cast<double>(again));
    return SY_OK;
  }
  KernelPointer TakeBest() { return std::move(best_); }  // null: the usual way
  const std::string& chosen() const { return chosen_; }
  std::string times() const { return times_ + Format("; %d plans", measured_); }

 private:
  sy_status TryAll(sy_error* error) {
    Plan plan;
    for (plan.number = 0; plan.number < kOffered; ++plan.number) SY_TRY(Try(plan, error));
    GeluMatmul any(request_, t_);
    int64_t fastest = -1;
    float least = 0;
    const int64_t engines = any.graph().EngineCount();
    for (plan = {0, -1}; plan.engine < engines; ++plan.engine) {
      const int before = measured_;
      SY_TRY(Try(plan, error));
      if (measured_ == before || (fastest >= 0 && last_ >= least)) continue;
      fastest = plan.engine;
      least = last_;
    }
    if (fastest < 0) return SY_OK;
    const int64_t kernels = any.graph().KernelCount(fastest);
    const auto end = std::chrono::steady_clock::now() + seconds_;
    for (plan = {fastest, 0}; plan.number < kernels && std::chrono::steady_clock::now() < end; ++plan.number)
      SY_TRY(Try(plan, error));
    return SY_OK;
  }

  // A plan that cannot be made or measured is left out; without memory to measure in, nothing is decided.
  sy_status Try(const Plan& plan, sy_error* error) {
    auto kernel = std::make_unique<GeluMatmul>(request_, t_);
    sy_error reason{SY_HEADER(sy_error)};
    try {
      kernel->Prepare(request_, plan);
      const sy_status measured = MeasureKernel(*kernel, &last_, &reason);
      if (measured == SY_OUT_OF_MEMORY) return SY_FAIL(error, measured, "%.400s", reason.message);
      if (measured != SY_OK) {
        SY_TRY(FirstLoss(kernel->device->index, error));
        throw CudnnError(reason.message);
      }
    } catch (const CudnnError& none) {
      if (refusal_.empty()) refusal_ = none.what();
      return SY_OK;
    }
    ++measured_;
    if (last_ >= least_) return SY_OK;
    least_ = last_;
    chosen_ = plan.Text();
    best_ = std::move(kernel);
    times_ += Format(", %.4f by cuDNN's plan %s", static_cast<double>(least_), chosen_.c_str());
    return SY_OK;
  }

  const Request& request_;
  const sy_matmul_attributes t_;
  const Kernel& usual_;
  const std::chrono::seconds seconds_;
  KernelPointer best_;
  std::string chosen_ = kUsual, times_, refusal_;
  float least_ = 0, last_ = 0;  // ms: of the best, of the last that was measured
  int measured_ = 0;            // plans of cuDNN's
};

KernelPointer SecondChoice(KernelPointer usual, const std::string& reason) {
  if (usual->second_choice.empty()) usual->second_choice = "GELU in a pass over the product, as cuDNN: " + reason;
  return usual;
}

}  // namespace

KernelPointer PreferFusedGelu(const Request& r, KernelPointer usual) {
  const auto t = r.Attributes<sy_matmul_attributes>();
  if (!GeluMatmul::Takes(r, t)) return usual;
  sy_device& device = *r.device;
  if (device.cudnn == nullptr) return SecondChoice(std::move(usual), device.missing);
  const sy_instance& instance = *device.instance;
  const std::chrono::seconds limit(instance.NumberSetting("CUDA_MEASURE_SECONDS", 30, 0));
  if (limit.count() == 0) return usual;
  try {
    auto fused = std::make_unique<GeluMatmul>(r, t);
    const std::string key = fused->Key();
    if (const std::optional<std::string> kept = device.blas->cache().Find(key)) {
      Plan plan;
      std::istringstream words(*kept);
      if (*kept == kUsual || !(words >> plan.engine >> plan.number)) return usual;
      fused->Prepare(r, plan);
      instance.Log(0, Format("cuda: matmul %s: cuDNN's plan %s, as measured before", key.c_str(), kept->c_str()));
      return fused;
    }
    Race race(r, t, *usual, limit);
    sy_error error{SY_HEADER(sy_error)};
    if (race.Run(&error) != SY_OK) {
      if (FirstLoss(device.index, r.error) != SY_OK) return nullptr;
      instance.Log(1, Format("cuda: matmul %s was not measured: %.300s", key.c_str(), error.message));
      return usual;
    }
    instance.Log(0, Format("cuda: matmul %s: %s", key.c_str(), race.times().c_str()));
    device.blas->cache().Keep(key, race.chosen(), true);
    KernelPointer best = race.TakeBest();
    return best != nullptr ? std::move(best) : std::move(usual);
  } catch (const CudnnError& failure) {
    return SecondChoice(std::move(usual), failure.what());
  }
}

}  // namespace switchyard
