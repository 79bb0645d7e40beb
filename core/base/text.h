// Text that came from outside (names in files, messages of libraries and plugins) as a message or a terminal may show
// it. Control characters, among them those that move a terminal's cursor or turn the direction of writing, and bytes
// that are not UTF-8 become \n, \x1b or \u202e. Thread-safe: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

inline constexpr size_t kMostOfAName = 120;  // bytes that a message repeats of one name

// At most `most` bytes of the text, on one line; "…" stands for the rest.
std::string Printable(std::string_view text, size_t most = kMostOfAName);

// The same with line ends and tabs kept: for whole messages.
std::string PrintableLines(std::string_view text, size_t most);

// The text itself where it is UTF-8. Else every byte of it that is not stands as \xe9, and each backslash as two: for
// names of files, which may be any bytes, where JSON and others take UTF-8 only.
std::string InUtf8(std::string_view text);

// "[3, 224, 224]"; of more than eight dimensions the first eight and how many there are.
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace switchyard
