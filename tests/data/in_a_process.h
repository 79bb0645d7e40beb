// What reading something takes of memory. Measured in a process of its own, of which the kernel knows the most that it
// had.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

#include "core/base/status.h"

namespace switchyard {

struct Opened {
  std::string message;  // of the error, or ""
  int64_t peak = 0;     // bytes beyond what it began with
};

// Calls `open` in a process of its own.
inline Opened InAProcess(const std::function<Status()>& open) {
  Opened opened;
  int ends[2];
  if (pipe(ends) != 0) return {"no pipe"};
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  const pid_t child = fork();
  if (child == 0) {
    const std::string message = Message(open()).substr(0, 4000);
    _exit(write(ends[1], message.data(), message.size()) == static_cast<ssize_t>(message.size()) ? 0 : 1);
  }
  close(ends[1]);
  char text[4096];
  for (ssize_t got; (got = read(ends[0], text, sizeof text)) > 0;)
    opened.message.append(text, static_cast<size_t>(got));
  close(ends[0]);
  int status = -1;
  rusage usage = {};
  if (wait4(child, &status, 0, &usage) != child || status != 0) opened.message = "the process died";
  opened.peak = usage.ru_maxrss * 1024 - pages * sysconf(_SC_PAGESIZE);
  return opened;
}

}  // namespace switchyard
