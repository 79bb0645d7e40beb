// How two processes prove to each other that both have the run's token, without saying it: each gives a fresh random
// nonce, and each answers with HMAC-SHA-256, keyed by the token, of its side, both nonces and the visitor's hello (the
// three-pass mutual authentication of ISO/IEC 9798-4). The holder of a meeting challenges, the visitor proves first.
// As nonces are fresh nothing can be replayed; as the side is part of the digest nothing can be reflected; as the hello
// is part of it nothing can be changed on the way. What follows on the connection is neither encrypted nor
// authenticated.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

enum class Side { kVisitor, kHolder };

StatusOr<std::string> NewNonce();  // 32 random bytes
std::string Proof(Side side, const std::string& token, const std::string& holder_nonce,
                  const std::string& visitor_nonce, const std::vector<std::string>& hello);

}  // namespace switchyard
