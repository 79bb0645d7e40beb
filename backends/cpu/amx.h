// Whether this process may multiply on AMX tiles (vector/tiles.h).
#pragma once

#include <optional>
#include <string>

namespace switchyard {

// What the answer depends on; tests put functions of their own in place of the machine's.
struct AmxMachine {
  bool (*has_tiles)();       // the CPU has AMX with bf16, and eight tiles of 16 rows of 64 bytes
  bool (*saves_tiles)();     // the operating system keeps them for each thread
  int (*request)();          // asks the kernel for them, for all threads of the process and its children; 0, or errno
  bool (*tiles_multiply)();  // a product on them, compared with the emulation; asked last
};
extern const AmxMachine kAmxMachine;

// Nothing if it may; "" if the CPU has none; else why not, in words.
std::optional<std::string> TilesRefusal(const AmxMachine& machine);

}  // namespace switchyard
