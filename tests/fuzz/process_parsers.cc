// What other processes, plugins' folders and the command line say.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "backends/interposers/fault/grammar.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/optim/schedule.h"
#include "core/runtime/device/device_choice.h"
#include "core/runtime/plugins/registry.h"
#include "core/runtime/processes/message_link.h"
#include "core/runtime/processes/slurm.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard {
namespace {

std::string TextOf(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

struct OwnFolder {
  OwnFolder() : path((std::filesystem::temp_directory_path() / "switchyard-fuzz-XXXXXX").string()) {
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no temporary folder");
  }
  ~OwnFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

int FuzzManifest(const uint8_t* data, size_t size) {
  static const OwnFolder folder;
  std::ofstream(folder.path + "/fuzz.json", std::ios::binary) << TextOf(data, size);
  const Registry registry({folder.path});
  for (const Candidate& candidate : registry.candidates()) Printable(Message(candidate.verdict));
  return 0;
}

int FuzzFrames(const uint8_t* data, size_t size) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return 0;
  MessageLink link(ends[0]);
  std::vector<Frame> frames;
  while (size > 0) {  // what the socket takes at once, then what came of it
    const ssize_t sent = send(ends[1], data, size, MSG_NOSIGNAL);
    if (sent <= 0 || !link.Receive(&frames)) break;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  close(ends[1]);
  link.Receive(&frames);
  return 0;
}

// As the sender writes them.
std::vector<FuzzInput> FrameSeeds() {
  std::vector<FuzzInput> seeds;
  const std::vector<std::string> fields[] = {{}, {"key", "value"}, {"rank", "1", "2", "", "host"}};
  for (const MessageType type : {MessageType::kHello, MessageType::kPut, MessageType::kHeartbeat}) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) continue;
    MessageLink link(ends[0]);
    for (const auto& of_one : fields) link.Send(type, of_one);
    link.Flush();
    FuzzInput seed(4096);
    seed.resize(static_cast<size_t>(std::max<ssize_t>(0, recv(ends[1], seed.data(), seed.size(), 0))));
    close(ends[1]);
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

int FuzzSlurm(const uint8_t* data, size_t size) {
  const std::string text = TextOf(data, size);
  ExpandSlurmHosts(text).IgnoreError();
  ExpandSlurmTasks(text).IgnoreError();
  ParseDeviceList(text).IgnoreError();
  return 0;
}

int FuzzSchedule(const uint8_t* data, size_t size) {
  const std::string text = TextOf(data, size);
  FaultPlan plan;
  ParseFault(text, &plan);
  ParseRateScaling(text).IgnoreError();
  ParseSchedule(text).IgnoreError();
  const auto warmup = ParseWarmup(text, 100, 10);
  if (!warmup.ok()) return 0;
  for (const char* name : {"constant", "multistep", "step", "linear", "cosine", "cosine_annealing"}) {
    ScheduleOptions options;
    options.kind = *ParseSchedule(name);
    options.warmup = *warmup;
    LearningRateTable(options, 100);
  }
  return 0;
}

int FuzzText(const uint8_t* data, size_t size) {
  const std::string text = TextOf(data, size);
  for (const size_t most : {size_t{0}, size_t{1}, size_t{40}, text.size() * 8}) {
    const std::string shown = Printable(text, most);
    const std::string lines = PrintableLines(text, most);
    for (const char c : shown + lines) {
      const bool control = (c >= 0 && c < 0x20) || c == 0x7F;
      if (control && c != '\n' && c != '\t') __builtin_trap();
    }
    if (shown.find('\n') != std::string::npos || shown.size() > most + 3) __builtin_trap();
  }
  return 0;
}

}  // namespace switchyard
