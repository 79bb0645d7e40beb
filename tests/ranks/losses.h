// A training run short enough for a test on two ranks of a doubled device, and the losses that it logged.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace switchyard::ranks {

// Writes below the folder run/ of the current one, in a place that is named after `suffix`.
inline std::string SmallTrainingOf(const std::string& model, const std::string& suffix) {
  return "train --dataset=shapes --train_size=64 --validation_size=8 --batch_size=4 --steps=4 --log_every=1 "
         "--workers=1 --max_fallback=0 --output=run --suffix=" +
         suffix + " --model=" + model;
}

// Of every update, with every digit.
inline std::vector<double> LossesOf(const std::string& run, const std::string& suffix) {
  std::vector<double> losses;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run)) {
    const bool ours = entry.path().string().find("/" + suffix + "/") != std::string::npos;
    if (!ours || entry.path().filename() != "metrics.jsonl") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (record.contains("loss")) losses.push_back(record["loss"]);
    }
  }
  return losses;
}

}  // namespace switchyard::ranks
