#include "core/train/tensor_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TensorFileTest : public Scratch {
 protected:
  // A file as others write it: no checksums.
  std::string Foreign(const std::string& header, const std::string& payload) {
    const uint64_t length = header.size();
    std::string text(reinterpret_cast<const char*>(&length), 8);
    WriteText(In("foreign.safetensors"), text + header + payload);
    return In("foreign.safetensors");
  }
  // The message of the error that opening the file gives.
  std::string Refusal(const std::string& header, const std::string& payload) {
    const auto file = TensorFile::Open(Foreign(header, payload));
    if (file.ok()) return "no error";
    EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(Message(file.status()), HasSubstr("foreign.safetensors"));
    return Message(file.status());
  }
};

const std::vector<float> kWeight = {1.5f, -2.f, 3.25f, 0.f, 5.f, 6.f};
const std::vector<uint8_t> kMask = {1, 0, 1};
const std::vector<uint16_t> kHalf = {0x3F80, 0x4000};
const int64_t kCount = 42;

std::vector<NamedTensor> SmallTensors() {
  return {{"mask", "U8", {3}, kMask.data()},
          {"fc.weight", "F32", {2, 3}, kWeight.data()},
          {"half", "BF16", {2, 1}, kHalf.data()},
          {"count", "I64", {}, &kCount},
          {"empty", "F32", {0, 4}, nullptr}};
}

