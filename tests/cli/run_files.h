// A ProgramTest that looks into the files of its runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.h"

namespace switchyard {

class RunFilesTest : public ProgramTest {
 protected:
  // The bytes of a file, of the test's folder where `path` is relative.
  std::string Text(const std::string& path) const {
    std::ifstream file(std::filesystem::path(folder_.path()) / path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // A JSON file of the test's folder.
  nlohmann::json Saved(const std::string& path) const {
    std::ifstream file(In(path));
    return nlohmann::json::parse(file, nullptr, false);
  }
  // By step, from the log of a run in the test's folder.
  std::map<int64_t, double> Logged(const std::string& run, const char* key) const {
    std::map<int64_t, double> values;
    std::ifstream log(In(run + "/0/log/metrics.jsonl"));
    for (std::string line; std::getline(log, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (record.contains(key)) values[record["step"]] = record[key];
    }
    return values;
  }
};

}  // namespace switchyard
