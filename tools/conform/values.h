// Numbers of every storage dtype as doubles and back: how the kit makes inputs, reads outputs and compares them.
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/abi/base.h"

namespace switchyard::conform {

using Bytes = std::vector<uint8_t>;
Bytes RandomBytes(uint64_t count, uint64_t key);

bool IsFloat(sy_dtype dtype);
uint64_t BytesOf(sy_dtype dtype);
int64_t Elements(const sy_tensor& tensor);
sy_tensor Contiguous(sy_dtype dtype, const std::vector<int64_t>& dims);
std::string DimsText(const sy_tensor& tensor);  // "(2, 3)"

// Rounds to nearest even; integers are truncated.
Bytes Encode(const std::vector<double>& values, sy_dtype dtype);
std::vector<double> Decode(const Bytes& bytes, sy_dtype dtype);
// Values as the dtype can hold them.
std::vector<double> Rounded(const std::vector<double>& values, sy_dtype dtype);

}  // namespace switchyard::conform
