#include "core/train/picture.h"

#include <png.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using PictureTest = Scratch;

Raster DecodePng(const std::string& bytes) {
  png_image png;
  std::memset(&png, 0, sizeof png);
  png.version = PNG_IMAGE_VERSION;
  Raster image;
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) return image;
  png.format = PNG_FORMAT_RGB;
  image.width = static_cast<int>(png.width);
  image.height = static_cast<int>(png.height);
  image.rgb.resize(PNG_IMAGE_SIZE(png));
  png_image_finish_read(&png, nullptr, image.rgb.data(), 0, nullptr);
  return image;
}

// Elements open and close in order, and no number is NaN or infinite.
void ExpectWellFormed(const std::string& svg) {
  EXPECT_EQ(svg.compare(0, 4, "<svg"), 0);
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find(' '));
    if (name[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), name.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
  for (const char* bad : {"nan", "inf", "\"-nan"}) EXPECT_THAT(svg, Not(HasSubstr(bad)));
}

Series Line(const std::string& name, std::vector<double> y) {
  Series series{name, std::vector<double>(y.size()), std::move(y)};
  std::iota(series.x.begin(), series.x.end(), 0.0);
  return series;
}

Chart Example() {
  RandomStream random(1);
  Series train{"", {}, {}}, validation{"", {}, {}}, accuracy{"validation top-1", {}, {}};
  for (int step = 0; step < 3000; ++step) {
    train.x.push_back(step);
    train.y.push_back(0.3 + 2.0 * std::exp(-step / 500.0) + 0.12 * random.Normal());
    if (step % 300 == 299) {
      validation.x.push_back(step);
      validation.y.push_back(0.35 + 2.0 * std::exp(-step / 500.0));
      accuracy.x.push_back(step);
      accuracy.y.push_back(0.9 - 0.8 * std::exp(-step / 600.0));
    }
  }
  return LossChart("vit_micro on Fashion-MNIST", "step", train, validation, accuracy);
}

