#include "core/train/event_file.h"

#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/train/event.pb.h"
#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using EventFileTest = Scratch;

// CRC32C one bit at a time, straight from its definition, and the masking of TFRecord.
uint32_t ReferenceCrc(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

template <typename Number>
Number NumberAt(const std::string& text, size_t offset) {
  Number number;
  std::memcpy(&number, text.data() + offset, sizeof number);
  return number;
}

std::vector<event::Event> ReadEvents(const std::string& path) {
  const std::string text = ReadText(path);
  std::vector<event::Event> events;
  size_t at = 0;
  while (at + 12 <= text.size()) {
    const auto length = NumberAt<uint64_t>(text, at);
    EXPECT_EQ(NumberAt<uint32_t>(text, at + 8), ReferenceCrc(text.substr(at, 8)));
    const std::string payload = text.substr(at + 12, length);
    EXPECT_EQ(NumberAt<uint32_t>(text, at + 12 + length), ReferenceCrc(payload));
    EXPECT_TRUE(events.emplace_back().ParseFromString(payload));
    at += length + 16;
  }
  EXPECT_EQ(at, text.size());
  return events;
}

TEST_F(EventFileTest, ChecksumHasTheKnownValue) {
  // CRC32C("123456789") is 0xE3069283 (RFC 3720, appendix B.4 lists the polynomial's values).
  const uint32_t crc = 0xE3069283u;
  EXPECT_EQ(MaskedCrc32c("123456789", 9), ((crc >> 15) | (crc << 17)) + 0xA282EAD8u);
}

TEST_F(EventFileTest, RecordsReadBack) {
  auto file = EventFile::Create(*Folder::Make(In("log/events")));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->path(), ::testing::HasSubstr("/events.out.tfevents."));
  ASSERT_TRUE(file->Scalar("Loss/training", 7, 2.5).ok());
  ASSERT_TRUE(file->Scalar("Metrics/validation/top1", 1'000'000'000'000, 0.875).ok());
  ASSERT_TRUE(file->Picture("images", 8, Raster{2, 1, {255, 0, 0, 0, 0, 255}}).ok());
  const auto events = ReadEvents(file->path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_GT(events[0].wall_time(), 1.6e9);
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_EQ(events[1].summary().value(0).tag(), "Loss/training");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 2.5f);
  EXPECT_EQ(events[2].step(), 1'000'000'000'000);
  EXPECT_EQ(events[3].summary().value(0).image().width(), 2);
  EXPECT_EQ(events[3].summary().value(0).image().height(), 1);
  EXPECT_EQ(events[3].summary().value(0).image().encoded_image_string().substr(0, 4), "\x89PNG");
}

TEST_F(EventFileTest, FieldNumbersAreThoseOfTensorFlow) {
  // event.proto: wall_time = 1, step = 2, file_version = 3, summary = 5; summary.proto: value = 1, tag = 1,
  // simple_value = 2, image = 4 {height = 1, width = 2, colorspace = 3, encoded_image_string = 4}.
  using namespace std::string_literals;
  auto file = EventFile::Create(*Folder::Make(In("events")));
  ASSERT_TRUE(file->Scalar("loss", 7, 2.5).ok());
  ASSERT_TRUE(file->Picture("i", 7, Raster{2, 1, {255, 0, 0, 0, 0, 255}}).ok());
  const std::string text = ReadText(file->path());
  EXPECT_EQ(text[12], '\x09');
  EXPECT_THAT(text, ::testing::HasSubstr("\x1a\x0d"
                                         "brain.Event:2"));
  EXPECT_THAT(text, ::testing::HasSubstr("\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x20\x40"s));
  const size_t image = text.find("\x0a\x01i\x22");  // then the length of the message in one byte
  ASSERT_NE(image, std::string::npos);
  EXPECT_EQ(text.substr(image + 5, 7), "\x08\x01\x10\x02\x18\x03\x22");
  EXPECT_EQ(text.substr(image + 13, 4), "\x89PNG");
}

TEST_F(EventFileTest, TwoFilesInOneFolderDoNotMeet) {
  const auto a = EventFile::Create(*Folder::Make(In("events"))), b = EventFile::Create(*Folder::Make(In("events")));
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->path(), b->path());
}

TEST_F(EventFileTest, LaterStepsAreDroppedFromEveryFileAndTheRestStaysAsItIs) {
  const Folder folder = *Folder::Make(In("log"));
  std::vector<std::string> paths, expected;
  for (const int64_t offset : {0, 1}) {
    auto file = EventFile::Create(folder);
    ASSERT_TRUE(file.ok()) << file.status();
    for (int64_t step = offset; step <= 8; step += 2) {
      if (step == 4 + offset) expected.push_back(ReadText(file->path()));
      ASSERT_TRUE(file->Scalar("Loss/training/train_loss", step, 1.0 / (1.0 + static_cast<double>(step))).ok());
    }
    paths.push_back(file->path());
  }
  WriteText(In("log/metrics.jsonl"), "{}\n");
  ASSERT_TRUE(DropEventsAfter(folder, 3).ok());
  for (size_t i = 0; i < paths.size(); ++i) EXPECT_EQ(ReadText(paths[i]), expected[i]);
  EXPECT_EQ(ReadText(In("log/metrics.jsonl")), "{}\n");
  ASSERT_TRUE(DropEventsAfter(folder, 3).ok());
  EXPECT_EQ(ReadText(paths[0]), expected[0]);
  EXPECT_TRUE(DropEventsAfter(*Folder::Make(In("empty")), 3).ok());
}

