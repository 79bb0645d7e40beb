#include "core/train/metrics.h"

#include <sys/stat.h>

#include <cerrno>
#include <cmath>

#include "core/train/event_file.h"
#include "gmock/gmock.h"
#include "tests/data/in_a_process.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using MetricsTest = Scratch;

TEST_F(MetricsTest, WritesOneObjectPerLineInTheGivenOrder) {
  const std::string path = In("deep/log/metrics.jsonl");
  auto writer = MetricsWriter::Open(*Folder::Make(In("deep/log")), "metrics.jsonl");
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->Write({{"step", 1}, {"loss", 2.5}, {"epoch", 1}}).ok());
  ASSERT_TRUE(writer->Write({{"step", 2}, {"loss", std::nan("")}, {"note", "two\nlines"}}).ok());
  EXPECT_EQ(ReadText(path),
            "{\"step\":1,\"loss\":2.5,\"epoch\":1}\n{\"step\":2,\"loss\":null,\"note\":\"two\\nlines\"}\n");
}

TEST_F(MetricsTest, ReadsPastATornLastLineWhichTheNextWriterCutsOff) {
  WriteText(In("m.jsonl"), "{\"step\":1}\n{\"step\":2}\n{\"st");
  bool torn = false;
  ASSERT_EQ(ReadMetrics(In("m.jsonl"), &torn)->size(), 2u);
  EXPECT_TRUE(torn);
  auto writer = MetricsWriter::Open(*Folder::Open(In("")), "m.jsonl");
  ASSERT_TRUE(writer->Write({{"step", 3}}).ok());
  ASSERT_EQ(ReadMetrics(In("m.jsonl"), &torn)->size(), 3u);
  EXPECT_FALSE(torn);
  EXPECT_EQ(ReadText(In("m.jsonl")), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
}

TEST_F(MetricsTest, NamesTheBrokenLine) {
  WriteText(In("m.jsonl"), "{\"step\":1}\nnonsense\n{\"step\":2}\n");
  EXPECT_EQ(ReadMetrics(In("m.jsonl")).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(ReadMetrics(In("m.jsonl")).status()), HasSubstr("m.jsonl:2: not JSON"));
  WriteText(In("list.jsonl"), "{}\n[1]\n");
  EXPECT_THAT(Message(ReadMetrics(In("list.jsonl")).status()), HasSubstr("list.jsonl:2: expected a JSON object"));
  EXPECT_EQ(ReadMetrics(In("absent")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MetricsTest, DropsWhatCameAfterTheStepOfAResume) {
  WriteText(In("m.jsonl"), "{\"step\":1}\n{\"note\":\"kept\"}\n{\"step\":2,\"b\":1,\"a\":0.1}\n{\"step\":3}\n{\"st");
  ASSERT_TRUE(DropMetricsAfter(*Folder::Open(In("")), "m.jsonl", 2).ok());
  EXPECT_EQ(ReadText(In("m.jsonl")), "{\"step\":1}\n{\"note\":\"kept\"}\n{\"step\":2,\"b\":1,\"a\":0.1}\n");
  EXPECT_TRUE(DropMetricsAfter(*Folder::Open(In("")), "absent", 2).ok());
}

TEST_F(MetricsTest, ADamagedLineDoesNotKeepARunFromGoingOn) {
  WriteText(In("m.jsonl"), "{\"step\":1}\nnonsense\n[]\n{\"step\":2}\n{\"step\":3}\n");
  testing::internal::CaptureStderr();
  ASSERT_TRUE(DropMetricsAfter(*Folder::Open(In("")), "m.jsonl", 2).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("m.jsonl:2: not JSON"));
  EXPECT_EQ(ReadText(In("m.jsonl")), "{\"step\":1}\n{\"step\":2}\n");
}

#if defined(__has_feature)
#define SWITCHYARD_HAS_FEATURE(feature) __has_feature(feature)
#else
#define SWITCHYARD_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || SWITCHYARD_HAS_FEATURE(address_sanitizer)
constexpr size_t kLongLog = 256 << 10;  // bytes; a million lines take minutes here
#else
constexpr size_t kLongLog = 4 << 20;
#endif

// Whatever its lines are: records, or damaged ones, of which the first is told and the others are counted.
TEST_F(MetricsTest, ALongLogTakesLittleMemoryAtAResume) {
  const std::string path = In("m.jsonl");
  for (const std::string line : {"{}\n", "x\n"}) {
    std::string text;
    while (text.size() < kLongLog) text += line;
    WriteText(path, text + "{\"step\":1}\n{\"step\":3}\n");
    const std::string kept = (line[0] == '{' ? text : "") + "{\"step\":1}\n";
    const Opened dropped = InAProcess([&] {
      testing::internal::CaptureStderr();
      SY_RETURN_IF_ERROR(DropMetricsAfter(*Folder::Open(In("")), "m.jsonl", 2));
      const std::string said = testing::internal::GetCapturedStderr();
      const std::string expected = fmt::format("{} such lines of the log are dropped", text.size() / line.size());
      return (said.find(expected) != std::string::npos) == (line == "x\n") ? OkStatus() : Internal("it said {}", said);
    });
    EXPECT_EQ(dropped.message, "");
    EXPECT_LT(dropped.peak, 30 << 20);
    EXPECT_EQ(ReadText(path), kept);
  }
}

TEST_F(MetricsTest, ALineThatIsTooLongIsOneDamagedLine) {
  WriteText(In("m.jsonl"), "{\"step\":1}\n{\"a\":\"" + std::string(3 << 20, 'a') + "\"}\n{\"step\":2}\n{\"step");
  EXPECT_THAT(Message(ReadMetrics(In("m.jsonl")).status()), HasSubstr("m.jsonl:2: JSON of more than 65536 bytes"));
  testing::internal::CaptureStderr();
  ASSERT_TRUE(DropMetricsAfter(*Folder::Open(In("")), "m.jsonl", 2).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("1 such lines of the log are dropped"));
  EXPECT_EQ(ReadText(In("m.jsonl")), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(MetricsTest, ALogThatNobodyCanReadAnyMoreIsAnError) {
  auto writer = MetricsWriter::Open(*Folder::Make(In("log")), "m.jsonl");
  auto events = EventFile::Create(*Folder::Open(In("log")));
  ASSERT_TRUE(writer->Write({{"step", 1}}).ok() && events->Scalar("loss", 1, 2).ok());
  std::filesystem::rename(In("log"), In("moved"));
  EXPECT_THAT(Message(writer->Write({{"step", 2}})), HasSubstr("m.jsonl: it was removed or moved"));
  std::filesystem::rename(In("moved"), In("log"));
  EXPECT_TRUE(writer->Write({{"step", 2}}).ok());
  std::filesystem::remove_all(In("log"));
  EXPECT_THAT(Message(writer->Write({{"step", 3}})), HasSubstr("m.jsonl: it was removed or moved"));
  EXPECT_THAT(Message(events->Scalar("loss", 3, 2)), HasSubstr("it was removed or moved"));
}

TEST_F(MetricsTest, AFullDiskIsAnErrorOfTheLog) {
  FileCalls calls = SystemFileCalls();
  calls.write = [](int, const void*, size_t) -> ssize_t { return errno = ENOSPC, -1; };
  auto writer = MetricsWriter::Open(*Folder::Open(In("")), "m.jsonl");
  auto events = EventFile::Create(*Folder::Open(In("")));
  ReplaceFileCalls(&calls);
  const Status line = writer->Write({{"step", 1}}), scalar = events->Scalar("loss", 1, 2);
  calls.fsync = [](int) { return errno = ENOSPC, -1; };
  const Status late = writer->Sync();
  ReplaceFileCalls(nullptr);
  for (const Status& status : {line, scalar, late}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Message(status), HasSubstr("No space left on device"));
  }
}

TEST_F(MetricsTest, NoLinkIsFollowedAndNoPipeWaitedFor) {
  WriteText(In("victim"), "precious\n");
  std::filesystem::create_symlink(In("victim"), In("m.jsonl"));
  EXPECT_THAT(Message(MetricsWriter::Open(*Folder::Open(In("")), "m.jsonl").status()), HasSubstr("symbolic link"));
  WriteText(In("victim"), "{\"step\":1}\n{\"step\":2}\n");
  ASSERT_TRUE(DropMetricsAfter(*Folder::Open(In("")), "m.jsonl", 1).ok());  // the link itself is replaced
  EXPECT_EQ(ReadText(In("m.jsonl")), "{\"step\":1}\n");
  EXPECT_EQ(ReadText(In("victim")), "{\"step\":1}\n{\"step\":2}\n");
  ASSERT_EQ(mkfifo(In("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Message(MetricsWriter::Open(*Folder::Open(In("")), "pipe").status()),
              HasSubstr("expected a regular file"));
}

}  // namespace
}  // namespace switchyard
