// What tests compare of other libraries' files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/foreign_format.h"
#include "models/vit.h"
#include "models/weights.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// The config.json that a format writes.
nlohmann::json Written(const std::string& format, const ResolvedModel& model, const std::vector<std::string>& classes,
                       const EvaluationTransform& transform = {.image_size = 40, .channels = 1});

// What a config.json says as a config.
VisionTransformerConfig ConfigOf(const ForeignModel& found);

// Values by name and shape.
std::map<std::string, std::vector<float>> Values(const HostTensors& tensors);

// Every value of its own, in shapes as WeightTypes says.
HostTensors Numbered(const ResolvedModel& model);

}  // namespace switchyard