template <typename Number>
std::string BytesOfNumber(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

// The first twelve bytes of a record, with the right checksum.
std::string Head(uint64_t length) { return BytesOfNumber(length) + BytesOfNumber(ReferenceCrc(BytesOfNumber(length))); }

// Three records of an event file: of the version, of step 1 and of step 2.
std::vector<std::string> ThreeRecords(const Folder& folder) {
  auto file = EventFile::Create(folder);
  std::vector<std::string> texts = {ReadText(file->path())};
  for (const int64_t step : {1, 2}) {
    EXPECT_TRUE(file->Scalar("a", step, 1).ok());
    const size_t before = texts[0].size() + (step == 2 ? texts[1].size() : 0);
    texts.push_back(ReadText(file->path()).substr(before));
  }
  std::filesystem::remove(file->path());
  return texts;
}

TEST_F(EventFileTest, WhatIsDamagedGoesWithAWarningAndTheRestStays) {
  const Folder folder = *Folder::Make(In("log"));
  const auto records = ThreeRecords(folder);
  const std::string &version = records[0], &one = records[1], &two = records[2];
  const std::string path = In("log/events.out.tfevents.1");
  for (const auto& [damaged, bytes] : std::vector<std::pair<std::string, size_t>>{
           {std::string(one).replace(20, 1, "\x7e"), one.size()},                         // the payload
           {std::string(one).replace(0, 8, std::string(8, '\x7f')), one.size()},          // the length
           {Head(3) + "\x17\x17\x17" + BytesOfNumber(ReferenceCrc("\x17\x17\x17")), 19},  // no event
           {"some text", 9}}) {
    WriteText(path, version + damaged + two);
    testing::internal::CaptureStderr();
    ASSERT_TRUE(DropEventsAfter(folder, 9).ok());
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                ::testing::HasSubstr(fmt::format("tfevents.1: {} bytes, the first of them at byte {}, are in no whole "
                                                 "record and are dropped; the others stay",
                                                 bytes, version.size())));
    EXPECT_EQ(ReadText(path), version + two);
  }
}

TEST_F(EventFileTest, ATornEndIsCutOffWithoutAWord) {
  const Folder folder = *Folder::Make(In("log"));
  const auto records = ThreeRecords(folder);
  const std::string path = In("log/events.out.tfevents.1");
  for (const size_t bytes : {3, 12, 13, 20}) {
    WriteText(path, records[0] + records[1] + records[2].substr(0, bytes));
    testing::internal::CaptureStderr();
    ASSERT_TRUE(DropEventsAfter(folder, 9).ok());
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(ReadText(path), records[0] + records[1]);
  }
}

// A file with a hole in it: protobuf takes no message of 2 GiB or more, and memory has better uses.
TEST_F(EventFileTest, ARecordOfMoreBytesThanWeWriteIsPassedOver) {
  const Folder folder = *Folder::Make(In("log"));
  const auto records = ThreeRecords(folder);
  const std::string path = In("log/events.out.tfevents.1");
  constexpr uint64_t kLength = (uint64_t{2} << 30) + 5;
  WriteText(path, records[0] + Head(kLength));
  const auto end = records[0].size() + 12 + kLength + 4;
  std::filesystem::resize_file(path, end);
  std::ofstream(path, std::ios::binary | std::ios::app) << records[2];
  testing::internal::CaptureStderr();
  ASSERT_TRUE(DropEventsAfter(folder, 9).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), ::testing::HasSubstr("2147483669 bytes, the first of them"));
  EXPECT_EQ(ReadText(path), records[0] + records[2]);
}

TEST_F(EventFileTest, WhatIsNoFileIsPassedOver) {
  const Folder folder = *Folder::Make(In("log"));
  std::filesystem::create_directory(In("log/events.out.tfevents.folder"));
  ASSERT_EQ(mkfifo(In("log/events.out.tfevents.pipe").c_str(), 0600), 0);
  WriteText(In("victim"), "precious");
  std::filesystem::create_symlink(In("victim"), In("log/events.out.tfevents.link"));
  const Status dropped = DropEventsAfter(folder, 9);
  EXPECT_TRUE(dropped.ok()) << Message(dropped);
  EXPECT_EQ(ReadText(In("victim")), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(In("log/events.out.tfevents.link")));
}

}  // namespace
}  // namespace switchyard
