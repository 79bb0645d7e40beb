#include "backends/interposers/trace/recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace switchyard {
namespace {

constexpr size_t kMostSpans = 1 << 20;  // 56 MB of memory, about 150 MB of JSON

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += Format("\\u%04x", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string Microseconds(uint64_t ns) {
  return Format("%llu.%03llu", static_cast<unsigned long long>(ns / 1000), static_cast<unsigned long long>(ns % 1000));
}

// For writing, without following a link, since the folder may be a run's that others can write to, and without waiting
// for a reader.
int OpenFile(const std::string& path, int flags) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0666);
}

}  // namespace

std::string Recorder::Refusal(const std::string& path) {
  struct stat about = {};
  const bool there = lstat(path.c_str(), &about) == 0;
  if (there && !S_ISREG(about.st_mode)) return "expected a file on a disk";
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  return access(there ? path.c_str() : folder.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
}

Recorder& Recorder::Get() {
  static auto* const recorder = new Recorder;
  return *recorder;
}

Recorder::Recorder() {
  std::atexit([] { Get().Write(); });
}

uint64_t Recorder::Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void Recorder::Serve(const sy_instance& instance, const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (instance_.host == nullptr) instance_.host = instance.host;
  if (!path.empty()) path_ = path;
}

void Recorder::set_rank(int rank) {
  const std::lock_guard lock(mutex_);
  rank_ = rank;
}

int Recorder::Track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return tracks_.try_emplace(name, static_cast<int>(tracks_.size()) + 1).first->second;
}

int Recorder::HostTrack() {
  static std::atomic<int> threads{0};
  thread_local const int track = Track(Text("host thread ", threads++));
  return track;
}

const char* Recorder::Keep(const std::string& text) {
  const std::lock_guard lock(mutex_);
  return texts_.insert(text).first->c_str();
}

void Recorder::Add(const TraceSpan& span) {
  const std::lock_guard lock(mutex_);
  written_ = false;
  if (spans_.size() < kMostSpans) {
    spans_.push_back(span);
  } else {
    ++dropped_;
  }
}

void Recorder::Opened() {
  const std::lock_guard lock(mutex_);
  ++open_;
}

void Recorder::Closed() {
  {
    const std::lock_guard lock(mutex_);
    if (--open_ > 0) return;
  }
  Write();
}

std::string Recorder::ToJson() const {
  // To Perfetto the thread with the number of its process is the main one, which comes first: track 1.
  const int process = rank_ + 1;
  const auto thread = [&](int track) { return rank_ + track; };
  std::string json = "{\"traceEvents\":[\n";
  json += Format(R"({"ph":"M","name":"process_name","pid":%d,"tid":%d,"args":{"name":"rank %d"}})", process, thread(1),
                 rank_);
  for (const auto& [name, track] : tracks_) {
    json += Format(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", process,
                   thread(track));
    json += Quoted(name) + "}}";
  }
  for (const TraceSpan& span : spans_) {
    json += ",\n{\"ph\":\"X\",\"cat\":" + Quoted(span.category) + ",\"name\":" + Quoted(span.name);
    json += Format(",\"pid\":%d,\"tid\":%d,\"ts\":", process, thread(span.track)) + Microseconds(span.start_ns);
    json += ",\"dur\":" + Microseconds(span.end_ns - span.start_ns) + ",\"args\":{";
    std::string arguments;
    if (span.what != nullptr) arguments += ",\"what\":" + Quoted(span.what);
    if (span.size != 0) arguments += Format(",\"size\":%llu", static_cast<unsigned long long>(span.size));
    if (span.status != 0) arguments += Format(",\"status\":%d", span.status);
    if (!arguments.empty()) json += arguments.substr(1);
    json += "}}";
  }
  json += Format("\n],\"displayTimeUnit\":\"ns\",\"otherData\":{\"dropped_spans\":\"%llu\"}}\n",
                 static_cast<unsigned long long>(dropped_));
  return json;
}

void Recorder::Write() {
  const std::lock_guard lock(mutex_);
  if (written_) return;
  written_ = true;
  const char* const setting = instance_.Setting("TRACE");
  std::string path = !path_.empty() ? path_ : setting != nullptr && *setting != '\0' ? setting : "trace.json";
  if (rank_ > 0) {
    const size_t slash = path.rfind('/'), dot = path.rfind('.');
    const bool has_ending = dot != std::string::npos && (slash == std::string::npos || dot > slash);
    path.insert(has_ending ? dot : path.size(), Text(".", rank_));
  }
  const std::string json = ToJson();
  const int descriptor = OpenFile(path, O_TRUNC);
  std::FILE* const file = descriptor < 0 ? nullptr : fdopen(descriptor, "w");
  bool good = file != nullptr && std::fwrite(json.data(), 1, json.size(), file) == json.size();
  if (file != nullptr && std::fclose(file) != 0) good = false;
  if (!good) {
    instance_.Log(3, Text("trace: cannot write ", path, ": ", std::strerror(errno)));
  } else {
    instance_.Log(1, Text("trace: ", spans_.size(), " spans in ", path,
                          dropped_ > 0 ? Text("; ", dropped_, " did not fit") : ""));
  }
}

}  // namespace switchyard
