// Strangers at every port of a run: they are sent away, cost little, and the run ends as if they had not been there.
#include <dirent.h>

#include <atomic>
#include <map>
#include <set>
#include <sstream>

#include "tests/launch/nodes.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::string StatusField(pid_t process, const std::string& name) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) == 0) return line.substr(name.size() + 1);
  }
  return "0";
}
int64_t PeakMegabytes(pid_t process) { return std::atoll(StatusField(process, "VmHWM").c_str()) / 1024; }

int64_t CpuMilliseconds(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string ignored;
  for (int i = 0; i < 11; ++i) fields >> ignored;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  return (user + system) * 1000 / sysconf(_SC_CLK_TCK);
}

// This process's children and theirs.
std::set<pid_t> Descendants() {
  std::map<pid_t, pid_t> parents;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t process = std::atoi(entry.path().filename().c_str());
    if (process > 0) parents[process] = std::atoi(StatusField(process, "PPid").c_str());
  }
  std::set<pid_t> found;
  for (const auto& [process, parent] : parents) {
    for (pid_t at = parent; at > 1 && parents.count(at) > 0; at = parents[at]) {
      if (at == getpid()) found.insert(process);
    }
  }
  return found;
}

struct Listening {
  int port = 0;
  bool loopback = false;
  bool operator<(const Listening& other) const { return port < other.port; }
};

// Where this process's descendants listen.
std::set<Listening> ListeningDescendants() {
  std::set<std::string> sockets;
  for (const pid_t process : Descendants()) {
    const std::string folder = fmt::format("/proc/{}/fd", process);
    DIR* const open = opendir(folder.c_str());
    if (open == nullptr) continue;
    while (const dirent* entry = readdir(open)) {
      char target[64] = {};
      if (readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target - 1) > 0) sockets.insert(target);
    }
    closedir(open);
  }
  std::set<Listening> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, ignored, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> ignored;
      words >> inode;
      if (state != "0A" || sockets.count("socket:[" + inode + "]") == 0) continue;
      const size_t colon = local.find(':');
      found.insert({std::stoi(local.substr(colon + 1), nullptr, 16), local.substr(0, colon) == "0100007F"});
    }
  }
  return found;
}

std::string FrameHeader(uint32_t bytes) {
  std::string header("SYLK\1\0\0\0\1\0\0\0", 12);
  return header.append(reinterpret_cast<const char*>(&bytes), 4);
}

