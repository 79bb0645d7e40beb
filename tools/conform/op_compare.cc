#include "tools/conform/op_compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/runtime/collectives/composition.h"
#include "tools/conform/rounding.h"

namespace switchyard::conform {
namespace {

// Outputs whose root mean square is below this count as this large: an error of a gradient that vanishes is absolute.
constexpr double kSmallestTypical = 1e-2;
// A single element may be off by this many times the root of the tolerated normalised error.
constexpr double kElementFactor = 4;

double Tolerance(sy_dtype tested) { return tested == SY_BF16 ? 1e-4 : tested == SY_F16 ? 1e-5 : 1e-7; }

}  // namespace

bool SameNumber(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

Status CompareNumbers(const std::vector<double>& found, const std::vector<double>& expected, sy_dtype tested,
                      double looser, const std::string& what) {
  double squares = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) squares += std::isfinite(expected[i]) ? expected[i] * expected[i] : 0;
  const double count = static_cast<double>(expected.size());
  const double typical = std::max(std::sqrt(squares / count), kSmallestTypical);
  const double limit = Tolerance(tested) * looser;
  size_t worst = 0;
  double worst_share = 0;  // of what one element may be off
  for (size_t i = 0; i < expected.size(); ++i) {
    if (SameNumber(found[i], expected[i])) continue;
    const double off = std::fabs(found[i] - expected[i]);
    const double share = off / (kElementFactor * std::sqrt(limit) * (typical + std::fabs(expected[i])));
    if (!(share <= worst_share)) {
      worst = i;
      worst_share = std::isnan(share) ? std::numeric_limits<double>::infinity() : share;
    }
    error += off * off;
  }
  error /= typical * typical * count;
  if (error <= limit && worst_share <= 1) return OkStatus();
  return Internal("{}: normalised error {:.2g}, at most {:.2g} is allowed; element {}: expected {}, found {}", what,
                  error, limit, worst, expected[worst], found[worst]);
}

Status CompareOutputs(const OpCase& one, sy_dtype tested, const std::vector<sy_tensor>& outputs, const Values& found,
                      const Values& expected, const std::string& what) {
  for (size_t o = 0; o < found.size(); ++o) {
    const sy_tensor& tensor = outputs[o];
    if (one.exact || !IsFloat(tensor.dtype)) {
      const std::vector<double> exact = Rounded(expected[o], tensor.dtype);
      for (size_t i = 0; i < exact.size(); ++i) {
        if (SameNumber(found[o][i], exact[i])) continue;
        return Internal("{}: output {} {}, element {}: expected exactly {}, found {}", what, o, DimsText(tensor), i,
                        exact[i], found[o][i]);
      }
      continue;
    }
    const std::string where = fmt::format("{}: output {} {}", what, o, DimsText(tensor));
    SY_RETURN_IF_ERROR(CompareNumbers(found[o], expected[o], tested, one.looser, where));
    if (IsHalf(tensor.dtype)) SY_RETURN_IF_ERROR(Annotate(ExpectUnbiased(found[o], expected[o], tensor.dtype), where));
  }
  return OkStatus();
}

}  // namespace switchyard::conform
