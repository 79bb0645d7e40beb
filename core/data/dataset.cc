#include "core/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/names.h"
#include "core/base/text.h"
#include "core/data/formats.h"
#include "core/data/location.h"

namespace switchyard {
namespace {

using Opened = StatusOr<std::unique_ptr<Dataset>>;

// One dataset that the program knows. To add one, write its opener (formats.h) and a row in Rows().
struct DatasetRow {
  const char* name;
  const char* help;
  bool has_files;
  std::optional<Download> download;
  Opened (*open)(const DatasetOptions& options, const std::string& path, Split split);
  Content content = Content::kLabelledImages;
  std::vector<uint8_t> mask_ids = {};
};

const std::vector<DatasetRow>& Rows() {
  static const auto& rows = *new std::vector<DatasetRow>{
      {"fashion-mnist", "70,000 pictures of clothes, 28 x 28 grey, 10 classes (IDX; 30 MB)", true,
       FashionMnistDownload(),
       [](const DatasetOptions& options, const std::string& path, Split split) {
         return OpenIdx(
             options.name, path, split,
             {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"},
             Augmentation::kCropFlip);
       }},
      {"mnist", "70,000 handwritten digits, 28 x 28 grey, 10 classes (IDX; 12 MB)", true, MnistDownload(),
       [](const DatasetOptions& options, const std::string& path, Split split) {
         return OpenIdx(options.name, path, split, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
                        Augmentation::kCrop);
       }},
      {"cifar10", "60,000 photographs, 32 x 32 colour, 10 classes (binary version; 170 MB)", true, Cifar10Download(),
       [](const DatasetOptions&, const std::string& path, Split split) { return OpenCifar10(path, split); }},
      {"beans", "1,255 photographs of bean leaves, 3 classes (train/validation/test folders, or a tar of them)", true,
       std::nullopt,
       [](const DatasetOptions& options, const std::string& path, Split split) {
         return OpenImageFolder(options.name, path, split);
       }},
      {"imagefolder", "your JPEG and PNG files: --data=FOLDER or TAR with train/CLASS/*.jpg and val/CLASS/*.jpg", true,
       std::nullopt,
       [](const DatasetOptions& options, const std::string& path, Split split) {
         return OpenImageFolder(options.name, path, split);
       }},
      {"idx", "your MNIST-like files: --data=FOLDER with train-images-idx3-ubyte[.gz] and so on", true, std::nullopt,
       [](const DatasetOptions& options, const std::string& path, Split split) {
         return OpenIdx(options.name, path, split, {}, Augmentation::kCropFlip);
       }},
      {"camvid", "668 street scenes of a driving camera with masks of 11 classes, 256 x 192 (tar and IDX; 8 MB)", true,
       std::nullopt,
       [](const DatasetOptions&, const std::string& path, Split split) { return OpenCamVid(path, split); },
       Content::kMaskedImages},
      {"cityscapes", "street scenes with masks of 19 classes: --data=FOLDER with leftImg8bit and gtFine", true,
       std::nullopt,
       [](const DatasetOptions&, const std::string& path, Split split) { return OpenCityscapes(path, split); },
       Content::kMaskedImages, CityscapesLabelIds()},
      {"segmentation",
       "your images with masks: --data=FOLDER or TAR with images/train/*.jpg, masks/train/*.png, the same with val, "
       "and classes.txt",
       true, std::nullopt,
       [](const DatasetOptions& options, const std::string& path, Split split) {
         return OpenMaskFolders(options.name, path, split);
       },
       Content::kMaskedImages},
      {"hippocampus3d",
       "230 MRI volumes of the hippocampus, 48 x 64 x 48, 3 classes (IDX; 13 MB; Medical Segmentation Decathlon, "
       "Task04, padded and scaled to bytes)",
       true, std::nullopt,
       [](const DatasetOptions& options, const std::string& path, Split split) {
         return OpenVolumes(options.name, path, split, {"background", "anterior", "posterior"});
       },
       Content::kMaskedVolumes},
      {"volume",
       "your NIfTI and .npy volumes: --data=FOLDER with train/images/NAME.nii.gz and train/labels/NAME.nii.gz, val/... "
       "alike, or train-images-idx4-ubyte[.gz] and so on",
       true, std::nullopt,
       [](const DatasetOptions& options, const std::string& path, Split split) {
         return OpenVolumes(options.name, path, split);
       },
       Content::kMaskedVolumes},
      {"shapes", "drawn on the fly, learnable, needs no file: 10 kinds of shapes, 32 x 32 colour", false, std::nullopt,
       [](const DatasetOptions& options, const std::string&, Split split) -> Opened {
         return MakeShapes(options, split);
       }},
      {"synthetic", "ImageNet-shaped mock data, needs no file: measures throughput, learns nothing", false,
       std::nullopt,
       [](const DatasetOptions& options, const std::string&, Split split) -> Opened {
         return MakeSynthetic(options, split);
       }},
  };
  return rows;
}

StatusOr<const DatasetRow*> FindRow(const std::string& name) {
  std::vector<std::string> names;
  for (const DatasetRow& row : Rows()) {
    if (row.name == name) return &row;
    names.push_back(row.name);
  }
  return NotFound("unknown dataset {}{}; `switchyard datasets` lists them", name.empty() ? "(empty)" : name,
                  DidYouMean(name, names));
}

Status CheckOptions(const DatasetOptions& options) {
  if (options.image_size && (*options.image_size < 1 || *options.image_size > 8192))
    return InvalidArgument("expected an image size of 1 to 8192 pixels, found {}", *options.image_size);
  if (options.classes && *options.classes < 1)
    return InvalidArgument("expected 1 class or more, found {}", *options.classes);
  for (const auto& [split, size] :
       {std::pair("training", options.train_size), {"validation", options.validation_size}}) {
    if (size && *size < 1) return InvalidArgument("expected 1 {} sample or more, found {}", split, *size);
  }
  return OkStatus();
}

StatusOr<std::string> Locate(const DatasetRow& row, const DatasetOptions& options) {
  if (!row.has_files) return std::string();
  return LocateData(row.name, options.data, row.download ? &*row.download : nullptr, options.download);
}

// The dataset of the user's own files that a folder is laid out as; "": none.
std::string DatasetOfLayout(const std::string& path) {
  const std::filesystem::path folder = path;
  const auto holds = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::is_directory(folder / name, ignored);
  };
  if (holds("images/train") && holds("masks/train")) return "segmentation";
  if (holds("train/images") && holds("train/labels")) return "volume";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "train", error)) {
    if (entry.is_directory(error)) return "imagefolder";
  }
  return "";
}

