// A folder of its own for each test, removed after it, and plain reading and writing of files in it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace switchyard {

class Scratch : public ::testing::Test {
 protected:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "switchyard-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Scratch() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string In(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace switchyard
