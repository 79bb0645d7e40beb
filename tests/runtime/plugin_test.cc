#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "core/abi/boundary.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/doctor.h"
#include "core/runtime/plugins/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/runtime/plugin_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PluginTest : public PluginFolder {
 protected:
  // Why the only plugin of the folder is refused.
  std::string Refusal(const std::string& name = "fake") {
    Registry registry({folder_});
    const auto plugin = registry.Find(PluginKind::kBackend, name);
    return plugin.ok() ? "accepted" : Message(plugin.status());
  }
};

TEST_F(PluginTest, LoadsAWholePluginAndDrivesIt) {
  Install("whole");
  Registry registry({folder_});
  auto plugin = registry.Find(PluginKind::kBackend, "fake");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_EQ((*plugin)->version(), "1.2");
  EXPECT_EQ(*(*plugin)->DeviceCount(), 2);
  auto device = Device::Open(**plugin, 1, {});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->info().uuid.substr(30), "01");
  {
    auto buffer = (*device)->Allocate(100);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ((*device)->allocated_bytes(), 100u);
    const char sent[] = "forty-two";
    char received[sizeof sent] = {};
    auto stream = (*device)->NewStream();
    ASSERT_TRUE(stream.ok());
    ASSERT_TRUE((*device)->Upload(buffer->at(7), sent, sizeof sent).ok());
    ASSERT_TRUE((*device)->Download(received, buffer->at(7), sizeof sent).ok());
    EXPECT_STREQ(received, sent);
    ASSERT_TRUE((*device)->Fill(*stream, buffer->at(0), 0x5a, 100).ok());
    ASSERT_TRUE((*device)->Download(received, buffer->at(91), 9).ok());
    EXPECT_EQ(received[8], 0x5a);
    auto event = (*device)->NewEvent();
    ASSERT_TRUE(event.ok() && event->Record(*stream).ok());
    EXPECT_TRUE(*event->Done());
  }
  EXPECT_EQ((*device)->allocated_bytes(), 0u);
  EXPECT_EQ((*device)->peak_allocated_bytes(), 100u);
}

TEST_F(PluginTest, OutOfMemoryNamesWhatWasAskedForAndWhatIsFree) {
  Install("whole");
  Registry registry({folder_});
  auto device = Device::Open(**registry.Find(PluginKind::kBackend, "fake"), 0, {});
  ASSERT_TRUE(device.ok());
  const auto buffer = (*device)->Allocate(3 << 20);
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(buffer.status()), HasSubstr("3145728 bytes asked for, 1048576 free"));
  EXPECT_THAT(Message(buffer.status()), HasSubstr("the fake memory is full (native code 77) [fake.cc:1]"));
  EXPECT_TRUE((*device)->Allocate(1000).ok());
}

TEST_F(PluginTest, AnAllocationAboveTheDevicesLargestIsToldAsThat) {
  const auto plugin = Plugin::Load(Install("gives_memory_in_pieces"));
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  auto device = Device::Open(**plugin, 0, {});
  ASSERT_TRUE(device.ok()) << device.status();
  const auto whole = (*device)->Allocate(1 << 19);
  EXPECT_EQ(whole.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(whole.status()), HasSubstr("gives at most 262144 bytes in one allocation"));
  EXPECT_THAT(Message(whole.status()), HasSubstr("524288 bytes are asked for"));
  const auto half = (*device)->Allocate(1 << 18), other = (*device)->Allocate(1 << 18);
  EXPECT_TRUE(half.ok() && other.ok());
}

TEST_F(PluginTest, ADeviceIsNotOpenedForNoThread) {
  Install("whole");
  Registry registry({folder_});
  OpenOptions options;
  options.threads = 0;
  EXPECT_THAT(Message(Device::Open(**registry.Find(PluginKind::kBackend, "fake"), 0, options).status()),
              HasSubstr("fake: 0 threads: expected a positive number"));
}

