#include "core/runtime/processes/handshake.h"

#include "core/base/secret.h"
#include "fmt/format.h"

namespace switchyard {

StatusOr<std::string> NewNonce() { return RandomBytes(32); }

std::string Proof(Side side, const std::string& token, const std::string& holder_nonce,
                  const std::string& visitor_nonce, const std::vector<std::string>& hello) {
  std::string text = side == Side::kVisitor ? "switchyard visitor" : "switchyard holder";
  // With lengths, so that no two lists of fields read alike.
  for (const std::string* field : {&holder_nonce, &visitor_nonce}) text += fmt::format(" {}:", field->size()) + *field;
  for (const std::string& field : hello) text += fmt::format(" {}:", field.size()) + field;
  return HmacSha256(token, text);
}

}  // namespace switchyard
