#include "core/base/json.h"

#include <set>

namespace switchyard {
namespace {

using Json = nlohmann::json;

// Looks at the text event by event and builds nothing; each answer of false ends the parsing.
class Checker : public nlohmann::json_sax<Json> {
 public:
  explicit Checker(const JsonRules& rules) : rules_(rules) {}
  Status status() const { return status_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    if (rules_.unique_keys) keys_.emplace_back();
    return Enter();
  }
  bool start_array(size_t) override { return Enter(); }
  bool end_object() override {
    if (rules_.unique_keys) keys_.pop_back();
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (!rules_.unique_keys || keys_.back().insert(name).second) return true;
    status_ = InvalidArgument("the key '{}' appears twice", Printable(name));
    return false;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 3, column 1: …"
    const size_t begin = what.find("] ");
    status_ = InvalidArgument("not JSON: {}", Printable(what.substr(begin == std::string::npos ? 0 : begin + 2), 240));
    return false;
  }

 private:
  bool Enter() {
    if (++depth_ <= rules_.depth) return true;
    status_ = InvalidArgument("JSON that is nested deeper than {} levels", rules_.depth);
    return false;
  }

  const JsonRules& rules_;
  Status status_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the objects around
};

}  // namespace

Status CheckJson(std::string_view text, const JsonRules& rules) {
  if (text.size() > rules.bytes) {
    return InvalidArgument("JSON of {} bytes, expected at most {}", text.size(), rules.bytes);
  }
  Checker checker(rules);
  Json::sax_parse(text, &checker, Json::input_format_t::json, /*strict=*/true, rules.comments);
  return checker.status();
}

}  // namespace switchyard

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;
