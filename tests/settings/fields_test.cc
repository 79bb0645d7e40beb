// Settings that are the fields of a struct.
#include "core/settings/fields.h"

#include "gmock/gmock.h"

namespace switchyard {
namespace {

struct Config {
  int depth = 12;
  float ratio = 0.9f;
};

const std::vector<Field<Config>>& ConfigFields() {
  static const auto& fields = *new std::vector<Field<Config>>{
      FieldOf<&Config::depth>("depth", {.help = "layers"}),
      FieldOf<&Config::ratio>("ratio", {.help = "share"}),
  };
  return fields;
}

TEST(Fields, ValuesGoOutAndComeBack) {
  const Config config = {.depth = 3, .ratio = 0.1f};
  const SettingValues values = ValuesOf(ConfigFields(), config);
  EXPECT_EQ(values, (SettingValues{{"depth", 3}, {"ratio", 0.1}})) << "with the fewest digits";
  Config back;
  ASSERT_TRUE(Assign(ConfigFields(), values, &back).ok());
  EXPECT_EQ(back.depth, 3);
  EXPECT_EQ(back.ratio, 0.1f);
}

TEST(Fields, DefaultAndTypeAreTheFieldsOwn) {
  const std::vector<Setting> rows = RowsOf(ConfigFields());
  EXPECT_EQ(rows[0].standard, 12);
  EXPECT_EQ(rows[0].type, ValueType::kWhole);
  EXPECT_EQ(rows[1].standard, 0.9);
  EXPECT_EQ(rows[1].type, ValueType::kNumber);
}

TEST(Fields, WhatIsNotThereStaysAndWhatDoesNotFitIsNamed) {
  Config config;
  ASSERT_TRUE(Assign(ConfigFields(), {{"ratio", 2}}, &config).ok());
  EXPECT_EQ(config.depth, 12);
  EXPECT_THAT(Message(Assign(ConfigFields(), {{"depth", "deep"}}, &config)), testing::HasSubstr("--depth: \"deep\""));
}

}  // namespace
}  // namespace switchyard
