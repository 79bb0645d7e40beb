// What other programs call the compression of gradients, as variables of the environment and as flags.
#include "core/settings/sources.h"
#include "gmock/gmock.h"
#include "tools/switchyard/run_settings.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CompressionOfGradients : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* half : {"FP16", "BF16"})
      for (const char* program : {"AIAK", "SWITCHYARD"})
        unsetenv(fmt::format("{}_{}_COMPRESSION", program, half).c_str());
    unsetenv("AIAK_HIERARCHICAL_ALLREDUCE");
    Unset();
  }
  static void Unset() {  // what asks for PowerSGD
    for (const char* program : {"AIAK", "SWITCHYARD"}) {
      for (const char* name : {"POWERSGD_COMPRESSION", "MATRIX_APPROXIMATION_RANK", "START_COMPRESS_ITER"})
        unsetenv(fmt::format("{}_{}", program, name).c_str());
    }
  }
  Status Flag(const std::string& name, const std::string& text) {
    return settings_.GiveAlias(*RunTable().FindAlias(name), text, Origin::kFlag, "--" + name + "=" + text);
  }
  std::string Sent() const { return settings_.Get<std::string>("allreduce_dtype").value_or(""); }
  Settings settings_{RunTable()};
};

TEST_F(CompressionOfGradients, IsTheDTypeInWhichTheyTravel) {
  for (const std::string program : {"AIAK", "SWITCHYARD"}) {
    for (const auto& [variable, dtype] : {std::pair{"FP16", "fp16"}, std::pair{"BF16", "bf16"}}) {
      const std::string name = fmt::format("{}_{}_COMPRESSION", program, variable);
      SCOPED_TRACE(name);
      for (const auto& [text, sent] : {std::pair{"1", dtype}, std::pair{"0", "fp32"}}) {
        settings_ = Settings(RunTable());
        setenv(name.c_str(), text, 1);
        ASSERT_TRUE(TakeEnvironment(settings_).ok());
        EXPECT_EQ(Sent(), sent);
        EXPECT_THAT(settings_.Translated().at("allreduce_dtype"), HasSubstr(name + "=" + text));
      }
      unsetenv(name.c_str());
    }
  }
}

TEST_F(CompressionOfGradients, InTwoDTypesIsRefusedByBothNames) {
  ASSERT_TRUE(Flag("fp16_compression", "true").ok());
  EXPECT_TRUE(settings_.GiveText("allreduce_dtype", "fp16", Origin::kFlag, "--allreduce_dtype=fp16").ok());
  EXPECT_THAT(Message(Flag("bf16_compression", "true")),
              AllOf(HasSubstr("--allreduce_dtype=fp16"), HasSubstr("--bf16_compression=true")));
  setenv("AIAK_FP16_COMPRESSION", "1", 1);
  setenv("AIAK_BF16_COMPRESSION", "1", 1);
  Settings both(RunTable());
  EXPECT_THAT(Message(TakeEnvironment(both)),
              AllOf(HasSubstr("AIAK_FP16_COMPRESSION=1"), HasSubstr("AIAK_BF16_COMPRESSION=1")));
}

// A script that names both says no to one of them.
TEST_F(CompressionOfGradients, InOneDTypeIsThatWhateverTheSwitchOfTheOtherSays) {
  for (const auto& [first, second] : {std::pair{"fp16", "bf16"}, std::pair{"bf16", "fp16"}}) {
    for (const auto& [yes, no] : {std::pair{first, second}, std::pair{second, first}}) {
      settings_ = Settings(RunTable());
      for (const std::string half : {first, second})
        ASSERT_TRUE(Flag(half + "_compression", half == yes ? "true" : "false").ok()) << no;
      EXPECT_EQ(Sent(), yes);
    }
  }
}

TEST_F(CompressionOfGradients, ByItsOwnNameHoldsBesideASwitchThatSaysNo) {
  setenv("AIAK_FP16_COMPRESSION", "0", 1);
  setenv("SWITCHYARD_ALLREDUCE_DTYPE", "bf16", 1);
  const Status taken = TakeEnvironment(settings_);
  unsetenv("SWITCHYARD_ALLREDUCE_DTYPE");
  ASSERT_TRUE(taken.ok()) << Message(taken);
  EXPECT_EQ(Sent(), "bf16");
  settings_ = Settings(RunTable());
  ASSERT_TRUE(Flag("fp16_compression", "false").ok());
  ASSERT_TRUE(settings_.GiveText("allreduce_dtype", "bf16", Origin::kFlag, "--allreduce_dtype=bf16").ok());
  EXPECT_EQ(Sent(), "bf16");
}

// As Python writes them, too; a switch of Hugging Face is no other.
TEST_F(CompressionOfGradients, SwitchesTakeTheWordsOfOurs) {
  for (const auto& [text, sent, computed] :
       {std::tuple{"True", "bf16", "bf16"}, {"1", "bf16", "bf16"}, {"False", "fp32", "fp32"}, {"0", "fp32", "fp32"}}) {
    settings_ = Settings(RunTable());
    ASSERT_TRUE(Flag("bf16_compression", text).ok()) << text;
    ASSERT_TRUE(Flag("bf16", text).ok()) << text;
    EXPECT_EQ(Sent(), sent);
    EXPECT_EQ(settings_.Get<std::string>("precision"), computed);
  }
  EXPECT_THAT(Message(Flag("bf16", "fp16")), HasSubstr("expected false or true, which Hugging Face calls bf16"));
}

TEST_F(CompressionOfGradients, OfAFlagHoldsAgainstAVariable) {
  setenv("AIAK_FP16_COMPRESSION", "1", 1);
  setenv("AIAK_HIERARCHICAL_ALLREDUCE", "1", 1);
  ASSERT_TRUE(TakeEnvironment(settings_).ok());
  EXPECT_EQ(settings_.Get<bool>("hierarchical_allreduce"), true);
  ASSERT_TRUE(Flag("bf16_compression", "true").ok());
  EXPECT_EQ(Sent(), "bf16");
}

TEST_F(CompressionOfGradients, ByPowerSgdIsAskedForByVariablesOfEitherName) {
  for (const std::string program : {"AIAK", "SWITCHYARD"}) {
    SCOPED_TRACE(program);
    settings_ = Settings(RunTable());
    ASSERT_TRUE(TakeEnvironment(settings_).ok());
    EXPECT_FALSE(settings_.Get<bool>("powersgd_compression").value_or(false));
    for (const auto& [name, text] :
         {std::pair{"POWERSGD_COMPRESSION", "1"}, {"MATRIX_APPROXIMATION_RANK", "4"}, {"START_COMPRESS_ITER", "50"}})
      setenv(fmt::format("{}_{}", program, name).c_str(), text, 1);
    ASSERT_TRUE(TakeEnvironment(settings_).ok());
    EXPECT_EQ(settings_.Get<bool>("powersgd_compression"), true);
    EXPECT_EQ(settings_.Get<int>("matrix_approximation_rank"), 4);
    EXPECT_EQ(settings_.Get<int64_t>("start_compress_iter"), 50);
    setenv((program + "_START_COMPRESS_ITER").c_str(), "1", 1);
    Settings early(RunTable());
    EXPECT_THAT(Message(TakeEnvironment(early)),
                AllOf(HasSubstr(program + "_START_COMPRESS_ITER"), HasSubstr("at least 2, found 1")));
    Unset();
  }
}

}  // namespace
}  // namespace switchyard
