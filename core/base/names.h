// Names in messages: suggestions for mistyped ones (every message about an unknown flag, device, model, dataset or op
// ends with one), and a form fit for a terminal of those that come from outside. Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// The known name nearest to `name` by edit distance, or "" when none is near enough to be a likely typing error.
std::string Nearest(const std::string& name, const std::vector<std::string>& known);

// " (did you mean vit_base?)", or "" without a likely candidate.
std::string DidYouMean(const std::string& name, const std::vector<std::string>& known);

// Text from a plugin, a file or a peer, as it may be written to a terminal, a log or one line of a report. Control
// characters (also the C1 set, line separators and marks that turn the direction of text) and bytes that are not UTF-8
// come out escaped ("\n", "\x1b", "\u202e"); a text longer than `limit` bytes is cut between characters and ends in
// "...".
std::string Printable(std::string_view text, size_t limit);

}  // namespace switchyard
