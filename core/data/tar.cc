// Layout after POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block", and the GNU tar manual's "basic
// tar format": blocks of 512 bytes, numbers in octal text (GNU: big-endian binary where the first bit is set).
#include "core/data/tar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>

#include "core/base/text.h"

namespace switchyard {
namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kMaxHeaderText = 1 << 20;  // bytes; of a long name or a pax header

using Block = std::array<uint8_t, kBlock>;

std::string TextField(const Block& block, size_t offset, size_t length) {
  const auto* begin = reinterpret_cast<const char*>(block.data()) + offset;
  return std::string(begin, std::find(begin, begin + length, '\0'));
}

std::optional<int64_t> NumberField(const Block& block, size_t offset, size_t length) {
  int64_t value = 0;
  if (block[offset] & 0x80) {
    value = block[offset] & 0x3F;
    for (size_t i = 1; i < length; ++i) {
      if (value >> 54) return std::nullopt;
      value = value << 8 | block[offset + i];
    }
    return value;
  }
  bool any = false;
  for (size_t i = 0; i < length; ++i) {
    const uint8_t digit = block[offset + i];
    if (digit == ' ' && !any) continue;
    if (digit == ' ' || digit == '\0') break;
    if (digit < '0' || digit > '7' || value >> 59) return std::nullopt;
    value = value << 3 | (digit - '0');
    any = true;
  }
  return value;
}

// The sum of the header's bytes, its own field counted as blanks.
bool ChecksumMatches(const Block& block) {
  const auto expected = NumberField(block, 148, 8);
  int64_t sum = 8 * ' ';
  for (size_t i = 0; i < block.size(); ++i) sum += i >= 148 && i < 156 ? 0 : block[i];
  return expected == sum;
}

// pax records are "length key=value\n". Fills what is there; false where a record is malformed.
bool ParsePax(const std::string& text, std::string* name, std::string* link, int64_t* size) {
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const char* begin = text.data() + at;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), length);
    const size_t head = static_cast<size_t>(end - begin) + 1;
    if (error != std::errc() || length <= head || length > text.size() - at || *end != ' ') return false;
    const std::string record = text.substr(at + head, length - head - 1);
    const size_t equals = record.find('=');
    if (equals == std::string::npos) return false;
    const std::string key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") *name = value;
    if (key == "linkpath") *link = value;
    if (key == "size") {
      int64_t number = 0;
      const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
      if (parsed.ec != std::errc() || number < 0) return false;
      *size = number;
    }
    at += length;
  }
  return true;
}

// Without "./" in front and "/" at the end.
std::string CleanName(std::string name) {
  while (name.rfind("./", 0) == 0) name.erase(0, 2);
  while (!name.empty() && name.back() == '/') name.pop_back();
  return name;
}

// Appends, for each link, the file that it leads to under the link's name.
void FollowLinks(const std::map<std::string, std::string>& links, std::vector<FileTree::Entry>* entries,
                 std::vector<std::string>* lost_links) {
  constexpr int kMostInARow = 40;  // links that lead to links, as the kernel follows them
  std::map<std::string, FileTree::Entry> files;
  for (const FileTree::Entry& entry : *entries) {
    if (!links.empty() && !entry.folder) files[entry.name] = entry;
  }
  for (const auto& [name, first_target] : links) {
    std::string target = first_target;
    for (int i = 0; i < kMostInARow && links.contains(target); ++i) target = links.at(target);
    const auto found = files.find(target);
    if (found == files.end()) {
      lost_links->push_back(name);
    } else {
      entries->push_back({name, false, found->second.offset, found->second.size});
    }
  }
}

}  // namespace

Status IndexTar(const ReadAtFunction& read_at, int64_t size, std::vector<FileTree::Entry>* entries,
                std::vector<std::string>* lost_links) {
  std::string long_name, long_link;
  std::map<std::string, std::string> links;  // what names lead to, both in the archive
  int64_t long_size = -1;  // bytes; below 0: the header's own holds
  for (int64_t at = 0; at < size;) {
    if (size - at < kBlock) return DataLoss("tar archive ends inside a header at offset {}; fetch it again", at);
    Block block;
    SY_RETURN_IF_ERROR(read_at(at, kBlock, block.data()));
    if (std::all_of(block.begin(), block.end(), [](uint8_t byte) { return byte == 0; })) {
      if (at == 0) return DataLoss("expected a tar archive, found zeros at its start");
      break;
    }
    const auto header_size = NumberField(block, 124, 12);
    if (!ChecksumMatches(block) || !header_size || *header_size < 0) {
      return DataLoss("{} at offset {}", at == 0 ? "expected a tar archive, found no tar header" : "broken tar header",
                      at);
    }
    const char type = static_cast<char>(block[156]);
    const bool describes_next = type == 'L' || type == 'K' || type == 'x';
    const int64_t member_size = describes_next || long_size < 0 ? *header_size : long_size;
    const int64_t begin = at + kBlock;
    if (member_size > size - begin) {
      return DataLoss(
          "tar member {} of {} bytes at offset {} reaches past the end of the archive ({} bytes); fetch it again",
          Printable(long_name.empty() ? TextField(block, 0, 100) : long_name), member_size, begin, size);
    }
    at = begin + (member_size + kBlock - 1) / kBlock * kBlock;
    if (describes_next) {
      if (member_size > kMaxHeaderText) return DataLoss("broken tar header at offset {}: a name too long", begin);
      std::string text(static_cast<size_t>(member_size), '\0');
      SY_RETURN_IF_ERROR(read_at(begin, member_size, reinterpret_cast<uint8_t*>(text.data())));
      if (type != 'x') {
        (type == 'L' ? long_name : long_link) = text.substr(0, text.find('\0'));
      } else if (!ParsePax(text, &long_name, &long_link, &long_size)) {
        return DataLoss("broken pax header at offset {}", begin);
      }
      continue;
    }
    std::string name = long_name;
    if (name.empty()) {
      const std::string prefix =
          TextField(block, 257, 5) == "ustar" && block[262] == 0 ? TextField(block, 345, 155) : "";
      name = (prefix.empty() ? "" : prefix + "/") + TextField(block, 0, 100);
    }
    const bool folder = type == '5' || (type == '\0' && !name.empty() && name.back() == '/');
    name = CleanName(name);
    if (folder || type == '0' || type == '\0' || type == '7') {
      links.erase(name);
      if (!name.empty() && name != ".") entries->push_back({name, folder, begin, folder ? 0 : member_size});
    }
    if (type == '1' || type == '2') {  // a hard link to an earlier member; a symbolic one, from its own folder on
      const std::filesystem::path target = long_link.empty() ? TextField(block, 157, 100) : long_link;
      const std::filesystem::path from = type == '2' ? std::filesystem::path(name).parent_path() : "";
      links[name] = CleanName((from / target).lexically_normal().generic_string());
    }
    if (type != 'g') {
      long_name.clear();
      long_link.clear();
      long_size = -1;
    }
  }
  if (size == 0) return DataLoss("expected a tar archive, found an empty file");
  FollowLinks(links, entries, lost_links);
  return OkStatus();
}

}  // namespace switchyard
