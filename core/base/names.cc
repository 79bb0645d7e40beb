#include "core/base/names.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "fmt/format.h"

namespace switchyard {
namespace {

// Levenshtein distance with one row.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

// The character at the start of `text` and its length in bytes; length 0 where that is no valid UTF-8.
std::pair<char32_t, size_t> FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const size_t length = byte(0) >= 0xF8 ? 0 : byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : byte(0) >= 0xC0 ? 2 : 0;
  if (length == 0 || length > text.size()) return {0, 0};
  char32_t character = byte(0) & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {0, 0};
    character = character << 6 | (byte(i) & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // longer forms than needed are not valid
  const bool surrogate = character >= 0xD800 && character < 0xE000;
  if (character < kLeast[length] || character > 0x10FFFF || surrogate) return {0, 0};
  return {character, length};
}

// Does a terminal act on it, or show the text around it elsewhere?
bool IsControl(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x61C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string Nearest(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string DidYouMean(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(name, known);
  return nearest.empty() ? "" : " (did you mean " + nearest + "?)";
}

std::string Printable(std::string_view text, size_t limit) {
  std::string shown;
  while (!text.empty()) {
    const auto [character, length] = FirstCharacter(text);
    std::string piece(text.substr(0, length));
    if (length == 0) {
      piece = fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (character == '\n' || character == '\t' || character == '\r') {
      piece = character == '\n' ? "\\n" : character == '\t' ? "\\t" : "\\r";
    } else if (IsControl(character)) {
      piece = character < 0x100 ? fmt::format("\\x{:02x}", static_cast<uint32_t>(character))
                                : fmt::format("\\u{:04x}", static_cast<uint32_t>(character));
    }
    if (shown.size() + piece.size() > limit) return shown + "...";
    shown += piece;
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return shown;
}

}  // namespace switchyard
