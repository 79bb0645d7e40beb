// predict: classes of images, and masks (predict_masks.h).
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <numeric>

#include "absl/flags/flag.h"
#include "core/base/file.h"
#include "core/base/text.h"
#include "core/data/files.h"
#include "core/data/formats.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/hints.h"
#include "tools/switchyard/in_world.h"
#include "tools/switchyard/predict_masks.h"
#include "tools/switchyard/predict_volumes.h"
#include "tools/switchyard/trained_model.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// A dataset of given files, so that predict decodes and transforms exactly as evaluation does.
class FileList : public Dataset {
 public:
  // crop_ratio: as of a dataset that the files are like; else that of photographs.
  FileList(std::vector<std::string> paths, int channels, Content content, std::optional<float> crop_ratio)
      : paths_(std::move(paths)), channels_(channels), content_(content), crop_ratio_(crop_ratio) {}
  std::string name() const override { return "files"; }
  int64_t size() const override { return static_cast<int64_t>(paths_.size()); }
  Content content() const override { return content_; }
  int channels() const override { return channels_; }
  const std::vector<std::string>& class_names() const override { return unknown_; }
  std::string Path(int64_t index) const override { return paths_[static_cast<size_t>(index)]; }
  float crop_ratio() const override { return crop_ratio_.value_or(Dataset::crop_ratio()); }
  Status Read(int64_t index, Sample* sample) const override {
    thread_local std::vector<uint8_t> bytes;
    SY_RETURN_IF_ERROR(ReadWholeFile(Path(index), kLargestSample, &bytes));
    const Status status = DecodeImage(bytes, &sample->image);
    if (!status.ok()) return Annotate(status, Path(index));
    ConvertChannels(channels_, &sample->image);
    sample->label = 0;
    if (content_ == Content::kMaskedImages) {
      sample->mask.Reshape(sample->image.height, sample->image.width, 1);
      std::fill(sample->mask.bytes.begin(), sample->mask.bytes.end(), kIgnoredClass);
    }
    return OkStatus();
  }

 private:
  const std::vector<std::string> paths_;
  const std::vector<std::string> unknown_ = {"unknown"};
  const int channels_;
  const Content content_;
  const std::optional<float> crop_ratio_;
};

// What evaluation on the dataset that the user named would crop, where the weights do not say it.
StatusOr<std::optional<float>> CropRatioOf(const CommandLine& line, const TrainedModel& model) {
  std::optional<float> ratio;
  const bool labelled = model.setup.resolved.info->family->data == Content::kLabelledImages;
  if (model.has_transform || !labelled || !line.settings.Has("dataset") || line.settings.Has("crop_ratio"))
    return ratio;
  DatasetOptions options = DatasetOptionsOf(model.setup.config, model.setup.resolved);
  options.download = false;
  const auto data = OpenDataset(options, Split::kValidation);
  if (!data.ok()) {
    return Status(data.status().code(),
                  fmt::format("--dataset={} says how images are cropped, and cannot be read: {}; leave it out, or say "
                              "it with --crop_ratio",
                              options.name, Message(data.status())));
  }
  return std::optional((*data)->crop_ratio());
}

bool IsInput(const std::string& name, Content content) {
  if (content == Content::kMaskedVolumes) return IsVolumeInput(name);
  return IsImageName(name) && !(content == Content::kMaskedImages && IsMaskFile(name));
}

// The images, or volumes, in a folder and the folders below it, by path. Links to folders are not followed, hidden ones
// left out, and what has the name of a mask that this command writes.
Status AddFolder(const std::string& folder, Content content, std::vector<std::string>* files) {
  std::vector<std::string> found;
  int64_t others = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    const std::string name = at->path().filename().string();
    if (at->is_directory(ignored)) {
      if (name.starts_with(".")) at.disable_recursion_pending();
    } else if (IsInput(name, content)) {
      found.push_back(at->path().string());
    } else {
      ++others;
    }
  }
  if (error) return NotFound("{}: cannot list the folder: {}", folder, error.message());
  if (found.empty()) {
    const bool volumes = content == Content::kMaskedVolumes;
    return NotFound("{}: no {} in this folder or below it: expected {} files, found {}", folder,
                    volumes ? "volume" : "image",
                    volumes ? ".nii, .nii.gz, .npy or -images-idx4-ubyte[.gz]" : ".jpg, .jpeg or .png",
                    others == 0 ? "no file" : fmt::format("{} other file{}", others, others > 1 ? "s" : ""));
  }
  std::sort(found.begin(), found.end());
  files->insert(files->end(), found.begin(), found.end());
  return OkStatus();
}

// Files as they are given, folders as the images in them.
StatusOr<std::vector<std::string>> FilesOf(const std::vector<std::string>& arguments, Content content) {
  std::vector<std::string> files;
  for (const std::string& argument : arguments) {
    struct stat about = {};
    if (::stat(argument.c_str(), &about) < 0) return FileError("read", argument, errno);
    if (S_ISDIR(about.st_mode)) {
      SY_RETURN_IF_ERROR(AddFolder(argument, content, &files));
    } else if (S_ISREG(about.st_mode)) {
      files.push_back(argument);
    } else {
      return InvalidArgument("{}: expected an image file or a folder with images, found {}", argument,
                             FileKind(about.st_mode));
    }
  }
  return files;
}

