// Where data is found: the flag, SWITCHYARD_DATA, the user's cache, and the download of a known file.
#include "core/data/location.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/base/environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/data/files_for_tests.h"
#include "tests/data/opened_data.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Location : public ::testing::Test {
 protected:
  Location() {
    for (const char* name : {"SWITCHYARD_DATA", "XDG_CACHE_HOME", "no_proxy"})
      saved_.push_back({name, Environment(name)});
    setenv("SWITCHYARD_DATA", (folder_.path() + "/shared").c_str(), 1);
    setenv("XDG_CACHE_HOME", (folder_.path() + "/cache").c_str(), 1);
  }
  ~Location() override {
    for (const auto& [name, value] : saved_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }
  // A site in a folder, with one file.
  Download Site(const std::string& sha256) {
    folder_.Write("site/numbers.txt", {'1', '2', '3', '\n'});
    return {{"file://" + folder_.path() + "/nowhere/", "file://" + folder_.path() + "/site/"},
            {{"numbers.txt", sha256, 4}}};
  }
  const std::string right_ = "181210f8f9c779c26da1d9b2075bde0127302ee0e3fca38c9a83f5b1dd8e5d3b";
  TemporaryFolder folder_;
  std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
};

TEST_F(Location, PrefersTheFlagThenTheSharedFolderThenTheCache) {
  EXPECT_THAT(Error(LocateData("beans", {}, nullptr, true).status()),
              AllOf(HasSubstr("/shared/beans"), HasSubstr("/cache/switchyard/data/beans"), HasSubstr("--data=")));
  folder_.Write("cache/switchyard/data/beans/x", {1});
  EXPECT_THAT(*LocateData("beans", {}, nullptr, true), HasSubstr("/cache/"));
  folder_.Write("shared/beans/x", {1});
  EXPECT_THAT(*LocateData("beans", {}, nullptr, true), HasSubstr("/shared/"));
  folder_.Write("mine/x", {1});
  EXPECT_THAT(*LocateData("beans", folder_.path() + "/mine", nullptr, true), HasSubstr("/mine"));
  EXPECT_THAT(Error(LocateData("beans", "", nullptr, true).status()), HasSubstr("--data=: no such file or folder"));
  EXPECT_THAT(Error(LocateData("beans", folder_.path() + "/missing", nullptr, true).status()),
              AllOf(HasSubstr("--data="), HasSubstr("/missing"), HasSubstr("no such")));
}

TEST_F(Location, SaysWhereToPutWhatWhenNothingMayBeFetched) {
  const Download site = Site(right_);
  EXPECT_THAT(Error(LocateData("numbers", {}, &site, false).status()),
              AllOf(HasSubstr("put numbers.txt from file://"), HasSubstr("/cache/switchyard/data/numbers")));
  folder_.Write("cache/switchyard/data/numbers/.lock", {});
  EXPECT_FALSE(LocateData("numbers", {}, &site, false).ok()) << "a folder that lacks files is no data";
}

TEST_F(Location, FetchesFromTheFirstSiteThatHasTheFile) {
  const Download site = Site(right_);
  const auto path = LocateData("numbers", {}, &site, true);
  ASSERT_TRUE(path.ok()) << Message(path.status());
  Bytes bytes;
  ASSERT_TRUE(ReadWholeFile(*path + "/numbers.txt", 100, &bytes).ok());
  EXPECT_EQ(bytes.size(), 4u);
}

TEST_F(Location, RefusesAFileOfAnotherChecksumAndLeavesNothingBehind) {
  const Download site = Site(std::string(64, '0'));
  EXPECT_THAT(Error(LocateData("numbers", {}, &site, true).status()),
              AllOf(HasSubstr("expected SHA-256 000"), HasSubstr("put numbers.txt")));
  const std::string cache = folder_.path() + "/cache/switchyard/data/numbers";
  for (const auto& entry : std::filesystem::directory_iterator(cache)) EXPECT_EQ(entry.path().filename(), ".lock");
}

// One that says how much it sends, and one that goes on until nobody listens.
TEST_F(Location, NoMoreIsFetchedThanTheFileHas) {
  Download site = Site(right_);
  site.files[0].bytes = 3;
  const auto expect_refused = [&] {
    EXPECT_THAT(Error(LocateData("numbers", {}, &site, true).status()), HasSubstr("expected 3 bytes, found more"));
    const std::string cache = folder_.path() + "/cache/switchyard/data/numbers";
    for (const auto& entry : std::filesystem::directory_iterator(cache)) EXPECT_EQ(entry.path().filename(), ".lock");
  };
  expect_refused();
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  size_t sent = 0;
  std::thread server([&] {
    const int visitor = accept(listener, nullptr, nullptr);
    const std::string answer = "HTTP/1.0 200 OK\r\n\r\n" + std::string(1 << 16, 'x');
    while (sent < 1 << 30 && send(visitor, answer.data(), answer.size(), MSG_NOSIGNAL) > 0) sent += answer.size();
    close(visitor);
  });
  site.sites = {fmt::format("http://127.0.0.1:{}/", ntohs(address.sin_port))};
  setenv("no_proxy", "127.0.0.1", 1);
  expect_refused();
  shutdown(listener, SHUT_RDWR);  // where nobody came
  server.join();
  close(listener);
  EXPECT_LT(sent, size_t{1} << 30);
}

TEST_F(Location, WhatIsCachedIsHashedAgainAndFetchedAgainWhereItChanged) {
  const Download site = Site(right_);
  const std::string cached = folder_.Write("cache/switchyard/data/numbers/numbers.txt", {'1', '2', '4', '\n'});
  EXPECT_THAT(Error(LocateData("numbers", {}, &site, false).status()),
              AllOf(HasSubstr("numbers.txt: expected SHA-256 1812"), HasSubstr("downloads are off")));
  ASSERT_TRUE(LocateData("numbers", {}, &site, true).ok());
  Bytes bytes;
  ASSERT_TRUE(ReadWholeFile(cached, 100, &bytes).ok());
  EXPECT_EQ(bytes, (Bytes{'1', '2', '3', '\n'}));
  EXPECT_TRUE(LocateData("numbers", {}, &site, false).ok());
}

TEST_F(Location, TheCacheNeverLiesWhereAnybodyCouldGuessIt) {
  const auto home = Environment("HOME");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  std::string folder = UserCacheFolder();
  EXPECT_TRUE(folder.empty() || (folder[0] == '/' && folder.find("/tmp") == std::string::npos)) << folder;
  setenv("HOME", "relative", 1);
  EXPECT_EQ(UserCacheFolder(), folder);
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(UserCacheFolder(), "/home/me/.cache/switchyard");
  setenv("XDG_CACHE_HOME", "here", 1);
  EXPECT_EQ(UserCacheFolder(), "/home/me/.cache/switchyard");
  home ? setenv("HOME", home->c_str(), 1) : unsetenv("HOME");
}

}  // namespace
}  // namespace switchyard
