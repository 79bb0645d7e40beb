// Images and masks as files of their own, matched by name: folders of the user's, and Cityscapes.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "core/base/text.h"
#include "core/data/class_map.h"
#include "core/data/files.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

class MaskFolders : public Dataset {
 public:
  std::string name() const override { return name_; }
  int64_t size() const override { return static_cast<int64_t>(pairs_.size()); }
  Content content() const override { return Content::kMaskedImages; }
  int channels() const override { return 3; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string Path(int64_t index) const override { return tree_->Path(Image(index)); }
  Augmentation augmentation() const override { return Augmentation::kScaleCrop; }
  std::string LeftOut() const override { return left_out_; }

  Status Read(int64_t index, Sample* sample) const override {
    thread_local std::vector<uint8_t> bytes;
    SY_RETURN_IF_ERROR(tree_->Read(Image(index), &bytes));
    SY_RETURN_IF_ERROR(Annotate(DecodeImage(bytes, &sample->image), Path(index)));
    SY_RETURN_IF_ERROR(ReadMask(index, &sample->mask));
    const std::string mask_path = tree_->Path(Mask(index));
    SY_RETURN_IF_ERROR(CheckSameSize(sample->image, Path(index), sample->mask, mask_path));
    return MapClasses(map_, mask_path, &sample->mask);
  }

  Status ReadMask(int64_t index, switchyard::Image* mask) const {
    thread_local std::vector<uint8_t> bytes;
    SY_RETURN_IF_ERROR(tree_->Read(Mask(index), &bytes));
    return Annotate(DecodeMask(bytes, mask), tree_->Path(Mask(index)));
  }

  const FileTree::Entry& Image(int64_t index) const {
    return tree_->entries()[pairs_[static_cast<size_t>(index)].first];
  }
  const FileTree::Entry& Mask(int64_t index) const {
    return tree_->entries()[pairs_[static_cast<size_t>(index)].second];
  }

  std::string name_;
  std::shared_ptr<const FileTree> tree_;
  std::vector<std::pair<size_t, size_t>> pairs_;  // image and mask in the tree's entries, by name of the image
  std::vector<std::string> class_names_;
  ClassMap map_ = {};
  std::string left_out_;
};

// How one layout names its files.
struct MaskLayout {
  const char *images, *image_end, *masks, *mask_end;  // folders, and how names end; image_end "": any image
  const char* expected;                               // as a message says it
};
constexpr MaskLayout kOwn = {"images", "", "masks", ".png",
                             "images/{0}/NAME.jpg (or .png) with masks/{0}/NAME.png in it"};
constexpr MaskLayout kCityscapes = {
    "leftImg8bit", "_leftImg8bit.png", "gtFine", "_gtFine_labelIds.png",
    "leftImg8bit/{0}/CITY/NAME_leftImg8bit.png with gtFine/{0}/CITY/NAME_gtFine_labelIds.png in it"};

// What the tree holds below `folder`, which is [root/]KIND/SPLIT/: the rest of each name without its end, and where.
// Names that do not end so are left out.
StatusOr<std::map<std::string, size_t>> FilesBelow(const FileTree& tree, const std::string& folder,
                                                   const std::string& end) {
  std::map<std::string, size_t> files;
  for (size_t i = 0; i < tree.entries().size(); ++i) {
    const FileTree::Entry& entry = tree.entries()[i];
    if (entry.folder || !entry.name.starts_with(folder)) continue;
    const std::string rest = entry.name.substr(folder.size());
    if (rest[rest.rfind('/') + 1] == '.') continue;
    if (!(end.empty() ? IsImageName(rest) : rest.ends_with(end))) continue;
    const auto [other, fresh] =
        files.emplace(rest.substr(0, end.empty() ? rest.rfind('.') : rest.size() - end.size()), i);
    if (!fresh)
      return InvalidArgument("{} and {} would have the same mask; give each a name of its own",
                             tree.Path(tree.entries()[other->second]), tree.Path(entry));
  }
  return files;
}

// "" or the one folder, with a slash, in which images and masks lie.
StatusOr<std::string> RootOf(const FileTree& tree, const MaskLayout& layout) {
  std::set<std::string> with_images, with_masks, with_both;
  for (const FileTree::Entry& entry : tree.entries()) {
    const auto note = [&](const std::string& kind, std::set<std::string>* roots) {
      const size_t at = ("/" + entry.name + "/").find("/" + kind + "/");
      if (at != std::string::npos &&
          std::count(entry.name.begin(), entry.name.begin() + static_cast<ptrdiff_t>(at), '/') <= 1)
        roots->insert(entry.name.substr(0, at));
    };
    note(layout.images, &with_images);
    note(layout.masks, &with_masks);
  }
  std::set_intersection(with_images.begin(), with_images.end(), with_masks.begin(), with_masks.end(),
                        std::inserter(with_both, with_both.end()));
  return OnlyRoot(tree, with_both.empty() ? with_images : with_both, layout.images);
}

// The samples of a split; none where there is no such folder.
StatusOr<std::vector<std::pair<size_t, size_t>>> PairsOf(const FileTree& tree, const MaskLayout& layout,
                                                         const std::string& root, Split split) {
  std::vector<std::pair<size_t, size_t>> pairs;
  for (const std::string& folder : SplitFolders(split)) {
    SY_ASSIGN_OR_RETURN(const auto images,
                        FilesBelow(tree, fmt::format("{}{}/{}/", root, layout.images, folder), layout.image_end));
    const std::string mask_folder = fmt::format("{}{}/{}/", root, layout.masks, folder);
    SY_ASSIGN_OR_RETURN(const auto masks, FilesBelow(tree, mask_folder, layout.mask_end));
    for (const auto& [name, image] : images) {
      const auto found = masks.find(name);
      if (found == masks.end())
        return NotFound("{}: expected its mask {}/{}{}{}, found none", tree.Path(tree.entries()[image]), tree.root(),
                        mask_folder, Printable(name), layout.mask_end);
      pairs.emplace_back(image, found->second);
    }
    if (!pairs.empty()) return pairs;
  }
  return pairs;
}

StatusOr<std::unique_ptr<MaskFolders>> Open(const std::string& name, const std::shared_ptr<const FileTree>& tree,
                                            const MaskLayout& layout, Split split) {
  auto dataset = std::make_unique<MaskFolders>();
  dataset->name_ = name;
  dataset->tree_ = tree;
  SY_ASSIGN_OR_RETURN(const std::string root, RootOf(*tree, layout));
  SY_ASSIGN_OR_RETURN(dataset->pairs_, PairsOf(*tree, layout, root, split));
  if (std::string(layout.image_end).empty() && !dataset->pairs_.empty()) {
    const std::string& name = dataset->Image(0).name;  // images/SPLIT/…
    const size_t below = root.size() + std::string(layout.images).size() + 1;
    dataset->left_out_ = ImagesLeftOut(*tree, name.substr(0, name.find('/', below) + 1));
  }
  if (!dataset->pairs_.empty()) return dataset;
  return NotFound("{}: expected {}, found no such image", tree->root(),
                  fmt::format(fmt::runtime(layout.expected), SplitFolders(split)[0]));
}

// The largest id of the masks, −1 where there is none but kIgnoredClass. Reads until it is `enough`. An error where no
// mask can be read.
StatusOr<int> LargestId(const MaskFolders& masks, int enough) {
  int largest = -1;
  Image mask;
  Status unreadable;
  int64_t read = 0;
  for (int64_t i = 0; i < masks.size() && largest < enough; ++i) {
    if (const Status status = masks.ReadMask(i, &mask); !status.ok()) {  // a bad sample, when its turn comes
      if (unreadable.ok()) unreadable = status;
      continue;
    }
    ++read;
    for (const uint8_t number : mask.bytes) {
      if (number != kIgnoredClass) largest = std::max<int>(largest, number);
    }
  }
  if (read == 0) SY_RETURN_IF_ERROR(unreadable);
  return largest;
}

// Names of classes from classes.txt, or numbers up to the largest in the masks. to_train: from these masks something is
// to be learned.
StatusOr<std::vector<std::string>> ClassesOf(const MaskFolders& masks, const std::string& root, bool to_train) {
  const FileTree& tree = *masks.tree_;
  for (const FileTree::Entry& entry : tree.entries()) {
    if (entry.folder || entry.name != root + "classes.txt") continue;
    std::vector<uint8_t> bytes;
    SY_RETURN_IF_ERROR(tree.Read(entry, &bytes));
    SY_ASSIGN_OR_RETURN(std::vector<std::string> names, ParseClassNames(tree.Path(entry), bytes));
    if (names.size() <= 1)
      return InvalidArgument("{}: expected the names of at least 2 classes, found {}", tree.Path(entry), names.size());
    if (!to_train) return names;
    const auto largest = LargestId(masks, /*enough=*/1);
    if (largest.ok() && *largest < 1) return TooFewClasses(tree.root(), *largest);
    return names;
  }
  SY_ASSIGN_OR_RETURN(const int largest, LargestId(masks, /*enough=*/kIgnoredClass));
  if (largest < 1) return TooFewClasses(tree.root(), largest);
  std::vector<std::string> names;
  for (int c = 0; c <= largest; ++c) names.push_back(fmt::format("class {}", c));
  return names;
}

// The classes of the benchmark by label id (cityscapesScripts, helpers/labels.py, gives the numbers).
struct CityClass {
  uint8_t label_id;
  const char* name;
};
constexpr CityClass kCityClasses[] = {
    {7, "road"},  {8, "sidewalk"},       {11, "building"},     {12, "wall"},       {13, "fence"},
    {17, "pole"}, {19, "traffic light"}, {20, "traffic sign"}, {21, "vegetation"}, {22, "terrain"},
    {23, "sky"},  {24, "person"},        {25, "rider"},        {26, "car"},        {27, "truck"},
    {28, "bus"},  {31, "train"},         {32, "motorcycle"},   {33, "bicycle"}};
constexpr int kLargestLabelId = 33;

}  // namespace

