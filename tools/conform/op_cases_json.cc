#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "tools/conform/op_cases.h"

namespace switchyard::conform {
namespace {

nlohmann::json ToJson(const std::vector<Operand>& operands) {
  constexpr const char* kTypes[] = {"tested", "f32", "i32", "i64", "u8"};
  constexpr const char* kFills[] = {"normal",      "positive", "integers", "index",    "permutation", "signed_index",
                                    "probability", "constant", "mask",     "drifting", "extreme"};
  nlohmann::json list = nlohmann::json::array();
  for (const Operand& operand : operands) {
    nlohmann::json& one = list.emplace_back();
    one["type"] = kTypes[static_cast<int>(operand.type)];
    one["dims"] = operand.dims;
    one["fill"] = kFills[static_cast<int>(operand.fill)];
    one["value"] = operand.value;
    if (operand.gradient_of >= 0) one["gradient_of"] = operand.gradient_of;
  }
  return list;
}

}  // namespace

std::string OpCasesAsJson() {
  nlohmann::json list = nlohmann::json::array();
  for (const OpCase& one : OpCases()) {
    nlohmann::json& row = list.emplace_back();
    row["op"] = one.op;
    row["name"] = one.name;
    row["attributes"] = fmt::format("{:02x}", fmt::join(one.attributes, ""));
    row["inputs"] = ToJson(one.inputs);
    row["outputs"] = ToJson(one.outputs);
    if (one.forward >= 0) row["forward"] = OpCases()[static_cast<size_t>(one.forward)].id();
  }
  return list.dump(1);
}

}  // namespace switchyard::conform
