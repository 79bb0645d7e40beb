#include "core/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/names.h"
#include "core/base/random.h"
#include "core/data/color.h"
#include "core/data/resize.h"

namespace switchyard {
namespace {

const std::vector<std::string>& AugmentationNames() {
  static const auto& names = *new std::vector<std::string>{"none", "crop", "crop_flip", "resized_crop", "scale_crop"};
  return names;
}

// The shorter side becomes `side`; the longer one keeps the proportion, rounded down.
void ResizeShorterSide(const Image& in, int side, Interpolation interpolation, Image* out) {
  const int64_t shorter = std::min(in.height, in.width), longer = std::max(in.height, in.width);
  const auto other = static_cast<int>(std::max<int64_t>(side, side * longer / shorter));
  const bool wide = in.height <= in.width;
  Resize(Whole(in), wide ? side : other, wide ? other : side, interpolation, out);
}

void CenterCrop(const Image& in, int side, CropOffset offset, Image* out) {
  const auto before = [&](int extent) {
    const int rest = extent - side;
    return offset == CropOffset::kDown ? rest / 2 : static_cast<int>(std::nearbyint(rest / 2.0));
  };
  CropPadded(in, before(in.height), before(in.width), side, side, {}, out);
}

constexpr float kLeastAspect = 3.0f / 4, kMostAspect = 4.0f / 3;  // width / height of a random part

// A part of random area and aspect (Szegedy et al., "Going deeper with convolutions", 2015, section 6), or, if ten
// draws do not fit, the largest centred part of an allowed aspect.
ImageView RandomPart(const Image& in, const TransformOptions& options, RandomStream* random) {
  const float area = static_cast<float>(in.height) * static_cast<float>(in.width);
  const float low = std::log(kLeastAspect), high = std::log(kMostAspect);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const float part = area * random->Uniform(options.min_scale, options.max_scale);
    const float aspect = std::exp(random->Uniform(low, high));
    const int width = static_cast<int>(std::lround(std::sqrt(part * aspect)));
    const int height = static_cast<int>(std::lround(std::sqrt(part / aspect)));
    if (width < 1 || height < 1 || width > in.width || height > in.height) continue;
    const int top = static_cast<int>(random->Below(static_cast<uint32_t>(in.height - height + 1)));
    const int left = static_cast<int>(random->Below(static_cast<uint32_t>(in.width - width + 1)));
    return Crop(in, top, left, height, width);
  }
  const float aspect = static_cast<float>(in.width) / static_cast<float>(in.height);
  int height = in.height, width = in.width;
  if (aspect < kLeastAspect) height = static_cast<int>(std::lround(in.width / kLeastAspect));
  if (aspect > kMostAspect) width = static_cast<int>(std::lround(in.height * kMostAspect));
  height = std::clamp(height, 1, in.height), width = std::clamp(width, 1, in.width);
  return Crop(in, (in.height - height) / 2, (in.width - width) / 2, height, width);
}

// Calls write(byte, channel) for each byte, in the order of the result.
template <int kChannels, typename Write>
void ForEachByte(const Image& in, bool mirrored, const Write& write) {
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* pixel = in.Row(y) + (mirrored ? (in.width - 1) * kChannels : 0);
    const int step = mirrored ? -kChannels : kChannels;
    for (int x = 0; x < in.width; ++x, pixel += step) {
      for (int c = 0; c < kChannels; ++c) write(pixel[c], static_cast<size_t>(c));
    }
  }
}

template <typename Write>
void ForEachByte(const Image& in, bool mirrored, const Write& write) {
  in.channels == 3 ? ForEachByte<3>(in, mirrored, write) : ForEachByte<1>(in, mirrored, write);
}

}  // namespace

Status CheckRange(const char* option, float value, float low, float high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument("{}: expected a number from {} to {}, found {}", option, low, high, value);
}

bool Mirrors(Augmentation augmentation) {
  return augmentation != Augmentation::kNone && augmentation != Augmentation::kCrop;
}

std::string AugmentationName(Augmentation augmentation) {
  return AugmentationNames()[static_cast<size_t>(augmentation)];
}

StatusOr<Augmentation> ParseAugmentation(const std::string& name) {
  const auto& names = AugmentationNames();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<Augmentation>(found - names.begin());
  return InvalidArgument("unknown augmentation {}{}; expected one of {}", name, DidYouMean(name, names),
                         fmt::join(names, ", "));
}

StatusOr<Transform> Transform::Create(const TransformOptions& options) {
  SY_RETURN_IF_ERROR(Check(options.evaluation));
  if (options.augmentation == Augmentation::kScaleCrop)
    return InvalidArgument("augmentation scale_crop is for images with masks; for labelled images there is {}",
                           "none, crop, crop_flip and resized_crop");
  SY_RETURN_IF_ERROR(CheckRange("crop_padding", static_cast<float>(options.crop_padding), 0, 8192));
  SY_RETURN_IF_ERROR(CheckRange("max_scale", options.max_scale, 1e-6f, 1));
  SY_RETURN_IF_ERROR(CheckRange("min_scale", options.min_scale, 1e-6f, options.max_scale));
  SY_RETURN_IF_ERROR(CheckRange("flip_probability", options.flip_probability, 0, 1));
  SY_RETURN_IF_ERROR(CheckRange("brightness", options.brightness, 0, 10));
  SY_RETURN_IF_ERROR(CheckRange("contrast", options.contrast, 0, 10));
  SY_RETURN_IF_ERROR(CheckRange("saturation", options.saturation, 0, 10));
  SY_RETURN_IF_ERROR(CheckRange("hue", options.hue, 0, 0.5f));
  SY_RETURN_IF_ERROR(CheckRange("erase_prob", options.erasing.probability, 0, 1));
  SY_RETURN_IF_ERROR(CheckRange("erase_count", static_cast<float>(options.erasing.max_count), 1, 1024));
  return Transform(options);
}

