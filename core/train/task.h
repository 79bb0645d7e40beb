// What is learned. A Task says which tensors a batch holds and who fills them, what the loss is, how evaluation counts
// and which of its numbers is the best, and what a checkpoint must say about it. Trainer, loader and the log know
// batches, sums and metrics, and nothing else about labels, classes or pictures.
//
// To add a task: a class in a file of its own beside classification.cc, and a factory for TrainableModel::task.
//
// Thread-safe: a Task is immutable. What it is given by reference must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/data/dataset.h"
#include "core/data/samples.h"
#include "core/parallel/program.h"
#include "core/train/example.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// Content of config.json and preprocessor_config.json, which a checkpoint carries for programs of others; null: none.
struct ForeignConfig {
  nlohmann::json config, preprocessor;
};

// A number that evaluation gives.
struct Metric {
  std::string name;       // "top1": in records, JSON and EvaluationResult
  std::string words;      // "top-1": as it is printed
  std::string quantity;   // "accuracy": what it measures
  std::string log;        // "top1", "val_loss": its key in the run's log
  std::string tag;        // "Metrics/validation/top1": in event files
  bool is_share = false;  // in [0, 1], printed as a percentage
};
std::string Text(const Metric& metric, double value);  // "12.34 %", "0.1234"

struct EvaluationResult {
  std::map<std::string, double> metrics;  // by name; empty where nothing was counted
  std::map<std::string, double> ema;      // the same of the averaged weights; empty where the run keeps none
  nlohmann::ordered_json by_class;        // as Task::ByClass gives it
  int64_t count = 0;                      // samples
  double images_per_s = 0;
};
// What a task predicts for a sample; all of it empty where the sample could not be read.
struct Prediction {
  std::vector<double> probabilities;  // of each class
  std::vector<uint8_t> classes;       // of each place of a sample, or of a whole
  std::vector<float> scores;          // (places of the model's input, classes): the larger, the likelier
  bool finite = true;                 // what `classes` were read off
};
using ReadPrediction = absl::FunctionRef<Status(int64_t index, const Prediction& prediction)>;

// "loss 0.1234, top-1 12.34 %", in the order of `metrics`; 0 for what is not there.
std::string Text(const std::vector<Metric>& metrics, const EvaluationResult& result);

// FailedPrecondition for a loss, of the weights or of their averages, that is not finite; for a prediction of
// which something is not.
Status CheckFinite(const EvaluationResult& result);
Status CheckFinite(const Prediction& prediction);

// Takes what evaluation gives on one rank, sample by sample in the order of their source; those of a whole
// (SampleSource::wholes) one after the other.
class Collector {
 public:
  virtual ~Collector() = default;
  // rows: those of sample `index` in the outputs asked for; empty where it could not be read.
  virtual Status Add(int64_t index, std::span<const void* const> rows) = 0;
};

class Task {
 public:
  virtual ~Task() = default;

  // Batches: the samples of a dataset as the graph reads them, varied at random in training. Every source has the
  // tensors() of its task.
  virtual StatusOr<std::unique_ptr<SampleSource>> Samples(const Dataset& dataset, bool train) const = 0;
  virtual std::vector<SampleTensor> tensors() const = 0;
  virtual std::string samples() const { return "images"; }  // what people call them

  // The graphs: of the training's loss, and of evaluation with its outputs, each (B, …), a row per sample.
  virtual Workload workload() const = 0;

  // Evaluation: Count adds what one sample gives to `sums`, which start at 0 and are added up over samples and ranks;
  // rows: those of the sample in outputs(). Metrics makes a number per metric() from the sums over `count` samples, at
  // least one.
  virtual std::vector<Metric> metrics() const = 0;
  virtual std::vector<std::string> outputs() const = 0;
  virtual int sums() const = 0;
  virtual void Count(std::span<const void* const> rows, std::span<double> sums) const = 0;
  // What calls Count for each sample and adds 1 to *count. A task whose samples are parts of wholes has its own, which
  // counts wholes. samples: as Samples made them; they, sums and count outlive it.
  virtual std::unique_ptr<Collector> Counting(const SampleSource& samples, std::span<double> sums,
                                              int64_t* count) const;
  virtual std::vector<double> Metrics(std::span<const double> sums, int64_t count) const = 0;
  // More about the classes from the same sums: an array, an object of numbers for each. Null: nothing.
  virtual nlohmann::ordered_json ByClass(std::span<const double> /*sums*/) const { return nullptr; }
  // The one of metrics() by which a run's best checkpoint is chosen; it is drawn beside the losses.
  virtual Metric best() const = 0;
  virtual bool Better(double value, double than) const = 0;

  // Prediction: an output and what its row says about a sample.
  virtual std::string prediction() const = 0;
  virtual Prediction Predict(const void* row) const = 0;
  // What calls `read` with each sample's prediction, by Predict. A task whose samples are parts of wholes has its own,
  // which predicts for wholes. samples: as Samples made them; they and `read` outlive it.
  virtual std::unique_ptr<Collector> Predicting(const SampleSource& samples, ReadPrediction read) const;
  // A sample and its prediction for people to look at; nullopt: this task has no picture of its samples. rows: of the
  // sample in tensors(); names: of the classes.
  virtual std::optional<Example> Show(std::span<const void* const> /*rows*/, const Prediction& /*prediction*/,
                                      const std::vector<std::string>& /*names*/) const {
    return std::nullopt;
  }

  // What a checkpoint's record keeps of the task, and whether a run on `train` may go on from it: InvalidArgument says
  // what differs. folder: of the checkpoint, for the message.
  virtual StatusOr<nlohmann::json> Record(const Dataset& train) const = 0;  // an object
  virtual Status CheckRecord(const nlohmann::json& record, const Dataset& train, const std::string& folder) const = 0;
  virtual StatusOr<ForeignConfig> ForOthers(const Dataset& /*train*/) const { return ForeignConfig{}; }
};

}  // namespace switchyard
