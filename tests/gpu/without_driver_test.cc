// The cuda plugin where it can use no GPU: it loads, counts none and says why, and a run that asks for it is refused
// with that reason. CUDA_VISIBLE_DEVICES hides the GPUs of a machine that has some, so that these tests run everywhere.
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class CudaWithoutDriver : public ProgramTest {
 protected:
  CudaWithoutDriver() { setenv("CUDA_VISIBLE_DEVICES", "-1", 1); }
  static auto SaysWhy() { return AnyOf(HasSubstr("no CUDA driver"), HasSubstr("the CUDA driver")); }
};

TEST_F(CudaWithoutDriver, PluginLoadsCountsNoDeviceAndSaysWhy) {
  const auto plugin = Plugin::Load(SY_CUDA_PLUGIN);
  ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
  EXPECT_EQ((*plugin)->name(), "cuda");
  for (const char* name : {"device/2", "kernel/2", "memory_ext/2", "capture/2", "semaphore/1", "peer/1", "profiler/2"})
    EXPECT_NE((*plugin)->Interface<void>(name), nullptr) << name;
  std::string reason;
  const auto count = (*plugin)->DeviceCount(&reason);
  ASSERT_TRUE(count.ok()) << Message(count.status());
  EXPECT_EQ(*count, 0);
  EXPECT_THAT(reason, SaysWhy());
  const auto info = (*plugin)->Describe(0);
  ASSERT_FALSE(info.ok());
  EXPECT_THAT(Message(info.status()), SaysWhy());
  const auto device = Device::Open(**plugin, 0, {});
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(Message(device.status()), SaysWhy());
}

TEST_F(CudaWithoutDriver, DoctorAndDevicesSayWhy) {
  const CommandResult doctor = Run("doctor");
  ExpectSuccess(doctor, {"cuda", "loaded, no device"});
  EXPECT_THAT(doctor.output, SaysWhy());
  const CommandResult devices = Run("devices");
  ExpectSuccess(devices, {"cuda: loaded, no device"});
  EXPECT_THAT(devices.output, SaysWhy());
}

TEST_F(CudaWithoutDriver, TrainingOnItIsRefusedWithTheReason) {
  for (const char* name : {"cuda", "gpu"}) {
    const CommandResult refused = Run(SmallTraining(std::string("--device=") + name));
    ExpectRefused(refused, {"cuda"});
    EXPECT_THAT(refused.output, SaysWhy());
  }
}

TEST_F(CudaWithoutDriver, AutoTakesAnotherDevice) {
  ExpectSuccess(Run(SmallTraining("--device=auto")), {"cpu device 0"});
}

}  // namespace
}  // namespace switchyard
