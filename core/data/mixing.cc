#include "core/data/mixing.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/base/names.h"

namespace switchyard {
namespace {

// The logarithm of a draw from Gamma(shape, 1) (Marsaglia and Tsang 2000, "A simple method for generating gamma
// variables"), shapes below 1 through that of shape + 1.
double LogGamma(double shape, RandomStream* random) {
  const auto uniform = [&] { return 1.0 - random->Uniform(); };  // above 0
  double log = 0;
  if (shape < 1) {
    log = std::log(uniform()) / shape;
    shape += 1;
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random->Normal(), root = 1 + c * x, v = root * root * root;
    if (root > 0 && std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return log + std::log(d * v);
  }
}

// λ ~ Beta(α, α): a share of two gammas, in whole kMixUnits.
float Beta(float alpha, RandomStream* random) {
  const double first = LogGamma(alpha, random), second = LogGamma(alpha, random);
  return static_cast<float>(std::round(kMixUnit / (1 + std::exp(second - first)))) / kMixUnit;
}

int Between(int low, int high, RandomStream* random) {  // low ≤ result < high, or low
  return high > low ? low + static_cast<int>(random->Below(static_cast<uint32_t>(high - low))) : low;
}

void DrawRectangle(const MixingOptions& options, int height, int width, RandomStream* random, Mix* mix) {
  if (options.cutmix_minmax) {
    const auto side = [&](int extent) {
      const auto whole = static_cast<float>(extent);
      return Between(static_cast<int>(whole * options.cutmix_minmax->first),
                     static_cast<int>(whole * options.cutmix_minmax->second), random);
    };
    const int cut_height = side(height), cut_width = side(width);
    mix->top = Between(0, height - cut_height, random);
    mix->left = Between(0, width - cut_width, random);
    mix->bottom = mix->top + cut_height, mix->right = mix->left + cut_width;
  } else {
    const float ratio = std::sqrt(1 - mix->share);
    const int cut_height = static_cast<int>(static_cast<float>(height) * ratio);
    const int cut_width = static_cast<int>(static_cast<float>(width) * ratio);
    const int y = Between(0, height, random), x = Between(0, width, random);
    mix->top = std::clamp(y - cut_height / 2, 0, height), mix->bottom = std::clamp(y + (cut_height + 1) / 2, 0, height);
    mix->left = std::clamp(x - cut_width / 2, 0, width), mix->right = std::clamp(x + (cut_width + 1) / 2, 0, width);
  }
  const int area = (mix->bottom - mix->top) * (mix->right - mix->left);
  mix->share = 1 - static_cast<float>(area) / (static_cast<float>(height) * static_cast<float>(width));
}

template <typename T>
T Blend(T own, T other, float share) {
  const float value = static_cast<float>(own) * share + static_cast<float>(other) * (1 - share);
  if constexpr (std::is_same_v<T, uint8_t>) return static_cast<uint8_t>(std::lround(value));
  return static_cast<T>(value);
}

// `image` mixed with `partner`, which is another image.
template <typename T>
void MixOne(const Mix& mix, int height, int width, int channels, const T* partner, T* image) {
  const int64_t row = int64_t{width} * channels;
  if (!mix.cut) {
    if (mix.share == 1) return;
    for (int64_t i = 0; i < height * row; ++i) image[i] = Blend(image[i], partner[i], mix.share);
    return;
  }
  for (int y = mix.top; y < mix.bottom; ++y)
    std::copy(partner + y * row + int64_t{mix.left} * channels, partner + y * row + int64_t{mix.right} * channels,
              image + y * row + int64_t{mix.left} * channels);
}

template <typename T>
void MixAll(std::span<const Mix> mixes, int height, int width, int channels, T* images) {
  const auto elements = static_cast<size_t>(height) * width * channels;
  std::vector<T> first(elements);  // as it was
  for (size_t i = 0; i < mixes.size() / 2; ++i) {
    const size_t j = mixes.size() - 1 - i;
    std::copy_n(images + i * elements, elements, first.data());
    MixOne(mixes[i], height, width, channels, images + j * elements, images + i * elements);
    MixOne(mixes[j], height, width, channels, first.data(), images + j * elements);
  }
}

}  // namespace

StatusOr<MixingOptions::Mode> ParseMixingMode(const std::string& name) {
  const std::vector<std::string> names = {"batch", "pair", "elem"};
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<MixingOptions::Mode>(found - names.begin());
  return InvalidArgument("--mixup_mode: expected batch, pair or elem, found {}{}", name, DidYouMean(name, names));
}

Status Check(const MixingOptions& o, int64_t batch_size) {
  if (o.cutmix_minmax) {
    const auto [low, high] = *o.cutmix_minmax;
    if (!(low >= 0 && low < high && high <= 1))
      return InvalidArgument(
          "--cutmix_minmax: expected two ascending shares of the image's sides, as 0.2,0.8, found {:g},{:g}", low,
          high);
  }
  if (!o.enabled() || batch_size % 2 == 0) return OkStatus();
  return InvalidArgument(
      "mixup and cutmix mix the samples of a batch in pairs, and --batch_size={} is odd; give an even one", batch_size);
}

Mix DrawMix(const MixingOptions& o, int height, int width, RandomStream* random) {
  Mix mix;
  const bool mixed = random->Uniform() < o.probability;
  const bool cut = o.cutmix > 0 && (o.mixup <= 0 || random->Uniform() < o.switch_probability);
  if (!mixed) return mix;
  mix.share = Beta(cut ? o.cutmix : o.mixup, random);
  mix.cut = cut && mix.share < 1;
  if (mix.cut) DrawRectangle(o, height, width, random, &mix);
  return mix;
}

std::vector<Mix> DrawMixes(const MixingOptions& o, int64_t epoch, int64_t batch, std::span<const int32_t> positions,
                           int height, int width) {
  std::vector<Mix> mixes(positions.size());
  const auto draw = [&](int64_t draws) {
    RandomStream random(Key(o.seed, HashName("mix"), epoch, batch, draws));
    return DrawMix(o, height, width, &random);
  };
  if (o.mode == MixingOptions::kBatch) {
    std::fill(mixes.begin(), mixes.end(), draw(-1));
    return mixes;
  }
  for (size_t i = 0; i < mixes.size(); ++i) {
    const size_t partner = mixes.size() - 1 - i;
    mixes[i] = o.mode == MixingOptions::kPair && partner < i ? mixes[partner] : draw(positions[i]);
  }
  return mixes;
}

void MixImages(std::span<const Mix> mixes, int height, int width, int channels, uint8_t* images) {
  MixAll(mixes, height, width, channels, images);
}
void MixImages(std::span<const Mix> mixes, int height, int width, int channels, float* images) {
  MixAll(mixes, height, width, channels, images);
}

void WritePartnerShares(const Mix& mix, int height, int width, int channels, int32_t* rows, uint8_t* columns) {
  if (!mix.cut) {
    std::fill_n(rows, height, static_cast<int32_t>(std::lround((1 - mix.share) * kMixUnit)));
    std::fill_n(columns, width * channels, 1);
    return;
  }
  std::fill_n(rows, height, 0);
  std::fill_n(columns, width * channels, 0);
  std::fill(rows + mix.top, rows + mix.bottom, kMixUnit);
  std::fill(columns + mix.left * channels, columns + mix.right * channels, 1);
}

}  // namespace switchyard
