// Devices for tests: the plugin asked for, with the reference plugin beside it; and which plugins tests run on.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/base/environment.h"
#include "core/plan/plan.h"
#include "core/runtime/plugins/registry.h"
#include "gtest/gtest.h"

namespace switchyard {

// The plugins that a test names, and the one of SWITCHYARD_TEST_DEVICE (a device that is not everywhere, as cuda).
inline std::vector<const char*> TestDevices(std::vector<const char*> names) {
  static const std::string also = Environment("SWITCHYARD_TEST_DEVICE").value_or("");
  if (!also.empty() && std::none_of(names.begin(), names.end(), [](const char* name) { return name == also; }))
    names.push_back(also.c_str());
  return names;
}

struct TestDevice {
  std::unique_ptr<Device> device, reference;
  std::unique_ptr<KernelCache> kernels, reference_kernels;

  static StatusOr<std::unique_ptr<TestDevice>> Open(const std::string& name, int threads = 2) {
    auto test = std::make_unique<TestDevice>();
    OpenOptions options;
    options.threads = threads;
    SY_ASSIGN_OR_RETURN(const auto plugin, Registry::Get().Find(PluginKind::kBackend, name));
    SY_ASSIGN_OR_RETURN(test->device, Device::Open(*plugin, 0, options));
    test->kernels = std::make_unique<KernelCache>(*test->device, KernelOptions{});
    SY_ASSIGN_OR_RETURN(const auto reference, Registry::Get().Find(PluginKind::kBackend, "reference"));
    SY_ASSIGN_OR_RETURN(test->reference, Device::Open(*reference, 0, options));
    test->reference_kernels = std::make_unique<KernelCache>(*test->reference, KernelOptions{});
    return test;
  }
};

// Tests on a device of each plugin that is named; skipped where it was not built.
class DeviceTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open(GetParam());
    if (!opened.ok()) GTEST_SKIP() << "no " << GetParam() << " plugin: " << Message(opened.status());
    test_ = std::move(*opened);
  }
  std::unique_ptr<TestDevice> test_;
};

// A graph compiled and bound on a device, with values by name.
struct Compiled {
  std::unique_ptr<Layout> layout;
  std::unique_ptr<Plan> plan;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Instance> instance;
  Stream stream;

  static StatusOr<std::unique_ptr<Compiled>> Make(const Graph& graph, TestDevice& test,
                                                  const PlanOptions& options = {}) {
    auto c = std::make_unique<Compiled>();
    c->layout = std::make_unique<Layout>(test.device->info().alignment);
    SY_ASSIGN_OR_RETURN(c->plan, Plan::Compile(graph, *test.kernels, test.reference_kernels.get(), *c->layout, options,
                                               test.reference_kernels.get()));
    SY_ASSIGN_OR_RETURN(c->memory, Memory::Allocate(*c->layout, *test.device, nullptr, test.reference.get()));
    SY_ASSIGN_OR_RETURN(c->instance, Instance::Bind(*c->plan, *c->memory, nullptr));
    SY_ASSIGN_OR_RETURN(c->stream, test.device->NewStream());
    return c;
  }
  template <typename T>
  void Set(const std::string& name, const std::vector<T>& values) {
    ASSERT_TRUE(memory->Upload(name, values.data(), values.size() * sizeof(T)).ok()) << name;
  }
  std::vector<float> Get(const std::string& name) {
    const Layout::Entry* entry = layout->Find(name);
    EXPECT_NE(entry, nullptr) << name;
    if (entry == nullptr) return {};
    std::vector<float> values(entry->bytes / sizeof(float));
    EXPECT_TRUE(memory->device().Synchronize().ok());
    EXPECT_TRUE(memory->Download(name, values.data(), entry->bytes).ok());
    return values;
  }
};

}  // namespace switchyard
