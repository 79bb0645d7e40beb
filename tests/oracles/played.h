// One process plays all ranks of a run, on the reference plugin: whole models' programs as the Trainer would run them,
// on the samples that each rank would read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel/mesh_interpreter.h"
#include "core/train/plans.h"
#include "gtest/gtest.h"
#include "tests/oracles/families.h"

namespace switchyard {

std::unique_ptr<Device> OneThreadedReference();  // null where there is none; then the test has failed

class Played {
 public:
  // `ranks` ranks, of which as many neighbours share a model as config.pp and config.tp say.
  Played(const TrainConfig& config, int ranks, Device& reference);

  // What kept the run from being made, if anything did; then nothing else may be called.
  const Status& status() const { return status_; }
  // Micro-steps of `update`. spoilt: a rank whose floats are multiplied by 10^6, which is beyond fp16.
  void Update(int64_t update, int spoilt = -1);
  // What a checkpoint holds is that of `other`; half copies follow from it.
  void TakeUp(const Played& other);
  // Of all ranks together, each with its own samples of `dataset`, by the plan "evaluate". Where no ranks share a
  // model.
  EvaluationResult Evaluate(const Dataset& dataset);
  HostTensors Weights(int rank) const;  // whole: with the parts of the ranks that share the model
  const HostTensors& Start() const { return start_; }
  std::vector<float> Floats(int rank, const std::string& name) const;
  std::vector<float> Whole(const std::string& name) const;               // with the pieces of the ranks that share it
  std::vector<float> Together(int rank, const std::string& name) const;  // whole, with the parts of that rank's model
  float Scalar(int rank, const std::string& name) const { return Floats(rank, name).at(0); }

 private:
  // What an update reads and writes of a rank's state, by name.
  const std::map<std::string, const Node*>& States(int rank) const { return states_[static_cast<size_t>(rank)]; }
  template <typename T>
  void Set(int rank, const std::string& name, const std::vector<T>& values) {
    mesh_->Set(rank, name, values.data(), values.size() * sizeof(T));
  }
  Status Begin(const TrainConfig& config);
  void DrawStart();
  // The inputs of place `place` of a plan: a micro-batch.
  void Give(int64_t update, int micro_batch, int place, int spoilt);
  void RefreshHalves();
  void RunPlan(int plan);
  void RunPlan(const std::string& name);  // where there is one

  const int ranks_;
  Device& reference_;
  RunSetup setup_;
  std::unique_ptr<Task> task_;
  std::vector<Program> programs_;
  std::vector<std::map<std::string, const Node*>> states_;  // by rank; nodes of programs_
  HostTensors start_;  // parameters and the model's own state, whole
  std::unique_ptr<MeshInterpreter> mesh_;
  Status status_;
};

}  // namespace switchyard
