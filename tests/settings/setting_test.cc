// One setting: what text and JSON may stand in it, and what is said of the rest.
#include "core/settings/setting.h"

#include "gmock/gmock.h"
#include "tests/settings/table.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const Setting& Row(const char* name) { return *SmallTable().Find(name); }

Json FromText(const char* name, const std::string& text) {
  const auto value = ValueFromText(Row(name), text);
  return value.ok() ? *value : Json(Message(value.status()));
}
std::string Checked(const char* name, const Json& value) { return Message(CheckValue(Row(name), value)); }

TEST(SettingValue, TextIsReadAsTheTypeOfItsField) {
  EXPECT_EQ(FromText("lr", "0.1"), 0.1);
  EXPECT_EQ(FromText("lr", "1e-3"), 1e-3);
  EXPECT_EQ(FromText("batch_size", "32"), 32);
  EXPECT_EQ(FromText("batch_size", "3.0"), 3);
  EXPECT_EQ(FromText("batch_size", "auto"), "auto");
  EXPECT_EQ(FromText("seed", "18446744073709551615"), 18446744073709551615u);
  EXPECT_EQ(FromText("download", "no"), false);
  EXPECT_EQ(FromText("debug", "sync,nan"), (Json{"sync", "nan"}));
  for (const char* wrong : {"many", "1.5", "1e3", "0x10x"})
    EXPECT_THAT(FromText("batch_size", wrong).get<std::string>(),
                AllOf(HasSubstr(wrong), HasSubstr("--batch_size: expected a whole number or auto")));
  EXPECT_THAT(FromText("seed", "99999999999999999999").get<std::string>(), HasSubstr("is not a value for --seed"));
  EXPECT_THAT(FromText("download", "perhaps").get<std::string>(), HasSubstr("expected true or false"));
}

TEST(SettingValue, PythonsNoneIsAbsenceWhereItIsNoValueOfItsOwn) {
  for (const char* name : {"lr", "batch_size", "download"}) EXPECT_TRUE(FromText(name, "None").is_null()) << name;
  for (const char* name : {"suffix", "debug"}) EXPECT_TRUE(FromText(name, "None").is_null()) << name;
}

TEST(SettingValue, WhatIsEmptyIsAbsenceAndNoNumberIs) {
  EXPECT_TRUE(FromText("suffix", "").is_null());
  EXPECT_TRUE(FromText("lr", "").is_null());
  EXPECT_TRUE(ValueFromJson(Row("debug"), Json::array(), true)->is_null());
  for (const char* name : {"lr", "min_lr", "dropout"}) {
    for (const double number : {0.0, -1.0, -0.5}) {
      EXPECT_EQ(FromText(name, fmt::format("{}", number)), number) << name;
      EXPECT_EQ(*ValueFromJson(Row(name), number, true), number) << name;
    }
  }
}

TEST(SettingValue, JsonIsOfTheTypeOrInFilesATextOfIt) {
  EXPECT_EQ(*ValueFromJson(Row("lr"), 1, true), 1);
  EXPECT_EQ(*ValueFromJson(Row("lr"), "0.5", false), 0.5);
  EXPECT_EQ(*ValueFromJson(Row("debug"), "sync,nan", false), (Json{"sync", "nan"}));
  EXPECT_THAT(Message(ValueFromJson(Row("lr"), "0.5", true).status()),
              HasSubstr("setting lr: \"0.5\" has the wrong type or is out of range (string)"));
  for (const Json& wrong : {Json(1.5), Json(true), Json(nullptr), Json{{"a", 1}}, Json{1, 2}})
    EXPECT_FALSE(ValueFromJson(Row("batch_size"), wrong, true).ok()) << wrong;
  EXPECT_FALSE(ValueFromJson(Row("batch_size"), 1.5, false).ok());
  EXPECT_FALSE(ValueFromJson(Row("debug"), {1, 2}, true).ok());
}

TEST(SettingValue, RangesAndChoicesNameTheFlagAndWhatIsExpected) {
  EXPECT_EQ(Checked("lr", 0), "");
  EXPECT_EQ(Checked("lr", nullptr), "");
  EXPECT_EQ(Checked("lr", -1), "--lr: expected at least 0, found -1");
  EXPECT_EQ(Checked("lr", std::nan("")), "--lr: expected at least 0, found nan");
  EXPECT_EQ(Checked("dropout", 1), "--dropout: expected at least 0 and below 1, found 1");
  EXPECT_EQ(Checked("batch_size", int64_t{1} << 40), "--batch_size: expected at most 16777216, found 1099511627776");
  EXPECT_EQ(Checked("global_batch_size", int64_t{1} << 40),
            "--global_batch_size: expected at most 2147483647, found 1099511627776")
      << "what the field can hold";
  EXPECT_EQ(Checked("seed", -1), "--seed: expected at least 0, found -1");
  EXPECT_EQ(Checked("schedule", "cosin"),
            "--schedule: expected cosine, step or linear, found cosin (did you mean cosine?)");
  EXPECT_THAT(Checked("debug", {"sync", "loud"}), HasSubstr("expected sync, nan or both, found loud"));
}

}  // namespace
}  // namespace switchyard
