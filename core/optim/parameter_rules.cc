#include "core/optim/parameter_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace switchyard {

bool Decays(std::string_view name, const Shape& shape) {
  if (shape.size() < 2) return false;
  constexpr std::array<std::string_view, 7> kWithout = {
      "bias",      "pos_embed",  "absolute_pos_embed", "relative_position_bias_table",
      "cls_token", "dist_token", "mask_token"};
  const std::string_view last = name.substr(name.rfind('.') + 1);  // npos + 1 is 0
  return std::find(kWithout.begin(), kWithout.end(), last) == kWithout.end();
}

void TellLayers(Graph& graph) {
  const std::vector<int> parameters = graph.Inputs(Role::kParameter);
  const auto block_of = [&](int id) { return graph.node(id).input->block; };
  int blocks = 0;
  for (const int id : parameters) blocks = std::max(blocks, block_of(id) + 1);
  if (blocks == 0) return;
  std::vector<int> layers;
  int before = -1;  // the furthest block so far
  for (const int id : parameters) {
    before = std::max(before, block_of(id));
    layers.push_back(block_of(id) >= 0 ? block_of(id) + 1 : before + 1 < blocks ? before + 1 : blocks + 1);
  }
  const int top = *std::max_element(layers.begin(), layers.end());
  for (size_t i = 0; i < parameters.size(); ++i)
    graph.mutable_node(parameters[i]).input->layers_above = top - layers[i];
}

float LayerRate(float decay, int layers_above) { return static_cast<float>(std::pow(double{decay}, layers_above)); }

}  // namespace switchyard
