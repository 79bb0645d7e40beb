// Datasets as the tests open them, and what an error says.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/data/formats.h"

namespace switchyard {

// Of files that are there: nothing is downloaded.
inline StatusOr<std::unique_ptr<Dataset>> OpenData(const std::string& name, const std::optional<std::string>& data,
                                                   Split split) {
  DatasetOptions options;
  options.name = name;
  options.data = data;
  options.download = false;
  return OpenDataset(options, split);
}

// The message of an error, or "no error".
inline std::string Error(const Status& status) { return status.ok() ? "no error" : Message(status); }

}  // namespace switchyard