// The most likely classes of one image, first the likeliest.
nlohmann::ordered_json Likeliest(const std::vector<double>& probabilities, const std::vector<std::string>& names) {
  std::vector<size_t> order(probabilities.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return probabilities[a] > probabilities[b]; });
  order.resize(std::min(order.size(), static_cast<size_t>(absl::GetFlag(FLAGS_top))));
  nlohmann::ordered_json classes = nlohmann::ordered_json::array();
  for (const size_t k : order) {
    classes.push_back(
        {{"class", k < names.size() ? names[k] : fmt::format("class {}", k)}, {"probability", probabilities[k]}});
  }
  return classes;
}

// number: "probability" or "share".
void PrintLine(const std::string& file, const nlohmann::ordered_json& classes, const char* number) {
  std::string text;
  for (const auto& entry : classes) {
    text += fmt::format("{} {} {:.1f} %", text.empty() ? "" : ",", Printable(entry["class"].get<std::string>()),
                        100 * entry[number].get<double>());
  }
  fmt::print("{}:{}\n", Printable(file, 4096), text.empty() ? " cannot be read" : text);
}

// Where masks go; "": beside what they are of. A run's own output folder is another matter: only the flag says it.
std::string MaskFolderOf(const CommandLine& line) {
  if (!line.settings.Has("output") || line.settings.OriginOf("output") != Origin::kFlag) return "";
  return *line.settings.Get<std::string>("output");
}

VolumeFilesOptions VolumeOptionsOf(const CommandLine& line, const TrainedModel& model) {
  const bool foreground = model.setup.resolved.classes == 1;
  return {MaskFolderOf(line), foreground ? std::vector<std::string>{"background", "foreground"} : model.classes,
          absl::GetFlag(FLAGS_top)};
}

MaskFilesOptions MaskOptionsOf(const CommandLine& line, const TrainedModel& model) {
  MaskFilesOptions options;
  options.folder = MaskFolderOf(line);
  options.overlay = absl::GetFlag(FLAGS_overlay);
  options.top = absl::GetFlag(FLAGS_top);
  options.classes = model.classes;
  for (const DatasetInfo& info : KnownDatasets()) {
    if (info.name == model.setup.config.dataset) options.ids = info.mask_ids;
  }
  options.input = InputShapeOf(model.setup.model);
  return options;
}

}  // namespace

Status PredictCommand(const CommandLine& line) {
  const std::string path = absl::GetFlag(FLAGS_checkpoint);
  if (path.empty() || line.positional.empty())
    return InvalidArgument(
        "predict needs image files or folders and --checkpoint=RUN, the folder that `train` prints at its end: "
        "switchyard predict leaf.jpg --checkpoint=output/...");
  if (absl::GetFlag(FLAGS_top) < 1)
    return InvalidArgument("--top: expected at least 1, found {}", absl::GetFlag(FLAGS_top));
  SY_ASSIGN_OR_RETURN(const ProcessMap processes, RanksOf(line.settings));
  if (processes.world > 1)
    return InvalidArgument("predict runs on one device in one process, found {} ranks; {}", processes.world,
                           processes.threads ? "leave --mode=dp out" : "start it without a launcher");
  for (const std::string& argument : line.positional) {  // what is not there is said before anything slow is done
    struct stat about = {};
    if (::stat(argument.c_str(), &about) < 0) return FileError("read", argument, errno);
  }
  SY_ASSIGN_OR_RETURN(TrainedModel model, OpenTrainedModel(path, line.settings, 1));
  if (ShowSettings(model.setup.settings, 0)) return OkStatus();
  WarnOfSettingsOfOtherTasks(model.setup);
  WarnOfSettingsOfUpdates(line.settings, "predict");
  const Content content = model.setup.resolved.info->family->data;
  if (absl::GetFlag(FLAGS_overlay) && content != Content::kMaskedImages) {
    return InvalidArgument("--overlay lays masks over images, and {} takes {}; leave it out", model.setup.model.name,
                           content == Content::kMaskedVolumes ? "volumes" : "images and says one class of each");
  }
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(line.positional, content));
  SY_ASSIGN_OR_RETURN(const std::optional<float> crop_ratio, CropRatioOf(line, model));
  const FileList list(files, model.setup.model.channels, content, crop_ratio);
  return InWorld(model.setup.config, processes, [&](World& world) -> Status {
    SY_ASSIGN_OR_RETURN(const auto trainer, LoadForEvaluation(model, list, world, absl::GetFlag(FLAGS_ema)));
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    if (content == Content::kMaskedVolumes) {
      SY_ASSIGN_OR_RETURN(results, PredictVolumes(*trainer, files, VolumeOptionsOf(line, model)));
    } else if (content == Content::kMaskedImages) {
      SY_ASSIGN_OR_RETURN(results, PredictMasks(*trainer, list, MaskOptionsOf(line, model)));
    } else {
      SY_RETURN_IF_ERROR(trainer->Predict(list, [&](int64_t i, const Prediction& prediction) -> Status {
        SY_RETURN_IF_ERROR(Annotate(CheckFinite(prediction), list.Path(i)));
        results.push_back({{"file", list.Path(i)}, {"classes", Likeliest(prediction.probabilities, model.classes)}});
        return OkStatus();
      }));
    }
    if (absl::GetFlag(FLAGS_json)) {
      fmt::print("{}\n", results.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
      return OkStatus();
    }
    for (const auto& result : results) {
      const std::string mask = result.value("mask", "");
      PrintLine(result["file"].get<std::string>() + (mask.empty() ? "" : " -> " + mask),
                result.value("classes", nlohmann::ordered_json::array()), mask.empty() ? "probability" : "share");
    }
    return OkStatus();
  });
}

}  // namespace switchyard
