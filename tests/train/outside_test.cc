// What core/base does to text, JSON and files that come from outside.
#include <sys/stat.h>

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using OutsideTest = Scratch;

TEST(PrintableTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(Printable("cat \x1b[2J\a\r\n\tdog\x7F"), "cat \\x1b[2J\\x07\\r\\n\\tdog\\x7f");
  EXPECT_EQ(Printable("grün, 猫, 🐈"), "grün, 猫, 🐈");
  EXPECT_EQ(Printable("a\u202Eb\u009Bc\u2066"), "a\\u202eb\\x9bc\\u2066");
  EXPECT_EQ(Printable("\xFF\xC3(\xE2\x82\xED\xA0\x80\xC0\x80"), "\\xff\\xc3(\\xe2\\x82\\xed\\xa0\\x80\\xc0\\x80");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(PrintableLines("one\n\ttwo\x1b", 100), "one\n\ttwo\\x1b");
}

TEST(PrintableTest, WhatIsLongIsCutBetweenCharacters) {
  EXPECT_EQ(Printable(std::string(1000, 'x')).size(), kMostOfAName + std::string("…").size());
  EXPECT_EQ(Printable("grün", 3), "gr…");
  EXPECT_EQ(Printable("grün", 4), "grü…");
  EXPECT_EQ(Printable("grün", 5), "grün");
  EXPECT_EQ(ShapeText({3, 224, 224}), "[3, 224, 224]");
  EXPECT_EQ(ShapeText(std::vector<int64_t>(1000000, 1)), "[1, 1, 1, 1, 1, 1, 1, 1, … of 1000000 dimensions]");
}

TEST(LoggingTest, ALineCarriesNoCommandsToTheTerminalAndEnds) {
  ::testing::internal::CaptureStderr();
  LogError("class {} of\n{}", "\x1b]0;title\a", std::string(1 << 20, 'y'));
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(shown, HasSubstr("class \\x1b]0;title\\x07 of\n  yyy"));
  EXPECT_LT(shown.size(), 20000u);
}

TEST(LoggingTest, NoPartOfAMessagePassesForAnother) {
  ::testing::internal::CaptureStderr();
  LogError("unknown class '{}'\n  a list\nadvice", "x\nwarning: run it as root\n\n[rank 0] error: y\rerror: z\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "error: unknown class 'x\n  warning: run it as root\n  \n  [rank 0] error: y\\rerror: z\n  '\n  a list\n"
            "  advice\n");
}

TEST(JsonTest, DepthSizeAndRepeatedKeysAreBounded) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(64)).ok());
  EXPECT_THAT(Message(ParseJson(nested(65)).status()), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(Message(ParseJson(std::string(10 << 20, '[')).status()), HasSubstr("nested deeper"));
  EXPECT_THAT(Message(ParseJson(std::string(10 << 20, '{')).status()), HasSubstr("not JSON"));
  EXPECT_THAT(Message(ParseJson(std::string(17 << 20, ' ')).status()), HasSubstr("expected at most 16777216"));
  EXPECT_TRUE(ParseJson(R"({"a": 1, "a": 2})").ok());
  JsonRules rules;
  rules.unique_keys = true;
  EXPECT_THAT(Message(ParseJson(R"({"a": {"b": 1}, "b": {"a": 1, "a": 2}})", rules).status()),
              HasSubstr("the key 'a' appears twice"));
  EXPECT_THAT(Message(ParseJson("{\"a\":\n1,}").status()), HasSubstr("not JSON: parse error at line 2"));
  EXPECT_FALSE(ParseJson("// note\n{}").ok());
  rules.comments = true;
  EXPECT_TRUE(ParseJson("// note\n{}", rules).ok());
  EXPECT_LT(Message(ParseJson("\"" + std::string(1 << 20, 'x')).status()).size(), 400u) << "the text is not repeated";
}

TEST(JsonTest, FieldsOfAnotherTypeAreErrorsAndChangeNothing) {
  const Json record = {{"n", 3},         {"big", 3000000000u}, {"huge", uint64_t{1} << 63}, {"real", 1.5},
                       {"text", "x"},    {"yes", true},        {"list", {"a", "b"}},        {"mixed", {"a", 1}},
                       {"none", nullptr}};
  int number = 7;
  EXPECT_TRUE(ReadField(record, "n", &number).ok());
  EXPECT_EQ(number, 3);
  EXPECT_TRUE(ReadField(record, "absent", &number).ok());
  for (const char* key : {"big", "huge", "real", "text", "yes", "list", "none"}) {
    EXPECT_THAT(Message(ReadField(record, key, &number)), HasSubstr(fmt::format("{}: expected a whole number", key)));
  }
  EXPECT_EQ(number, 3);
  int64_t wide = 0;
  EXPECT_TRUE(ReadField(record, "big", &wide).ok());
  EXPECT_FALSE(ReadField(record, "huge", &wide).ok());
  double real = 0;
  EXPECT_TRUE(ReadField(record, "n", &real).ok() && real == 3);
  EXPECT_FALSE(ReadField(record, "text", &real).ok());
  std::vector<std::string> texts;
  EXPECT_TRUE(ReadField(record, "list", &texts).ok() && texts.size() == 2);
  EXPECT_FALSE(ReadField(record, "mixed", &texts).ok());
  EXPECT_FALSE(ReadField(Json::array(), "n", &number).ok());
}

TEST_F(OutsideTest, OnlyRegularFilesAreReadAndNoMoreThanTheLimit) {
  WriteText(In("file"), "12345");
  EXPECT_EQ(*ReadWholeFile(In("file"), 5), "12345");
  EXPECT_THAT(Message(ReadWholeFile(In("file"), 4).status()), HasSubstr("has 5 bytes, expected at most 4"));
  ASSERT_EQ(mkfifo(In("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Message(ReadWholeFile(In("pipe"), 5).status()), HasSubstr("expected a regular file, found a pipe"));
  EXPECT_THAT(Message(ReadWholeFile("/dev/zero", 5).status()), HasSubstr("found a device"));
  EXPECT_THAT(Message(ReadWholeFile(In(""), 5).status()), HasSubstr("found a folder"));
  EXPECT_EQ(ReadWholeFile(In("absent"), 5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadWholeFile("/proc/self/status", 1 << 20)->empty()) << "says that it has no bytes";
  EXPECT_THAT(Message(ReadWholeFile("/proc/self/status", 10).status()), HasSubstr("more than 10 bytes"));
}

}  // namespace
}  // namespace switchyard