void AddToChecksum(const void* bytes, size_t count, uint32_t* sum) { *sum = Crc32(bytes, count, *sum); }

}  // namespace

std::string SplitName(Split split) {
  return split == Split::kTrain ? "train" : split == Split::kValidation ? "validation" : "test";
}

std::string ContentName(Content content) {
  switch (content) {
    case Content::kLabelledImages:
      return "labelled images";
    case Content::kMaskedImages:
      return "images with masks";
    case Content::kMaskedVolumes:
      return "volumes with masks";
  }
  return "";
}

std::string Dataset::Path(int64_t index) const { return fmt::format("{}[{}]", name(), index); }

StatusOr<Extents> Dataset::ReadExtents(int64_t index) const {
  SY_ASSIGN_OR_RETURN(const Sample sample, Get(index));
  return ExtentsOf(sample.volume);
}

StatusOr<Sample> Dataset::Get(int64_t index) const {
  Sample sample;
  SY_RETURN_IF_ERROR(Read(index, &sample));
  return sample;
}

const DatasetSurvey& Dataset::Survey() const {
  std::call_once(surveyed_, [this] { survey_ = Look(); });
  return survey_;
}

DatasetSurvey Dataset::Look() const {
  DatasetSurvey survey;
  uint32_t& sum = survey.checksum;
  if (content() != Content::kLabelledImages) survey.occurs.resize(class_names().size());
  const auto note = [&](const std::vector<uint8_t>& classes) {
    for (const uint8_t c : classes) {
      if (c < survey.occurs.size()) survey.occurs[c] = true;
    }
  };
  std::string head = fmt::format("{} {}", size(), channels());
  for (const std::string& class_name : class_names()) head += "\n" + class_name;
  AddToChecksum(head.data(), head.size(), &sum);
  Sample sample;
  const int64_t most = content() == Content::kMaskedVolumes ? 8 : 64;  // a volume may take a second
  const int64_t count = std::min(size(), most);
  for (int64_t i = 0; i < count; ++i) {
    // A sample that cannot be read is not an error here: the loader reports it when its turn comes.
    if (!Read(i * size() / count, &sample).ok()) continue;
    ++survey.read;
    if (content() == Content::kMaskedVolumes) {
      const Extents extents = ExtentsOf(sample.volume);
      AddToChecksum(extents.data(), sizeof extents, &sum);
      AddToChecksum(sample.volume.voxels.data(), sample.volume.voxels.size() * sizeof(float), &sum);
      AddToChecksum(sample.voxels.data(), sample.voxels.size(), &sum);
      note(sample.voxels);
      continue;
    }
    const int32_t shape[3] = {sample.label, sample.image.height, sample.image.width};
    AddToChecksum(shape, sizeof shape, &sum);
    AddToChecksum(sample.image.bytes.data(), sample.image.bytes.size(), &sum);
    if (content() != Content::kMaskedImages) continue;
    AddToChecksum(sample.mask.bytes.data(), sample.mask.bytes.size(), &sum);
    note(sample.mask.bytes);
  }
  survey.whole = survey.read == size();
  return survey;
}