TEST_F(TensorFileTest, ReadsBackWhatWasWritten) {
  const auto summary = WriteTensorFile(In("a.safetensors"), SmallTensors(), {{"note", "a \"quoted\" note"}});
  ASSERT_TRUE(summary.ok()) << summary.status();
  const auto file = TensorFile::Open(In("a.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->summary().bytes, summary->bytes);
  EXPECT_EQ(file->summary().header_crc32, summary->header_crc32);
  EXPECT_EQ(static_cast<uintmax_t>(summary->bytes), std::filesystem::file_size(In("a.safetensors")));
  EXPECT_EQ(file->metadata().at("note"), "a \"quoted\" note");
  EXPECT_EQ(file->metadata().at("format"), "pt");
  ASSERT_EQ(file->entries().size(), 5u);
  for (const NamedTensor& tensor : SmallTensors()) {
    const TensorFile::Entry* entry = file->Find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    EXPECT_EQ(entry->offset % ElementBytes(tensor.dtype), 0) << "every tensor is aligned";
    std::string bytes(static_cast<size_t>(entry->bytes), '\0');
    ASSERT_TRUE(file->Read(*entry, bytes.data()).ok());
    if (!bytes.empty()) {
      EXPECT_EQ(std::memcmp(bytes.data(), tensor.data, bytes.size()), 0) << tensor.name;
    }
  }
  EXPECT_EQ(file->Find("absent"), nullptr);
}

TEST_F(TensorFileTest, WritesWhatTheFormatAsksFor) {
  ASSERT_TRUE(WriteTensorFile(In("a.safetensors"), SmallTensors()).ok());
  const std::string text = ReadText(In("a.safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(text[8], '{');
  EXPECT_THAT(text, HasSubstr(R"("fc.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]})"));
}

// A checkpoint is several times the model: it is read part by part as it is written, by way of little memory.
TEST_F(TensorFileTest, TensorsThatAreReadAreNeverWholeInMemory) {
  constexpr size_t kMostMemory = size_t{4} << 20;
  const std::vector<size_t> elements = {2'000'003, 5, 0, 1'500'000, 7};
  const auto value = [](size_t tensor, size_t element) {
    return static_cast<float>(tensor * 10'000'019 + element % 65'537);
  };
  std::vector<NamedTensor> tensors;
  std::vector<size_t> next(elements.size(), 0);  // byte of each
  for (size_t i = 0; i < elements.size(); ++i) {
    const auto read = [&, i](size_t begin, std::span<std::byte> to) {
      EXPECT_EQ(begin, std::exchange(next[i], begin + to.size())) << "bytes of " << i;
      for (size_t at = 0; at < to.size(); at += sizeof(float)) {
        const float element = value(i, (begin + at) / sizeof(float));
        std::memcpy(&to[at], &element, sizeof element);
      }
      return OkStatus();
    };
    tensors.push_back({fmt::format("t{}", i), "F32", {static_cast<int64_t>(elements[i])}, nullptr, read});
  }
  const char *least = nullptr, *most = nullptr;  // of what is written, but the header, which is the last
  FileCalls watching = SystemFileCalls();
  size_t in_place = 0, last = 0;
  const char* last_data = nullptr;
  watching.write = [&](int descriptor, const void* data, size_t bytes) {
    const auto* const begin = static_cast<const char*>(data);
    if (last_data != nullptr) {
      least = least == nullptr ? last_data : std::min(least, last_data);
      most = std::max(most, last_data + last);
      ++in_place;
    }
    last_data = begin, last = bytes;
    return ::write(descriptor, data, bytes);
  };
  ReplaceFileCalls(&watching);
  const auto summary = WriteTensorFile(In("a.safetensors"), tensors);
  ReplaceFileCalls(nullptr);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_GT(in_place, 3u);
  EXPECT_LE(most - least, static_cast<ptrdiff_t>(kMostMemory));
  const auto file = TensorFile::Open(In("a.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->summary().header_crc32, summary->header_crc32);
  for (size_t i = 0; i < elements.size(); ++i) {
    EXPECT_EQ(next[i], elements[i] * sizeof(float));
    const TensorFile::Entry* const entry = file->Find(tensors[i].name);
    ASSERT_NE(entry, nullptr);
    std::vector<float> values(elements[i]);
    const Status found = file->Read(*entry, values.data());
    ASSERT_TRUE(found.ok()) << found;
    for (size_t at = 0; at < values.size(); ++at) ASSERT_EQ(values[at], value(i, at)) << i << ", " << at;
  }
}

TEST_F(TensorFileTest, AnErrorOfReadingIsThatOfWritingAndLeavesNoFile) {
  const auto fails = [](size_t begin, std::span<std::byte>) {
    return begin == 0 ? OkStatus() : DataLoss("gone at byte {}", begin);
  };
  const auto status = WriteTensorFile(In("a.safetensors"), {{"a", "F32", {1 << 20}, nullptr, fails}}).status();
  EXPECT_THAT(Message(status), HasSubstr("gone at byte"));
  EXPECT_FALSE(std::filesystem::exists(In("a.safetensors")));
}

TEST_F(TensorFileTest, RefusesToWriteWhatCannotBeRead) {
  const std::string path = In("a.safetensors");
  EXPECT_THAT(
      Message(WriteTensorFile(path, {{"a", "F32", {1}, kWeight.data()}, {"a", "F32", {1}, kWeight.data()}}).status()),
      HasSubstr("'a' is given twice"));
  EXPECT_THAT(Message(WriteTensorFile(path, {{"a", "float", {1}, kWeight.data()}}).status()),
              HasSubstr("unknown dtype 'float'"));
  EXPECT_THAT(Message(WriteTensorFile(path, {{"a", "F32", {-1}, kWeight.data()}}).status()), HasSubstr("[-1]"));
  EXPECT_THAT(Message(WriteTensorFile(path, {{"a", "F32", {1}, nullptr}}).status()), HasSubstr("no data"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(TensorFileTest, LoadsFilesOfOthersWithoutChecksums) {
  const auto file =
      TensorFile::Open(Foreign(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"__metadata__":{"format":"pt"},)"
                               R"("a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}   )",
                               std::string("\0\0\x80\x3f\x07\x08", 6)));
  ASSERT_TRUE(file.ok()) << file.status();
  float a = 0;
  uint8_t b[2] = {};
  ASSERT_TRUE(file->Read(*file->Find("a"), &a).ok());
  ASSERT_TRUE(file->Read(*file->Find("b"), b).ok());
  EXPECT_EQ(a, 1.0f);
  EXPECT_EQ(b[1], 8);
}

TEST_F(TensorFileTest, NamesTheFieldThatIsWrong) {
  const std::string four(4, '\0'), eight(8, '\0');
  const auto one = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  EXPECT_THAT(Refusal("{\"a\":", four), HasSubstr("expected a JSON object"));
  EXPECT_THAT(Refusal("[1]", four), HasSubstr("expected a JSON object"));
  EXPECT_THAT(Refusal("{\"a\":3}", four), AllOf(HasSubstr("tensor 'a'"), HasSubstr("expected an object")));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[1])"), four), HasSubstr("data_offsets is missing"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), four), HasSubstr("dtype: 'F33'"));
  EXPECT_THAT(Refusal(one(R"("dtype":4,"shape":[1],"data_offsets":[0,4])"), four), HasSubstr("dtype: expected text"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), four),
              HasSubstr("shape: expected a list"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), four),
              HasSubstr("shape: expected whole"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), four),
              HasSubstr("shape: expected whole"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), four),
              HasSubstr("too large"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), four),
              HasSubstr("4 bytes, expected 8"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), four), HasSubstr("begin ≤ end"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), four), HasSubstr("begin ≤ end"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), eight), HasSubstr("payload: 8 bytes"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "ab"), HasSubstr("truncated"));
  EXPECT_THAT(Refusal(one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), eight), HasSubstr("a gap"));
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(Refusal("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", eight),
              AllOf(HasSubstr("'b'"), HasSubstr("overlaps")));
  EXPECT_THAT(Refusal("{" + a + "," + a + "}", four), HasSubstr("'a' appears twice"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"x":1},)" + a + "}", four), HasSubstr("__metadata__: 'x'"));
  EXPECT_THAT(Refusal(R"({"__metadata__":7})", ""), HasSubstr("__metadata__: expected"));
  EXPECT_THAT(Refusal(std::string(100000, '['), ""), HasSubstr("nested deeper"));
  EXPECT_THAT(Refusal("{\"" + std::string(5000, 'x') + "\":0}", ""), HasSubstr("xxx…"));
  EXPECT_THAT(Refusal(R"({"\u001b[2J":0})", ""), HasSubstr("tensor '\\x1b[2J'"));
  std::string dimensions = "1";
  for (int i = 0; i < 2'000'000; ++i) dimensions += ",1";
  const std::string refusal =
      Refusal(one("\"dtype\":\"F32\",\"shape\":[" + dimensions + "],\"data_offsets\":[0,8]"), eight);
  EXPECT_THAT(refusal, HasSubstr("shape: expected a list of at most 64 numbers"));
  EXPECT_LT(refusal.size(), 300u);
}

