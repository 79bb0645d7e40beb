// Tables of positions that were learned on a square grid, resampled for a grid of another size, so that weights serve
// other images, patches and windows. Bicubic, as the programs do it whose weights these are; each table that changes is
// named in the log. Thread-safe: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/graph/host_tensor.h"
#include "core/graph/types.h"

namespace switchyard {

enum class GridFilter {
  // Keys' cubic convolution with a = −0.75 at four points, edges repeated, as torch.nn.functional.interpolate(mode =
  // "bicubic"): Swin's bias tables.
  kCubic,
  // With a = −0.5, as wide as the reduction, edges left out, as with antialias = True there: timm's
  // resample_abs_pos_embed.
  kAntialiased
};

// (from², C) row by row → (to², C); pixel centres are aligned, corners are not.
std::vector<float> ResampleGrid(const std::vector<float>& table, int64_t from, int64_t to, int64_t channels,
                                GridFilter filter);

// pos_embed (1, 1 + n², D) of a Vision Transformer → (1, 1 + m², D); the class token's position stays. `expected`: the
// model's shapes. What fits, or is no table of another grid, stays as it is.
void ResamplePositions(const std::map<std::string, TensorType>& expected, HostTensors* tensors);

// *.relative_position_bias_table ((2m−1)², heads) of a Swin Transformer, the same way.
void ResampleBiasTables(const std::map<std::string, TensorType>& expected, HostTensors* tensors);

}  // namespace switchyard
