// The kit starts this program again for checks in processes of their own: "conform" as the first argument leads there.
#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tools/conform/conform.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "conform") {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    return switchyard::conform::ConformMain({self, "conform"}, {arguments.begin() + 1, arguments.end()});
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