TEST_F(PluginTest, ADeviceHoldsNoMoreThanItsLimit) {
  Install("whole");
  Registry registry({folder_});
  OpenOptions options;
  options.memory_limit = 1000;
  auto device = Device::Open(**registry.Find(PluginKind::kBackend, "fake"), 0, options);
  ASSERT_TRUE(device.ok());
  {
    const auto first = (*device)->Allocate(600), more = (*device)->Allocate(401), rest = (*device)->Allocate(400);
    EXPECT_TRUE(first.ok() && rest.ok());
    EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Message(more.status()),
                HasSubstr("--memory_limit allows 1000 bytes of device 0: 401 bytes asked for, 600 held"));
    EXPECT_EQ((*device)->held_bytes(), 1000u);
  }
  EXPECT_EQ((*device)->held_bytes(), 0u);
  EXPECT_FALSE((*device)->Allocate(std::numeric_limits<uint64_t>::max()).ok());
  EXPECT_TRUE((*device)->Allocate(1000).ok()) << "what was refused or freed does not count";
  EXPECT_EQ((*device)->peak_held_bytes(), 1000u);
}

TEST_F(PluginTest, ReadsOnlyTheFieldsThatAPluginHas) {
  Install("older", "older");
  EXPECT_THAT(Refusal("older"), HasSubstr("it calls itself \"fake\", its manifest \"older\""));
  auto plugin = Plugin::Load(folder_ + "/switchyard_backend_older.so");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  const auto* api = (*plugin)->Interface<sy_device_v2>("device/2");
  EXPECT_EQ(api->fill, nullptr);
  EXPECT_NE(api->synchronize, nullptr);
  Install("newer");
  Registry registry({folder_});
  EXPECT_TRUE(registry.Find(PluginKind::kBackend, "fake").ok());
}

TEST(Boundary, WhateverAPluginThrowsInsideGuardedIsAStatus) {
  sy_error error{};
  error.header = SY_HEADER(sy_error);
  EXPECT_EQ(Guarded(&error, []() -> sy_status { throw std::runtime_error("no luck"); }), SY_INTERNAL);
  EXPECT_STREQ(error.message, "no luck");
  EXPECT_EQ(Guarded(&error, []() -> sy_status { throw 5; }), SY_INTERNAL);
  EXPECT_STREQ(error.message, "it threw an exception that is no std::exception");
}

TEST_F(PluginTest, AnOptionalExtensionIsIgnored) {
  Install("optional_extension");
  EXPECT_EQ(Refusal(), "accepted");
}

TEST_F(PluginTest, ADeviceThatIsNotThereNeedsNoWords) {
  Install("says_unsupported_without_a_word");
  Registry registry({folder_});
  const auto plugin = registry.Find(PluginKind::kBackend, "fake");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  std::string reason;
  EXPECT_EQ(*(*plugin)->DeviceCount(&reason), 0);
  EXPECT_EQ(reason, "count answered unsupported without a reason");
}

TEST_F(PluginTest, ADeviceWhoseDescriptionMakesNoSenseIsNotOpened) {
  const std::pair<const char*, const char*> faults[] = {
      {"device_name_without_end", "device 0: name does not end within 128 bytes"},
      {"memory_kind_without_end", "device 0: memory_kind does not end within 32 bytes"},
      {"copies_in_steps_of_3", "copies in steps of 3 bytes; expected a power of two"},
      {"copies_in_steps_above_the_alignment", "copies in steps of 128 bytes; expected a power of two of at most its"},
      {"aligns_to_48", "an alignment of 48 bytes; expected a power of two"},
      {"unknown_address_kind", "unknown address kind 7"}};
  for (const auto& [fault, reason] : faults) {
    const auto plugin = Plugin::Load(Install(fault));
    ASSERT_TRUE(plugin.ok()) << plugin.status();
    EXPECT_THAT(Message((*plugin)->Describe(0).status()), HasSubstr(reason));
    EXPECT_THAT(Message(Device::Open(**plugin, 0, {}).status()), HasSubstr(reason));
  }
}

TEST_F(PluginTest, AStatusOfALaterHeaderIsAnInternalError) {
  const auto plugin = Plugin::Load(Install("answers_a_later_status"));
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  auto device = Device::Open(**plugin, 0, {});
  ASSERT_TRUE(device.ok()) << device.status();
  const Status refused = (*device)->Allocate(64).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(refused), HasSubstr("the plugin returned status 99, which ABI version 2 does not know"));
}

