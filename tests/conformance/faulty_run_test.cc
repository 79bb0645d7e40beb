// What a whole run says of a collective with a planted fault: nothing of it is a crash.
#include <cstdlib>
#include <filesystem>

#include "core/runtime/plugins/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/run_command.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

TEST(FaultyCollective, IsNamedWithTheCallThatAnsweredNonsense) {
  const auto shm = Registry::Get().Find(PluginKind::kCollective, "shm");
  if (!shm.ok()) GTEST_SKIP() << "it needs the shm collective";
  std::string folder = (std::filesystem::temp_directory_path() / "faulty-run-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::pair<const char*, const char*> faults[] = {
      {"gives_no_communicator", "faulty: joining 2 ranks: init succeeded without a communicator"},
      {"gives_no_memory", "faulty: buffer_alloc of"},
      {"moves_nothing", "so what its ranks send does not arrive; `switchyard conform` says more of it"}};
  for (const auto& [fault, words] : faults) {
    const CommandResult result = RunCommand(
        fmt::format(
            "env SWITCHYARD_FAULT={} SWITCHYARD_FAULT_BASE={} {}/../bin/switchyard launch --nproc_per_node=2 train "
            "--model=mlp --dataset=shapes --width=16 --train_size=32 --validation_size=8 --batch_size=8 --steps=1 "
            "--device=reference --collective={}/faulty_collective.so --output={}",
            fault, (*shm)->path(), ProgramFolder(), ProgramFolder(), folder),
        60);
    EXPECT_EQ(result.code, 1) << fault << ": " << result.output;
    EXPECT_THAT(result.output, HasSubstr(words));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace switchyard
