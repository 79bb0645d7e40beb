// An instruction set that is asked for when oneDNN takes no limit any more.
#include <dlfcn.h>
#include <dnnl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "core/abi/device.h"
#include "core/abi/plugin.h"

namespace {

std::string warnings;
void Log(int32_t level, const char* text) {
  if (level == 2) warnings += text;
}
const char* Setting(const char* name) { return std::strcmp(name, "CPU_ISA") == 0 ? "baseline" : nullptr; }

TEST(CpuIsa, ALimitThatOneDnnDoesNotTakeAnyMoreIsAWarning) {
  dnnl_engine_t engine = nullptr;
  ASSERT_EQ(dnnl_engine_create(&engine, dnnl_cpu, 0), dnnl_success);
  dnnl_engine_destroy(engine);
  dnnl_get_effective_cpu_isa();  // from here on it is in use

  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  void* const library =
      dlopen((program / "../lib/switchyard/plugins/switchyard_backend_cpu.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  static const sy_host host{SY_HEADER(sy_host), Log, Setting};
  sy_plugin plugin{SY_HEADER(sy_plugin)};
  sy_error error{SY_HEADER(sy_error)};
  const auto query = reinterpret_cast<sy_plugin_query_fn>(dlsym(library, "sy_plugin_query"));
  ASSERT_EQ(query(&host, &plugin, &error), SY_OK);
  int32_t count = 0;
  EXPECT_EQ(static_cast<const sy_device_v1*>(plugin.interface("device/1"))->count(&count, &error), SY_OK);
  EXPECT_THAT(warnings,
              testing::HasSubstr("SWITCHYARD_CPU_ISA=baseline limits the plugin's own kernels, but not oneDNN"));
}

}  // namespace
