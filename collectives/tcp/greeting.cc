#include "collectives/tcp/greeting.h"

#include <sys/random.h>

#include "core/abi/boundary.h"

namespace tcp {

bool FillNonce(char* nonce) { return getrandom(nonce, kNonceBytes, 0) == static_cast<ssize_t>(kNonceBytes); }

bool Same(const char* proof, const char* other) {
  volatile char difference = 0;  // it takes equally long wherever they differ
  for (size_t i = 0; i < kProofBytes; ++i) difference = static_cast<char>(difference | (proof[i] ^ other[i]));
  return difference == 0;
}

void Acquaintance::Prove(const char* side, char* proof) const {
  std::string text = switchyard::Format("tcp %s %d %d %d %zu ", side, listener, visitor, size, communicator.size());
  text += communicator;
  text.append(listener_nonce, kNonceBytes).append(visitor_nonce, kNonceBytes);
  store->digest(store->context, text.data(), static_cast<uint32_t>(text.size()),
                reinterpret_cast<unsigned char*>(proof));
}

}  // namespace tcp
