// Plugins that are broken, careless or hostile, all in one folder: each is refused, doctor says why, and the process
// that looked at them is none the worse.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/base/environment.h"
#include "core/runtime/plugins/doctor.h"
#include "core/runtime/plugins/process_state.h"
#include "core/runtime/plugins/registry.h"
#include "gmock/gmock.h"
#include "tests/runtime/plugin_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Hostile {
  const char* name;    // of the library, of the manifest, and of the fault
  const char* reason;  // in doctor's words, a regular expression
};

// What a library does by itself.
constexpr Hostile kLibraries[] = {
    {"no_symbol", "exports no sy_plugin_create"},
    {"edition_1", "it was built for edition 1 of the plugin ABI, this program knows edition 2: build it against"},
    {"undefined_symbol", "undefined symbol: switchyard_nobody_defines_this"},
    {"missing_library", "libfake_library_that_goes_away.so: cannot open shared object file"},
    {"refuses", "this fake needs a licence"},
    {"refuses_without_a_word", "sy_plugin_create failed"},
    {"throws", "threw a C.. exception across the plugin interface: no plugin today"},
    {"throws_a_number", "threw a C.. exception across the plugin interface"},
    {"aborts", "crashed in sy_plugin_create .signal 6"},
    {"crashes", "crashed in sy_plugin_create .signal 11"},
    {"overflows_the_stack", "crashed in sy_plugin_create .signal 11"},
    {"hangs", "did not return from sy_plugin_create within 2 s"},
    {"exits", "called exit.0. in sy_plugin_create"},
    {"crashes_in_dlopen", "crashed in dlopen .signal 11"},
    {"hangs_in_dlopen", "did not return from dlopen within 2 s"},
    {"exits_in_dlopen", "called exit.7. in dlopen"},
    {"fills_nothing_in", "wrong magic 0x0"},
    {"wrong_magic", "wrong magic 0x12345678"},
    {"magic_of_edition_1", "wrong magic 0x31595753; expected 0x32595753"},
    {"wrong_version", "built for ABI version 9"},
    {"wrong_size", "sy_plugin says that it has 8 bytes"},
    {"huge_size", "sy_plugin says that it has 1048576 bytes"},
    {"no_name", "sy_plugin.name is empty"},
    {"name_is_garbage", "crashed in sy_plugin_create .signal 11"},
    {"no_get_interface", "lacks the mandatory function get_interface"},
    {"instance_is_garbage", "crashed in interface device/2 .signal 11"},
    {"plugin_requires_extension", "sy_plugin requires the extension fake.secret/1"},
    {"required_extension", "device/2 requires the extension fake.secret/1"},
    {"extensions_loop", "device/2 has a chain of more than 64 extensions"},
    {"extension_is_garbage", "crashed in interface device/2 .signal 11"},
    {"missing_function", "device/2 lacks the mandatory function alloc"},
    {"interface_wrong_version", "device/2 has major version 3"},
    {"interface_too_small", "device/2 says that it has 16 bytes"},
    {"interface_too_large", "device/2 says that it has 1048576 bytes"},
    {"no_interface", "it offers neither device/2 nor"},
    {"interface_is_garbage", "crashed in interface device/2 .signal 11"},
    {"writes_behind_the_error", "count wrote behind the end of sy_error"},
    {"writes_behind_the_device_info", "query wrote behind the end of sy_device_info"},
    {"collective_lacks_request_poll", "completes by poll but lacks the function request_poll"},
    {"collective_lacks_request_release", "completes by poll but lacks the function request_release"},
    {"collective_lacks_buffer_free", "collective/2 has buffer_alloc but lacks the function buffer_free"},
    {"collective_lacks_reduces", "collective/2 reduces but lacks the function reduces"},
    {"collective_crashes_in_query", "crashed in query .signal 6"},
    {"collective_completes_otherwise", "unknown completion 9"},
    {"collective_names_no_memory_kinds", "query named no memory_kinds"},
    {"collective_names_memory_kinds_without_end", "query answered memory_kinds that do not end within 16 names"},
    {"collective_memory_kinds_are_garbage", "crashed in query .signal 11"},
    {"semaphore_lacks_wait", "semaphore/1 lacks the mandatory function wait"},
    {"kernel_lacks_bind", "kernel/2 lacks the mandatory function bind"},
    {"crashes_in_interface", "crashed in interface device/2 .signal 6"},
    {"hangs_in_interface", "did not return from interface device/2 within 2 s"},
    {"throws_in_interface", "threw a C.. exception across the plugin interface: no interfaces today"},
    {"crashes_in_count", "crashed in count .signal 11"},
    {"hangs_in_count", "did not return from count within 8 s"},
    {"throws_in_count", "threw a C.. exception across the plugin interface: no devices today"},
    {"crashes_in_device_query", "crashed in query .signal 6"},
    {"prints", "printed [0-9]+ bytes to standard output"},
    {"forks", "started a process when it was loaded"},
    {"closes_standard_output", "closed or replaced the file descriptor 1"},
    {"closes_everything", "closed file descriptors that are not its own, after sy_plugin_create"},
    {"changes_the_folder", "changed the working directory from .* to /"},
    {"changes_the_locale", "changed the locale from C to "},
    {"changes_the_file_mode_mask", "changed the mask of file modes"},
    {"takes_signals", "changed what happens on signal 2"},
    {"blocks_signals", "changed whether signal 1 .* is blocked"},
    {"refuses_in_colour", "failed: .x1b.0;owned.x07 no.r.nlicence .x9b"},
    {"has_too_many_devices", "count answered 2147483647 devices; expected 0 to 1024"},
    {"has_fewer_than_none", "count answered -1 devices"},
    {"adds_to_the_environment", "added the environment variable FAKE_WAS_HERE=.x1b.31m when it was loaded"},
    {"removes_from_the_environment", "removed the environment variable XDG_CACHE_HOME when it was loaded"},
    {"lowers_a_limit", "changed the limit on open files .ulimit. from [0-9]+ to 64"},
    {"takes_lower_priority", "changed the priority of the process"},
    {"sets_a_timer", "started a timer that will send a signal"},
    {"starts_a_thread", "started 1 thread when it was loaded"},
    {"catches_exceptions", "changed what happens on an uncaught exception"},
    {"becomes_a_daemon", "started a process when it was loaded"},
    {"forks_in_count", "started a process when it was asked for its devices"},
    {"crashes_at_exit", "crashed in exit .signal 6"},
    {"hangs_at_exit", "did not return from exit within 2 s"},
    {"exits_at_exit", "called exit.0. in exit"},
    {"forks_at_exit", "left a process behind when the program exited"},
#if defined(__SSE__)
    {"flushes_subnormals", "changed the floating-point mode"},
#endif
};

