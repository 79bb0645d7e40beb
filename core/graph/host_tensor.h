// Tensors in host memory by name: how weights travel between graphs, files and tests. Plain data.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/graph/types.h"

namespace switchyard {

struct HostTensor {
  Shape shape;
  std::vector<float> values;  // row-major
};
using HostTensors = std::map<std::string, HostTensor>;  // by name

}  // namespace switchyard
