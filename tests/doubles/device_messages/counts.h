// What device_messages has been asked for in this process, all ranks of it together.
#pragma once

#include <atomic>

struct Counts {
  std::atomic<int> calls{0};      // collectives, by the plugin's functions: also while they are captured
  std::atomic<int> groups{0};     // that have ended
  std::atomic<int> in_groups{0};  // calls made in them
  std::atomic<int> replays{0};    // of captured graphs
};