class HostilePluginsTest : public PluginFolder {
 protected:
  void SetUp() override {
    PluginFolder::SetUp();
    setenv("SWITCHYARD_PROBE_TIMEOUT", "2", 1);
  }
  // A plugin that is good until `harm` has had its way with the library and the manifest.
  void Plant(const char* name, const char* reason,
             const std::function<void(const std::string& library, const std::string& manifest)>& harm) {
    const std::string library = Install(name, name);
    harm(library, ManifestPath(name));
    expected_.push_back({name, reason});
  }
  void PlantLibraries() {
    for (const Hostile& one : kLibraries) {
      Install(one.name, one.name, std::string(one.name).starts_with("collective_") ? "collective" : "backend");
      expected_.push_back(one);
    }
    if (AllowedCores().size() > 1) {
      Install("takes_one_core", "takes_one_core");
      expected_.push_back({"takes_one_core", "changed the cores that the process may run on, from [0-9]+ to 1"});
    }
  }
  void PlantFiles() {
    Plant("half", "in dlopen|cannot be loaded",
          [](auto& library, auto&) { fs::resize_file(library, fs::file_size(library) / 2); });
    Plant("first_bytes", "cannot be loaded", [](auto& library, auto&) { fs::resize_file(library, 100); });
    Plant("text", "not a shared library .no ELF header",
          [](auto& library, auto&) { std::ofstream(library) << std::string(200, 'x'); });
    Plant("empty", "it is empty", [](auto& library, auto&) { fs::resize_file(library, 0); });
    Plant("other_machine", "built for another machine .ELF machine 22", [](auto& library, auto&) {
      std::fstream file(library, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(18);  // e_machine: IBM S/390
      file.write("\x16\x00", 2);
    });
    Plant("folder", "it is not a file", [](auto& library, auto&) {
      fs::remove(library);
      fs::create_directory(library);
    });
    Plant("pipe", "it is not a file", [](auto& library, auto&) {
      fs::remove(library);
      ASSERT_EQ(mkfifo(library.c_str(), 0600), 0);
    });
    Plant("dangling_link", "No such file", [](auto& library, auto&) {
      fs::remove(library);
      fs::create_symlink("/nowhere/at/all.so", library);
    });
    Plant("endless_link", "Too many levels of symbolic links", [](auto& library, auto&) {
      fs::remove(library);
      fs::create_symlink(library, library);
    });
    Plant("writable", "can be written by other users .mode 0757.; mend it with: chmod go-w",
          [](auto& library, auto&) { chmod(library.c_str(), 0757); });
    Plant("writable_manifest", "can be written by other users",
          [](auto&, auto& manifest) { chmod(manifest.c_str(), 0666); });
    Plant("link_to_writable_folder", "public can be written by other users", [&](auto& library, auto&) {
      fs::create_directory(root_ + "/public");
      fs::rename(library, root_ + "/public/library.so");
      fs::create_symlink(root_ + "/public/library.so", library);
      chmod((root_ + "/public").c_str(), 0777);
    });
    if (geteuid() == 0) {  // only root can give files away
      Plant("of_another_user", "belongs to user 12345",
            [](auto& library, auto&) { ASSERT_EQ(chown(library.c_str(), 12345, 0), 0); });
    }
  }
  void PlantManifests() {
    const auto with = [this](const char* stem, const char* key, const nlohmann::json& value) {
      return [=, this](auto& library, auto&) {
        nlohmann::json manifest = {{"name", "fake"},
                                   {"kind", "backend"},
                                   {"abi", 2},
                                   {"priority", 5},
                                   {"library", fs::path(library).filename()}};
        manifest[key] = value;
        WriteManifest(stem, manifest);
      };
    };
    Plant("says_another_name", "it calls itself .fake., its manifest .says_another_name.", [](auto&, auto&) {});
    Plant("says_collective", "its manifest says collective, but it offers no collective/2",
          with("says_collective", "kind", "collective"));
    Plant("says_frontend", "\"kind\" is \"frontend\"", with("says_frontend", "kind", "frontend"));
    Plant("has_a_priority_beyond_32_bits", "\"priority\" is 4294967297; expected a whole number from",
          with("has_a_priority_beyond_32_bits", "priority", 4294967297));
    Plant("has_a_priority_below_32_bits", "\"priority\" is -4294967295",
          with("has_a_priority_below_32_bits", "priority", -4294967295));
    Plant("has_half_a_priority", "\"priority\" is 5.5", with("has_half_a_priority", "priority", 5.5));
    Plant("says_abi_beyond_32_bits", "\"abi\" is 4294967297", with("says_abi_beyond_32_bits", "abi", 4294967297));
    Plant("says_kind_in_colour", "\"kind\" is \".x1b.31m\"", with("says_kind_in_colour", "kind", "\x1b[31m"));
    Plant("says_abi_in_words", "\"abi\" is \"2\"; expected the number 2", with("says_abi_in_words", "abi", "2"));
    Plant("says_abi_1", "\"abi\" is 1", with("says_abi_1", "abi", 1));
    Plant("says_abi_3", "\"abi\" is 3", with("says_abi_3", "abi", 3));
    Plant("leads_outside", "expected a file name in the same folder", with("leads_outside", "library", "../evil.so"));
    Plant("has_no_json", "not JSON: parse error at line 1, column 10",
          [](auto&, auto& manifest) { std::ofstream(manifest) << "{\"name\": "; });
    Plant("is_huge", "larger than",
          [](auto&, auto& manifest) { std::ofstream(manifest) << std::string(1 << 17, ' '); });
    Plant("manifest_is_a_pipe", "unreadable", [](auto&, auto& manifest) {
      fs::remove(manifest);
      ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
    });
    Plant("manifest_is_a_folder", "unreadable", [](auto&, auto& manifest) {
      fs::remove(manifest);
      fs::create_directory(manifest);
    });
    Plant("has_no_manifest", "no manifest names it", [](auto&, auto& manifest) { fs::remove(manifest); });
  }

  std::vector<Hostile> expected_;
};

TEST_F(HostilePluginsTest, EachIsRefusedWithItsReason) {
  PlantLibraries();
  PlantFiles();
  PlantManifests();
  ASSERT_GE(expected_.size(), 60u);
  Install("whole");
  const ProcessState before = ProcessState::Now();
  Registry registry({folder_});
  const auto doctor = nlohmann::json::parse(DoctorJson(registry));
  std::map<std::string, nlohmann::json> candidates;  // by stem of their file
  for (const auto& candidate : doctor["candidates"]) {
    const std::string stem = fs::path(candidate["path"].get<std::string>()).stem();
    candidates[stem.substr(std::string("switchyard_backend_").size())] = candidate;
  }
  for (const Hostile& one : expected_) {
    SCOPED_TRACE(one.name);
    const auto found = candidates.find(one.name);
    if (found == candidates.end()) {
      ADD_FAILURE() << "doctor does not know it";
      continue;
    }
    EXPECT_FALSE(found->second["taken"].get<bool>());
    EXPECT_THAT(found->second["outcome"].get<std::string>(), ContainsRegex(one.reason));
  }
  EXPECT_TRUE(candidates["whole"]["taken"].get<bool>()) << candidates["whole"];
  EXPECT_EQ(ProcessState::Now().ChangesSince(before), "");
}

TEST_F(HostilePluginsTest, AProcessThatAPluginStartedEndsWithTheProbe) {
  for (const char* fault : {"forks", "becomes_a_daemon", "forks_in_count", "forks_at_exit"}) Install(fault);
  Registry registry({folder_});
  EXPECT_FALSE(registry.Find(PluginKind::kBackend, "fake").ok());
  // Its command line still names the library. A killed process is seen for a moment longer, any other for ever.
  const auto survivors = [&] {
    std::string found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline", std::ios::binary);
      for (std::string word; std::getline(file, word, '\0');) {
        if (word.find(folder_) != std::string::npos) found += entry.path().string() + " ";
      }
    }
    return found;
  };
  for (int tries = 0; tries < 200 && !survivors().empty(); ++tries) usleep(10000);
  EXPECT_EQ(survivors(), "");
}

