#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "core/base/text.h"
#include "core/data/files.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

bool IsSplitFolder(const std::string& name) {
  return name == "train" || name == "val" || name == "validation" || name == "valid" || name == "test";
}

struct Placed {
  std::string root, split, class_name;  // root: "" or "name/"
};

// Reads [root/]split/class[/...] off a path; an empty split where it is laid out differently.
Placed Place(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= path.size() && parts.size() < 3;) {
    const size_t slash = std::min(path.find('/', at), path.size());
    parts.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (IsSplitFolder(parts[i])) return {i == 0 ? "" : parts[0] + "/", parts[i], parts[i + 1]};
  }
  return {};
}

bool IsHidden(const std::string& path) { return path[0] == '.' || path.find("/.") != std::string::npos; }

class ImageFolderDataset : public Dataset {
 public:
  std::string name() const override { return name_; }
  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  int channels() const override { return 3; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string Path(int64_t index) const override { return tree_->Path(Entry(index)); }
  std::string LeftOut() const override { return left_out_; }

  Status Read(int64_t index, Sample* sample) const override {
    thread_local std::vector<uint8_t> bytes;
    SY_RETURN_IF_ERROR(tree_->Read(Entry(index), &bytes));
    const Status decoded = DecodeImage(bytes, &sample->image);
    if (!decoded.ok()) return Annotate(decoded, Path(index));
    sample->label = files_[static_cast<size_t>(index)].label;
    return OkStatus();
  }

  struct File {
    size_t entry;
    int32_t label;
  };
  const FileTree::Entry& Entry(int64_t index) const {
    return tree_->entries()[files_[static_cast<size_t>(index)].entry];
  }

  std::string name_;
  std::unique_ptr<FileTree> tree_;
  std::vector<File> files_;  // by class, then by name
  std::vector<std::string> class_names_;
  std::string left_out_;
};

// split -> class -> its images, as positions in the tree's entries. Classes without images are there too.
using Layout = std::map<std::string, std::map<std::string, std::vector<size_t>>>;

struct RootedLayout {
  std::string root;  // "" or "name/"
  Layout layout;
};

StatusOr<RootedLayout> ReadLayout(const FileTree& tree) {
  std::map<std::string, Layout> layouts;  // by root
  std::set<std::string> with_images;
  for (size_t i = 0; i < tree.entries().size(); ++i) {
    const FileTree::Entry& entry = tree.entries()[i];
    const Placed place = Place(entry.name);
    if (place.split.empty() || IsHidden(entry.name)) continue;
    const std::string class_path = place.root + place.split + "/" + place.class_name;
    if (!entry.folder && !(entry.name.starts_with(class_path + "/") && IsImageName(entry.name))) continue;
    if (place.class_name.empty()) continue;
    auto& images = layouts[place.root][place.split][place.class_name];
    if (entry.folder) continue;
    images.push_back(i);
    with_images.insert(place.root);
  }
  std::set<std::string> roots = with_images;
  if (roots.empty()) {
    for (const auto& [root, layout] : layouts) roots.insert(root);
  }
  SY_ASSIGN_OR_RETURN(const std::string root, OnlyRoot(tree, roots, "train/CLASS or val/CLASS"));
  return RootedLayout{root, layouts[root]};
}

// Names of folders are any bytes; a checkpoint keeps names of classes as UTF-8, and tells classes by them.
StatusOr<std::vector<std::string>> ShownNames(const std::vector<std::string>& names, const std::string& root) {
  std::vector<std::string> shown;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    shown.push_back(InUtf8(name));
    if (!seen.insert(shown.back()).second)
      return InvalidArgument(
          "{}: two class folders are both called {}, one of them in bytes that are not UTF-8; rename one", root,
          Printable(shown.back()));
  }
  return shown;
}

}  // namespace

std::vector<std::string> SplitFolders(Split split) {
  if (split == Split::kTrain) return {"train"};
  if (split == Split::kValidation) return {"val", "validation", "valid", "test"};
  return {"test", "val", "validation", "valid"};
}

bool IsImageName(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || name[0] == '.') return false;
  std::string end = name.substr(dot + 1);
  std::transform(end.begin(), end.end(), end.begin(), [](unsigned char c) { return std::tolower(c); });
  return end == "jpg" || end == "jpeg" || end == "png";
}

std::string LeftOutText(int64_t count, const std::string& first, const std::string& formats) {
  if (count == 0) return "";
  if (count == 1) return fmt::format("a file that is neither {} is left out, {}", formats, Printable(first));
  return fmt::format("{} files that are neither {} are left out, as {}", count, formats, Printable(first));
}

std::string ImagesLeftOut(const FileTree& tree, const std::string& folder) {
  int64_t count = 0;
  std::string first;
  for (const FileTree::Entry& entry : tree.entries()) {
    if (entry.folder || IsHidden(entry.name) || !entry.name.starts_with(folder) || IsImageName(entry.name)) continue;
    if (count++ == 0) first = tree.Path(entry);
  }
  return LeftOutText(count, first, ".jpg, .jpeg nor .png");
}

StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const std::string& name, const std::string& path, Split split) {
  auto dataset = std::make_unique<ImageFolderDataset>();
  dataset->name_ = name;
  SY_ASSIGN_OR_RETURN(dataset->tree_, FileTree::Open(path));
  const std::string& root = dataset->tree_->root();
  SY_ASSIGN_OR_RETURN(const RootedLayout rooted, ReadLayout(*dataset->tree_));
  const Layout& layout = rooted.layout;
  const auto train = layout.find("train");
  if (train == layout.end() && (split == Split::kTrain || layout.empty())) {
    return NotFound(
        "{}: expected train/CLASS/*.jpg (or .png) and val/CLASS/*.jpg in it, found no {} folder with classes", root,
        split == Split::kTrain ? "train" : "such");
  }
  auto chosen = layout.end();
  for (const std::string& folder : SplitFolders(split)) {
    if (chosen == layout.end()) chosen = layout.find(folder);
  }
  if (chosen == layout.end()) {
    return NotFound("{}: expected one of the folders {} in it, found none", root, fmt::join(SplitFolders(split), ", "));
  }
  // To be evaluated, data need no train folder; the split's own classes are all that there are then.
  std::vector<std::string> names;
  for (const auto& [class_name, images] : (train != layout.end() ? train : chosen)->second) names.push_back(class_name);
  SY_ASSIGN_OR_RETURN(dataset->class_names_, ShownNames(names, root));
  for (const auto& [class_name, images] : chosen->second) {
    const auto found = std::lower_bound(names.begin(), names.end(), class_name);
    if (found == names.end() || *found != class_name) {
      return InvalidArgument("{}: class {} is in {} but not in train", root, Printable(class_name), chosen->first);
    }
    if (images.empty()) {
      return InvalidArgument("{}: class folder {}/{} holds no .jpg, .jpeg or .png file; fill or remove it", root,
                             chosen->first, Printable(class_name));
    }
    const auto label = static_cast<int32_t>(found - names.begin());
    for (const size_t entry : images) dataset->files_.push_back({entry, label});
  }
  dataset->left_out_ = ImagesLeftOut(*dataset->tree_, rooted.root + chosen->first + "/");
  return dataset;
}

}  // namespace switchyard
