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
void Log(void*, int32_t level, const char* text) {
  if (level == 2) warnings += text;
}
const char* Setting(void*, const char* name) { return std::strcmp(name, "CPU_ISA") == 0 ? "baseline" : nullptr; }

TEST(CpuIsa, ALimitThatOneDnnDoesNotTakeAnyMoreIsAWarning) {
  dnnl_engine_t engine = nullptr;
  ASSERT_EQ(dnnl_engine_create(&engine, dnnl_cpu, 0), dnnl_success);
  dnnl_engine_destroy(engine);
  dnnl_get_effective_cpu_isa();  // from here on it is in use

  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  void* const library =
      dlopen((program / "../lib/switchyard/plugins/switchyard_backend_cpu.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  static const sy_host host{SY_HEADER(sy_host), nullptr, Log, Setting};
  sy_plugin plugin{SY_HEADER(sy_plugin)};
  sy_error error{SY_HEADER(sy_error)};
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  ASSERT_EQ(create(&host, &plugin, &error), SY_OK);
  int32_t count = 0;
  const auto* const api = static_cast<const sy_device_v2*>(plugin.get_interface(plugin.instance, "device/2"));
  EXPECT_EQ(api->count(plugin.instance, &count, &error), SY_OK);
  EXPECT_THAT(warnings,
              testing::HasSubstr("SWITCHYARD_CPU_ISA=baseline limits the plugin's own kernels, but not oneDNN"));
}

}  // namespace
