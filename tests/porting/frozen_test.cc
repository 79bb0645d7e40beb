// Plugins of released versions, built from frozen sources with frozen headers, and one built with the headers of a
// later version, in the program of today.
#include <fstream>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "nlohmann/json.hpp"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

class FrozenPlugin : public ProgramTest, public testing::WithParamInterface<const char*> {
 protected:
  std::string Library() const { return fmt::format("{}/switchyard_backend_{}.so", FROZEN_PLUGINS, GetParam()); }
  // The command with the frozen plugins on the search path.
  CommandResult RunWithIt(const std::string& arguments) const {
    return Run(arguments, Start::kAlone, std::string("SWITCHYARD_PLUGIN_PATH=") + FROZEN_PLUGINS);
  }
};

TEST_P(FrozenPlugin, LoadsAndMovesBytes) {
  const auto plugin = Plugin::Load(Library());
  ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
  EXPECT_EQ((*plugin)->name(), GetParam());
  const auto info = (*plugin)->Describe(0);
  ASSERT_TRUE(info.ok()) << Message(info.status());
  EXPECT_EQ(info->memory_bytes, uint64_t{1} << 32);
  auto device = Device::Open(**plugin, 0, {});
  ASSERT_TRUE(device.ok()) << Message(device.status());
  auto buffer = (*device)->Allocate(1000);
  ASSERT_TRUE(buffer.ok()) << Message(buffer.status());
  const std::string text = "as it was when it was released";
  std::string back(text.size(), ' ');
  ASSERT_TRUE((*device)->Upload(buffer->at(3), text.data(), text.size()).ok());
  ASSERT_TRUE((*device)->Download(back.data(), buffer->at(3), back.size()).ok());
  EXPECT_EQ(back, text);
  const Status outside = (*device)->Upload(buffer->at(999), text.data(), text.size());
  EXPECT_THAT(Message(outside), HasSubstr("do not lie inside the destination"));
}

TEST_P(FrozenPlugin, TrainsToTheLossesOfTheReference) {
  const auto train_losses = [&](const std::string& device) {
    ExpectSuccess(
        RunWithIt("train --model=mlp --dataset=shapes --width=16 --train_size=64 --validation_size=20 "
                  "--batch_size=4 --steps=6 --log_every=1 --output=run --device=" +
                  device + " --suffix=" + device));
    std::ifstream log(In("run/mlp/shapes/" + device + "/run/0/log/metrics.jsonl"));
    std::vector<double> losses;
    for (std::string line; std::getline(log, line);) {
      const auto entry = nlohmann::json::parse(line, nullptr, false);
      if (entry.is_object() && entry.contains("loss")) losses.push_back(entry["loss"]);
    }
    return losses;
  };
  const std::vector<double> expected = train_losses("reference"), found = train_losses(GetParam());
  ASSERT_GE(expected.size(), 6u);
  EXPECT_THAT(found, testing::Pointwise(testing::DoubleNear(1e-5), expected));
}

TEST_P(FrozenPlugin, KeepsItsLevel) {
  const bool streams = std::string(GetParam()).ends_with("_streams");
  // A check that is expected to fail may do so by waiting for ever.
  const CommandResult result = RunWithIt(
      fmt::format("conform {} --check_timeout=10 --expected_failures={}", GetParam(), FROZEN_EXPECTED_FAILURES));
  ExpectSuccess(result, {" 0 FAIL", streams ? " 1 expected failure" : " 0 expected failure",
                         streams ? "level Distributed (1 of" : "level Distributed (Async as a synchronous device"});
}

INSTANTIATE_TEST_SUITE_P(V2, FrozenPlugin, testing::Values("frozen_minimal", "frozen_streams", "later_streams"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace switchyard
