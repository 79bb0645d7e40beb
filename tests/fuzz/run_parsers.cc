// What a run's folder and settings are read from.
#include <zlib.h>

#include <cstring>
#include <fstream>
#include <stdexcept>

#include "core/base/json.h"
#include "core/settings/sources.h"
#include "core/train/architecture.h"
#include "core/train/checkpoint.h"
#include "core/train/config.h"
#include "core/train/event_file.h"
#include "core/train/log_file.h"
#include "core/train/metrics.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"
#include "tests/train/example_checkpoint.h"

namespace switchyard {
namespace {

uint32_t Crc(std::string_view text, uLong before = 0) {
  return static_cast<uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

// A whole checkpoint in a folder of this process, of which one file is replaced again and again.
const std::string& ExampleFolder() {
  struct Holder {
    Holder() {
      std::string pattern = (std::filesystem::temp_directory_path() / "switchyard-fuzz-XXXXXX").string();
      if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
      run = pattern;
      const auto saved = SaveCheckpoint(run, ExampleCheckpoint(10).contents, {});
      if (!saved.ok()) throw std::runtime_error(Message(saved.status()));
      checkpoint = *saved;
    }
    ~Holder() {
      std::error_code ignored;
      std::filesystem::remove_all(run, ignored);
    }
    std::string run, checkpoint;
  };
  static const Holder holder;
  return holder.checkpoint;
}

void ReadAll(const TensorFile& file) {
  for (const TensorFile::Entry& entry : file.entries()) {
    std::vector<char> bytes(static_cast<size_t>(entry.bytes));
    file.Read(entry, bytes.data()).IgnoreError();
  }
}

}  // namespace

int FuzzSafetensors(const uint8_t* data, size_t size) {
  // Where there is room for the header's checksum, it is right.
  std::string text(reinterpret_cast<const char*>(data), size);
  constexpr size_t kAt = 8 + sizeof R"({"__metadata__":{"header_crc32":")" - 1;
  if (text.size() > kAt + 8 && text.compare(8, 16, R"({"__metadata__":)") == 0) {
    uint64_t length = 0;
    std::memcpy(&length, text.data(), 8);
    text.replace(kAt, 8, "00000000");
    if (length <= text.size() - 8) {
      text.replace(kAt, 8,
                   fmt::format("{:08x}", Crc(std::string_view(text).substr(8, length),
                                             Crc(std::string_view(text).substr(0, 8)))));
    }
  }
  const MemoryFile memory(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const auto file = TensorFile::Open(memory.path());
  if (file.ok()) ReadAll(*file);
  return 0;
}

int FuzzCheckpoint(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  text += fmt::format(",\n  \"state_crc32\": \"{:08x}\"\n}}\n", Crc(text));
  std::ofstream(ExampleFolder() + "/state.json", std::ios::binary) << text;
  const auto loaded = LoadCheckpoint(ExampleFolder());
  if (!loaded.ok()) return 0;
  ReadAll(loaded->weights);
  // As resuming and predicting read it.
  int64_t number = 0;
  double real = 0;
  std::vector<std::string> texts;
  for (const char* key : {"epoch", "samples", "step"}) ReadField(loaded->record, key, &number).IgnoreError();
  ReadField(loaded->record, "best_top1", &real).IgnoreError();
  ReadField(loaded->record, "classes", &texts).IgnoreError();
  const SettingTable table(TrainSettings());
  Settings settings(table);
  TakeSaved(loaded->record.value("config", nlohmann::json()), "state.json", settings).IgnoreError();
  SameArchitecture(loaded->record.value("arch", nlohmann::json()), {{"model", "mlp"}, {"width", 16}});
  return 0;
}

int FuzzMetrics(const uint8_t* data, size_t size) {
  ReadMetrics(MemoryFile(data, size).path()).IgnoreError();
  return 0;
}

// As it is, and with the checksums that its records ask for.
int FuzzEvents(const uint8_t* data, size_t size) {
  const auto read = [](const std::string& text) {
    const MemoryFile memory(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    auto file = LogFile::Open(memory.path());
    if (file.ok()) EventsUntil(*file, 3).IgnoreError();
  };
  std::string text(reinterpret_cast<const char*>(data), size);
  read(text);
  for (size_t at = 0; text.size() - at >= 16;) {
    uint64_t length = 0;
    std::memcpy(&length, &text[at], 8);
    uint32_t crc = MaskedCrc32c(&text[at], 8);
    std::memcpy(&text[at + 8], &crc, 4);
    if (length > text.size() - at - 16) break;
    crc = MaskedCrc32c(&text[at + 12], length);
    std::memcpy(&text[at + 12 + length], &crc, 4);
    at += 16 + length;
  }
  read(text);
  return 0;
}

int FuzzConfig(const uint8_t* data, size_t size) {
  JsonRules rules;
  rules.comments = true;
  const auto json = ParseJson({reinterpret_cast<const char*>(data), size}, rules);
  if (!json.ok()) return 0;
  const SettingTable table(TrainSettings());
  Settings settings(table);
  if (TakeSaved(*json, "config", settings).ok()) CheckTrainConfig(ConfigOf(settings)).IgnoreError();
  IsRunConfig(*json);
  const nlohmann::json copy = *json;  // as deep as it may be, copied and printed
  Excerpt(copy);
  return 0;
}

}  // namespace switchyard