TEST_F(HostilePluginsTest, NothingThatItSaysActsOnATerminal) {
  Install("paints_the_terminal");
  Install("refuses_in_colour", "other");
  nlohmann::json manifest = {{"name", "third"}, {"kind", "\x1b[31m"}, {"abi", 2}, {"library", "x.so"}};
  WriteManifest("third", manifest);
  Registry registry({folder_, root_ + "/gone\x1b[31m"});
  for (const std::string& report : {DoctorReport(registry), DevicesReport(registry)}) {
    for (const char c : report) EXPECT_TRUE(c == '\n' || (c >= 32 && c != 127)) << report;
  }
  const auto plugin = registry.Find(PluginKind::kBackend, "fake");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_EQ((*plugin)->Describe(0)->name, "fa\\x1b[31mke");
  EXPECT_EQ((*plugin)->Describe(0)->libraries, "lib\\x1b[31mfake");
}

TEST_F(HostilePluginsTest, WhatADriverChangesIsWarnedOf) {
  Install("changes_the_environment_in_count");
  setenv("OMP_NUM_THREADS", "2", 1);  // it makes 1 of it, which the one who started the tests may have given
  Registry registry({folder_});
  ::testing::internal::CaptureStderr();
  const auto plugin = registry.Find(PluginKind::kBackend, "fake");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_THAT(said, HasSubstr("when it was asked for its devices it changed the environment variable OMP_NUM_THREADS"));
}

TEST_F(HostilePluginsTest, AThreadThatHasEndedIsNoFault) {
  Install("joins_its_thread");
  Registry registry({folder_});
  const auto plugin = registry.Find(PluginKind::kBackend, "fake");
  EXPECT_TRUE(plugin.ok()) << plugin.status();
}

TEST_F(HostilePluginsTest, ARefusedPluginIsTriedAgainAndAGoodOneIsRemembered) {
  Install("crashes", "other");
  Install("whole");
  for (int round = 0; round < 2; ++round) {
    Registry registry({folder_});
    EXPECT_TRUE(registry.Find(PluginKind::kBackend, "fake").ok());
    EXPECT_FALSE(registry.Find(PluginKind::kBackend, "other").ok());
  }
  std::ifstream cache(root_ + "/cache/switchyard/probe.json");
  const std::string text((std::istreambuf_iterator<char>(cache)), {});
  EXPECT_NE(text.find("switchyard_backend_whole.so"), std::string::npos);
  EXPECT_EQ(text.find("switchyard_backend_crashes.so"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
