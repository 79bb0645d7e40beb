#include "tools/switchyard/prediction_target.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

namespace switchyard {

namespace fs = std::filesystem;

Status CheckTarget(const std::string& target, bool folder_given, std::span<const std::string> inputs) {
  std::error_code none;
  if (!fs::exists(target, none)) return OkStatus();
  for (const std::string& input : inputs) {
    if (fs::equivalent(target, input, none))
      return InvalidArgument("{} is to be predicted and would be written over; give a folder with --output", target);
  }
  if (folder_given) return OkStatus();
  return InvalidArgument("{} is there already and would be written over; move it away, or give a folder with --output",
                         target);
}

nlohmann::ordered_json SharesOf(std::span<const uint8_t> mask, const std::vector<std::string>& names, int top) {
  std::vector<int64_t> places(256);
  for (const uint8_t id : mask) ++places[id];
  std::vector<size_t> order(places.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return places[a] > places[b]; });
  nlohmann::ordered_json shares = nlohmann::ordered_json::array();
  for (const size_t c : order) {
    if (places[c] == 0 || static_cast<int>(shares.size()) == top) break;
    shares.push_back({{"class", c < names.size() ? names[c] : fmt::format("class {}", c)},
                      {"share", static_cast<double>(places[c]) / static_cast<double>(mask.size())}});
  }
  return shares;
}

}  // namespace switchyard
