// The settings of one start, each with the place that it came from. Sources give values (flags, environment, config
// file, checkpoint); what they leave open is filled by the recipe, the model, the dataset. A value from nearer to the
// user replaces one from farther, in whatever order they are given; a setting changes no other. Not thread-safe to
// change.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/settings/alias.h"
#include "core/settings/setting.h"
#include "core/settings/shorthand.h"

namespace switchyard {

// Rows in the order in which they are shown; names differ, those of aliases and shorthands from them too.
class SettingTable {
 public:
  explicit SettingTable(std::vector<Setting> rows, std::vector<Alias> aliases = {},
                        std::vector<Shorthand> shorthands = {});
  const std::vector<Setting>& rows() const { return rows_; }
  const std::vector<Alias>& aliases() const { return aliases_; }
  const std::vector<Shorthand>& shorthands() const { return shorthands_; }
  const Setting* Find(const std::string& name) const;             // null: unknown
  const Setting* FindRenamed(const std::string& name) const;      // which had that name; null: none had it
  const Alias* FindAlias(const std::string& name) const;          // however it is spelled; null: there is none
  const Alias* WordsFor(const std::string& setting) const;        // of others for its values; null: there are none
  const Shorthand* FindShorthand(const std::string& name) const;  // null: there is none
  std::vector<std::string> Names() const;

 private:
  std::vector<Setting> rows_;
  std::vector<Alias> aliases_;
  std::vector<Shorthand> shorthands_;
  std::map<std::string, size_t> by_name_, alias_by_key_;
};

class Settings {
 public:
  // `table` outlives it.
  explicit Settings(const SettingTable& table) : table_(&table) {}
  const SettingTable& table() const { return *table_; }

  // A value from a source, which `source` names for messages. Kept unless a nearer one is there. An empty text, or
  // null, takes back what farther sources give: the fillers decide then. InvalidArgument for an unknown name, for a
  // value that its row does not allow and for one of more than 4096 bytes: what a path has at most.
  Status GiveText(const std::string& name, const std::string& text, Origin origin, const std::string& source);
  Status Give(const std::string& name, nlohmann::json value, Origin origin, const std::string& source);
  // The setting that an alias stands for; what it says beside, ResolveYields takes. InvalidArgument too where the same
  // source gives another value for it of which neither gives way, and where it asks for something else than what is
  // always so.
  Status GiveAlias(const Alias& alias, const std::string& text, Origin origin, const std::string& source);
  // The settings that a shorthand stands for, each as by an alias.
  Status GiveShorthand(const Shorthand& shorthand, const std::string& text, Origin origin, const std::string& source);
  // Of a filler: only where nothing is there. The name is known and the value right.
  void Fill(const std::string& name, nlohmann::json value, Origin origin, const std::string& source = "");
  void Fill(const SettingValues& values, Origin origin, const std::string& source);
  // What a rule makes of the values given: whatever was there is replaced.
  void Replace(const std::string& name, nlohmann::json value, Origin origin, const std::string& source = "");
  void Forget(const std::string& name);

  // When all sources have been read: drops each setting that yields to one which comes from nearer, and takes what
  // aliases say beside a value that still holds, from a source as near as theirs, where none as near gives that itself.
  void ResolveYields();

  bool Has(const std::string& name) const { return !Value(name).is_null(); }
  const nlohmann::json& Value(const std::string& name) const;  // null: absent
  // The value, else the row's default; nullopt where neither is there, or where it is a word in place of a number.
  template <typename T>
  std::optional<T> Get(const std::string& name) const {
    const nlohmann::json& value = Has(name) ? Value(name) : table_->Find(name)->standard;
    T result{};
    return !value.is_null() && FromJson(value, &result) ? std::optional<T>(std::move(result)) : std::nullopt;
  }
  Origin OriginOf(const std::string& name) const;  // of an absent one: kDefault
  const std::string& SourceOf(const std::string& name) const;
  // What was given by an alias and holds: "--opt_level=O2 (apex)" by the setting's name.
  std::map<std::string, std::string> Translated() const;
  // What aliases asked for that is always so: "the graph stays as it is" by "--static_graph=1 (Colossal-AI)".
  const std::map<std::string, std::string>& AlwaysSo() const { return always_so_; }
  // The acts with which the run of a config file began, which a file does not repeat: {"pretrained": "weights"}.
  const SettingValues& StartedFrom() const { return started_from_; }
  void SetStartedFrom(SettingValues acts) { started_from_ = std::move(acts); }
  bool IsGiven(const std::string& name) const { return Has(name) && IsOfUser(OriginOf(name)); }  // by the user
  // By hand, for this start: not by a config file, which may hold the settings of a whole run.
  bool IsChosen(const std::string& name) const { return Has(name) && OriginOf(name) >= Origin::kEnvironment; }

 private:
  struct Entry {
    nlohmann::json value;  // null: taken back
    Origin origin = Origin::kDefault;
    std::string source;
    const Alias* alias = nullptr;  // by which it was given
  };
  struct Beside {
    std::string name;
    Entry entry;
    std::string of;        // where this setting
    nlohmann::json value;  // has this value, from the entry's origin
  };
  const Entry* Find(const std::string& name) const;

  const SettingTable* table_;
  std::map<std::string, Entry> entries_;
  std::vector<Beside> beside_;
  std::map<std::string, std::string> always_so_;
  SettingValues started_from_;
};

}  // namespace switchyard
