#include "core/optim/parameter_rules.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace switchyard {
namespace {

int BlockOf(const Value& parameter) {
  const Node& node = parameter.graph().node(parameter.ref().node);
  return node.input ? node.input->block : -1;
}

}  // namespace

bool Decays(std::string_view name, const Shape& shape) {
  if (shape.size() < 2) return false;
  constexpr std::array<std::string_view, 7> kWithout = {
      "bias",      "pos_embed",  "absolute_pos_embed", "relative_position_bias_table",
      "cls_token", "dist_token", "mask_token"};
  const std::string_view last = name.substr(name.rfind('.') + 1);  // npos + 1 is 0
  return std::find(kWithout.begin(), kWithout.end(), last) == kWithout.end();
}

std::vector<int> LayersOf(const std::vector<Value>& parameters) {
  int blocks = 0;
  for (const Value& parameter : parameters) blocks = std::max(blocks, BlockOf(parameter) + 1);
  if (blocks == 0) return {};
  std::vector<int> layers;
  int before = -1;  // the furthest block so far
  for (const Value& parameter : parameters) {
    const int block = BlockOf(parameter);
    before = std::max(before, block);
    layers.push_back(block >= 0 ? block + 1 : before + 1 < blocks ? before + 1 : blocks + 1);
  }
  return layers;
}

float LayerRate(float decay, int layer, const std::vector<int>& layers) {
  const int above = *std::max_element(layers.begin(), layers.end()) - layer;
  return static_cast<float>(std::pow(double{decay}, above));
}

}  // namespace switchyard
