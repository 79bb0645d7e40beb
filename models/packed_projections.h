// The projection of queries, keys and values, which is one matrix here and in timm and three in Hugging Face's files:
// <attention>.attn.qkv.{weight, bias} and <attention>.attn.qkv.{query, key, value}.{weight, bias}, whose rows follow
// one another. Thread-safe: pure functions.
#pragma once

#include "core/graph/host_tensor.h"

namespace switchyard {

// Three become one, where all three are there and fit.
void JoinProjections(HostTensors* tensors);
// One becomes three.
void SplitProjections(HostTensors* tensors);

}  // namespace switchyard
