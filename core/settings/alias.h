// Names that people bring from other programs: `--opt_level=O2` where ours is `--amp=O2`. An alias works as a flag, in
// any case and with '-' or '_', as a key of a config file, and as an environment variable: under its own name where
// that has capitals (AIAK_FUSED_OPTIMIZER), else as SWITCHYARD_<NAME>. It is another way to give a setting, never a
// setting of its own: what is listed and kept has our name, and says by which alias it was given. Plain data;
// thread-safe.
#pragma once

#include <map>
#include <string>

#include "core/base/status.h"

namespace switchyard {

struct Alias {
  std::string name;     // as its program spells it; that of its own setting: `values` are more words for values of it
  std::string of;       // that program: "apex"
  std::string setting;  // ours; "": what it asks for is always so here, and the keys of `values` ask for it
  // Their words and ours, where they differ. A number in `suffix`'s unit gets it behind: "20" epochs are "20e".
  std::map<std::string, std::string> values = {};
  std::string suffix = {};
  double factor = 1;    // of a number: theirs times this is ours
  bool share = false;   // a number from 0 to 1, of which ours is told by its point: 1 is "1.0"
  bool others = false;  // `values` are some of theirs; the others are ours as they are
  // Our value that gives way to what else the same source says of the setting: "no" of a switch, where other names
  // stand for other values, 0 where theirs means none, and the default that a program prints beside the others.
  std::string off = {};
  // What a word of theirs says of other settings of ours, by their names: timm's "sgd" of nesterov.
  std::map<std::string, std::map<std::string, std::string>> beside = {};
  std::string always = {};   // what is so, of one without a setting: "gradients are views into buckets"
  std::string instead = {};  // what to do where they say something else: "leave it out"

  bool IsSwitch() const { return values.contains("true"); }  // may stand without a value
};

// How aliases are looked up: lower case, '_' for '-'.
std::string AliasKey(const std::string& name);
// The environment variable that gives it.
std::string VariableOf(const Alias& alias);
// Our text for theirs, "" for None. InvalidArgument where the alias knows words only and this is none of them.
StatusOr<std::string> Translate(const Alias& alias, const std::string& text);

}  // namespace switchyard
