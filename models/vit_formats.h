// The Vision Transformer as Hugging Face's transformers and timm have it: architecture in config.json, and where it
// stands in models/foreign_format.h. What cannot be (another activation, no bias of qkv) is an error that names the
// field. Thread-safe: pure functions.
#pragma once

#include <vector>

#include "models/foreign_format.h"

namespace switchyard {

// "huggingface", in which runs publish, and "timm".
const std::vector<ForeignFormat>& VitFormats();

}  // namespace switchyard
