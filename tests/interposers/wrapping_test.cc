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
    for (const char* one :
         {"device/1", "kernel/1", "memory_ext/1", "capture/1", "profiler/1", "region/1", "collective/1"}) {
      EXPECT_EQ(outer->Interface<void>(one) != nullptr, inner->Interface<void>(one) != nullptr) << name << " " << one;
    }
    const auto *before = inner->Interface<sy_device_v1>("device/1"),
               *after = outer->Interface<sy_device_v1>("device/1");
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
    const auto* api = plugin->Interface<sy_device_v1>("device/1");
    const auto* kernels = plugin->Interface<sy_kernel_v1>("kernel/1");
    sy_error error = EmptyError();
    sy_open_options options{};
    options.header = SY_HEADER(sy_open_options);
    sy_device* device = nullptr;
    ASSERT_EQ(api->open(0, &options, &device, &error), SY_OK) << error.message;
    sy_buffer *x = nullptr, *y = nullptr;
    ASSERT_EQ(api->alloc(device, 256, &x, &error), SY_OK);
    ASSERT_EQ(api->alloc(device, 256, &y, &error), SY_OK);
    Negation negation(64);
    sy_kernel* kernel = nullptr;
    ASSERT_EQ(kernels->prepare(device, &negation.request, &kernel, &negation.info, &error), SY_OK) << error.message;
    Places places(At(x), At(y));
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    ASSERT_EQ(kernels->bind(kernel, &places.binding, &bound, &launch, &error), SY_OK) << error.message;
    std::array<float, 64> values, results;
    const auto run = [&](float value) {
      values.fill(value);
      EXPECT_EQ(api->copy(device, nullptr, At(x), Host(values.data()), 256, &error), SY_OK) << error.message;
      EXPECT_EQ(launch(bound, nullptr, &error), SY_OK) << error.message;
      EXPECT_EQ(api->copy(device, nullptr, Host(results.data()), At(y), 256, &error), SY_OK) << error.message;
    };
    run(1);
    EXPECT_EQ(results[0], -1);
    run(2);  // the second launch
    const bool lost = std::string(fault).ends_with("lost");
    EXPECT_EQ(results[63], lost ? -1 : -2) << fault;
    EXPECT_NE(results[0], -2) << fault;
    run(3);
    EXPECT_EQ(results[0], -3) << fault;
    kernels->unbind(bound);
    kernels->release(kernel);
    api->free(device, x);
    api->free(device, y);
    api->close(device);
    int32_t count = 0;
    EXPECT_EQ(api->count(&count, &error), SY_OK) << error.message;
  }
}

// Last: what it takes, nobody gives back.
TEST(WrappingTest, OneInterposerStandsAroundEightPluginsOfAProcess) {
  Status last;
  int made = 0;
  for (int n = 1; n <= 9 && last.ok(); ++n) {
    last = Interpose(Backend("reference"), {"fault:bind@" + std::to_string(n) + "000000"}).status();
    made += last.ok();
  }
  EXPECT_GE(made, 4);  // the tests above may have taken some
  EXPECT_THAT(Message(last), HasSubstr("at most 8 plugins"));
}

}  // namespace
}  // namespace switchyard