StatusOr<std::unique_ptr<Dataset>> OpenMaskFolders(const std::string& name, const std::string& path, Split split) {
  SY_ASSIGN_OR_RETURN(const std::shared_ptr<const FileTree> tree, FileTree::Open(path));
  SY_ASSIGN_OR_RETURN(auto dataset, Open(name, tree, kOwn, split));
  SY_ASSIGN_OR_RETURN(const std::string root, RootOf(*tree, kOwn));
  const auto train = split == Split::kTrain ? nullptr : Open(name, tree, kOwn, Split::kTrain).value_or(nullptr);
  SY_ASSIGN_OR_RETURN(dataset->class_names_, ClassesOf(train ? *train : *dataset, root, split == Split::kTrain));
  dataset->map_ = Identity(static_cast<int>(dataset->class_names_.size()));
  return dataset;
}

std::vector<uint8_t> CityscapesLabelIds() {
  std::vector<uint8_t> ids;
  for (const CityClass& c : kCityClasses) ids.push_back(c.label_id);
  return ids;
}

StatusOr<std::unique_ptr<Dataset>> OpenCityscapes(const std::string& path, Split split) {
  SY_ASSIGN_OR_RETURN(const std::shared_ptr<const FileTree> tree, FileTree::Open(path));
  SY_ASSIGN_OR_RETURN(auto dataset, Open("cityscapes", tree, kCityscapes, split));
  dataset->map_.fill(kUnmapped);
  for (size_t id = 0; id <= kLargestLabelId; ++id) dataset->map_[id] = kIgnoredClass;
  dataset->map_[kIgnoredClass] = kIgnoredClass;  // licence plates, whose id is −1
  for (const CityClass& c : kCityClasses) {
    dataset->map_[c.label_id] = static_cast<int>(dataset->class_names_.size());
    dataset->class_names_.push_back(c.name);
  }
  return dataset;
}

}  // namespace switchyard
