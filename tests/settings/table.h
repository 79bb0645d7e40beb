// A small table for the tests of this folder.
#pragma once

#include "core/settings/settings.h"

namespace switchyard {

inline const SettingTable& SmallTable() {
  static const auto& table = *new SettingTable({
      Describe<float>("lr", "Optimizer", {.help = "peak rate", .range = AtLeast(0), .by = Origin::kRecipe}, 1e-3f),
      Describe<float>("min_lr", "Optimizer", {.help = "last rate", .range = AtLeast(0), .by = Origin::kRecipe}, 0.0f),
      Describe<float>("dropout", "Optimizer", {.help = "share", .range = WithinBelow(0, 1)}, 0.0f),
      Describe<std::string>("schedule", "Optimizer", {.help = "course", .choices = {"cosine", "step", "linear"}},
                            "cosine"),
      Describe<int>("batch_size", "Batch",
                    {.help = "of a rank",
                     .unit = "images",
                     .range = Within(1, 1 << 24),
                     .yields_to = "global_batch_size",
                     .word = "auto"},
                    1),
      Describe<std::optional<int>>("global_batch_size", "Batch",
                                   {.help = "of all", .range = AtLeast(1), .yields_to = "batch_size"}, std::nullopt),
      Describe<uint64_t>("seed", "Batch", {.help = "fixes chance"}, 42),
      Describe<bool>("download", "Batch", {.help = "fetch", .kind = SettingKind::kPlace}, true),
      Describe<std::optional<std::string>>("suffix", "Batch", {.help = "name", .kind = SettingKind::kPlace},
                                           std::nullopt),
      Describe<std::vector<std::string>>("debug", "Batch", {.help = "looks", .choices = {"sync", "nan"}}, {}),
  });
  return table;
}

}  // namespace switchyard
