#include "core/train/example.h"

#include "gmock/gmock.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

Example Plain(const std::string& truth, const std::string& predicted) {
  Example example;
  example.image = {2, 2, {255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9}};
  example.truth = truth;
  example.predicted = predicted;
  example.probability = 0.75;
  return example;
}

bool Holds(const Raster& sheet, std::vector<uint8_t> color) {
  for (size_t i = 0; i < sheet.rgb.size(); i += 3) {
    if (std::equal(color.begin(), color.end(), sheet.rgb.begin() + static_cast<long>(i))) return true;
  }
  return false;
}

TEST(Examples, SheetsHoldEveryPictureAndMasksStandInItsPlace) {
  const std::vector<Example> five(5, Plain("cat", "dog"));
  const Raster images = ExampleSheet(five, SheetOf::kImages), truth = ExampleSheet(five, SheetOf::kTruth);
  EXPECT_EQ(images.width, truth.width);
  EXPECT_LT(images.height, truth.height) << "words stand below";
  EXPECT_EQ(images.rgb.size(), static_cast<size_t>(3 * images.width * images.height));
  EXPECT_TRUE(Holds(images, {0, 255, 0}));
  Example masked = Plain("", "");
  masked.truth_mask = {2, 2, std::vector<uint8_t>(12, 77)};
  masked.predicted_mask = {2, 2, std::vector<uint8_t>(12, 88)};
  const std::vector<Example> one = {masked};
  EXPECT_FALSE(Holds(ExampleSheet(one, SheetOf::kImages), {77, 77, 77}));
  EXPECT_TRUE(Holds(ExampleSheet(one, SheetOf::kTruth), {77, 77, 77}));
  EXPECT_TRUE(Holds(ExampleSheet(one, SheetOf::kPredicted), {88, 88, 88}));
  EXPECT_GT(ExampleSheet({}, SheetOf::kImages).height, 0);
}

TEST(Examples, FiguresHoldTheirPicturesAndEscapeNames) {
  const std::vector<Example> examples = {Plain("a<b>&\"", "a<b>&\""), Plain("cat", "<script>")};
  const std::string html = ExampleFigures(examples);
  EXPECT_THAT(html, HasSubstr("src=\"data:image/png;base64,iVBORw0KGgo"));
  EXPECT_THAT(html, HasSubstr("<b class=\"right\">a&lt;b&gt;&amp;"));
  EXPECT_THAT(html, HasSubstr("<b class=\"wrong\">&lt;script&gt;</b> 75.0&nbsp;%<br>is cat"));
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  EXPECT_THAT(html, Not(HasSubstr("background:rgb")));
  EXPECT_THAT(html, Not(HasSubstr("http")));
  EXPECT_THAT(NoExampleFigures("no <data>"), HasSubstr("None: no &lt;data&gt;"));
}

TEST(Examples, MasksHaveALegendOfTheirColours) {
  Example masked = Plain("", "");
  masked.truth_mask = masked.predicted_mask = {1, 1, {128, 0, 0}};
  const std::vector<ClassInColor> legend = {{"sky", {0, 0, 0}}, {"<road>", {128, 0, 0}}};
  const std::string html = ExampleFigures(std::vector<Example>{masked}, legend);
  EXPECT_THAT(html, HasSubstr("background:rgb(0,0,0)\"></i>sky<"));
  EXPECT_THAT(html, HasSubstr("background:rgb(128,0,0)\"></i>&lt;road&gt;<"));
}

}  // namespace
}  // namespace switchyard
