#include "core/base/text.h"

#include <algorithm>

#include "fmt/format.h"

namespace switchyard {
namespace {

// The bytes of the UTF-8 character at the front of `text` and its code point; 0 bytes where it is not UTF-8.
struct Character {
  size_t bytes = 0;
  uint32_t code = 0;
};

Character FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, first};
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || bytes > text.size()) return {};
  uint32_t code = first & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {bytes, code};
}

// Moves the cursor, ends the line or turns the direction of writing.
bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x61C || code == 0x200E || code == 0x200F ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

std::string Escape(std::string_view text, size_t most, bool keep_lines) {
  std::string shown;
  while (!text.empty()) {
    const Character character = FirstCharacter(text);
    const size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    std::string piece(text.substr(0, bytes));
    if (character.bytes == 0) {
      piece = fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
    } else if (IsControl(character.code) && !(keep_lines && (character.code == '\n' || character.code == '\t'))) {
      piece = character.code == '\n'   ? "\\n"
              : character.code == '\t' ? "\\t"
              : character.code == '\r' ? "\\r"
              : character.code < 0x100 ? fmt::format("\\x{:02x}", character.code)
                                       : fmt::format("\\u{:04x}", character.code);
    }
    if (shown.size() + piece.size() > most) return shown + "…";
    shown += piece;
    text.remove_prefix(bytes);
  }
  return shown;
}

}  // namespace

std::string Printable(std::string_view text, size_t most) { return Escape(text, most, false); }

std::string PrintableLines(std::string_view text, size_t most) { return Escape(text, most, true); }

std::string InUtf8(std::string_view text) {
  std::string escaped;
  bool is_utf8 = true;
  for (std::string_view left = text; !left.empty();) {
    const size_t bytes = FirstCharacter(left).bytes;
    is_utf8 &= bytes > 0;
    if (bytes == 0)
      escaped += fmt::format("\\x{:02x}", static_cast<uint8_t>(left[0]));
    else
      escaped += left[0] == '\\' ? "\\\\" : left.substr(0, bytes);
    left.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return is_utf8 ? std::string(text) : escaped;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  constexpr size_t kMost = 8;
  std::string text = "[";
  for (size_t i = 0; i < shape.size() && i < kMost; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  if (shape.size() > kMost) text += fmt::format(", … of {} dimensions", shape.size());
  return text + "]";
}

}  // namespace switchyard
