#include <cstring>
#include <filesystem>

#include "core/data/mask_picture.h"
#include "core/train/config.h"
#include "tests/data/files_for_tests.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard {
namespace {

FuzzInput Text(const std::string& text) { return {text.begin(), text.end()}; }

std::vector<FuzzInput> Texts(const std::vector<std::string>& texts) {
  std::vector<FuzzInput> inputs;
  for (const std::string& text : texts) inputs.push_back(Text(text));
  return inputs;
}

FuzzInput Safetensors(const std::string& header, size_t payload) {
  FuzzInput file(8);
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  file.insert(file.end(), header.begin(), header.end());
  file.resize(file.size() + payload, 0x3F);
  return file;
}

// Of an event file; its checksums are the fuzzer's.
FuzzInput Record(const std::string& payload) {
  FuzzInput record(12);
  const uint64_t length = payload.size();
  std::memcpy(record.data(), &length, 8);
  record.insert(record.end(), payload.begin(), payload.end());
  record.resize(record.size() + 4);
  return record;
}

}  // namespace

const std::vector<FuzzTarget>& FuzzTargets() {
  static const std::vector<FuzzTarget> targets = {
      {"jpeg", FuzzJpeg,
       [] {
         return std::vector<FuzzInput>{JpegBytes(Pattern(17, 23, 3)), JpegBytes(Pattern(8, 8, 1), 20),
                                       JpegBytes(Pattern(9, 9, 4)), JpegBytes(Pattern(24, 16, 3), 80, true)};
       }},
      {"png", FuzzPng,
       [] {
         return std::vector<FuzzInput>{PngBytes(Pattern(17, 23, 3)), PngBytes(Pattern(8, 8, 1)),
                                       PngBytes(Pattern(9, 9, 4))};
       }},
      {"mask", FuzzMask,
       [] {
         const std::string palette = EncodeMask(Pattern(9, 7, 1)).value();
         return std::vector<FuzzInput>{PngBytes(Pattern(8, 8, 1)), FuzzInput(palette.begin(), palette.end()),
                                       PngBytes(Pattern(9, 9, 3))};
       }},
      {"tar", FuzzTar,
       [] {
         const std::string deep(150, 'd');
         const std::vector<std::pair<std::string, Bytes>> files = {{"train/ant/" + deep + "/a.png", Bytes(700, 7)},
                                                                   {"val/ant/b.jpg", Bytes(3, 1)}};
         return std::vector<FuzzInput>{TarBytes(files, TarNames::kUstar),
                                       TarBytes(files, TarNames::kGnu),
                                       TarBytes(files, TarNames::kPax),
                                       GzipBytes(TarBytes(files)),
                                       TarBytes(SmallImageFolder(1, 1)),
                                       TarBytes({{"images/train/a.png", PngBytes(Pattern(4, 5, 3))},
                                                 {"masks/train/a.png", PngBytes(Pattern(4, 5, 1))},
                                                 {"classes.txt", {'a', '\n', 'b', '\n'}}})};
       }},
      {"volume", FuzzVolume,
       [] {
         Bytes nifti(352 + 24, 0);
         const std::pair<size_t, uint8_t> fields[] = {{0, 0x5C},  {1, 1},     {40, 3},   {42, 4},     {44, 3},
                                                      {46, 2},    {70, 2},    {72, 8},   {110, 0xB0}, {111, 0x43},
                                                      {344, 'n'}, {345, '+'}, {346, '1'}};
         for (const auto& [at, value] : fields) nifti[at] = value;
         const std::string npy = "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 1, 3), }           \n";
         Bytes numpy = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<uint8_t>(npy.size()), 0};
         numpy.insert(numpy.end(), npy.begin(), npy.end());
         numpy.resize(numpy.size() + 12, 7);
         return std::vector<FuzzInput>{nifti, GzipBytes(nifti), numpy};
       }},
      {"idx", FuzzIdx,
       [] {
         return std::vector<FuzzInput>{IdxBytes({3, 4, 4}, Bytes(48, 9)), IdxBytes({5}, Bytes(5, 1)),
                                       GzipBytes(IdxBytes({2, 2, 2, 3}, Bytes(24, 2)))};
       }},
      {"cifar", FuzzCifar,
       [] {
         return std::vector<FuzzInput>{Bytes(3073, 3), Bytes(2 * 3073, 9)};
       }},
      {"safetensors", FuzzSafetensors,
       [] {
         return std::vector<FuzzInput>{
             Safetensors(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"I8","shape":[],)"
                         R"("data_offsets":[24,25]}})",
                         25),
             Safetensors(R"({"__metadata__":{"header_crc32":"00000000","format":"pt","writer":"switchyard",)"
                         R"("crc32:w":"0badcafe"},"w":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}})",
                         8)};
       }},
      {"checkpoint", FuzzCheckpoint,
       [] {
         return Texts(
             {R"({"epoch": 1, "step": 10, "samples": 2, "world": 2, "best_top1": 0.5, "classes": ["a", "b"],)"
              R"( "config": {"lr": 0.1, "model": "mlp"}, "arch": {"model": "mlp", "width": 16}, "format": "switchyard-checkpoint/5",)"
              R"( "files": {"model.safetensors": {"bytes": 1, "header_crc32": "0"}})",
              R"({"format": "switchyard-checkpoint/5", "files": {"config.json": null})"});
       }},
      {"metrics", FuzzMetrics,
       [] { return Texts({"{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":null,\"note\":\"two\\nlines\"}\n{\"st"}); }},
      {"events", FuzzEvents,
       [] {
         // Of a version, of a number at step 7, and of a picture at step 1.
         return std::vector<FuzzInput>{Record("\x1a\x0d"
                                              "brain.Event:2"),
                                       Record("\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x01\x02\x20\x40"),
                                       Record("\x10\x01\x2a\x0d\x0a\x0b\x0a\x01i\x22\x06\x08\x01\x10\x02\x18\x03")};
       }},
      {"foreign", FuzzForeign, ForeignSeeds},
      {"config", FuzzConfig,
       [] {
         return Texts({ToJson(TrainConfig(), {SettingKind::kProperty}).dump(),
                       "{\"lr\": 1e-3, // a comment\n \"milestones\": \"1,2\", \"epochs\": 3}",
                       "[[[[[[[[[[{\"a\":[]}]]]]]]]]]]"});
       }},
      {"manifest", FuzzManifest,
       [] {
         return Texts({R"({"name": "mine", "kind": "backend", "library": "mine.so", "abi": 1, "priority": 5,)"
                       R"( "summary": "words"})",
                       R"({"name": "x", "kind": "collective", "library": "../x.so", "abi": "1"})"});
       }},
      {"frames", FuzzFrames, FrameSeeds},
      {"slurm", FuzzSlurm,
       [] {
         return Texts({"node[01-03,7],login", "2(x3),1", "a[1-2]b[3-4]", "0,1,3-5", "n[0-99999999]", "9(x99999999)"});
       }},
      {"schedule", FuzzSchedule,
       [] {
         return Texts({"500", "20e", "0.3", "0.5e", "cosine", "alloc@3+:delay=5", "launch@1:wrong", "sqrt", "1e400"});
       }},
      {"text", FuzzText,
       [] {
         return Texts({"plain", "\x1b[2J\a", "gr\xC3\xBC\xC3\x9F", "\xE2\x80\xAE", "\xF0\x9F\x98\x80"});
       }},
  };
  return targets;
}

}  // namespace switchyard
