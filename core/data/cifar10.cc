// CIFAR-10, binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of one label byte, then 32 x 32 bytes
// of red, of green and of blue, row by row.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/data/files.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

constexpr int kSide = 32;
constexpr size_t kPlane = kSide * kSide;
constexpr size_t kRecord = 1 + 3 * kPlane;

class Cifar10Dataset : public Dataset {
 public:
  std::string name() const override { return "cifar10"; }
  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int channels() const override { return 3; }
  Augmentation augmentation() const override { return Augmentation::kCropFlip; }
  std::string Path(int64_t index) const override { return fmt::format("{}[{}]", path_, index); }
  const std::vector<std::string>& class_names() const override {
    static const auto& names = *new std::vector<std::string>{"airplane", "automobile", "bird",  "cat",  "deer",
                                                             "dog",      "frog",       "horse", "ship", "truck"};
    return names;
  }

  Status Read(int64_t index, Sample* sample) const override {
    sample->image.Reshape(kSide, kSide, 3);
    std::memcpy(sample->image.bytes.data(), pixels_.data() + static_cast<size_t>(index) * 3 * kPlane, 3 * kPlane);
    sample->label = labels_[static_cast<size_t>(index)];
    return OkStatus();
  }

  Status Append(const std::string& path, const std::vector<uint8_t>& bytes) {
    if (bytes.empty() || bytes.size() % kRecord != 0) {
      return DataLoss("{}: expected records of {} bytes, found {} bytes, which is no whole number of them", path,
                      kRecord, bytes.size());
    }
    const size_t first = labels_.size(), count = bytes.size() / kRecord;
    labels_.resize(first + count);
    pixels_.resize((first + count) * 3 * kPlane);
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* record = bytes.data() + i * kRecord;
      if (record[0] > 9) return DataLoss("{}: expected labels 0 to 9, found {} in record {}", path, record[0], i);
      labels_[first + i] = record[0];
      uint8_t* pixel = pixels_.data() + (first + i) * 3 * kPlane;
      for (size_t p = 0; p < kPlane; ++p) {
        for (size_t c = 0; c < 3; ++c) pixel[3 * p + c] = record[1 + c * kPlane + p];
      }
    }
    return OkStatus();
  }

  std::string path_;
  std::vector<uint8_t> labels_;  // (N)
  std::vector<uint8_t> pixels_;  // (N, 32, 32, 3)
};

}  // namespace

StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const std::string& path, Split split) {
  SY_ASSIGN_OR_RETURN(const std::unique_ptr<FileTree> tree, FileTree::Open(path));
  auto dataset = std::make_unique<Cifar10Dataset>();
  dataset->path_ = fmt::format("{}:{}", tree->root(), SplitName(split));
  const std::string prefix = split == Split::kTrain ? "data_batch_" : "test_batch";
  std::map<std::string, std::vector<const FileTree::Entry*>> files;  // by the folder that they are in, "" or "name/"
  std::set<std::string> roots;
  for (const FileTree::Entry& entry : tree->entries()) {
    const size_t name = entry.name.rfind('/') + 1;
    if (entry.folder || entry.name.compare(name, prefix.size(), prefix) != 0 || !entry.name.ends_with(".bin")) continue;
    files[entry.name.substr(0, name)].push_back(&entry);
    roots.insert(entry.name.substr(0, name));
  }
  SY_ASSIGN_OR_RETURN(const std::string root, OnlyRoot(*tree, roots, prefix + "*.bin"));
  std::vector<uint8_t> bytes;
  for (const FileTree::Entry* const entry : files[root]) {
    SY_RETURN_IF_ERROR(tree->Read(*entry, &bytes));
    SY_RETURN_IF_ERROR(dataset->Append(tree->Path(*entry), bytes));
  }
  if (dataset->size() == 0) {
    return NotFound("{}: expected {}*.bin of CIFAR-10's binary version, found none", tree->root(), prefix);
  }
  return dataset;
}

}  // namespace switchyard
