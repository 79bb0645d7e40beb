// Samples for people to look at: what a model saw, what is true and what it says, as sheets of small pictures for event
// files and as figures of a page. Thread-safe: pure functions.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "core/train/picture.h"

namespace switchyard {

struct Example {
  Raster image;                       // as the model saw it
  std::string truth, predicted;       // in words: the names of classes; "" where a mask says it
  double probability = 0;             // of what is predicted in words
  Raster truth_mask, predicted_mask;  // as large as the image; empty: none
};

struct ClassInColor {  // of a mask
  std::string name;
  std::array<uint8_t, 3> color;  // red, green, blue
};

enum class SheetOf { kImages, kTruth, kPredicted };
// Examples beside one another, four in a row: the images, with what is true or predicted below, or its mask in their
// place. Each is scaled to fit into 96 x 96 pixels.
Raster ExampleSheet(std::span<const Example> examples, SheetOf what);

// HTML figures with their pictures inside (data URIs). What is wrong is marked; masks have a legend.
std::string ExampleFigures(std::span<const Example> examples, std::span<const ClassInColor> legend = {});
std::string NoExampleFigures(const std::string& why);  // in their place

}  // namespace switchyard
