// Stop signals: where they are taken, what they mean outside a run, and that children do not inherit the blocked mask.
#include "core/train/stopping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/child_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;

void SendSignals(int count) {
  for (int i = 0; i < count; ++i) {
    kill(getpid(), i % 2 == 0 ? SIGUSR1 : SIGTERM);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

// Until the run is asked to end, within a second.
bool IsAsked(Stopping& stopping) {
  for (int i = 0; i < 1000; ++i) {
    if (*stopping.After(i)) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

TEST(Stopping, ASignalEndsTheRun) {
  const StopSignals signals;
  for (const int signal : {SIGUSR1, SIGTERM}) {
    Stopping stopping(nullptr);
    EXPECT_FALSE(*stopping.After(0));
    kill(getpid(), signal);
    EXPECT_TRUE(IsAsked(stopping)) << signal;
  }
}

TEST(Stopping, SignalsOfTheRunBeforeEndOnlyThatOne) {
  const StopSignals signals;
  {
    Stopping stopping(nullptr);
    kill(getpid(), SIGUSR1);
    EXPECT_TRUE(IsAsked(stopping));
  }
  Stopping stopping(nullptr);
  EXPECT_FALSE(*stopping.After(0));
}

#if defined(__x86_64__)
// As a matrix product that keeps its stack pointer in its workspace: 128 bytes below it lies a page that nobody may
// write. A signal frame there ends the process.
void ComputeWithTheStackPointerInAWorkspace(const std::atomic<int>& done) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const guard = static_cast<char*>(mmap(nullptr, 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(guard + page, page, PROT_READ | PROT_WRITE), 0);
  asm volatile(
      "mov %%rsp, %%rbx\n"
      "mov %0, %%rsp\n"
      "1: pause\n"
      "cmpl $0, (%1)\n"
      "je 1b\n"
      "mov %%rbx, %%rsp\n"
      :
      : "r"(guard + page + 128), "r"(&done)
      : "rbx", "memory", "cc");
  munmap(guard, 2 * page);
}

TEST(Stopping, NothingOfASignalRunsOnTheStackOfAThreadThatComputes) {
  const StopSignals signals;
  Stopping stopping(nullptr);
  std::atomic<int> done = 0;
  std::thread sender([&] {
    SendSignals(200);
    done = 1;
  });
  std::thread other([&] { ComputeWithTheStackPointerInAWorkspace(done); });
  ComputeWithTheStackPointerInAWorkspace(done);  // the main thread, which the system prefers for signals
  sender.join();
  other.join();
  EXPECT_TRUE(IsAsked(stopping));
}
#endif

std::atomic<int> handled = 0;
void CountSignal(int) { ++handled; }

TEST(Stopping, OutsideARunASignalMeansWhatItMeantToTheProgram) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto wait_for_a_signal = [] {
    const StopSignals signals;
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(10));
  };
  EXPECT_EXIT(wait_for_a_signal(), testing::KilledBySignal(SIGTERM), "");

  struct sigaction action {
  }, before{};
  action.sa_handler = CountSignal;
  sigaction(SIGUSR1, &action, &before);
  {
    const StopSignals signals, more;  // several share one thread
    kill(getpid(), SIGUSR1);
    for (int i = 0; i < 1000 && handled == 0; ++i) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(handled, 1);
  }
  kill(getpid(), SIGUSR1);  // and when it is over
  EXPECT_EQ(handled, 2);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(Stopping, ASecondSigtermAfterAWhileEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto ask_three_times = [] {
    const StopSignals signals;
    const Stopping stopping(nullptr);
    const auto ask = [] { kill(getpid(), SIGTERM), std::this_thread::sleep_for(milliseconds(100)); };
    ask(), ask(), fputs("two at once are one;", stderr);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    kill(getpid(), SIGUSR1);
    std::this_thread::sleep_for(milliseconds(100));
    fputs("another signal asks again;", stderr);
    ask(), std::this_thread::sleep_for(std::chrono::seconds(10));
  };
  EXPECT_EXIT(ask_three_times(), testing::KilledBySignal(SIGTERM), "two at once are one;another signal asks again;");
}

TEST(Stopping, ChildrenStartWithNoSignalBlocked) {
  const StopSignals signals;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const ChildAttributes attributes(/*own_group=*/false);
  std::string words[] = {"grep", "SigBlk", "/proc/self/status"};
  char* const arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawnp(&child, "grep", &actions, attributes.get(), arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  char text[64] = {};
  EXPECT_GT(read(ends[0], text, sizeof text - 1), 0);
  EXPECT_THAT(text, testing::HasSubstr("0000000000000000"));
  close(ends[0]);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace switchyard
