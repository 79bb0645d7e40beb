// Times reading, decoding and augmenting a dataset of labelled images, as training does it. torch_loader.py is the same
// in PyTorch. Prints the median of the epochs in images per second and each of them.
//   loader_bench --data=beans.tar [--auto_augment=rand-m9-inc1] [--interpolation=bilinear|bicubic]
//   [--image_size=224] [--batch=32] [--workers=1] [--epochs=5] [--cpu_time=0|1]
//   [--images_as=floats|bytes|unflipped]
// --images_as: normalised f32, bytes for a device that normalises them, or such bytes for one that flips them too.
// --cpu_time counts processor time of the whole process instead of wall time: for a machine that is busy.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/labelled_images.h"
#include "core/data/loader.h"

namespace switchyard {
namespace {

double Now(bool cpu_time) {
  timespec t;
  clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Status Measure(std::map<std::string, std::string> flags) {
  const auto number = [&](const char* name) { return std::atoi(flags.at(name).c_str()); };
  DatasetOptions data;
  data.name = "imagefolder";
  if (!flags.at("data").empty()) data.data = flags.at("data");
  SY_ASSIGN_OR_RETURN(const auto dataset, OpenDataset(data, Split::kTrain));
  TransformOptions options;
  const int side = number("image_size");
  options.evaluation = {.image_size = side, .channels = 3, .resize = side, .mean = kImageNetMean, .std = kImageNetStd};
  SY_ASSIGN_OR_RETURN(options.evaluation.interpolation, ParseInterpolation(flags.at("interpolation")));
  options.train = true;
  if (!flags.at("auto_augment").empty()) {
    SY_ASSIGN_OR_RETURN(options.rand_augment, ParseRandAugment(flags.at("auto_augment")));
  }
  SY_ASSIGN_OR_RETURN(const Transform transform, Transform::Create(options));
  const std::string& as = flags.at("images_as");
  const DType dtype = as == "floats" ? DType::kF32 : DType::kU8;
  LoaderOptions loading;
  loading.batch_size = number("batch");
  loading.train = true;
  loading.workers = number("workers");
  SY_ASSIGN_OR_RETURN(const auto loader,
                      Loader::Create(std::make_unique<LabelledImages>(*dataset, transform, dtype, MixingOptions(),
                                                                      /*flips_on_device=*/as == "unflipped"),
                                     loading));
  std::vector<double> rates;
  for (int epoch = 0; epoch <= number("epochs"); ++epoch) {
    const double began = Now(number("cpu_time") != 0);
    SY_RETURN_IF_ERROR(loader->StartEpoch(epoch));
    int64_t images = 0;
    for (;;) {
      Batch batch;
      SY_ASSIGN_OR_RETURN(const bool more, loader->Next(&batch));
      if (!more) break;
      images += batch.count;
    }
    if (epoch > 0) rates.push_back(static_cast<double>(images) / (Now(number("cpu_time") != 0) - began));
  }
  std::vector<double> sorted = rates;
  std::sort(sorted.begin(), sorted.end());
  fmt::print("{{\"images_per_s\": {:.1f}, \"epochs\": [{:.1f}]}}\n", sorted[sorted.size() / 2], fmt::join(rates, ", "));
  return OkStatus();
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {
      {"data", ""},          {"auto_augment", ""}, {"interpolation", "bilinear"},
      {"image_size", "224"}, {"batch", "32"},      {"workers", "1"},
      {"epochs", "5"},       {"cpu_time", "0"},    {"images_as", "floats"}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (!word.starts_with("--") || equals == std::string::npos || !flags.contains(word.substr(2, equals - 2))) {
      fmt::print(stderr, "loader_bench: unknown argument {}; known: --{}=\n", word,
                 fmt::join(
                     [&] {
                       std::vector<std::string> names;
                       for (const auto& [name, value] : flags) names.push_back(name);
                       return names;
                     }(),
                     "= --"));
      return 2;
    }
    flags[word.substr(2, equals - 2)] = word.substr(equals + 1);
  }
  const switchyard::Status status = switchyard::Measure(flags);
  if (status.ok()) return 0;
  fmt::print(stderr, "loader_bench: {}\n", switchyard::Message(status));
  return 1;
}
