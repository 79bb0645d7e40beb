// Settings that are the fields of a plain struct, as a model's config is one: a row for each field, which also reads
// and writes it. Thread-safe: pure functions.
//
//   const std::vector<Field<Config>> kFields = {FieldOf<&Config::depth>("depth", {.help = "number of layers"})};
#pragma once

#include <string>
#include <vector>

#include "core/settings/setting.h"

namespace switchyard {

template <typename Config>
struct Field {
  Setting setting;
  nlohmann::json (*read)(const Config& config);
  bool (*write)(const nlohmann::json& value, Config* config);  // false where the field cannot hold it
};

template <typename Member>
struct MemberOf;
template <typename Struct, typename T>
struct MemberOf<T Struct::*> {
  using Config = Struct;
  using Type = T;
};

template <auto kMember>
Field<typename MemberOf<decltype(kMember)>::Config> FieldOf(const std::string& name, SettingTraits traits) {
  using Config = typename MemberOf<decltype(kMember)>::Config;
  using Type = typename MemberOf<decltype(kMember)>::Type;
  return {Describe<Type>(name, "", std::move(traits), Config().*kMember),
          [](const Config& config) { return JsonOf(config.*kMember); },
          [](const nlohmann::json& value, Config* config) { return ReadInto(value, &(config->*kMember)); }};
}

template <typename Config>
std::vector<Setting> RowsOf(const std::vector<Field<Config>>& fields) {
  std::vector<Setting> rows;
  for (const Field<Config>& field : fields) rows.push_back(field.setting);
  return rows;
}

template <typename Config>
SettingValues ValuesOf(const std::vector<Field<Config>>& fields, const Config& config) {
  SettingValues values;
  for (const Field<Config>& field : fields) values[field.setting.name] = field.read(config);
  return values;
}

// What `values` does not hold keeps its value. InvalidArgument where a field cannot hold one.
template <typename Config>
Status Assign(const std::vector<Field<Config>>& fields, const SettingValues& values, Config* config) {
  for (const Field<Config>& field : fields) {
    const auto found = values.find(field.setting.name);
    if (found != values.end() && !field.write(found->second, config)) {
      return InvalidArgument("--{}: {} has the wrong type or is out of range", field.setting.name,
                             Excerpt(found->second));
    }
  }
  return OkStatus();
}

}  // namespace switchyard
