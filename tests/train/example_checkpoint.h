// A checkpoint of known content, to be told apart bit for bit after it was saved, damaged or cut short.
#pragma once

#include <string>
#include <vector>

#include "core/train/checkpoint.h"

namespace switchyard {

// A checkpoint whose every value depends on its step.
struct ExampleCheckpoint {
  explicit ExampleCheckpoint(int64_t step) : weight{step * 1.5f, 2.f, -3.f}, moment{0.25f, step * 0.5f}, update(step) {
    contents.step = step;
    contents.weights = {{"fc.weight", "F32", {3, 1}, weight.data()}};
    contents.state = {{"adam.m.fc.weight", "F32", {2}, moment.data()}, {"update", "I64", {}, &update}};
    contents.record = {{"epoch", step / 10}, {"step", step}, {"arch", "vit_micro"}, {"best", {{"top1", 0.1 * step}}}};
    contents.config = {{"id2label", {{"0", "cat"}, {"1", "dog"}}}, {"step", step}};
    contents.preprocessor = {{"size", step}};
  }
  ExampleCheckpoint(const ExampleCheckpoint&) = delete;
  std::vector<float> weight, moment;
  int64_t update;
  CheckpointContents contents;
};

// file: a TensorFile, or SavedTensors.
template <typename File>
std::string ReadTensor(const File& file, const std::string& name) {
  const TensorFile::Entry* entry = file.Find(name);
  if (entry == nullptr) return "absent";
  std::string bytes(static_cast<size_t>(entry->bytes), '\0');
  const Status status = file.Read(*entry, bytes.data());
  return status.ok() ? bytes : "error: " + Message(status);
}

template <typename T>
std::string RawBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The step of the checkpoint that `path` loads, if it is an ExampleCheckpoint bit for bit; −1 where it does not load,
// −2 where it loads as something else.
inline int64_t WhichExample(const std::string& path) {
  const auto loaded = LoadCheckpoint(path);
  if (!loaded.ok()) return -1;
  const ExampleCheckpoint expected(loaded->record.value("step", int64_t{-2}));
  const bool same = loaded->record == expected.contents.record && loaded->config == expected.contents.config &&
                    loaded->preprocessor == expected.contents.preprocessor &&
                    ReadTensor(loaded->weights, "fc.weight") == RawBytes(expected.weight) &&
                    ReadTensor(loaded->state, "adam.m.fc.weight") == RawBytes(expected.moment) &&
                    ReadTensor(loaded->state, "update") == RawBytes(std::vector<int64_t>{expected.update});
  return same ? expected.update : -2;
}

}  // namespace switchyard
