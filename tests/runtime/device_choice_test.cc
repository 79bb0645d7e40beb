#include "core/runtime/device/device_choice.h"

#include <cstdlib>

#include "core/runtime/plugins/library.h"
#include "core/runtime/plugins/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PluginDevices Offer(const std::string& plugin, int priority, int count, uint32_t flags = 0) {
  PluginDevices offer{plugin, "/plugins/" + plugin + ".so", priority, OkStatus(), {}};
  for (int index = 0; index < count; ++index) {
    DeviceInfo info;
    info.index = index;
    info.plugin = plugin;
    info.flags = flags;
    offer.devices.push_back(info);
  }
  return offer;
}

PluginDevices Refused(const std::string& plugin, int priority, const std::string& reason) {
  return {plugin, "/plugins/" + plugin + ".so", priority, NotFound("{}", reason), {}};
}

// The id of every local rank.
std::vector<int> Indices(DeviceRequest request, const PluginDevices& offer) {
  std::vector<int> indices;
  for (request.local_rank = 0; request.local_rank < request.local_world; ++request.local_rank) {
    const auto choice = ChooseDevice(request, {offer});
    indices.push_back(choice.ok() ? choice->index : -1);
  }
  return indices;
}

std::string Refusal(const DeviceRequest& request, const std::vector<PluginDevices>& survey) {
  const auto choice = ChooseDevice(request, survey);
  return choice.ok() ? "accepted" : Message(choice.status());
}

TEST(DeviceList, IsSortedAndChecked) {
  EXPECT_THAT(*ParseDeviceList("4,0,5,1"), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(Message(ParseDeviceList("0,1,0").status()), HasSubstr("0 is there twice"));
  EXPECT_THAT(Message(ParseDeviceList("0,-1").status()), HasSubstr("-1 is negative"));
  for (const char* bad : {"", "a", "0,", ",", "0,,1", "1.5", "0 1", "99999999999"})
    EXPECT_FALSE(ParseDeviceList(bad).ok()) << bad;
}

TEST(ChooseDevice, TellsTheStaticLossScaleOfTheChosenDevice) {
  PluginDevices offer = Offer("npu", 9, 2);
  offer.devices[1].static_loss_scale = 512;
  EXPECT_EQ(ChooseDevice({.device = "npu", .device_list = "1"}, {offer})->static_loss_scale, 512);
  EXPECT_EQ(ChooseDevice({.device = "npu", .device_list = "0"}, {offer})->static_loss_scale, std::nullopt);
}

TEST(ChooseDevice, RankDrivesTheDeviceOfItsPlaceInTheSortedList) {
  DeviceRequest request{.device = "gpu", .device_list = "5,1,4", .local_world = 3};
  EXPECT_THAT(Indices(request, Offer("cuda", 9, 8)), ElementsAre(1, 4, 5));
}

TEST(ChooseDevice, RefusesMoreRanksThanDevicesUnlessTheyShare) {
  DeviceRequest request{.device = "cuda", .local_world = 4};
  EXPECT_THAT(Refusal(request, {Offer("cuda", 9, 2)}), HasSubstr("4 local ranks, but cuda has 2 devices"));
  EXPECT_THAT(Refusal(request, {Offer("cuda", 9, 2)}), HasSubstr("--ranks_per_device=2"));
  request.ranks_per_device = 2;
  EXPECT_THAT(Indices(request, Offer("cuda", 9, 2)), ElementsAre(0, 0, 1, 1));
  request.ranks_per_device.reset();
  EXPECT_THAT(Indices(request, Offer("opencl", 9, 1, SY_DEVICE_SHAREABLE)), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Indices(request, Offer("cpu", 9, 4, SY_DEVICE_SHAREABLE)), ElementsAre(0, 1, 2, 3));
}

TEST(ChooseDevice, RefusesIdsThatAreNotThere) {
  EXPECT_THAT(Refusal({.device = "cuda", .device_list = "0,7"}, {Offer("cuda", 9, 2)}),
              HasSubstr("cuda has no device 7; it has 0 to 1"));
}

TEST(ChooseDevice, RefusesGapsWhereIdsMustBeAdjacent) {
  const PluginDevices npu = Offer("npu", 9, 8, SY_DEVICE_ADJACENT_IDS);
  EXPECT_THAT(Refusal({.device = "npu", .device_list = "1,3", .local_world = 2}, {npu}), HasSubstr("consecutive ids"));
  EXPECT_THAT(Indices({.device = "npu", .device_list = "3,2", .local_world = 2}, npu), ElementsAre(2, 3));
}

TEST(ChooseDevice, AutoTakesTheHighestPriorityAndSaysWhatItPassedOver) {
  const auto choice = ChooseDevice(
      {}, {Refused("cuda", 100, "no device found: no driver"), Offer("cpu", 50, 1), Offer("reference", 1, 1)});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->plugin, "cpu");
  EXPECT_THAT(choice->why, HasSubstr("highest priority (50)"));
  EXPECT_THAT(choice->why, HasSubstr("no driver"));
}

TEST(ChooseDevice, NamesEveryPluginTriedWhereAndWhy) {
  const std::string text = Refusal({.device = "cuda"}, {Refused("cuda", 100, "no driver")});
  EXPECT_THAT(text, HasSubstr("--device=cuda: cuda (/plugins/cuda.so): no driver"));
  EXPECT_THAT(Refusal({}, {}), HasSubstr("no backend plugin was found"));
}

TEST(ChooseDevice, RefusesRanksOutsideTheNode) {
  EXPECT_FALSE(ChooseDevice({.local_rank = 2, .local_world = 2}, {Offer("cpu", 1, 2)}).ok());
  EXPECT_FALSE(ChooseDevice({.ranks_per_device = -1}, {Offer("cpu", 1, 2)}).ok());
}

TEST(ChooseDevice, RefusesNumbersAndListsOfNothing) {
  const std::vector<PluginDevices> survey = {Offer("cpu", 1, 2)};
  EXPECT_THAT(Refusal({.ranks_per_device = 0}, survey), HasSubstr("--ranks_per_device=0: expected a positive number"));
  EXPECT_THAT(Refusal({.cpu_devices = 0}, survey), HasSubstr("--cpu_devices=0: expected a positive number"));
  EXPECT_THAT(Refusal({.device_list = ""}, survey), HasSubstr("--device_list=: \"\" is not a device id"));
  Registry registry(std::vector<std::string>{});
  EXPECT_THAT(Message(CountReplicas(registry, {}, 0).status()), HasSubstr("--devices=0: expected a positive number"));
}

TEST(DeviceSurvey, TellsPluginsHowManyCpuDevicesThereAreAndLeavesTheEnvironmentAlone) {
  unsetenv("SWITCHYARD_CPU_DEVICES");
  Registry registry(std::vector<std::string>{});
  DeviceRequest request;
  request.device = "nothing";
  request.local_world = 3;
  SurveyDevices(registry, request);
  ASSERT_NE(Host()->setting(Host()->context, "CPU_DEVICES"), nullptr);
  EXPECT_STREQ(Host()->setting(Host()->context, "CPU_DEVICES"), "3");
  request.local_world = 1;
  SurveyDevices(registry, request);
  EXPECT_STREQ(Host()->setting(Host()->context, "CPU_DEVICES"), "3");
  request.cpu_devices = 5;
  SurveyDevices(registry, request);
  EXPECT_STREQ(Host()->setting(Host()->context, "CPU_DEVICES"), "5");
  EXPECT_EQ(std::getenv("SWITCHYARD_CPU_DEVICES"), nullptr);
}

}  // namespace
}  // namespace switchyard
