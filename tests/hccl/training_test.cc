// Training on two devices of the NPU simulator, joined by hccl: the losses are those of ranks joined through host
// memory.
#include "tests/cli/program.h"
#include "tests/npu/simulator_path.h"
#include "tests/ranks/losses.h"

namespace switchyard {
namespace {

class HcclTraining : public ProgramTest {
 protected:
  CommandResult Train(const std::string& model, const std::string& collective, const std::string& more = "") const {
    return Run(ranks::SmallTrainingOf(model, collective) + " --device=npu --device_list=2,3 --collective=" + collective,
               Start::kLaunch, "SWITCHYARD_NPU_RUNTIME=" + SimulatorPath() + " " + more);
  }
  void ExpectLossesOfHostMemory(const std::string& model) const {
    const CommandResult hccl = Train(model, "hccl"), shm = Train(model, "shm");
    ExpectSuccess(hccl, {"npu device 3", "collective hccl", "0 fallbacks"});
    ExpectSuccess(shm);
    EXPECT_EQ(ranks::LossesOf(In("run"), "hccl").size(), 4u) << hccl.output;
    EXPECT_EQ(ranks::LossesOf(In("run"), "hccl"), ranks::LossesOf(In("run"), "shm"));
  }
};

TEST_F(HcclTraining, MlpHasTheLossesOfHostMemory) { ExpectLossesOfHostMemory("mlp"); }

TEST_F(HcclTraining, VitHasTheLossesOfHostMemory) {
  ExpectLossesOfHostMemory("vit_tiny --image_size=32 --patch=8 --width=48 --depth=2 --heads=3");
}

TEST_F(HcclTraining, ItIsChosenWhereItCanJoin) {
  ExpectSuccess(Train("mlp", "auto"), {"hccl: highest priority that can join 2 ranks"});
}

// Though there is another device, which nobody drives.
TEST_F(HcclTraining, SharedNpuIsReachedThroughHostMemory) {
  ExpectRefused(Train("mlp --ranks_per_device=2", "hccl"), {"needs a device for each rank, and 2 ranks", "share 1"});
  const CommandResult chosen = Train("mlp --ranks_per_device=2", "auto");
  ExpectSuccess(chosen, {"npu device 2", "collective shm"});
  EXPECT_THAT(chosen.output, testing::Not(testing::HasSubstr("npu device 3")));
}

TEST_F(HcclTraining, HangingCollectiveEndsTheRun) {
  ExpectRefused(Train("mlp", "hccl", "SWITCHYARD_NPU_SIMULATOR_HCCL_FAULT=hang@9 SWITCHYARD_COLLECTIVE_TIMEOUT=2"),
                {"not finished after 2 s"});
}

}  // namespace
}  // namespace switchyard