TEST_F(TensorFileTest, RefusesBadLengths) {
  WriteText(In("f"), "short");
  EXPECT_THAT(Message(TensorFile::Open(In("f")).status()), HasSubstr("truncated: 5 bytes"));
  WriteText(In("f"), std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  EXPECT_THAT(Message(TensorFile::Open(In("f")).status()), HasSubstr("header length: 18446744073709551615"));
  WriteText(In("f"), std::string("\x10\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(Message(TensorFile::Open(In("f")).status()), HasSubstr("ends after 2"));
  EXPECT_EQ(TensorFile::Open(In("absent")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(TensorFile::Open(In("")).status()), HasSubstr("expected a regular file"));
  ASSERT_EQ(mkfifo(In("fifo").c_str(), 0600), 0);
  EXPECT_THAT(Message(TensorFile::Open(In("fifo")).status()), HasSubstr("expected a regular file"));
}

TEST_F(TensorFileTest, FindsEveryFlippedBitAndEveryTruncation) {
  const std::string path = In("a.safetensors");
  ASSERT_TRUE(WriteTensorFile(path, SmallTensors()).ok());
  const auto loads = [&] {
    const auto file = TensorFile::Open(path);
    if (!file.ok()) return false;
    for (const auto& entry : file->entries()) {
      std::string bytes(static_cast<size_t>(entry.bytes), '\0');
      if (!file->Read(entry, bytes.data()).ok()) return false;
    }
    return true;
  };
  EXPECT_TRUE(loads());
  const size_t size = std::filesystem::file_size(path);
  for (size_t bit = 0; bit < size * 8; ++bit) {
    FlipBit(path, bit);
    ASSERT_FALSE(loads()) << "bit " << bit % 8 << " of byte " << bit / 8 << " of " << size;
    FlipBit(path, bit);
  }
  EXPECT_TRUE(loads());
  std::filesystem::resize_file(path, size + 1);
  EXPECT_FALSE(loads());
  for (size_t shorter = size; shorter-- > 0;) {
    std::filesystem::resize_file(path, shorter);
    ASSERT_FALSE(loads()) << shorter;
  }
}

}  // namespace
}  // namespace switchyard
