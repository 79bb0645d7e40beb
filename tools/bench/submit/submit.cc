// What the core adds to a launch. Two figures, each the median of many rounds in one run, both sides in turn:
//   call    a kernel behind a plugin's function pointer, as BoundKernel calls it, against a direct call of the same
//   function submit  a step of a plan (Instance::Run over the null plugin) against the plugin's own launch functions
//   called one after another
// Usage: switchyard-bench-submit <path of switchyard_noop.so>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/graph/ops/pointwise.h"
#include "core/plan/plan.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

[[gnu::noinline]] sy_status DirectCall(sy_bound* bound, sy_stream* stream, sy_error* error) {
  asm volatile("" : : "r"(bound), "r"(stream), "r"(error) : "memory");
  return SY_OK;
}

template <typename Body>
double NanosecondsPerItem(int64_t items, const Body& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / static_cast<double>(items);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void MeasureCall(sy_launch noop) {
  constexpr int64_t kCalls = 1000000;
  sy_error error = EmptyError();
  const BoundKernel kernel(nullptr, nullptr, noop);
  std::vector<double> direct, plugin;
  int64_t failures = 0;
  for (int round = 0; round < 41; ++round) {
    direct.push_back(NanosecondsPerItem(kCalls, [&] {
      for (int64_t i = 0; i < kCalls; ++i) failures += DirectCall(nullptr, nullptr, &error) != SY_OK;
    }));
    plugin.push_back(NanosecondsPerItem(kCalls, [&] {
      for (int64_t i = 0; i < kCalls; ++i) failures += kernel.Launch(nullptr, &error) != SY_OK;
    }));
  }
  std::printf("call    direct %.2f ns, through a plugin %.2f ns: %.2f ns more (goal: at most 5)%s\n", Median(direct),
              Median(plugin), Median(plugin) - Median(direct), failures ? " FAILED" : "");
}

Status MeasureSubmit() {
  constexpr int kNodes = 512;
  SY_ASSIGN_OR_RETURN(const auto plugin, Registry::Get().Find(PluginKind::kBackend, "null"));
  SY_ASSIGN_OR_RETURN(const auto device, Device::Open(*plugin, 0, {}));
  Graph graph;
  Value x = graph.Input("x", {DType::kF32, {16}}, {});
  for (int i = 0; i < kNodes; ++i) x = ops::AddScalar(x, 1);
  graph.Output("y", x);
  KernelCache kernels(*device, {});
  Layout layout(device->info().alignment);
  PlanOptions options;
  options.fuse = options.capture = false;
  SY_ASSIGN_OR_RETURN(const auto plan, Plan::Compile(graph, kernels, nullptr, layout, options));
  SY_ASSIGN_OR_RETURN(const auto memory, Memory::Allocate(layout, *device, nullptr));
  SY_ASSIGN_OR_RETURN(const auto instance, Instance::Bind(*plan, *memory, nullptr));
  SY_ASSIGN_OR_RETURN(const Stream stream, device->NewStream());

  // The same kernel bound as often by hand.
  const Node* node = nullptr;
  for (const Node& n : plan->graph().nodes()) node = n.op == "pointwise" ? &n : node;
  SY_ASSIGN_OR_RETURN(Kernel* const kernel, kernels.Find(plan->graph(), *node));
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device->Allocate(4096));
  std::vector<BoundKernel> bound;
  for (int i = 0; i < kNodes; ++i) {
    const sy_place input = buffer.at(0), output = buffer.at(1024);
    sy_binding binding{};
    binding.header = SY_HEADER(sy_binding);
    binding.inputs = &input;
    binding.outputs = &output;
    SY_ASSIGN_OR_RETURN(BoundKernel one, device->Bind(*kernel, binding));
    bound.push_back(std::move(one));
  }
  sy_error error = EmptyError();
  std::vector<double> direct, planned;
  for (int round = 0; round < 41; ++round) {
    sy_status status = SY_OK;
    direct.push_back(NanosecondsPerItem(kNodes, [&] {
      for (const BoundKernel& k : bound) status |= k.Launch(stream.handle(), &error);
    }));
    SY_RETURN_IF_ERROR(device->Synchronize(stream));
    Status run;
    planned.push_back(NanosecondsPerItem(kNodes, [&] { run = instance->Run(stream); }));
    SY_RETURN_IF_ERROR(run);
    SY_RETURN_IF_ERROR(device->Synchronize(stream));
    if (status != SY_OK) return FromAbi(status, error, "direct launch");
  }
  std::vector<double> difference;
  for (size_t i = 0; i < direct.size(); ++i) difference.push_back(planned[i] - direct[i]);
  std::printf("submit  launches alone %.0f ns, through a plan %.0f ns: our share %.0f ns (goal: at most 100)\n",
              Median(direct), Median(planned), Median(difference));
  return OkStatus();
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  void* library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* noop = library == nullptr ? nullptr : dlsym(library, "switchyard_noop_launch");
  if (noop == nullptr) {
    std::fprintf(stderr, "usage: switchyard-bench-submit <path of switchyard_noop.so>: %s\n",
                 argc > 1 ? dlerror() : "no path given");
    return 2;
  }
  switchyard::MeasureCall(reinterpret_cast<sy_launch>(noop));
  const switchyard::Status status = switchyard::MeasureSubmit();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", switchyard::Message(status).c_str());
  return status.ok() ? 0 : 1;
}
