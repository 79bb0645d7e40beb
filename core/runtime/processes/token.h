// The token of a run: the secret by which its processes know each other (handshake.h). `switchyard launch` and PMIx
// hand out a random one. Where nobody does, the user gives one: SWITCHYARD_TOKEN, else the file SWITCHYARD_TOKEN_FILE,
// else the file ~/.switchyard_token. A file must be a regular one of the user's that nobody else can read. Ranks that
// meet on the loopback of one host need none: they share a file with random bytes in the user's cache folder, made when
// it is missing. Free functions, thread-safe.
#pragma once

#include <optional>
#include <string>

#include "core/base/status.h"

namespace switchyard {

// A new token: 128 random bits in hexadecimal.
StatusOr<std::string> RandomToken();

// What the user gave; nullopt where that is nothing. A `file` comes before everything else. Errors: a file that is not
// there or that others can read, or a token that can be guessed (under 16 characters).
StatusOr<std::optional<std::string>> GivenToken(const std::optional<std::string>& file = {});

// The token for a meeting: what the user gave, else, on the loopback, the user's own. Beyond the loopback an error says
// how to make one.
StatusOr<std::string> FindToken(bool loopback, const std::optional<std::string>& file = {});

}  // namespace switchyard
