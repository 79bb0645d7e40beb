// The Swin Transformer as Hugging Face's transformers, timm and Microsoft's own program have it: architecture in
// config.json (Microsoft has none), and where it stands in models/foreign_format.h. What cannot be (another activation,
// heads that do not double) is an error that names the field. Thread-safe: pure functions.
#pragma once

#include <vector>

#include "models/foreign_format.h"

namespace switchyard {

// "huggingface", in which runs publish, "timm" and "microsoft".
const std::vector<ForeignFormat>& SwinFormats();

}  // namespace switchyard
