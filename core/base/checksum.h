// CRC-32 as zlib, gzip and PNG have it (ISO 3309: polynomial 0x04C11DB7, bits reflected, inverted before and after), at
// the speed of memory: where the processor multiplies without carries, the bytes are folded 64 or 256 at a time. It
// finds every damage within 32 bits in a row, and leaves 1 in 2^32 of others unseen.
//
// Folding: V. Gopal, E. Ozturk et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel, 2009. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard {

// Of `bytes` bytes, as a continuation of what has the checksum `before`: Crc32(b, n, Crc32(a, m)) is that of a with b
// behind it.
uint32_t Crc32(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace switchyard
