// What processes need that share a secret and must not say it: random bytes, SHA-256 (FIPS 180-4), HMAC-SHA-256
// (RFC 2104), and a comparison whose duration tells nothing. For short messages: a few hundred MB/s. Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace switchyard {

// From the kernel's generator; FailedPrecondition where it has none, as under a sandbox.
StatusOr<std::string> RandomBytes(size_t count);
std::string Hexadecimal(std::string_view bytes);

// 32 bytes, not text.
std::string Sha256(std::string_view message);
std::string HmacSha256(std::string_view key, std::string_view message);

// Whether two digests are equal; takes equally long wherever they differ.
bool SameDigest(std::string_view one, std::string_view other);

}  // namespace switchyard
