// What a process did, as spans on tracks, and the file they are written to: Trace Event Format, which Perfetto
// (ui.perfetto.dev) and chrome://tracing open. A track is a host thread, a device's stream or a communicator; pid is
// the rank + 1 and tid the track, from 1: 0 is the kernel's idle task to Perfetto. All plugins that trace stands around
// in a process share one recorder. Times are nanoseconds of the steady clock, which ranks of one machine share, so that
// their files can be laid over each other. Thread-safe. Format:
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/abi/boundary.h"

namespace switchyard {

struct TraceSpan {
  const char* name = "";       // a string literal, or what Keep returned
  const char* category = "";   // the interface of a call, "device" for a device's own span; a string literal
  const char* what = nullptr;  // op, tag … from Keep; null: nothing to add
  int track = 0;
  uint64_t start_ns = 0, end_ns = 0;
  uint64_t size = 0;  // bytes or elements; 0: none
  int status = 0;
};

class Recorder {
 public:
  static Recorder& Get();
  static uint64_t Now();  // ns

  // Why no file can be written to `path`; "" where one can.
  static std::string Refusal(const std::string& path);

  // The file: `path`, else the setting SWITCHYARD_TRACE of `instance`, else trace.json. Rank r > 0 writes trace.r.json
  // beside it. The host of the first instance is asked and told, for there is one file.
  void Serve(const sy_instance& instance, const std::string& path);
  void set_rank(int rank);
  int Track(const std::string& name);  // equal names are one track
  int HostTrack();                     // of the calling thread
  const char* Keep(const std::string& text);
  void Add(const TraceSpan& span);

  // Devices and communicators that are open. The file is written when the last one closes, after a call that failed,
  // and when the process exits.
  void Opened();
  void Closed();
  void Write();

 private:
  Recorder();
  std::string ToJson() const;

  std::mutex mutex_;
  sy_instance instance_;  // of the first that was served
  std::string path_;
  int rank_ = 0, open_ = 0;
  std::map<std::string, int> tracks_;
  std::unordered_set<std::string> texts_;
  std::vector<TraceSpan> spans_;
  uint64_t dropped_ = 0;
  bool written_ = true;
};

}  // namespace switchyard
