// How the two ends of a fresh connection prove to each other that they are ranks of this communicator: the listener
// sends a random nonce, the visitor answers with its rank, a nonce of its own and a keyed digest of all that, and the
// listener with another one (sy_store.digest). Nothing that is sent can be used a second time or sent back.
#pragma once

#include <cstdint>
#include <string>

#include "core/abi/collective.h"

namespace tcp {

constexpr size_t kNonceBytes = 16, kProofBytes = 32;

struct Hello {  // of the visitor, as it is sent
  uint32_t rank, size;
  char nonce[kNonceBytes];
  char proof[kProofBytes];
};
static_assert(sizeof(Hello) == 8 + kNonceBytes + kProofBytes);

bool FillNonce(char* nonce);  // kNonceBytes; false where the kernel has no random numbers
bool Same(const char* proof, const char* other);

// What both ends know of a connection between them.
struct Acquaintance {
  const sy_store* store;
  std::string communicator;
  int listener, visitor, size;  // ranks
  const char* listener_nonce;
  const char* visitor_nonce;

  void ProveVisitor(char* proof) const { Prove("visitor", proof); }
  void ProveListener(char* proof) const { Prove("listener", proof); }

 private:
  void Prove(const char* side, char* proof) const;
};

}  // namespace tcp