TEST_F(PictureTest, DrawsTheLossCurve) {
  const Chart chart = Example();
  const std::string svg = RenderSvg(chart);
  ExpectWellFormed(svg);
  for (const char* text : {">vit_micro on Fashion-MNIST<", ">training loss<", ">its running median<",
                           ">validation loss<", ">validation top-1<", ">loss<", ">step<", ">0.5<", ">1000<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_LT(svg.size(), 150'000u) << "a long series is thinned";
}

TEST_F(PictureTest, DrawsAveragedWeightsBesideTheOthers) {
  const Chart chart = LossChart("run", "update", Line("", {3, 2}), Line("", {2.5, 2}), Line("accuracy", {0.25, 0.5}),
                                {Line("", {2.25, 1.5}), Line("", {0.5, 0.75})});
  const std::string svg = RenderSvg(chart);
  ExpectWellFormed(svg);
  EXPECT_THAT(svg, HasSubstr(">validation loss of the averaged weights<"));
  EXPECT_THAT(svg, HasSubstr(">accuracy of the averaged weights<"));
  EXPECT_THAT(chart.panels.at(1).series.at(1).y, ::testing::ElementsAre(0.5, 0.75));
}

TEST_F(PictureTest, PaintsTheColoursOfItsLines) {
  const Raster image = RenderImage(Example(), 1.0);
  EXPECT_EQ(image.width, 960);
  EXPECT_EQ(image.height, 680);
  int blue = 0, green = 0, white = 0;
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    const uint8_t* p = &image.rgb[i];
    blue += p[0] == 37 && p[1] == 99 && p[2] == 235;
    green += p[0] == 22 && p[1] == 163 && p[2] == 74;
    white += p[0] == 255 && p[1] == 255 && p[2] == 255;
  }
  EXPECT_GT(blue, 300);
  EXPECT_GT(green, 300);
  EXPECT_GT(white, 500'000);
}

TEST_F(PictureTest, DrawsAnySeries) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kMost = std::numeric_limits<double>::max();
  const double nan = std::nan("");
  const std::vector<std::vector<double>> values = {{},
                                                   {nan},
                                                   {1.0},
                                                   {0.0},
                                                   {2, 2, 2},
                                                   {1, nan, 3},
                                                   {kInf, -kInf, 1},
                                                   {1e-9, 1e9},
                                                   {-1e300, 1e300},
                                                   {kMost, -kMost},
                                                   {5e-324, 1e-300},
                                                   {0, 5e-324},
                                                   {1e9, 1e9 + 1e-6},
                                                   {-1e-320, 1},
                                                   {1e-300, 1e299},
                                                   {1, 1 + 1e-15}};
  for (const auto& y : values) {
    for (const bool along_x : {false, true}) {
      Series series = Line("s", y);
      if (along_x) std::swap(series.x, series.y);
      const Chart chart{"title", "x", {{"y", {series}}}};
      ExpectWellFormed(RenderSvg(chart));
      RenderImage(chart, 0.5);
    }
  }
  ExpectWellFormed(RenderSvg(Chart{}));
  EXPECT_GT(RenderImage(Chart{}).width, 0);
  EXPECT_THAT(RenderSvg({"", "", {{"loss", {}}}}), HasSubstr("no values yet"));
  Series uneven{"uneven", {1, 2, 3}, {1, 2}};
  ExpectWellFormed(RenderSvg({"", "", {{"y", {uneven}}}}));
}

TEST_F(PictureTest, CountsInWholeNumbersWhatIsWhole) {
  Series course{"loss", {1, 2, 3}, {30, 20, 10}};
  EXPECT_THAT(RenderSvg({"", "updates", {{"", {course}}}}),
              AllOf(HasSubstr(">2</text>"), Not(HasSubstr(">1.5</text>"))));
  course.x = {1, 1.75, 3};
  EXPECT_THAT(RenderSvg({"", "epochs", {{"", {course}}}}), HasSubstr(">1.5</text>"));
}

TEST_F(PictureTest, GivesHundredsOfSeriesColoursOfTheirOwn) {
  std::set<std::string> pictures;
  for (int color = 0; color < 400; ++color) {
    Series series = Line("", {1, 2});
    series.color = color;
    pictures.insert(RenderSvg({"", "", {{"", {series}}}}));
  }
  EXPECT_EQ(pictures.size(), 400u);
}

TEST_F(PictureTest, UsesALogarithmicAxisForHugeRanges) {
  const std::string svg = RenderSvg({"", "", {{"y", {Line("s", {0.001, 0.1, 100})}}}});
  for (const char* text : {">0.001<", ">0.01<", ">0.1<", ">1<", ">10<", ">100<"}) EXPECT_THAT(svg, HasSubstr(text));
}

TEST_F(PictureTest, EscapesNames) {
  const std::string svg = RenderSvg({"a<b & \"c\"\x01", "", {{"y", {Line("<s>", {1, 2})}}}});
  ExpectWellFormed(svg);
  EXPECT_THAT(svg, HasSubstr("a&lt;b &amp; \"c\" <"));
}

TEST_F(PictureTest, ARunningMedianDoesNotLagAndNoSpikeBendsIt) {
  std::vector<double> ramp(400);
  for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<double>(i) + (i % 2 == 0 ? 0.5 : -0.5);
  ramp[105] = 6e7;
  ramp[300] = std::nan("");
  const Series smooth = RunningMedian(Line("s", ramp));
  for (size_t i = 0; i + 8 < ramp.size(); ++i) {
    if (i != 300) {
      EXPECT_NEAR(smooth.y[i], static_cast<double>(i), 1.5);
    }
  }
  EXPECT_TRUE(std::isnan(smooth.y[300]));
  EXPECT_TRUE(RunningMedian(Line("s", {})).y.empty());
}

TEST_F(PictureTest, PngReadsBack) {
  const Raster image{2, 2, {1, 2, 3, 4, 5, 6, 7, 8, 9, 250, 251, 252}};
  const auto encoded = EncodePng(image);
  ASSERT_TRUE(encoded.ok());
  EXPECT_EQ(DecodePng(*encoded).rgb, image.rgb);
  EXPECT_EQ(EncodePng({2, 2, {1, 2, 3}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EncodePng({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PictureTest, SavesByTheEndingOfTheName) {
  ASSERT_TRUE(SaveChart(Example(), In("deep/loss.svg")).ok());
  ASSERT_TRUE(SaveChart(Example(), In("deep/loss.png")).ok());
  ASSERT_TRUE(SaveChart(Example(), In("deep/loss.png")).ok()) << "a second time";
  EXPECT_EQ(DecodePng(ReadText(In("deep/loss.png"))).width, 1920);
  ExpectWellFormed(ReadText(In("deep/loss.svg")));
  EXPECT_THAT(Message(SaveChart(Example(), In("loss.gif"))), HasSubstr(".svg or .png"));
}

}  // namespace
}  // namespace switchyard
