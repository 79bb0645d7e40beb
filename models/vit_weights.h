// The two foreign namings of a Vision Transformer's weights; models/weights.h has the table and checks the result.
// Tensors of names or shapes that are not a ViT's pass through unchanged, for the check to report. Thread-safe: pure
// functions.
#pragma once

#include "models/weights.h"

namespace switchyard {

// timm's or Hugging Face's (found out from the names; with or without the prefix "vit.") → ours. Hugging Face's pooler,
// which classification does not use, is dropped.
HostTensors VitWeightsFromFile(HostTensors tensors);

// Ours → timm's or Hugging Face's.
HostTensors VitWeightsToFile(HostTensors parameters, WeightStyle style);

}  // namespace switchyard
