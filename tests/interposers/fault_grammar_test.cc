// What may stand after --interpose=fault: and what a typing error is answered with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/interposers/fault/grammar.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

FaultPlan Parsed(const std::string& text) {
  FaultPlan plan;
  EXPECT_EQ(ParseFault(text, &plan), "") << text;
  return plan;
}

std::string Problem(const std::string& text) {
  FaultPlan plan;
  return ParseFault(text, &plan);
}

TEST(FaultGrammarTest, ACallAndItsNumberAreEnough) {
  const FaultPlan alloc = Parsed("alloc@17");
  EXPECT_EQ(alloc.site, Site::kAlloc);
  EXPECT_EQ(alloc.first, 17u);
  EXPECT_FALSE(alloc.onwards);
  EXPECT_EQ(alloc.effect, Effect::kFail);
  EXPECT_EQ(Parsed("launch@1").effect, Effect::kLost);
  EXPECT_EQ(Parsed("copy@2").effect, Effect::kDelay);
  EXPECT_EQ(Parsed("copy@2").delay_ms, 100u);
}

TEST(FaultGrammarTest, PlusMeansEveryLaterOneToo) {
  EXPECT_TRUE(Parsed("alloc@3+").onwards);
  EXPECT_TRUE(Parsed("device_lost@9").onwards) << "what is lost stays lost";
}

TEST(FaultGrammarTest, AnEffectFollowsAColon) {
  EXPECT_EQ(Parsed("launch@4:wrong").effect, Effect::kWrong);
  EXPECT_EQ(Parsed("copy@3:delay=50").delay_ms, 50u);
  EXPECT_EQ(Parsed("collective@2+:lost").effect, Effect::kLost);
}

TEST(FaultGrammarTest, TypingErrorsAreAnsweredWithTheNearestWord) {
  EXPECT_THAT(Problem("aloc@3"), HasSubstr("found \"aloc\" (did you mean alloc?)"));
  EXPECT_THAT(Problem("launch@3:wrogn"), HasSubstr("did you mean wrong?"));
  EXPECT_THAT(Problem("alloc@3:wrong"), HasSubstr("after alloc: expected fail or delay, found \"wrong\""));
  EXPECT_THAT(Problem(""), HasSubstr("a fault is CALL@N[+][:EFFECT]"));
}

TEST(FaultGrammarTest, NumbersAreWholeAndStartAtOne) {
  EXPECT_THAT(Problem("alloc"), HasSubstr("which alloc? expected @N"));
  EXPECT_THAT(Problem("alloc@0"), HasSubstr("from 1"));
  EXPECT_THAT(Problem("alloc@"), HasSubstr("found \"\""));
  EXPECT_THAT(Problem("alloc@-1"), HasSubstr("found \"-1\""));
  EXPECT_THAT(Problem("alloc@3x"), HasSubstr("found \"3x\""));
  EXPECT_THAT(Problem("copy@1:delay=long"), HasSubstr("milliseconds"));
  EXPECT_THAT(Problem("copy@1:fail=3"), HasSubstr("takes no value"));
}

}  // namespace
}  // namespace switchyard
