#include "tools/conform/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace switchyard::conform {
namespace {

// Significant binary digits, exponent of the smallest normal number, and the largest number.
struct Format {
  int digits, lowest;
  double largest;
};
Format FormatOf(sy_dtype half) {
  if (half == SY_BF16) return {8, -126, 0x1.FEp127};
  return {11, -14, 65504};
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// What was done instead.
const char* Guess(double found, double exact, sy_dtype half) {
  if (std::isnan(exact)) return "NaN is lost";
  if (!std::isfinite(exact)) return "infinity is lost";
  const double unit = UnitAt(exact, half), towards_zero = std::trunc(exact / unit) * unit;
  const bool tie = std::fabs(exact - towards_zero) * 2 == unit;
  if (!std::isfinite(RoundedOnce(exact, half))) return "what is too large does not become infinite";
  if (found == 0 && std::fabs(exact) < std::ldexp(1, FormatOf(half).lowest)) return "subnormal numbers become 0";
  if (tie) return found == towards_zero ? "ties go towards zero" : "ties do not go to even";
  if (found == towards_zero) return "it is cut off instead of rounded";
  return "it is not the nearest";
}

}  // namespace

double UnitAt(double value, sy_dtype half) {
  const Format format = FormatOf(half);
  const int exponent = value == 0 ? format.lowest : std::max(std::ilogb(value), format.lowest);
  return std::ldexp(1, exponent - format.digits + 1);
}

double RoundedOnce(double value, sy_dtype half) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = UnitAt(value, half), rounded = std::nearbyint(value / unit) * unit;
  return std::fabs(rounded) > FormatOf(half).largest ? std::copysign(kInfinity, value) : rounded;
}

std::vector<double> NumbersToRound(sy_dtype half) {
  Bytes bytes(2 << 16);
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const auto word = static_cast<uint16_t>(bits);
    std::memcpy(bytes.data() + 2 * bits, &word, sizeof word);
  }
  std::vector<double> numbers;
  for (const double value : Decode(bytes, half)) {
    numbers.push_back(value);
    if (!std::isfinite(value)) continue;
    const auto tie = static_cast<float>(value + std::copysign(UnitAt(value, half) / 2, value));
    numbers.push_back(tie);
    numbers.push_back(std::nextafter(tie, 0.0f));
    numbers.push_back(std::nextafter(tie, std::copysign(std::numeric_limits<float>::infinity(), tie)));
  }
  return numbers;
}

std::vector<Pair> PairsToAdd(sy_dtype half) {
  const Format format = FormatOf(half);
  const double smallest = std::ldexp(1, half == SY_BF16 ? format.lowest : format.lowest - format.digits + 1);
  const int steps = 1 << (format.digits - 1);  // numbers between two powers of two
  std::vector<Pair> pairs = {{format.largest, format.largest}, {kInfinity, 1}, {kInfinity, -kInfinity}, {NAN, 1}};
  for (int exponent = format.lowest; std::ldexp(1, exponent) <= format.largest; ++exponent) {
    for (const int step : {0, 1, 2, steps / 2 - 1, steps / 2, steps - 2, steps - 1}) {
      const double unit = std::ldexp(1, exponent - format.digits + 1), a = (steps + step) * unit;
      for (const double part : {0.25, 0.5, 0.75, 1.5, 2.5}) {
        for (const double sign : {1.0, -1.0}) {
          const double b = sign * part * unit;
          if (std::fabs(b) < smallest || std::fabs(a + b) < smallest || RoundedOnce(b, half) != b) continue;
          pairs.push_back({a, b});
          pairs.push_back({-a, -b});
        }
      }
    }
  }
  return pairs;
}

std::vector<Pair> PairsToMultiply(sy_dtype half) {
  const Format format = FormatOf(half);
  const int steps = 1 << (format.digits - 1);
  const int most = half == SY_BF16 ? 60 : 7;  // exponents of the factors, so that only the corner cases overflow
  std::vector<Pair> pairs = {{format.largest, 2}, {-format.largest, format.largest}, {kInfinity, 0}, {NAN, 1}};
  for (int i = 0; i < 4096; ++i) {
    const int a = steps + i * 37 % steps, b = steps + (i * 101 + i / 7) % steps;
    const int exponent = i % (2 * most + 1) - most;
    pairs.push_back({std::ldexp(a, exponent - format.digits + 1), std::ldexp(i % 2 ? -b : b, -format.digits + 1)});
  }
  for (int i = 1; i < 64; ++i) pairs.push_back({1.5 + 1.0 * i / steps, 1.5});  // every fourth one a tie
  return pairs;
}

Status ExpectRounded(const std::vector<double>& found, const std::vector<double>& exact, sy_dtype half) {
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (Same(found[i], RoundedOnce(exact[i], half))) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return OkStatus();
  return Internal("{} of {} numbers are not rounded to nearest even: {:a} must be {:a}, found {:a} ({})", wrong,
                  exact.size(), exact[first], RoundedOnce(exact[first], half), found[first],
                  Guess(found[first], exact[first], half));
}

Status ExpectUnbiased(const std::vector<double>& found, const std::vector<double>& exact, sy_dtype half) {
  constexpr double kLeastCount = 48, kAllowed = 0.3, kDeviations = 3;  // cutting off is a bias of 0.5
  const double smallest = std::ldexp(1, FormatOf(half).lowest);
  double count = 0, squares = 0, outwards = 0, upwards = 0;  // sums of what is off, away from zero and up
  for (size_t i = 0; i < exact.size(); ++i) {
    if (!std::isfinite(exact[i]) || !std::isfinite(found[i]) || std::fabs(exact[i]) < smallest) continue;
    if (RoundedOnce(exact[i], half) == exact[i]) continue;  // nothing to round
    const double off = (found[i] - exact[i]) / UnitAt(exact[i], half);
    if (std::fabs(off) > 1.5) continue;  // an error of the arithmetic, where terms cancel
    ++count;
    squares += off * off;
    outwards += off * std::copysign(1, exact[i]);
    upwards += off;
  }
  if (count < kLeastCount) return OkStatus();
  const auto is_biased = [&](double sum) {
    const double bias = sum / count, deviation = std::sqrt(std::max(0.0, squares / count - bias * bias));
    return std::fabs(bias) > kAllowed + kDeviations * deviation / std::sqrt(count);
  };
  const auto biased = [&](double sum, const char* where) {
    return Internal("{:.0f} numbers lie {:.2f} units of the last place {} on average; expected rounding to nearest",
                    count, std::fabs(sum) / count, where);
  };
  if (is_biased(outwards)) return biased(outwards, outwards < 0 ? "towards zero" : "away from zero");
  // What goes one way on both sides of zero cancels in the first sum.
  if (is_biased(upwards)) return biased(upwards, upwards < 0 ? "too low" : "too high");
  return OkStatus();
}

}  // namespace switchyard::conform
