// What makes two checkpoints compatible: a model's name and those of its settings that decide the shapes or the meaning
// of its weights. Thread-safe: pure functions.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace switchyard {

// Numbers are compared as the floats that they are in a network.
inline bool SameValue(const nlohmann::json& a, const nlohmann::json& b) {
  return a.is_number() && b.is_number() ? a.get<float>() == b.get<float>() : a == b;
}

// Whether weights of the one fit the other: objects that agree in every field, numbers as floats. A field that one of
// them lacks counts as 0 there, which checkpoints of before held for what a model does not have.
bool SameArchitecture(const nlohmann::json& saved, const nlohmann::json& here);

// The fields in which they differ, without those in `passed_over`: "--width=128 where the run has 64".
std::string ArchitectureDifferences(const nlohmann::json& saved, const nlohmann::json& here,
                                    const std::vector<std::string>& passed_over = {});

}  // namespace switchyard
