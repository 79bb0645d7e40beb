// Interposers as plugins: found by name, stacked, and shown to the engine as the plugin inside.
#include <array>

#include "core/runtime/plugins/registry.h"
#include "tests/interposers/interposed.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::shared_ptr<Plugin> Backend(const char* name) { return Registry::Get().Find(PluginKind::kBackend, name).value(); }

TEST(WrappingTest, TheWrappedPluginKeepsItsNameAndItsInterfaces) {
  const std::string trace = "trace:" + testing::TempDir() + "wrapping_test.json";
  for (const char* name : {"null", "reference"}) {
    const auto inner = Backend(name), outer = Interposed(name, {"validate", trace, "fault:alloc@1000000"});
    ASSERT_NE(outer, nullptr);
    EXPECT_NE(outer, inner);
    EXPECT_EQ(outer->name(), inner->name());
    EXPECT_EQ(outer->path(), inner->path());
    for (const char* one : {"device/2", "kernel/2", "memory_ext/2", "semaphore/1", "peer/1", "capture/2", "profiler/2",
                            "region/2", "collective/2"}) {
      EXPECT_EQ(outer->Interface<void>(one) != nullptr, inner->Interface<void>(one) != nullptr) << name << " " << one;
    }
    const auto *before = inner->Interface<sy_device_v2>("device/2"),
               *after = outer->Interface<sy_device_v2>("device/2");
    EXPECT_EQ(before->stream_create != nullptr, after->stream_create != nullptr) << name;
    EXPECT_EQ(before->fill != nullptr, after->fill != nullptr) << name;
    EXPECT_EQ(*outer->DeviceCount(), *inner->DeviceCount());
    EXPECT_EQ(outer->Describe(0)->name, inner->Describe(0)->name);
  }
}

TEST(WrappingTest, NoInterposersGiveThePluginItself) { EXPECT_EQ(Interposed("null", {}), Backend("null")); }

TEST(WrappingTest, TheSameNamesGiveTheSamePluginAgain) {
  EXPECT_EQ(Interposed("null", {"validate"}), Interposed("null", {"validate"}));
}

TEST(WrappingTest, UnknownNamesAndWrongArgumentsSayWhatIsExpected) {
  const auto refused = [](const std::string& spec) { return Message(Interpose(Backend("null"), {spec}).status()); };
  EXPECT_THAT(refused("valdate"), AllOf(HasSubstr("--interpose=valdate"), HasSubstr("did you mean validate?")));
  EXPECT_THAT(refused("fault:aloc@1"), AllOf(HasSubstr("--interpose=fault:aloc@1"), HasSubstr("did you mean alloc?")));
  EXPECT_THAT(refused("validate:hard"), HasSubstr("takes no argument"));
  EXPECT_THAT(refused(""), HasSubstr("no interposer"));
}

TEST(WrappingTest, ALostLaunchAnswersOkWithoutRunningAndAWrongOneSpoilsOneElement) {
  for (const char* fault : {"fault:launch@2:lost", "fault:launch@2:wrong"}) {
    const auto plugin = Interposed("reference", {"validate", fault});
    ASSERT_NE(plugin, nullptr);
    const auto* api = plugin->Interface<sy_device_v2>("device/2");
    const auto* kernels = plugin->Interface<sy_kernel_v2>("kernel/2");
    sy_error error = EmptyError();
    sy_open_options options{};
    options.header = SY_HEADER(sy_open_options);
    sy_device* device = nullptr;
    ASSERT_EQ(api->open(plugin->table().instance, 0, &options, &device, &error), SY_OK) << error.message;
    sy_buffer *x = nullptr, *y = nullptr;
    ASSERT_EQ(api->alloc(device, 256, nullptr, &x, &error), SY_OK);
    ASSERT_EQ(api->alloc(device, 256, nullptr, &y, &error), SY_OK);
    Negation negation(64);
    sy_kernel* kernel = nullptr;
    ASSERT_EQ(kernels->prepare(device, &negation.request, &kernel, &negation.info, &error), SY_OK) << error.message;
    Places places(At(x), At(y));
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    ASSERT_EQ(kernels->bind(device, kernel, &places.binding, &bound, &launch, &error), SY_OK) << error.message;
    std::array<float, 64> values, results;
    const auto run = [&](float value) {
      values.fill(value);
      EXPECT_EQ(api->copy(device, nullptr, At(x), Host(values.data()), 256, nullptr, &error), SY_OK) << error.message;
      EXPECT_EQ(launch(bound, nullptr, &error), SY_OK) << error.message;
      EXPECT_EQ(api->copy(device, nullptr, Host(results.data()), At(y), 256, nullptr, &error), SY_OK) << error.message;
    };
    run(1);
    EXPECT_EQ(results[0], -1);
    run(2);  // the second launch
    const bool lost = std::string(fault).ends_with("lost");
    EXPECT_EQ(results[63], lost ? -1 : -2) << fault;
    EXPECT_NE(results[0], -2) << fault;
    run(3);
    EXPECT_EQ(results[0], -3) << fault;
    kernels->unbind(device, bound);
    kernels->release(device, kernel);
    api->free(device, x);
    api->free(device, y);
    api->close(device);
    int32_t count = 0;
    EXPECT_EQ(api->count(plugin->table().instance, &count, &error), SY_OK) << error.message;
  }
}

// Each wrap is an instance of its own, whose faults count for it alone: thirty in a row, and each strikes once.
TEST(WrappingTest, OneInterposerStandsAroundAnyNumberOfPluginsAtAnyDepth) {
  constexpr int kDepth = 30;
  std::vector<std::string> faults;
  for (int n = 1; n <= kDepth; ++n) faults.push_back(fmt::format("fault:alloc@{}", n));
  const auto deep = Interposed("reference", faults);
  const auto beside = Interposed("null", {"fault:alloc@2"});
  ASSERT_TRUE(deep != nullptr && beside != nullptr);
  const auto open = [](const Plugin& plugin) {
    sy_device* device = nullptr;
    sy_error error = EmptyError();
    EXPECT_EQ(plugin.Interface<sy_device_v2>("device/2")->open(plugin.table().instance, 0, nullptr, &device, &error),
              SY_OK)
        << error.message;
    return device;
  };
  const auto* api = deep->Interface<sy_device_v2>("device/2");
  const auto* api_beside = beside->Interface<sy_device_v2>("device/2");
  sy_device* const device = open(*deep);
  sy_device* const device_beside = open(*beside);
  sy_error error = EmptyError();
  sy_buffer* buffer = nullptr;
  // The outermost fails its first call, the next its second, which is the first that it lets through, and so on.
  for (int n = 1; n <= 2 * kDepth + 2; ++n) {
    EXPECT_EQ(api->alloc(device, 64, nullptr, &buffer, &error), n % 2 == 1 && n < 2 * kDepth ? SY_OUT_OF_MEMORY : SY_OK)
        << n;
    if (buffer != nullptr) api->free(device, std::exchange(buffer, nullptr));
  }
  EXPECT_EQ(api_beside->alloc(device_beside, 64, nullptr, &buffer, &error), SY_OK) << error.message;
  api_beside->free(device_beside, buffer);
  EXPECT_EQ(api_beside->alloc(device_beside, 64, nullptr, &buffer, &error), SY_OUT_OF_MEMORY);
  api->close(device);
  api_beside->close(device_beside);
}

}  // namespace
}  // namespace switchyard
