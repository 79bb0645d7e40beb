// predict: classes of single images.
#include <numeric>

#include "absl/flags/flag.h"
#include "core/base/text.h"
#include "core/data/files.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/run_setup.h"

namespace switchyard {
namespace {

// A dataset of given files, so that predict decodes and transforms exactly as evaluation does.
class FileList : public Dataset {
 public:
  FileList(std::vector<std::string> paths, std::vector<std::string> classes, int channels)
      : paths_(std::move(paths)), classes_(std::move(classes)), channels_(channels) {}
  std::string name() const override { return "files"; }
  int64_t size() const override { return static_cast<int64_t>(paths_.size()); }
  int channels() const override { return channels_; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string Path(int64_t index) const override { return paths_[static_cast<size_t>(index)]; }
  Status Read(int64_t index, Sample* sample) const override {
    std::vector<uint8_t> bytes;
    SY_RETURN_IF_ERROR(ReadFile(Path(index), kLargestSample, &bytes));
    const Status status = DecodeImage(bytes, &sample->image);
    if (!status.ok()) return Annotate(status, Path(index));
    ConvertChannels(channels_, &sample->image);
    sample->label = 0;
    return OkStatus();
  }

 private:
  std::vector<std::string> paths_, classes_;
  int channels_;
};

}  // namespace

Status PredictCommand(const Arguments& files) {
  const std::string path = absl::GetFlag(FLAGS_checkpoint);
  if (path.empty() || files.empty())
    return InvalidArgument(
        "predict needs image files and --checkpoint=RUN, the folder that `train` prints at its end: switchyard predict "
        "leaf.jpg --checkpoint=output/...");
  SY_ASSIGN_OR_RETURN(const CheckpointSettings saved, SettingsOfCheckpoint(path));
  TrainConfig settings = saved.config;
  settings.batch_size = 1;
  settings.accumulation = 1;
  const FileList list(files, saved.classes, settings.channels);
  Sample sample;  // a file that cannot be read is reported before anything slow is done
  for (int64_t i = 0; i < list.size(); ++i) SY_RETURN_IF_ERROR(list.Read(i, &sample));
  SY_ASSIGN_OR_RETURN(RunSetup setup, SetUpModel(settings, &list, 1));
  SY_ASSIGN_OR_RETURN(const auto world, World::Join(WorldRequestOf(setup.config)));
  SY_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(setup.config, setup.model, list, list, *world));
  SY_RETURN_IF_ERROR(trainer->LoadWeights(path));
  SY_ASSIGN_OR_RETURN(const auto predictions, trainer->Predict(list));
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < list.size(); ++i) {
    const std::vector<double>& probabilities = predictions[static_cast<size_t>(i)];
    std::vector<int> order(probabilities.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return probabilities[a] > probabilities[b]; });
    nlohmann::ordered_json classes = nlohmann::ordered_json::array();
    std::string text = Printable(list.Path(i), 4096) + ":";
    for (int k = 0; k < std::min<int>(absl::GetFlag(FLAGS_top), static_cast<int>(order.size())); ++k) {
      const std::string name = order[k] < static_cast<int>(saved.classes.size()) ? saved.classes[order[k]]
                                                                                 : fmt::format("class {}", order[k]);
      classes.push_back({{"class", name}, {"probability", probabilities[order[k]]}});
      text += fmt::format("{} {} {:.1f} %", k == 0 ? "" : ",", Printable(name), 100 * probabilities[order[k]]);
    }
    results.push_back({{"file", list.Path(i)}, {"classes", classes}});
    if (!absl::GetFlag(FLAGS_json)) fmt::print("{}\n", text);
  }
  if (absl::GetFlag(FLAGS_json))
    fmt::print("{}\n", results.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return OkStatus();
}

}  // namespace switchyard
