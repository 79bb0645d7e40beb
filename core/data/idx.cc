#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/data/files.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class IdxDataset : public Dataset {
 public:
  std::string name() const override { return name_; }
  int64_t size() const override { return images_.dims[0]; }
  int channels() const override { return channels_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string Path(int64_t index) const override { return fmt::format("{}[{}]", images_path_, index); }
  Augmentation augmentation() const override { return augmentation_; }

  Status Read(int64_t index, Sample* sample) const override {
    sample->image.Reshape(static_cast<int>(images_.dims[1]), static_cast<int>(images_.dims[2]), channels_);
    const size_t bytes = sample->image.bytes.size();
    std::memcpy(sample->image.bytes.data(), images_.bytes.data() + static_cast<size_t>(index) * bytes, bytes);
    sample->label = labels_.bytes[static_cast<size_t>(index)];
    return OkStatus();
  }

  std::string name_, images_path_;
  IdxArray images_, labels_;
  int channels_ = 1;
  std::vector<std::string> class_names_;
  Augmentation augmentation_ = Augmentation::kNone;
};

// The first file by name in `folder` that starts with one of the prefixes, tried in order, and `kind`; "" without one.
std::string FindIdxFile(const std::vector<std::string>& files, const std::vector<std::string>& prefixes,
                        const std::string& kind) {
  for (const std::string& prefix : prefixes) {
    for (const std::string& file : files) {
      if (fs::path(file).filename().string().rfind(prefix + "-" + kind, 0) == 0) return file;
    }
  }
  return "";
}

StatusOr<IdxArray> ReadLabels(const std::string& path) {
  SY_ASSIGN_OR_RETURN(IdxArray labels, ReadIdx(path));
  if (labels.dims.size() != 1) {
    return InvalidArgument("{}: expected one label per image, found labels of {} dimensions (masks?)", path,
                           labels.dims.size());
  }
  return labels;
}

}  // namespace

StatusOr<std::string> FindIdx(const std::string& folder, Split split, const std::string& kind) {
  std::error_code error;
  std::vector<std::string> files, prefixes = {"train"};
  if (split == Split::kValidation) prefixes = {"val", "validation", "t10k", "test"};
  if (split == Split::kTest) prefixes = {"t10k", "test", "val", "validation"};
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  const std::string file = FindIdxFile(files, prefixes, kind);
  if (!file.empty()) return file;
  return NotFound("{}: expected a file {}-{}-idx*-ubyte or the same with .gz, found none{}", folder, prefixes[0], kind,
                  error ? " (not a folder that can be read)" : "");
}

std::vector<uint8_t> EncodeIdx(const IdxArray& array) {
  std::vector<uint8_t> bytes = {0, 0, 8, static_cast<uint8_t>(array.dims.size())};
  for (const int64_t dim : array.dims) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(dim >> shift));
  }
  bytes.insert(bytes.end(), array.bytes.begin(), array.bytes.end());
  return bytes;
}

StatusOr<IdxArray> ReadIdx(const std::string& path) {
  SY_ASSIGN_OR_RETURN(FileStream file, FileStream::Open(path));
  std::vector<uint8_t> header;
  SY_RETURN_IF_ERROR(file.Append(4, &header));
  if (header.size() < 4 || header[0] != 0 || header[1] != 0) {
    return DataLoss("{}: expected an IDX file, which starts with two zero bytes, found something else", path);
  }
  if (header[2] != 0x08) {
    return InvalidArgument("{}: expected IDX elements of unsigned bytes (type 0x08), found type {:#04x}", path,
                           header[2]);
  }
  const size_t rank = header[3];
  if (rank < 1 || rank > 4)
    return InvalidArgument("{}: expected an IDX file of 1 to 4 dimensions, found {}", path, rank);
  SY_RETURN_IF_ERROR(file.Append(4 * rank, &header));
  if (header.size() < 4 + 4 * rank) return DataLoss("{}: ends inside its IDX header", path);
  IdxArray array;
  uint64_t elements = 1;
  for (size_t i = 0; i < rank; ++i) {
    const uint8_t* dim = &header[4 + 4 * i];
    const uint64_t extent = uint64_t{dim[0]} << 24 | uint64_t{dim[1]} << 16 | uint64_t{dim[2]} << 8 | dim[3];
    array.dims.push_back(static_cast<int64_t>(extent));
    if (extent == 0 || __builtin_mul_overflow(elements, extent, &elements)) {
      return DataLoss("{}: impossible IDX dimensions: number {} is {}", path, i + 1, extent);
    }
  }
  if (elements <= file.most_bytes()) SY_RETURN_IF_ERROR(CheckFitsInMemory(path, elements));
  SY_RETURN_IF_ERROR(file.Finish(elements, "after its IDX header", &array.bytes));
  return array;
}

StatusOr<std::unique_ptr<Dataset>> OpenIdx(const std::string& name, const std::string& path, Split split,
                                           std::vector<std::string> class_names, Augmentation augmentation) {
  auto dataset = std::make_unique<IdxDataset>();
  dataset->name_ = name;
  dataset->augmentation_ = augmentation;
  SY_ASSIGN_OR_RETURN(dataset->images_path_, FindIdx(path, split, "images"));
  SY_ASSIGN_OR_RETURN(const std::string labels_path, FindIdx(path, split, "labels"));
  SY_ASSIGN_OR_RETURN(dataset->labels_, ReadLabels(labels_path));
  SY_ASSIGN_OR_RETURN(dataset->images_, ReadIdx(dataset->images_path_));

  const std::vector<int64_t>& dims = dataset->images_.dims;
  if (dims.size() == 4 && (dims[3] == 1 || dims[3] == 3)) {
    dataset->channels_ = static_cast<int>(dims[3]);
  } else if (dims.size() != 3) {
    return InvalidArgument("{}: expected images (N, H, W) or (N, H, W, 1 or 3), found ({})", dataset->images_path_,
                           fmt::join(dims, ", "));
  }
  if (dims[1] * dims[2] > kMaxPixels) {
    return InvalidArgument("{}: images of {} x {} pixels are above the limit of {}", dataset->images_path_, dims[1],
                           dims[2], kMaxPixels);
  }
  if (dims[0] != dataset->labels_.dims[0]) {
    return DataLoss("{} has {} images, but {} has {} labels", dataset->images_path_, dims[0], labels_path,
                    dataset->labels_.dims[0]);
  }

  if (class_names.empty()) {
    const auto train_path = FindIdx(path, Split::kTrain, "labels");
    SY_ASSIGN_OR_RETURN(const IdxArray named, ReadLabels(train_path.ok() ? *train_path : labels_path));
    const int largest = *std::max_element(named.bytes.begin(), named.bytes.end());
    for (int label = 0; label <= largest; ++label) class_names.push_back(fmt::format("{}", label));
  }
  dataset->class_names_ = std::move(class_names);
  const auto& labels = dataset->labels_.bytes;
  const auto bad =
      std::find_if(labels.begin(), labels.end(), [&](uint8_t label) { return label >= dataset->class_names_.size(); });
  if (bad != labels.end()) {
    return DataLoss("{}: expected labels below {}, found {} in record {}", labels_path, dataset->class_names_.size(),
                    *bad, bad - labels.begin());
  }
  return dataset;
}

}  // namespace switchyard
