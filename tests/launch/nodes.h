// Several launchers or ranks at once, as on several nodes, each with a folder of its own under that of the test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/runtime/processes/message_link.h"
#include "tests/cli/program.h"
#include "tests/faults/running_program.h"
#include "tests/parallel/visitor.h"

namespace switchyard {

constexpr char kTokenOfTests[] = "the secret of these nodes";

class NodesTest : public ProgramTest {
 protected:
  NodesTest() {
    setenv("SWITCHYARD_TOKEN", kTokenOfTests, 1);
    unsetenv("SWITCHYARD_TOKEN_FILE");
    setenv("HOME", folder_.path().c_str(), 1);  // no token of the user's
  }
  // Starts the shell line of each node; `Line(i)` is not touched by a failing one.
  void Start(const std::vector<std::string>& lines) {
    programs_.clear();
    for (const std::string& line : lines) StartAnother(line);
  }
  void StartAnother(const std::string& line) {
    const std::string folder = In("node" + std::to_string(programs_.size()));
    std::filesystem::create_directories(folder);
    programs_.push_back(std::make_unique<RunningProgram>(folder, line));
  }
  RunningProgram& node(size_t index) { return *programs_[index]; }
  // All have ended by themselves.
  void WaitForEnd(int limit_ms = 60000) {
    for (auto& program : programs_) {
      ASSERT_GE(RunningProgram::WaitFor([&] { return program->HasEnded(); }, limit_ms), 0) << "the run hung\n"
                                                                                           << Outputs();
    }
  }
  void ExpectSuccessOfAll() {
    WaitForEnd();
    for (auto& program : programs_) EXPECT_EQ(program->code(), 0) << Outputs();
  }
  std::string Outputs() const {
    std::string text;
    for (const auto& program : programs_) text += "--- a node:\n" + program->Output();
    return text;
  }
  static std::string Launch(int nodes, int node, int ranks, int port, const std::string& command,
                            const std::string& more = "") {
    return fmt::format("{} launch --nnodes={} --node_rank={} --nproc_per_node={} --master_port={} {} {}", Program(),
                       nodes, node, ranks, port, more, command);
  }
  static std::string RankProgram() { return ProgramFolder() + "/rank_program"; }

  // A training run whose result depends on nothing but the number of ranks. Its weights are in Weights(folder).
  static std::string Training(const std::string& more = "") {
    return "train --model=mlp --dataset=shapes --width=32 --train_size=96 --validation_size=20 --batch_size=4 "
           "--steps=8 --device=cpu --threads=1 --output=run --suffix=a " +
           more;
  }
  std::string Weights(const std::string& folder) const {
    return Contents(In(folder) + "/run/mlp/shapes/a/run/checkpoints/latest/model.safetensors");
  }
  // The same training on `ranks` ranks of one node with shared memory.
  std::string WeightsOfOneNode(int ranks) {
    std::filesystem::create_directories(In("one"));
    ExpectSuccess(RunCommand(fmt::format("bash -c 'cd {} && {} launch --nproc_per_node={} {}'", In("one"), Program(),
                                         ranks, Training("--collective=shm")),
                             60));
    EXPECT_FALSE(Weights("one").empty());
    return Weights("one");
  }

  std::vector<std::unique_ptr<RunningProgram>> programs_;
};

}  // namespace switchyard
