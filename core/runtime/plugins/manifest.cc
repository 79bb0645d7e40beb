#include "core/runtime/plugins/manifest.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "nlohmann/json.hpp"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr size_t kLargestManifest = 1 << 16;
constexpr int64_t kLargestPriority = 1000000;
constexpr size_t kLongestSummary = 512, kLongestValue = 128;  // bytes of a manifest's text that are shown

// Plugin names are part of file names and messages.
bool IsName(const std::string& text) {
  return !text.empty() && text.size() < 64 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

}  // namespace

Status ParseManifest(const std::string& path, Candidate& candidate, std::string& library) {
  const auto content = ReadWholeFile(path, kLargestManifest);
  if (!content.ok()) {
    return InvalidArgument("manifest {} is unreadable or larger than {} bytes", path, kLargestManifest);
  }
  const auto parsed = ParseJson(*content, {.unique_keys = true});
  if (!parsed.ok()) return Annotate(parsed.status(), "manifest " + path);
  if (!parsed->is_object()) return InvalidArgument("manifest {} is not a JSON object", path);
  const json& manifest = *parsed;
  const auto text = [&](const char* key) {
    const auto value = manifest.find(key);
    return value != manifest.end() && value->is_string() ? value->get<std::string>() : std::string();
  };
  const std::string name = text("name"), kind = text("kind");
  library = text("library");
  if (!IsName(name)) return InvalidArgument("manifest {}: \"name\" is missing or not a plain name", path);
  candidate.name = name;
  if (const std::string host = text("host"); !host.empty()) candidate.host = host;
  candidate.summary = Printable(text("summary"), kLongestSummary);
  bool known = false;
  for (const PluginKind one : {PluginKind::kBackend, PluginKind::kCollective, PluginKind::kInterposer}) {
    if (kind != KindName(one)) continue;
    candidate.kind = one;
    known = true;
  }
  if (!known) {
    return InvalidArgument("manifest {}: \"kind\" is \"{}\"; expected \"backend\", \"collective\" or \"interposer\"",
                           path, Printable(kind, kLongestValue));
  }
  if (library.empty() || library.find('/') != std::string::npos) {
    return InvalidArgument("manifest {}: \"library\" is \"{}\"; expected a file name in the same folder", path,
                           Printable(library, kLongestValue));
  }
  const auto abi = manifest.find("abi");
  int version = 0;
  if (abi != manifest.end() && !abi->is_number()) {
    return FailedPrecondition("manifest {}: \"abi\" is {}; expected the number {}", path, Excerpt(*abi), SY_ABI_MAJOR);
  }
  if (abi == manifest.end() || !FromJson(*abi, &version) || version != SY_ABI_MAJOR) {
    return FailedPrecondition("manifest {}: \"abi\" is {}; this program knows {}: build the plugin against its headers",
                              path, abi == manifest.end() ? "missing" : Excerpt(*abi), SY_ABI_MAJOR);
  }
  const auto priority = manifest.find("priority");
  if (priority != manifest.end()) {
    if (!FromJson(*priority, &candidate.priority) || std::abs(int64_t{candidate.priority}) > kLargestPriority) {
      return InvalidArgument("manifest {}: \"priority\" is {}; expected a whole number from -{} to {}", path,
                             Excerpt(*priority), kLargestPriority, kLargestPriority);
    }
  }
  return OkStatus();
}

}  // namespace switchyard
