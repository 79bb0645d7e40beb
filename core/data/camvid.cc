#include <algorithm>
#include <cstring>

#include "core/base/text.h"
#include "core/data/class_map.h"
#include "core/data/files.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

const std::vector<std::string>& CamVidClasses() {
  static const auto& names = *new std::vector<std::string>{"sky",  "building", "pole", "road",       "pavement", "tree",
                                                           "sign", "fence",    "car",  "pedestrian", "bicyclist"};
  return names;
}

class CamVid : public Dataset {
 public:
  std::string name() const override { return "camvid"; }
  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  Content content() const override { return Content::kMaskedImages; }
  int channels() const override { return 3; }
  const std::vector<std::string>& class_names() const override { return CamVidClasses(); }
  std::string Path(int64_t index) const override { return images_->Path(Entry(index)); }
  Augmentation augmentation() const override { return Augmentation::kScaleCrop; }

  Status Read(int64_t index, Sample* sample) const override {
    thread_local std::vector<uint8_t> bytes;
    SY_RETURN_IF_ERROR(images_->Read(Entry(index), &bytes));
    SY_RETURN_IF_ERROR(Annotate(DecodeImage(bytes, &sample->image), Path(index)));
    Image& mask = sample->mask;
    mask.Reshape(static_cast<int>(labels_.dims[1]), static_cast<int>(labels_.dims[2]), 1);
    std::memcpy(mask.bytes.data(), labels_.bytes.data() + static_cast<size_t>(index) * mask.bytes.size(),
                mask.bytes.size());
    const std::string record = fmt::format("{}[{}]", labels_path_, index);
    SY_RETURN_IF_ERROR(CheckSameSize(sample->image, Path(index), mask, record));
    return MapClasses(map_, record, &mask);
  }

  const FileTree::Entry& Entry(int64_t index) const { return images_->entries()[entries_[static_cast<size_t>(index)]]; }

  std::unique_ptr<FileTree> images_;
  std::vector<size_t> entries_;  // of the images
  std::string labels_path_;
  IdxArray labels_;
  ClassMap map_ = {};
};

StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  std::vector<uint8_t> bytes;
  SY_RETURN_IF_ERROR(ReadWholeFile(path, kLargestList, &bytes));
  std::vector<std::string> lines;
  std::string line;
  for (const uint8_t byte : bytes) {
    if (byte == '\n') {
      lines.push_back(std::move(line));
      line.clear();
    } else if (byte != '\r') {
      line += static_cast<char>(byte);
    }
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

StatusOr<std::unique_ptr<Dataset>> OpenCamVid(const std::string& path, Split split) {
  auto dataset = std::make_unique<CamVid>();
  const std::string prefix = split == Split::kTrain ? "train" : split == Split::kValidation ? "val" : "test";
  const std::string files_path = path + "/" + prefix + "-files.txt";
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> files, ReadLines(files_path));
  SY_ASSIGN_OR_RETURN(dataset->images_, FileTree::Open(path + "/camvid_images.tar"));
  const std::string labels = path + "/" + prefix + "-labels-idx3-ubyte";
  auto compressed = ReadIdx(labels + ".gz");
  const bool plain = compressed.status().code() == absl::StatusCode::kNotFound;
  dataset->labels_path_ = plain ? labels : labels + ".gz";
  if (plain) compressed = ReadIdx(labels);
  SY_RETURN_IF_ERROR(compressed.status());
  dataset->labels_ = *std::move(compressed);
  dataset->map_ = Identity(static_cast<int>(CamVidClasses().size()));
  dataset->map_[CamVidClasses().size()] = kIgnoredClass;

  const std::vector<int64_t>& dims = dataset->labels_.dims;
  if (dims.size() != 3 || dims[1] * dims[2] > kMaxPixels)
    return InvalidArgument("{}: expected masks (N, height, width) of at most {} pixels each, found ({})",
                           dataset->labels_path_, kMaxPixels, fmt::join(dims, ", "));
  if (dims[0] != static_cast<int64_t>(files.size()))
    return DataLoss("{}: expected {} masks, one for each line of {}, found {}", dataset->labels_path_, files.size(),
                    files_path, dims[0]);
  const std::vector<FileTree::Entry>& entries = dataset->images_->entries();
  for (const std::string& file : files) {
    const std::string end = "/" + prefix + "/" + file;
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const FileTree::Entry& entry) {
      return !entry.folder && ("/" + entry.name).ends_with(end);
    });
    if (found == entries.end())
      return DataLoss("{}: expected the image {}, which {} lists, found none", dataset->images_->root(),
                      Printable(end.substr(1)), files_path);
    dataset->entries_.push_back(static_cast<size_t>(found - entries.begin()));
  }
  return dataset;
}

}  // namespace switchyard