Transform::Transform(const TransformOptions& options) : options_(options) {
  const EvaluationTransform& e = options_.evaluation;
  if (options_.filters.empty()) options_.filters = {e.interpolation};
  for (int c = 0; c < e.channels; ++c) {
    const float mean = mean_.emplace_back(e.mean[e.mean.size() == 1 ? 0 : static_cast<size_t>(c)]);
    const float std = std_.emplace_back(e.std[e.std.size() == 1 ? 0 : static_cast<size_t>(c)]);
    mean_bytes_.push_back(static_cast<uint8_t>(std::clamp(std::nearbyint(mean * 255), 0.0f, 255.0f)));
    auto& table = normalized_.emplace_back();
    for (int value = 0; value < 256; ++value) {
      table[static_cast<size_t>(value)] = (static_cast<float>(value) / 255.0f - mean) / std;
    }
  }
}

Status Transform::CheckExtents(const Image& image) const {
  const EvaluationTransform& e = options_.evaluation;
  int64_t side = e.resize;  // what the shorter side becomes; 0: no side keeps its proportion to the other
  if (options_.train && options_.augmentation == Augmentation::kResizedCrop) side = 0;
  if (options_.train &&
      (options_.augmentation == Augmentation::kCrop || options_.augmentation == Augmentation::kCropFlip))
    side = e.image_size;
  const double shorter = std::min(image.height, image.width), longer = std::max(image.height, image.width);
  const double pixels = static_cast<double>(side) * static_cast<double>(side) * longer / shorter;
  if (pixels <= static_cast<double>(kMaxPixels)) return OkStatus();
  return ResourceExhausted(
      "an image of {} x {} pixels, whose shorter side becomes {}, would take {:.3g} pixels, above the limit of {}; "
      "crop it or leave it out",
      image.width, image.height, side, pixels, kMaxPixels);
}

const Image& Transform::Prepare(int64_t epoch, int64_t index, Image* image, bool* mirrored) const {
  thread_local Image resized, cropped;
  const EvaluationTransform& e = options_.evaluation;
  const int side = e.image_size;
  const bool random_geometry = options_.train && options_.augmentation != Augmentation::kNone;
  RandomStream random(Key(options_.seed, HashName("augment"), epoch, index));
  ConvertChannels(e.channels, image);
  Image* result = &resized;
  *mirrored = false;
  Interpolation filter = e.interpolation;
  if (random_geometry) filter = options_.filters[0];
  if (random_geometry && options_.filters.size() > 1) {
    filter = options_.filters[random.Below(static_cast<uint32_t>(options_.filters.size()))];
  }
  if (!random_geometry && e.resize == 0) {
    Resize(Whole(*image), side, side, e.interpolation, &resized);
  } else if (!random_geometry) {
    ResizeShorterSide(*image, e.resize, e.interpolation, &resized);
    CenterCrop(resized, side, e.crop_offset, &cropped);
    result = &cropped;
  } else if (options_.augmentation == Augmentation::kResizedCrop) {
    Resize(RandomPart(*image, options_, &random), side, side, filter, &resized);
    *mirrored = random.Uniform() < options_.flip_probability;
  } else {
    ResizeShorterSide(*image, side, filter, &resized);
    const int padding = options_.crop_padding;
    const auto offset = [&](int extent) {
      return static_cast<int>(random.Below(static_cast<uint32_t>(extent + 2 * padding - side + 1))) - padding;
    };
    const int top = offset(resized.height), left = offset(resized.width);
    CropPadded(resized, top, left, side, side, {}, &cropped);
    if (options_.augmentation == Augmentation::kCropFlip) *mirrored = random.Uniform() < options_.flip_probability;
    result = &cropped;
  }
  if (options_.train) Vary(&random, result);
  return *result;
}

void Transform::Vary(RandomStream* random, Image* image) const {
  const TransformOptions& o = options_;
  if (o.rand_augment) switchyard::Apply(*o.rand_augment, o.filters, mean_bytes_, random, image);
  JitterColor({o.brightness, o.contrast, o.saturation, o.hue}, random, image);
  if (o.erasing.probability > 0) Erase(o.erasing, mean_, std_, random, image);
}

void Transform::Apply(int64_t epoch, int64_t index, Image* image, float* out) const {
  bool mirrored;
  const Image& prepared = Prepare(epoch, index, image, &mirrored);
  ForEachByte(prepared, mirrored, [&](uint8_t byte, size_t channel) { *out++ = normalized_[channel][byte]; });
}

void Transform::ApplyBytes(int64_t epoch, int64_t index, Image* image, uint8_t* out, bool* flip) const {
  bool mirrored;
  const Image& prepared = Prepare(epoch, index, image, &mirrored);
  if (flip != nullptr) *flip = mirrored;
  if (mirrored && flip == nullptr) {
    ForEachByte(prepared, mirrored, [&](uint8_t byte, size_t) { *out++ = byte; });
  } else {
    std::memcpy(out, prepared.bytes.data(), prepared.bytes.size());
  }
}

}  // namespace switchyard
