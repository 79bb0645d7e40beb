// Suggestions for mistyped names: every message about an unknown flag, device, model, dataset or op ends with one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace switchyard {

// How many letters must be put in, left out or replaced to make one of the other (Levenshtein).
size_t EditDistance(const std::string& a, const std::string& b);

// The known name nearest to `name` by edit distance, or "" when none is near enough to be a likely typing error.
std::string Nearest(const std::string& name, const std::vector<std::string>& known);

// " (did you mean vit_base?)", or "" without a likely candidate.
std::string DidYouMean(const std::string& name, const std::vector<std::string>& known);

}  // namespace switchyard
