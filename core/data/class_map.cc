#include "core/data/class_map.h"

#include <algorithm>

#include "core/base/text.h"

namespace switchyard {

ClassMap Identity(int classes) {
  ClassMap map;
  map.fill(kUnmapped);
  for (int c = 0; c < classes; ++c) map[static_cast<size_t>(c)] = c;
  map[kIgnoredClass] = kIgnoredClass;
  return map;
}

Status MapClasses(const ClassMap& map, const std::string& mask_path, Image* mask) {
  for (size_t i = 0; i < mask->bytes.size(); ++i) {
    uint8_t& number = mask->bytes[i];
    if (map[number] == kUnmapped) {
      const auto classes = std::count_if(map.begin(), map.end(), [](int c) { return c != kUnmapped; });
      const size_t width = static_cast<size_t>(mask->width);
      return DataLoss(
          "{}: expected one of the {} numbers that stand for a class, or 255 for none, found {} in column {} of row {}",
          mask_path, classes - (map[kIgnoredClass] == kUnmapped ? 0 : 1), number, i % width, i / width);
    }
    number = static_cast<uint8_t>(map[number]);
  }
  return OkStatus();
}

Status CheckSameSize(const Image& image, const std::string& image_path, const Image& mask,
                     const std::string& mask_path) {
  if (image.height == mask.height && image.width == mask.width) return OkStatus();
  const bool turned = image.height == mask.width && image.width == mask.height;
  return DataLoss(
      "{}: expected a mask of {} x {} pixels (width x height), as {} has, found {} x {}{}", mask_path, image.width,
      image.height, image_path, mask.width, mask.height,
      turned ? "; an orientation in the image's EXIF data is not followed: save the image as it is shown" : "");
}

Status TooFewClasses(const std::string& path, int largest) {
  return DataLoss(
      "{}: expected ids of at least 2 classes in its masks, found {}; 255 is no class: where it stands for the "
      "foreground, write 1 instead",
      path, largest < 0 ? "nothing but 255, which counts nowhere" : "no other than 0");
}

StatusOr<std::vector<std::string>> ParseClassNames(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::vector<std::string> names;
  const std::string text(bytes.begin(), bytes.end());
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string name = text.substr(at, end - at);
    if (!name.empty() && name.back() == '\r') name.pop_back();
    at = end + 1;
    if (name.empty())
      return InvalidArgument("{}: expected the name of a class in line {}, found none", path, names.size() + 1);
    name = InUtf8(name);
    if (std::find(names.begin(), names.end(), name) != names.end())
      return InvalidArgument("{}: line {} names the class {} again", path, names.size() + 1, Printable(name));
    names.push_back(std::move(name));
    if (names.size() > kIgnoredClass)
      return InvalidArgument("{}: expected at most {} classes, one a line, found more", path, int{kIgnoredClass});
  }
  if (names.empty()) return InvalidArgument("{}: expected names of classes, one a line, found none", path);
  return names;
}

}  // namespace switchyard