class StrangersAtARun : public NodesTest {
 protected:
  // Many connections that say nothing, half of something, too much, or nonsense; they stay open.
  void Attack(int port, int count) {
    for (int i = 0; i < count; ++i) {
      const auto socket = ConnectTo("127.0.0.1", port, 1000);
      if (!socket.ok()) return;
      sockets_.push_back(*socket);
      std::string words;
      switch (i % 5) {
        case 1: words = FrameHeader(2000) + "half a hello"; break;
        case 2: words = FrameHeader(15 << 20) + std::string(1 << 20, 'x'); break;
        case 3: words = std::string(5000, 'G'); break;
        case 4:  // as rank 2 of 3 greets another one in the plugin tcp, but for the proof
          words = std::string("\2\0\0\0\3\0\0\0", 8) + std::string(48, '\0');
      }
      [[maybe_unused]] const ssize_t sent = send(*socket, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      ++attacks_;
    }
  }
  ~StrangersAtARun() override {
    for (const int socket : sockets_) close(socket);
  }
  std::vector<int> sockets_;
  int attacks_ = 0;
};

TEST_F(StrangersAtARun, HoldUpNoNodeAndCostTheLauncherLittle) {
  const int port = FreePort();
  const auto few_descriptors = [](const std::string& line) { return "sh -c 'ulimit -n 48; exec " + line + "'"; };
  Start({few_descriptors(Launch(2, 0, 1, port, Training()))});
  ASSERT_GE(RunningProgram::WaitFor([&] { return !ListeningDescendants().empty(); }, 20000), 0);
  const pid_t launcher = node(0).pid();
  const int64_t megabytes = PeakMegabytes(launcher);
  Attack(port, 150);
  ASSERT_EQ(attacks_, 150);
  const int64_t cpu_ms = CpuMilliseconds(launcher);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  EXPECT_LT(CpuMilliseconds(launcher) - cpu_ms, 500) << "it spins";
  EXPECT_LT(PeakMegabytes(launcher) - megabytes, 16) << "strangers hold memory";
  EXPECT_FALSE(node(0).HasEnded()) << node(0).Output();
  StartAnother(Launch(2, 1, 1, port, Training()));
  ExpectSuccessOfAll();
  ASSERT_FALSE(Weights("node0").empty());
  EXPECT_EQ(Weights("node0"), WeightsOfOneNode(2));
}

TEST_F(StrangersAtARun, AtAnyOfItsPortsDoNotChangeWhatComesOut) {
  const int port = FreePort();
  const std::string training = Training("--collective=tcp --steps=8");
  Start({Launch(2, 0, 2, port, training), Launch(2, 1, 1, port, training)});
  std::set<int> attacked;
  for (bool ended = false; !ended;) {
    for (const Listening& listening : ListeningDescendants()) {
      EXPECT_TRUE(listening.loopback) << "port " << listening.port << " can be reached from outside";
      if (attacked.insert(listening.port).second) Attack(listening.port, 25);
    }
    ended = node(0).HasEnded() && node(1).HasEnded();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ExpectSuccessOfAll();
  EXPECT_GE(attacked.size(), 1u) << "the test saw no port";
  ASSERT_FALSE(Weights("node0").empty());
  EXPECT_EQ(Weights("node0"), WeightsOfOneNode(3));
}

TEST_F(StrangersAtARun, FindNobodyListeningOnceItTrains) {
  size_t run = 0;
  for (const char* collective : {"shm", "tcp"}) {
    StartAnother(fmt::format("{} launch --nproc_per_node=2 {}", Program(),
                             Training(fmt::format("--steps=2000000 --eval_every=0 --collective={}", collective))));
    ASSERT_TRUE(node(run).Trains(2)) << node(run).Output();
    ++run;
    const auto listening = ListeningDescendants();
    EXPECT_TRUE(listening.empty()) << collective << ": port " << listening.begin()->port;
  }
}

TEST_F(StrangersAtARun, ThatSayTheyAreANodeAreToldNothing) {
  const int port = FreePort();
  Start({Launch(2, 0, 1, port, "true", "--rdzv_timeout=4")});
  for (const char* token : {"", "another secret, as long as ours"}) {
    Visitor stranger(port);
    ASSERT_TRUE(stranger.connected());
    stranger.Greet(token, Visitor::Hello("node", 1, 2, "1"));
    EXPECT_FALSE(stranger.Hear(3000).has_value()) << "a stranger was answered";
  }
  WaitForEnd();
  EXPECT_THAT(node(0).Output(), HasSubstr("node 1 of 2 did not come"));
  EXPECT_THAT(node(0).Output(), Not(HasSubstr("runs version")));
}

TEST_F(StrangersAtARun, ARunOnSeveralNodesTakesATokenOrDoesNotListen) {
  unsetenv("SWITCHYARD_TOKEN");
  Start({Launch(2, 0, 1, FreePort(), "true", "--master_addr=192.0.2.1 --rdzv_timeout=1")});
  WaitForEnd();
  EXPECT_EQ(node(0).code(), 1);
  EXPECT_THAT(node(0).Output(), HasSubstr("a run on several nodes needs a token"));
  EXPECT_THAT(node(0).Output(), HasSubstr("/dev/urandom"));
  // The same for ranks that somebody else starts.
  Start({fmt::format("env RANK=0 WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT={} {} {}", FreePort(), Program(),
                     Training())});
  WaitForEnd();
  EXPECT_NE(node(0).code(), 0);
  EXPECT_THAT(node(0).Output(), HasSubstr("a run on several nodes needs a token"));
  // From a file that the user alone can read.
  const std::string file = In("token");
  std::ofstream(file) << "a secret of sixteen letters and more\n";
  const int port = FreePort();
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  const std::string command = RankProgram() + " environment", with_file = "--token_file=" + file;
  Start({Launch(2, 0, 1, port, command, with_file), Launch(2, 1, 1, port, command, with_file)});
  ExpectSuccessOfAll();
}

// Neither on a command line nor in a process that others may read.
TEST_F(StrangersAtARun, TheTokenOfARunIsRandomAndInItsEnvironmentAlone) {
  std::set<std::string> seen;
  for (int run = 0; run < 2; ++run) {
    Start({fmt::format("{} launch --nproc_per_node=1 sh -c 'echo token=$SWITCHYARD_TOKEN'", Program())});
    ExpectSuccessOfAll();
    std::smatch match;
    const std::string output = node(0).Output();
    ASSERT_TRUE(std::regex_search(output, match, std::regex("token=([0-9a-f]{64})\n"))) << output;
    seen.insert(match[1]);
  }
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen.count(kTokenOfTests), 0u);
}

}  // namespace
}  // namespace switchyard
