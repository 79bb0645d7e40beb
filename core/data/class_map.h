// What readers of images with masks share: an image and a mask that belong together, and names of classes.
// Thread-safe: free functions on the caller's objects.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/data/dataset.h"

namespace switchyard {

// The class that each number of a mask stands for, below `classes` or kIgnoredClass; kUnmapped: the number may not
// occur.
inline constexpr int kUnmapped = -1;
using ClassMap = std::array<int, 256>;
ClassMap Identity(int classes);  // 0 to classes − 1, and kIgnoredClass

// Puts classes in the place of numbers. DataLoss names mask_path, the place and the number of a pixel that has no
// class.
Status MapClasses(const ClassMap& map, const std::string& mask_path, Image* mask);

// DataLoss where image and mask do not have the same size.
Status CheckSameSize(const Image& image, const std::string& image_path, const Image& mask,
                     const std::string& mask_path);

// Masks whose largest id is 0, or that have none (−1) but kIgnoredClass.
Status TooFewClasses(const std::string& path, int largest);

// A name per line, none of them empty or twice, at most 255. Errors name `path`.
StatusOr<std::vector<std::string>> ParseClassNames(const std::string& path, const std::vector<uint8_t>& bytes);

}  // namespace switchyard
