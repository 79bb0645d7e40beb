// How long ranks wait for each other where nothing else is asked for, in milliseconds.
#pragma once

namespace switchyard {

inline constexpr int kFreezeLimitMs = 30000;  // of silence, after which a rank counts as frozen
inline constexpr int kInitTimeoutMs = 60000;  // at start

}  // namespace switchyard
