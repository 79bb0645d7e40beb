#include "tests/parity/step_run.h"

#include <cmath>

#include "core/base/random.h"
#include "core/train/tensor_file.h"
#include "tests/graph/fixtures.h"

namespace switchyard {
namespace {

constexpr float kBeta1 = 0.9f, kRate = 1e-3f;

// The step that the fixtures were recorded with.
StatusOr<Program> RecordedProgram(const Workload& workload, DType precision) {
  ProgramOptions o;
  o.precision = precision;
  o.optimizer.weight_decay = 0.05f;
  o.optimizer.beta1 = kBeta1;
  return BuildProgram(workload, o, 0);
}

}  // namespace

std::unique_ptr<StepRun> StepRun::Make(TestDevice& test, const ResolvedModel& model, int64_t batch, DType precision) {
  ClassificationOptions images;
  images.batch = batch;
  images.height = images.width = model.image_size;
  images.channels = model.channels;
  const auto build = [&](nn::Context& context, const Value& x) { return BuildModel(model, context, x); };
  return Make(test, ClassificationWorkload(model.info->name, build, images), precision);
}

std::unique_ptr<StepRun> StepRun::Make(TestDevice& test, const Workload& workload, DType precision) {
  auto run = std::make_unique<StepRun>();
  const auto make = [&]() -> Status {
    run->layout_ = std::make_unique<Layout>(test.device->info().alignment);
    const auto compile = [&](const Graph& graph) {
      return Plan::Compile(graph, *test.kernels, test.reference_kernels.get(), *run->layout_, {});
    };
    SY_ASSIGN_OR_RETURN(const Program program, RecordedProgram(workload, precision));
    SY_ASSIGN_OR_RETURN(run->step_plan_, compile(program.Find("update")->graph));
    SY_ASSIGN_OR_RETURN(run->evaluation_plan_, compile(program.Find("evaluate")->graph));
    if (const NamedGraph* const halves = program.Find("halves")) {
      SY_ASSIGN_OR_RETURN(run->halves_plan_, compile(halves->graph));
    }
    SY_ASSIGN_OR_RETURN(run->memory_, Memory::Allocate(*run->layout_, *test.device, nullptr));
    SY_ASSIGN_OR_RETURN(run->step_, Instance::Bind(*run->step_plan_, *run->memory_, nullptr));
    SY_ASSIGN_OR_RETURN(run->evaluation_, Instance::Bind(*run->evaluation_plan_, *run->memory_, nullptr));
    if (run->halves_plan_) {
      SY_ASSIGN_OR_RETURN(run->halves_, Instance::Bind(*run->halves_plan_, *run->memory_, nullptr));
    }
    SY_ASSIGN_OR_RETURN(run->stream_, test.device->NewStream());
    return run->memory_->Upload("lr_table", &kRate, sizeof kRate);
  };
  const Status status = make();
  EXPECT_TRUE(status.ok()) << Message(status);
  return status.ok() ? std::move(run) : nullptr;
}

void StepRun::SetParameters(const HostTensors& values) {
  for (const auto& [name, entry] : layout_->entries()) {
    if (!entry.is_weight()) continue;
    ASSERT_TRUE(values.contains(name)) << name;
    const HostTensor& tensor = values.at(name);
    ASSERT_EQ(tensor.shape, entry.type.shape) << name;
    const Status status = memory_->Upload(name, tensor.values.data(), tensor.values.size() * sizeof(float));
    ASSERT_TRUE(status.ok()) << Message(status);
  }
  if (!halves_) return;
  ASSERT_TRUE(halves_->Run(stream_).ok());
  ASSERT_TRUE(memory_->device().Synchronize().ok());
}

// The tensors called prefix + NAME, by the parameter's NAME.
HostTensors StepRun::Download(const std::string& prefix, bool with_state) const {
  HostTensors tensors;
  for (const auto& [name, entry] : layout_->entries()) {
    if (with_state ? !entry.is_weight() : entry.role != Role::kParameter) continue;
    HostTensor& tensor = tensors[name];
    tensor.shape = entry.type.shape;
    tensor.values.resize(entry.bytes / sizeof(float));
    const Status status = memory_->Download(prefix + name, tensor.values.data(), entry.bytes);
    EXPECT_TRUE(status.ok()) << Message(status);
  }
  return tensors;
}

HostTensors StepRun::Parameters() const { return Download("", true); }

size_t StepRun::Elements(const std::string& name) const {
  const Layout::Entry* const entry = layout_->Find(name);
  EXPECT_NE(entry, nullptr) << name;
  return entry == nullptr ? 0 : static_cast<size_t>(entry->type.elements());
}

std::vector<float> StepRun::Get(const std::string& name) const {
  std::vector<float> values(Elements(name));
  const Status status = memory_->Download(name, values.data(), values.size() * sizeof(float));
  EXPECT_TRUE(status.ok()) << Message(status);
  return values;
}

HostTensors StepRun::GradientsOfFirstStep() const {
  HostTensors gradients = Download("moment1/", false);
  for (auto& [name, tensor] : gradients) {
    for (float& value : tensor.values) value /= 1 - kBeta1;
  }
  return gradients;
}

double StepRun::Step(const std::vector<float>& images, const std::vector<int32_t>& labels) {
  float loss = NAN;
  const auto step = [&]() -> Status {
    SY_RETURN_IF_ERROR(memory_->Upload("images", images.data(), images.size() * sizeof(float)));
    SY_RETURN_IF_ERROR(memory_->Upload("labels", labels.data(), labels.size() * sizeof(int32_t)));
    SY_RETURN_IF_ERROR(step_->Run(stream_));
    SY_RETURN_IF_ERROR(memory_->device().Synchronize());
    return memory_->Download("output/loss", &loss, sizeof loss);
  };
  const Status status = step();
  EXPECT_TRUE(status.ok()) << Message(status);
  return loss;
}

std::vector<float> StepRun::Logits(const std::vector<float>& images) {
  std::vector<float> logits(layout_->Find("output/eval_logits")->bytes / sizeof(float));
  const auto evaluate = [&]() -> Status {
    SY_RETURN_IF_ERROR(memory_->Upload("images", images.data(), images.size() * sizeof(float)));
    SY_RETURN_IF_ERROR(evaluation_->Run(stream_));
    SY_RETURN_IF_ERROR(memory_->device().Synchronize());
    return memory_->Download("output/eval_logits", logits.data(), logits.size() * sizeof(float));
  };
  const Status status = evaluate();
  EXPECT_TRUE(status.ok()) << Message(status);
  return logits;
}

std::unique_ptr<TestDevice> OpenOrNull(const std::string& plugin, int threads) {
  auto test = TestDevice::Open(plugin, threads);
  return test.ok() ? std::move(*test) : nullptr;
}

std::vector<int32_t> ReadLabels(const std::string& file, const std::string& name) {
  const auto opened = TensorFile::Open(std::string(SWITCHYARD_FIXTURES) + "/" + file);
  const TensorFile::Entry* entry = opened.ok() ? opened->Find(name) : nullptr;
  EXPECT_NE(entry, nullptr) << file << ": " << name;
  if (entry == nullptr) return {};
  std::vector<int32_t> labels(static_cast<size_t>(Elements(entry->shape)));
  const Status status = opened->Read(*entry, labels.data());
  EXPECT_TRUE(status.ok()) << Message(status);
  return labels;
}

std::vector<float> Symmetric(const std::string& name, int64_t count) {
  RandomStream random(Key(HashName(name)));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = 2 * random.Uniform() - 1;
  return values;
}

HostTensors FormulaWeights(const ResolvedModel& model, const std::string& format, float factor) {
  HostTensors shapes;
  for (const auto& [name, type] : WeightTypes(model))
    shapes[name] = {type.shape, std::vector<float>(static_cast<size_t>(type.elements()))};
  HostTensors weights = *ExportWeights(model, std::move(shapes), format);
  for (auto& [name, tensor] : weights) {
    tensor.values = Symmetric(name, Elements(tensor.shape));
    // Vectors called weight are those of norms.
    const bool ends_bottleneck = name.ends_with("bn3.weight") || name.ends_with("layer.2.normalization.weight");
    const auto [base, spread] = tensor.shape.size() > 1          ? std::pair(0.0f, factor)
                                : name.ends_with("running_var")  ? std::pair(1.0f, 0.5f)
                                : name.ends_with("running_mean") ? std::pair(0.0f, 0.1f)
                                : ends_bottleneck                ? std::pair(0.2f, 0.1f)
                                : name.ends_with("weight")       ? std::pair(1.0f, 0.1f)
                                                                 : std::pair(0.0f, 0.01f);
    for (float& value : tensor.values) value = base + spread * value;
  }
  return *ImportWeights(model, std::move(weights), false);
}

double RelativeError(const std::string& name, const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size()) << name;
  if (found.size() != expected.size()) return INFINITY;
  const bool skips = name.ends_with("attn.qkv.bias");
  const size_t third = expected.size() / 3;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (skips && i >= third && i < 2 * third) continue;
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / std::max(norm, 1e-24));
}

