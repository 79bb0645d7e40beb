// Where a rank of the tcp collective listens.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/tcp/mesh.h"
#include "core/base/secret.h"
#include "gmock/gmock.h"

namespace tcp {
namespace {

using Texts = std::map<std::string, std::string>;

sy_status Put(void* context, const char* key, const void* value, uint32_t bytes, sy_error*) {
  (*static_cast<Texts*>(context))[key].assign(static_cast<const char*>(value), bytes);
  return SY_OK;
}

sy_status Get(void* context, const char* key, void* value, uint32_t, uint32_t* bytes, uint64_t, sy_error*) {
  const Texts& texts = *static_cast<Texts*>(context);
  const auto found = texts.find(key);
  if (found == texts.end()) return SY_TIMEOUT;
  *bytes = static_cast<uint32_t>(found->second.size());
  memcpy(value, found->second.data(), found->second.size());
  return SY_OK;
}

void Digest(void*, const void* data, uint32_t bytes, unsigned char* digest) {
  const std::string made = switchyard::HmacSha256("key", std::string(static_cast<const char*>(data), bytes));
  memcpy(digest, made.data(), made.size());
}

// Of all sockets of this process that listen.
std::set<std::string> ListensAt() {
  std::set<std::string> found;
  for (int descriptor = 3; descriptor < 256; ++descriptor) {
    int listens = 0;
    socklen_t length = sizeof listens;
    sockaddr_in6 six{};
    socklen_t bytes = sizeof six;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0 ||
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&six), &bytes) != 0)
      continue;
    sockaddr_in four{};
    memcpy(&four, &six, sizeof four);
    char text[INET6_ADDRSTRLEN] = "";
    const bool is_six = six.sin6_family == AF_INET6;
    inet_ntop(six.sin6_family, is_six ? static_cast<void*>(&six.sin6_addr) : &four.sin_addr, text, sizeof text);
    found.insert(text);
  }
  return found;
}

// The first interface beside the loopback that has an IPv4 address, and that address.
std::pair<std::string, std::string> OtherInterface() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::pair<std::string, std::string> other;
  for (const ifaddrs* entry = list; entry != nullptr && other.first.empty(); entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0 ||
        (entry->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof text);
    other = {entry->ifa_name, text};
  }
  freeifaddrs(list);
  return other;
}

class TcpMesh : public testing::Test {
 protected:
  std::unique_ptr<Mesh> Open(int rank, const std::string& interface) {
    sy_init_request request{};
    request.header = SY_HEADER(sy_init_request);
    request.rank = rank;
    request.size = static_cast<int32_t>(hosts_.size());
    request.hosts = hosts_.data();
    request.name = "test";
    request.store = &store_;
    request.timeout_ms = 20000;
    std::unique_ptr<Mesh> mesh;
    sy_error error{};
    EXPECT_EQ(Mesh::Open(request, interface, "", &mesh, &error), SY_OK) << error.message;
    return mesh;
  }
  // All ranks meet, and say where they listened.
  std::set<std::string> Meet(const std::string& interface) {
    std::vector<std::unique_ptr<Mesh>> ranks;
    for (size_t rank = 0; rank < hosts_.size(); ++rank) ranks.push_back(Open(static_cast<int>(rank), interface));
    const std::set<std::string> listened = ListensAt();
    for (bool all = false; !all;) {
      all = true;
      for (const auto& rank : ranks) {
        sy_error error{};
        const sy_status status = rank->Poll(&error);
        if (status != SY_OK && status != SY_IN_PROGRESS) ADD_FAILURE() << error.message;
        if (status != SY_OK && status != SY_IN_PROGRESS) return listened;
        all &= status == SY_OK;
      }
    }
    EXPECT_THAT(ListensAt(), testing::IsEmpty()) << "all have come";
    return listened;
  }
  Texts texts_;
  sy_store store_{SY_HEADER(sy_store), &texts_, Put, Get, Digest};
  std::vector<int32_t> hosts_;
};

TEST_F(TcpMesh, RanksOfOneHostListenOnTheLoopback) {
  hosts_ = {0, 0};
  EXPECT_THAT(Meet(""), testing::ElementsAre("127.0.0.1"));
}

TEST_F(TcpMesh, WithoutAnInterfaceRanksOfSeveralHostsListenEverywhere) {
  if (OtherInterface().first.empty()) GTEST_SKIP() << "this machine has no network";
  hosts_ = {0, 1};
  EXPECT_THAT(Meet(""),
              testing::AllOf(testing::Not(testing::IsEmpty()), testing::Each(testing::AnyOf("::", "0.0.0.0"))));
}

// Two of the three are on one host, and meet on its loopback.
TEST_F(TcpMesh, WhereAnInterfaceIsNamedTheyListenThereAlone) {
  const auto [name, address] = OtherInterface();
  if (name.empty()) GTEST_SKIP() << "this machine has no network";
  hosts_ = {0, 0, 1};
  const std::set<std::string> listened = Meet(name);
  EXPECT_TRUE(listened.contains(address));
  EXPECT_TRUE(listened.contains("127.0.0.1"));
  EXPECT_FALSE(listened.contains("::"));
  EXPECT_FALSE(listened.contains("0.0.0.0"));
}

}  // namespace
}  // namespace tcp
