// A program that runs beside the test: started in a process group of its own with its output in a file, watched,
// signalled and waited for.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace switchyard {

// What can be read of it: a file of /proc may end with an error, because its process does, and no exception is wanted
// then.
inline std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class RunningProgram {
 public:
  // `line` is run by a shell in `folder`.
  RunningProgram(const std::string& folder, const std::string& line) : output_(folder + "/output.txt") {
    const int file = open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    pid_ = fork();
    if (pid_ != 0) {
      close(file);
      return;
    }
    setpgid(0, 0);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    if (chdir(folder.c_str()) == 0) execl("/bin/sh", "sh", "-c", ("exec " + line).c_str(), nullptr);
    _exit(127);
  }
  ~RunningProgram() {
    for (const pid_t rank : ranks_) {
      kill(rank, SIGCONT);
      kill(rank, SIGKILL);
    }
    if (!ended_) {
      kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  std::string Output() const { return Contents(output_); }
  void Signal(int signal) const { kill(pid_, signal); }
  pid_t pid() const { return pid_; }

  // Milliseconds until `happened`; -1 where it did not within the limit.
  static int64_t WaitFor(const std::function<bool()>& happened, int limit_ms) {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      const int64_t passed =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
      if (happened()) return passed;
      if (passed > limit_ms) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // Until updates are logged; then Rank(r) is the process of rank r, as the banner says.
  bool Trains(int ranks, int limit_ms = 60000) {
    if (WaitFor([&] { return Output().find("\nepoch ") != std::string::npos || HasEnded(); }, limit_ms) < 0 || ended_)
      return false;
    const std::string text = Output();
    for (int rank = 0; rank < ranks; ++rank) {
      std::smatch match;
      if (!std::regex_search(text, match, std::regex("rank " + std::to_string(rank) + " on [^ ]+ .pid ([0-9]+)")))
        return false;
      ranks_.push_back(std::stoi(match[1]));
    }
    return true;
  }
  pid_t Rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  // Gone, or a zombie that its launcher has not collected yet.
  static bool IsGone(pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text;
    std::getline(file, text);  // empty where the process ends between open and read, for which an iterator would throw
    const size_t name_end = text.rfind(')');
    return name_end == std::string::npos || text[name_end + 2] == 'Z' || text[name_end + 2] == 'X';
  }

  bool HasEnded() {
    int status = 0;
    if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = true;
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return ended_;
  }
  int code() const { return code_; }  // after HasEnded

 private:
  std::string output_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = -1;
  std::vector<pid_t> ranks_;
};

}  // namespace switchyard
