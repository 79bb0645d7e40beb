// The recorded numbers of tests/fixtures, as tensors in memory.
#pragma once

#include <string>

#include "models/weights.h"

namespace switchyard {

// The F32 and F64 tensors of a file whose names start with `prefix`, without the prefix. A test failure where the file
// cannot be read.
HostTensors ReadFixture(const std::string& file, const std::string& prefix = "");

}  // namespace switchyard