TEST_F(PluginTest, ConstantsNeedSomebodyToWriteThem) {
  Install("kernel_lacks_write_constants");
  Registry registry({folder_});
  auto device = Device::Open(**registry.Find(PluginKind::kBackend, "fake"), 0, {});
  ASSERT_TRUE(device.ok()) << device.status();
  sy_prepare_request request{};
  request.op = "matmul";
  const auto kernel = (*device)->Prepare(request);
  EXPECT_THAT(Message(kernel.status()), HasSubstr("asks for 64 constant bytes, but kernel/2 lacks write_constants"));
}

TEST_F(PluginTest, RefusesWhatOthersCouldHaveWritten) {
  const std::string path = Install("whole");
  EXPECT_EQ(Refusal(), "accepted");
  chmod(path.c_str(), 0757);
  EXPECT_THAT(Refusal(), HasSubstr("can be written by other users (mode 0757); mend it with: chmod go-w"));
  chmod(path.c_str(), 0755);
  chmod(folder_.c_str(), 0777);
  EXPECT_THAT(Refusal(), HasSubstr("can be written by other users"));
  chmod(folder_.c_str(), 0755);
  chmod((folder_ + "/switchyard_backend_whole.json").c_str(), 0666);
  EXPECT_THAT(Refusal(), HasSubstr("can be written by other users"));
  chmod((folder_ + "/switchyard_backend_whole.json").c_str(), 0644);
  if (geteuid() != 0) return;  // only root can give files away
  ASSERT_EQ(chown(path.c_str(), 12345, 0), 0);
  EXPECT_THAT(Refusal(), HasSubstr("belongs to user 12345"));
  ASSERT_EQ(chown(path.c_str(), 0, 12345), 0);
  chmod(path.c_str(), 0775);
  EXPECT_THAT(Refusal(), HasSubstr("can be written by other users"));
}

TEST_F(PluginTest, NamesEveryDefectOfAManifest) {
  const std::string library = "switchyard_backend_whole.so";
  const nlohmann::json good = {
      {"name", "fake"}, {"kind", "backend"}, {"abi", 2}, {"priority", 5}, {"library", library}};
  Install("whole");
  const auto refusal = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json manifest = good;
    manifest[key] = value;
    WriteManifest("whole", manifest);
    return Refusal();
  };
  EXPECT_THAT(refusal("kind", "frontend"), HasSubstr("\"kind\" is \"frontend\""));
  EXPECT_THAT(refusal("abi", 1), HasSubstr("\"abi\" is 1; this program knows 2"));
  EXPECT_THAT(refusal("abi", "2"), HasSubstr("\"abi\" is \"2\"; expected the number 2"));
  EXPECT_THAT(refusal("library", "../evil.so"), HasSubstr("expected a file name in the same folder"));
  EXPECT_THAT(refusal("library", "gone.so"), HasSubstr("not built: its manifest is there"));
  EXPECT_THAT(refusal("priority", "high"), HasSubstr("\"priority\" is \"high\"; expected a whole number"));
  EXPECT_THAT(refusal("name", 5), HasSubstr("\"name\" is missing"));
  EXPECT_THAT(refusal("name", "../x"), HasSubstr("not a plain name"));
  std::ofstream(folder_ + "/switchyard_backend_whole.json") << "{\"name\": ";
  EXPECT_THAT(Refusal(), HasSubstr("not JSON: parse error at line 1, column 10"));
  std::ofstream(folder_ + "/switchyard_backend_whole.json") << "[]";
  EXPECT_THAT(Refusal(), HasSubstr("is not a JSON object"));
  std::ofstream(folder_ + "/switchyard_backend_whole.json") << std::string(1 << 17, ' ');
  EXPECT_THAT(Refusal(), HasSubstr("larger than"));
  fs::remove(folder_ + "/switchyard_backend_whole.json");
  EXPECT_THAT(Refusal(), HasSubstr("no manifest names it; expected switchyard_backend_whole.json beside it"));
}