void ExpectCloseToSamples(const std::string& file, const ResolvedModel& model, HostTensors found,
                          const std::string& kind, double tolerance) {
  const HostTensors norms = ReadFixture(file, kind + "_norm/"), samples = ReadFixture(file, kind + "_samples/");
  found = *ExportWeights(model, std::move(found), "timm");
  ASSERT_EQ(found.size(), norms.size());
  for (const auto& [name, tensor] : found) {
    const std::vector<float>& values = tensor.values;
    const double norm = norms.at(name).values[0];
    const bool skips = name.ends_with("attn.qkv.bias");
    const size_t third = values.size() / 3, stride = std::max<size_t>(1, values.size() / 64);
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += skips && i / third == 1 ? 0 : std::pow(double{values[i]}, 2);
    EXPECT_NEAR(std::sqrt(sum), norm, tolerance * norm) << kind << " " << name;

    std::vector<float> ours, theirs;
    for (size_t s = 0; s < samples.at(name).values.size(); ++s) {
      if (skips && s * stride / third == 1) continue;
      ours.push_back(values[s * stride]);
      theirs.push_back(samples.at(name).values[s]);
    }
    EXPECT_LE(RelativeError(name + " samples", ours, theirs), tolerance) << kind << " " << name;
  }
}

}  // namespace switchyard
