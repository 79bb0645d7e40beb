// Which checks of the kit stand behind which line of core/abi/PROMISES.md: the tables of what a plugin refuses and of
// values that it does not know. A test reads the page and fails where the two differ. Static.
#pragma once

#include <string>
#include <vector>

namespace switchyard::conform {

struct Promise {
  std::string entry;                // the first column of the page's table
  std::vector<std::string> checks;  // NameFilter patterns, each of at least one check
};

const std::vector<Promise>& RefusalPromises();
const std::vector<Promise>& UnknownValuePromises();

}  // namespace switchyard::conform