std::string ClassesThatNeverOccur(const DatasetSurvey& survey, const Dataset& train) {
  constexpr size_t kShown = 3;
  std::vector<std::string> missing;
  for (size_t c = 0; c < survey.occurs.size(); ++c) {
    if (!survey.occurs[c]) missing.push_back(Printable(train.class_names()[c]));
  }
  const size_t classes = survey.occurs.size();
  if (missing.empty() || survey.read == 0 || (!survey.whole && 2 * missing.size() < classes)) return "";
  const char* const meaning = survey.whole ? "so that nothing of it is learned" : "so that it is rare at best";
  const std::string where =
      survey.whole ? std::string("no training mask")
                   : fmt::format("none of the {} training masks that were looked at, of {}", survey.read, train.size());
  if (missing.size() == 1) return fmt::format("the class {} occurs in {}, {}", missing[0], where, meaning);
  const bool more = missing.size() > kShown;
  std::string names =
      fmt::format("{}", fmt::join(missing.begin(), missing.begin() + std::min(missing.size(), kShown), ", "));
  // Of masks that hold two numbers of which one is large, nearly all classes are made up.
  const bool two_numbers = classes > 2 && missing.size() + 2 >= classes;
  return fmt::format("{} of {} classes occur in {} ({}{}){}", missing.size(), classes, where, names, more ? ", …" : "",
                     two_numbers ? "; where masks hold 0 and 128 for two classes, write 0 and 1" : "");
}

StatusOr<std::unique_ptr<Dataset>> OpenDataset(const DatasetOptions& options, Split split) {
  SY_ASSIGN_OR_RETURN(const DatasetRow* row, FindRow(options.name));
  SY_RETURN_IF_ERROR(CheckOptions(options));
  SY_ASSIGN_OR_RETURN(const std::string path, Locate(*row, options));
  auto opened = row->open(options, path, split);
  if (!absl::IsNotFound(opened.status())) return opened;
  const std::string other = DatasetOfLayout(path);
  if (other.empty() || other == row->name) return opened;
  return NotFound("{}; it is laid out as --dataset={} has it", Message(opened.status()), other);
}

StatusOr<std::string> LocateDataset(const DatasetOptions& options) {
  SY_ASSIGN_OR_RETURN(const DatasetRow* row, FindRow(options.name));
  return Locate(*row, options);
}

std::vector<DatasetInfo> KnownDatasets() {
  std::vector<DatasetInfo> infos;
  for (const DatasetRow& row : Rows()) infos.push_back({row.name, row.help, row.content, row.mask_ids});
  return infos;
}

}  // namespace switchyard
