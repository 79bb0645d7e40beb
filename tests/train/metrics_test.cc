#include "core/train/metrics.h"

#include <cmath>

#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using MetricsTest = Scratch;

TEST_F(MetricsTest, WritesOneObjectPerLineInTheGivenOrder) {
  const std::string path = In("deep/log/metrics.jsonl");
  auto writer = MetricsWriter::Open(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->Write({{"step", 1}, {"loss", 2.5}, {"epoch", 1}}).ok());
  ASSERT_TRUE(writer->Write({{"step", 2}, {"loss", std::nan("")}, {"note", "two\nlines"}}).ok());
  EXPECT_EQ(ReadText(path),
            "{\"step\":1,\"loss\":2.5,\"epoch\":1}\n{\"step\":2,\"loss\":null,\"note\":\"two\\nlines\"}\n");
}

TEST_F(MetricsTest, ReadsPastATornLastLineWhichTheNextWriterCutsOff) {
  WriteText(In("m.jsonl"), "{\"step\":1}\n{\"step\":2}\n{\"st");
  ASSERT_EQ(ReadMetrics(In("m.jsonl"))->size(), 2u);
  auto writer = MetricsWriter::Open(In("m.jsonl"));
  ASSERT_TRUE(writer->Write({{"step", 3}}).ok());
  EXPECT_EQ(ReadText(In("m.jsonl")), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
}

TEST_F(MetricsTest, NamesTheBrokenLine) {
  WriteText(In("m.jsonl"), "{\"step\":1}\nnonsense\n{\"step\":2}\n");
  EXPECT_EQ(ReadMetrics(In("m.jsonl")).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(ReadMetrics(In("m.jsonl")).status()), HasSubstr("m.jsonl:2: expected a JSON object"));
  EXPECT_EQ(ReadMetrics(In("absent")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MetricsTest, DropsWhatCameAfterTheStepOfAResume) {
  WriteText(In("m.jsonl"), "{\"step\":1}\n{\"note\":\"kept\"}\n{\"step\":2,\"b\":1,\"a\":0.1}\n{\"step\":3}\n{\"st");
  ASSERT_TRUE(DropMetricsAfter(In("m.jsonl"), 2).ok());
  EXPECT_EQ(ReadText(In("m.jsonl")), "{\"step\":1}\n{\"note\":\"kept\"}\n{\"step\":2,\"b\":1,\"a\":0.1}\n");
  EXPECT_TRUE(DropMetricsAfter(In("absent"), 2).ok());
}

}  // namespace
}  // namespace switchyard