TEST_F(PluginTest, SearchPathEntriesMustBeAbsoluteFolders) {
  Install("whole");
  Registry registry({"plugins", root_ + "/missing", folder_});
  ASSERT_EQ(registry.candidates().size(), 3u);
  EXPECT_THAT(Message(registry.candidates()[0].verdict), HasSubstr("is not absolute"));
  EXPECT_THAT(Message(registry.candidates()[1].verdict), HasSubstr("is not a folder"));
  EXPECT_TRUE(registry.candidates()[2].verdict.ok());
}

TEST_F(PluginTest, TheFirstOfANameWins) {
  Install("whole");
  const std::string first = folder_;
  folder_ = root_ + "/second";
  fs::create_directory(folder_);
  Install("whole");
  Registry registry({first, folder_});
  EXPECT_THAT((*registry.Find(PluginKind::kBackend, "fake"))->path(), HasSubstr(first));
  EXPECT_THAT(Message(registry.candidates()[1].verdict), HasSubstr("hidden by " + first));
}

// A bad one hides nothing, whatever is wrong with it, whoever asks, and whatever priority it claims.
TEST_F(PluginTest, ThePluginThatIsTakenIsTheFirstThatLoads) {
  Install("whole");
  const std::string good = folder_;
  for (const char* fault : {"crashes", "crashes_in_count", "has_too_many_devices", "wrong_version"}) {
    folder_ = root_ + "/" + fault;
    fs::create_directory(folder_);
    const std::string bad = Install(fault);
    WriteManifest(
        fault,
        {{"name", "fake"}, {"kind", "backend"}, {"abi", 2}, {"priority", 1000}, {"library", fs::path(bad).filename()}});
    Registry by_name({folder_, good});
    ::testing::internal::CaptureStderr();
    const auto plugin = by_name.Find(PluginKind::kBackend, "fake");
    const std::string said = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(plugin.ok()) << plugin.status();
    EXPECT_EQ((*plugin)->path(), fs::canonical(good + "/switchyard_backend_whole.so"));
    EXPECT_THAT(said, HasSubstr("is taken in place of " + bad + ", which is refused: "));
    Registry by_doctor({folder_, good});
    EXPECT_THAT(DoctorReport(by_doctor), HasSubstr("taken in place of " + bad + ", 2 devices"));
    EXPECT_THAT(DevicesReport(by_doctor), HasSubstr("fake    1   fake"));
  }
}

TEST_F(PluginTest, ARefusedPluginTakesItsPriorityWithIt) {
  Install("whole");
  Install("older", "older");  // calls itself fake: refused
  const auto write = [&](const char* stem, const char* name, int priority) {
    WriteManifest(stem, {{"name", name},
                         {"kind", "backend"},
                         {"abi", 2},
                         {"priority", priority},
                         {"library", std::string("switchyard_backend_") + stem + ".so"}});
  };
  write("whole", "fake", 5);
  const std::string good = folder_;
  folder_ = root_ + "/bad";
  fs::create_directory(folder_);
  Install("crashes");
  write("crashes", "fake", 1000);
  Registry registry({folder_, good});
  std::vector<std::pair<std::string, int>> offered;
  registry.OfferByPriority(PluginKind::kBackend, [&](const Candidate& candidate, const auto& plugin) {
    offered.push_back({plugin.ok() ? (*plugin)->name() : "refused", candidate.priority});
    return false;
  });
  EXPECT_THAT(offered, ::testing::ElementsAre(std::pair<std::string, int>("refused", 1000),
                                              std::pair<std::string, int>("refused", 5),
                                              std::pair<std::string, int>("fake", 5)));
}

