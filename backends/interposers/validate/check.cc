// What is the same for every call.
#include <algorithm>
#include <shared_mutex>

#include "backends/interposers/validate/validate.h"

namespace switchyard {
namespace {

constexpr uint32_t kLargestStruct = 1 << 16;  // bytes; a header that says more is not a header
constexpr int kMostExtensions = 64;

// Handles of ours, with who made them. They stay after their end, until the address is another's.
struct Makers {
  std::shared_mutex mutex;
  std::unordered_map<const void*, Validate*> of;
  Validate* first = nullptr;
};
Makers& AllMakers() {
  static auto* const makers = new Makers;
  return *makers;
}

// True if the extension is the vendor's own: "acme.topic/1" of Acme, who may know it.
bool IsOf(const std::string& vendor, const char* extension) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return !vendor.empty() && std::strlen(extension) > vendor.size() && extension[vendor.size()] == '.' &&
         std::equal(vendor.begin(), vendor.end(), extension,
                    [&](char one, char other) { return lower(one) == lower(other); });
}

// One that was cut short, because there was no more room, may end inside of a character.
bool IsUtf8(const char* text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text);
  while (*at != 0) {
    const int more = *at < 0x80                  ? 0
                     : *at >= 0xC2 && *at < 0xE0 ? 1
                     : (*at & 0xF0) == 0xE0      ? 2
                     : *at >= 0xF0 && *at < 0xF5 ? 3
                                                 : -1;
    if (more < 0) return false;
    ++at;
    for (int i = 0; i < more; ++i, ++at) {
      if (*at == 0) return true;
      if ((*at & 0xC0) != 0x80) return false;
    }
  }
  return true;
}

}  // namespace

std::string ErrorBefore::Texts() const {
  return std::string(error_->message, strnlen(error_->message, sizeof error_->message)) + '\0' +
         std::string(error_->location, strnlen(error_->location, sizeof error_->location));
}

Validate::Validate(const sy_instance& interposer, const sy_plugin& inner)
    : Wrapped(interposer, inner), vendor_(inner.vendor == nullptr ? "" : inner.vendor) {
  Make(static_cast<sy_instance*>(this), this);
}

void Validate::Make(const void* handle, Validate* maker) {
  Makers& makers = AllMakers();
  const std::lock_guard lock(makers.mutex);
  if (makers.first == nullptr) makers.first = maker;
  makers.of[handle] = maker;
}

Validate* Validate::FindMaker(const void* handle) {
  Makers& makers = AllMakers();
  const std::shared_lock lock(makers.mutex);
  const auto found = makers.of.find(handle);
  return found == makers.of.end() ? nullptr : found->second;
}

Wrapped* Validate::MakerOf(const void* handle) {
  Validate* const maker = FindMaker(handle);
  return maker != nullptr ? maker : AllMakers().first;
}

Validate::Checked::Checked(Validate& owner, const char* function, Kind kind)
    : owner_(owner), function_(function), lock_(owner.mutex_), number_(++owner.calls_) {
  if (kind == kStatus && !owner.pending_.empty()) problem_ = std::exchange(owner.pending_, "");
}

sy_status Validate::Checked::Refuse(sy_error* error) const {
  return switchyard::Refuse(
      error, SY_INVALID, Text("validate: ", owner_.plugin_name(), ": call ", number_, ", ", function_, ": ", problem_));
}

void Validate::Checked::Report() {
  const std::string text = Text("call ", number_, ", ", function_, ": ", problem_);
  if (owner_.pending_.empty()) owner_.pending_ = "an earlier call was wrong and could not say so: " + text;
  owner_.Log(3, Text("validate: ", owner_.plugin_name(), ": ", text));
}

void Validate::Blame(const std::string& text) {
  if (pending_.empty()) pending_ = "in an earlier call the plugin broke a promise: " + text;
  Log(3, Text("validate: ", plugin_name(), ": the plugin broke a promise: ", text));
}

void Validate::BlameStatus(const char* function, sy_status status) {
  const std::lock_guard lock(mutex_);
  Blame(Text(function, ": it answered ", status,
             status == SY_TIMEOUT ? ", and nobody gave it a time limit" : ", which is for collectives only"));
}

void Validate::Headers::CheckOne(const sy_header& header) {
  const auto is_sane = [](const sy_header& one, size_t least) {
    return one.size >= least && one.size <= kLargestStruct;
  };
  if (!problem.empty()) return;
  if (!is_sane(header, sizeof(sy_header))) {
    problem = Text("the header of a struct says ", header.size, " bytes; expected SY_HEADER");
    return;
  }
  int links = 0;
  for (const sy_extension* link = header.next; link != nullptr; link = link->header.next) {
    if (++links > kMostExtensions) {
      problem = Text("the chain of extensions does not end after ", kMostExtensions, " links");
    } else if (!is_sane(link->header, sizeof(sy_extension)) || link->name == nullptr || *link->name == '\0') {
      problem = Text("an extension says ", link->header.size, " bytes and has ", link->name == nullptr ? "no" : "the",
                     " name; expected SY_HEADER and a name");
    }
    if (!problem.empty()) return;
    if (required == nullptr && link->required != 0) required = link;
  }
}

void Validate::Headers::CheckMore(const sy_init_request* request) {
  if (!problem.empty()) return;
  const sy_init_request known = ReadStruct(request);
  if (known.store != nullptr) CheckOne(known.store->header);
  if (known.backend != nullptr) CheckOne(known.backend->header);
}

sy_status Validate::RefuseHeader(const char* function, const std::string& problem, sy_error* error) {
  Checked check(*this, function);
  check.Expect(false, problem);
  return check.Refuse(error);
}

void Validate::CheckAnswer(const char* function, bool polls, sy_status status, const sy_error* error,
                           const ErrorBefore& before, const sy_extension* required) {
  std::string problem;
  if (status == SY_OK || status == SY_IN_PROGRESS) {
    if (!before.IsUntouched()) problem = Text("it answered ", status, " and changed the error");
    if (status == SY_IN_PROGRESS && !polls) problem = "it answered SY_IN_PROGRESS, which only polls may";
    if (status == SY_OK && required != nullptr && !IsOf(vendor_, required->name) &&
        !IsOf(plugin_name(), required->name)) {
      problem = Text("it answered SY_OK where the extension ", required->name,
                     " is required, which is not its own: expected SY_UNSUPPORTED");
    }
  } else if (error != nullptr && SY_HAS(sy_error, error, message)) {
    if (error->message[0] == '\0') problem = Text("it answered ", status, " without a message");
    if (!Ends(error->message)) problem = Text("it answered ", status, " with a message that does not end");
    if (problem.empty() && !IsUtf8(error->message))
      problem = Text("it answered ", status, " with a message that is not UTF-8");
    if (SY_HAS(sy_error, error, location) && !Ends(error->location))
      problem = Text("it answered ", status, " with a location that does not end");
  }
  if (problem.empty()) return;
  const std::lock_guard lock(mutex_);
  Blame(Text(function, ": ", problem));
}

}  // namespace switchyard
