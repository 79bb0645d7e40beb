// Every parser of what comes from outside as a function on bytes, in the form that libFuzzer asks for, and the seeds
// from which inputs are made. A function returns 0; a crash, a sanitizer's report, an exception that escapes or a hang
// is the finding. What is behind a checksum gets a right one, so that the parser behind it is reached.
//
// To add one: a function in the file of its layer, its declaration here, its row in Targets() of targets.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

using FuzzFunction = int (*)(const uint8_t* data, size_t size);
using FuzzInput = std::vector<uint8_t>;

int FuzzJpeg(const uint8_t* data, size_t size);
int FuzzPng(const uint8_t* data, size_t size);
int FuzzMask(const uint8_t* data, size_t size);    // a PNG with class ids
int FuzzTar(const uint8_t* data, size_t size);     // plain or gzip, and every file in it; as images, also with masks
int FuzzVolume(const uint8_t* data, size_t size);  // NIfTI or .npy, plain or gzip
int FuzzIdx(const uint8_t* data, size_t size);     // plain or gzip
int FuzzCifar(const uint8_t* data, size_t size);   // records
int FuzzSafetensors(const uint8_t* data, size_t size);
int FuzzCheckpoint(const uint8_t* data, size_t size);  // state.json, sealed
int FuzzMetrics(const uint8_t* data, size_t size);
int FuzzEvents(const uint8_t* data, size_t size);    // a TensorBoard file
int FuzzForeign(const uint8_t* data, size_t size);   // config.json and preprocessor_config.json of others
std::vector<FuzzInput> ForeignSeeds();
int FuzzConfig(const uint8_t* data, size_t size);    // a run's settings as JSON
int FuzzManifest(const uint8_t* data, size_t size);  // of a plugin
int FuzzFrames(const uint8_t* data, size_t size);    // messages between ranks
std::vector<FuzzInput> FrameSeeds();
int FuzzSlurm(const uint8_t* data, size_t size);     // lists of hosts, tasks and devices
int FuzzSchedule(const uint8_t* data, size_t size);  // schedules, warm-ups and faults
int FuzzText(const uint8_t* data, size_t size);      // what messages show

struct FuzzTarget {
  const char* name;
  FuzzFunction run;
  std::vector<FuzzInput> (*seeds)();
};
const std::vector<FuzzTarget>& FuzzTargets();

// The next input from two old ones: flipped bits, interesting numbers, cut, repeated and spliced pieces. The same for
// the same random state, which it advances; at most `most` bytes.
FuzzInput Mutate(const FuzzInput& one, const FuzzInput& other, uint64_t* random, size_t most);

// Runs a target on its seeds and then on mutations until `seconds` are over or `most` inputs were run. Before each
// input, its bytes are in *current, for whoever looks after a crash. Returns how many were run.
int64_t RunFuzzer(const FuzzTarget& target, uint64_t seed, double seconds, int64_t most, FuzzInput* current);

}  // namespace switchyard
