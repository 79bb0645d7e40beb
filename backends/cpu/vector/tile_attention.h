// Attention of one bf16 head with its products on tiles (tiles.h); see attention.cc for the algorithm.
#pragma once

#include "backends/cpu/vector/kernels.h"

namespace switchyard::SY_ISA {

uint64_t TileAttentionScratch(int64_t tokens, int64_t head_dim, bool backward);
void TileAttention(const AttentionHead& a);
void TileAttentionBackward(const AttentionHead& a);

}  // namespace switchyard::SY_ISA