TEST_F(PluginTest, WhatIsNotBuiltIsOneLine) {
  Install("whole");
  for (const char* name : {"first", "second"}) {
    WriteManifest(name, {{"name", name}, {"kind", "backend"}, {"abi", 2}, {"priority", 5}, {"library", "gone.so"}});
  }
  WriteManifest("third", {{"name", "third"}, {"kind", "collective"}, {"abi", 2}, {"library", "gone.so"}});
  Registry registry({folder_});
  EXPECT_THAT(DoctorReport(registry), ::testing::EndsWith("\nnot built: first, second, third\n"));
  EXPECT_THAT(DevicesReport(registry), ::testing::EndsWith("\nnot built: first, second\n"));
  for (const std::string& report : {DoctorReport(registry), DevicesReport(registry)}) {
    EXPECT_THAT(report, ::testing::Not(HasSubstr("No such file")));
    EXPECT_THAT(report, ::testing::Not(HasSubstr("refused")));
  }
  const auto json = nlohmann::json::parse(DoctorJson(registry));
  EXPECT_EQ(json["candidates"][0]["outcome"], "not built");
  EXPECT_THAT(Refusal("first"), HasSubstr("not built"));
}

TEST_F(PluginTest, LoadsNothingThatWasNotAskedFor) {
  Install("crashes", "other");
  Install("whole");
  Registry registry({folder_});
  EXPECT_TRUE(registry.Find(PluginKind::kBackend, "fake").ok());
  for (const Candidate& candidate : registry.candidates()) EXPECT_EQ(candidate.tried, candidate.name == "fake");
}

TEST_F(PluginTest, UnknownNamesAreAnsweredWithWhatThereIs) {
  Install("whole");
  Registry registry({folder_});
  const Status unknown = registry.Find(PluginKind::kBackend, "fak").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(unknown), HasSubstr("did you mean fake?"));
  EXPECT_THAT(Message(unknown), HasSubstr("; found: fake; looked in: "));
  EXPECT_THAT(Message(unknown), HasSubstr("SWITCHYARD_PLUGIN_PATH"));
  EXPECT_THAT(Message(unknown), HasSubstr(folder_));
  EXPECT_FALSE(registry.Find(PluginKind::kCollective, "fake").ok());
  EXPECT_FALSE(registry.Find(PluginKind::kBackend, "gpu").ok());
}

TEST_F(PluginTest, AcceptsAPathThatTheUserTyped) {
  const std::string path = Install("whole");
  const std::string relative = fs::relative(path).string();
  Registry registry({});
  const auto plugin = registry.Find(PluginKind::kBackend, "./" + relative);
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_EQ((*plugin)->path(), fs::canonical(path).string());
}

TEST_F(PluginTest, RemembersWhatPassedUntilTheFileChanges) {
  const std::string path = Install("whole");
  EXPECT_EQ(Refusal(), "accepted");
  const std::string cache = root_ + "/cache/switchyard/probe.json";
  std::ifstream file(cache);
  const auto remembered = nlohmann::json::parse(file);
  ASSERT_TRUE(remembered.contains(fs::canonical(path).string()));
  std::ofstream(cache) << "not json";  // a broken cache is no error
  EXPECT_EQ(Refusal(), "accepted");
  Install("crashes", "other");
  EXPECT_THAT(Refusal("other"), HasSubstr("crashed"));
  std::ifstream again(cache);
  EXPECT_FALSE(nlohmann::json::parse(again, nullptr, false).dump().find("crashes") != std::string::npos);
}

TEST_F(PluginTest, DoctorTellsTheFateOfEveryCandidate) {
  Install("whole");
  Install("crashes", "other");
  Registry registry({folder_, "relative"});
  const std::string report = DoctorReport(registry);
  EXPECT_THAT(report, HasSubstr("taken, 2 devices"));
  EXPECT_THAT(report, HasSubstr("crashed in sy_plugin_create (signal 11"));
  EXPECT_THAT(report, HasSubstr("is not absolute"));
  const auto json = nlohmann::json::parse(DoctorJson(registry));
  EXPECT_EQ(json["candidates"].size(), 3u);
  EXPECT_THAT(DevicesReport(registry), HasSubstr("fake    1   fake"));
  EXPECT_EQ(nlohmann::json::parse(DevicesJson(registry))["devices"].size(), 2u);
  setenv("SWITCHYARD_FAKE_DEVICES", "0", 1);
  EXPECT_THAT(DevicesReport(registry), HasSubstr("the fake hardware is unplugged"));
  unsetenv("SWITCHYARD_FAKE_DEVICES");
}

}  // namespace
}  // namespace switchyard
