#include "core/base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace switchyard {

ChildAttributes::ChildAttributes(bool own_group) {
  posix_spawnattr_init(&attributes_);
  posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | (own_group ? POSIX_SPAWN_SETPGROUP : 0));
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes_, &none);
  posix_spawnattr_setpgroup(&attributes_, 0);
}

StatusOr<std::string> RunProgram(const std::vector<std::string>& arguments, int* exit_status,
                                 std::optional<uint64_t> largest_file) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ResourceExhausted("cannot make a pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const ChildAttributes attributes(/*own_group=*/false);
  pid_t child = 0;
  const int spawned = posix_spawnp(&child, argv[0], &actions, attributes.get(), argv.data(), environ);
  if (spawned == 0 && largest_file) {  // it holds for files that were begun before, too
    const rlimit limit = {*largest_file, *largest_file};
    ::prlimit(child, RLIMIT_FSIZE, &limit, nullptr);
  }
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string output;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) != 0;) {
    if (got > 0) output.append(buffer, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  if (spawned != 0) return Unavailable("cannot start {}: {}; install it", arguments[0], std::strerror(spawned));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return Internal("lost the program {}: {}", arguments[0], std::strerror(errno));
  }
  *exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

}  // namespace switchyard
