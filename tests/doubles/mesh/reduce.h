// The reductions of a doubled collective library: in rank order, 16-bit floats in single precision and rounded once.
// Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace doubles {

enum class Type { kF32, kBF16, kF16, kF64, kI32, kI64, kU8, kI8 };
enum class Reduction { kSum, kMax, kMin, kProduct };

size_t BytesOf(Type type);  // of one element

// into[i] = parts[0][i] ∘ parts[1][i] ∘ …; `into` may be one of the parts.
void Reduce(void* into, const std::vector<const void*>& parts, size_t count, Type type, Reduction reduction);

}  // namespace doubles
