// One output of a rank's process, passed on line by line under the rank's name. Private to the launcher.
#pragma once

#include <cstddef>
#include <string>

namespace switchyard {

struct RankOutput {
  int from = -1, to = -1;
  std::string prefix, line;
  bool in_line = false;  // a part of the line has been passed on

  // Passes on what is there. False at its end.
  bool Pass();
  void Write(size_t start, size_t size) const;
};

}  // namespace switchyard
