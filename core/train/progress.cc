#include "core/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "core/base/environment.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

constexpr double kRedrawInterval = 0.1;             // seconds
constexpr int kShortestBar = 10, kLongestBar = 30;  // columns

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int ColumnsOf(int descriptor) {
  if (!isatty(descriptor)) return 0;
  winsize size = {};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return EnvironmentInt("COLUMNS").value_or(80);
}

bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (const auto value = Environment(name)) {
      return value->find("UTF-8") != std::string::npos || value->find("utf8") != std::string::npos;
    }
  }
  return false;
}

}  // namespace

std::string ThroughputText(double per_s) { return fmt::format("{:.{}f}", per_s, per_s < 10 ? 1 : 0); }

namespace {

std::string EpochText(const ProgressState& state) {
  if (state.epoch <= 0) return "";
  return state.epochs > 0 ? fmt::format("epoch {}/{}", state.epoch, state.epochs)
                          : fmt::format("epoch {}", state.epoch);
}

// The fields, the most wanted first.
std::vector<std::string> Fields(const ProgressState& state, std::optional<double> remaining_s) {
  std::vector<std::string> fields = {fmt::format("{}/{}", state.step, state.steps)};
  const auto add = [&](std::optional<double> value, auto text) {
    if (value) fields.push_back(text(*value));
  };
  const auto number = [](double v, auto text) { return std::isnan(v) ? std::string("nan") : text(v); };  // no -nan
  add(state.loss, [&](double v) { return "loss " + number(v, [](double n) { return fmt::format("{:.4g}", n); }); });
  add(state.images_per_s, [&](double v) { return fmt::format("{} {}/s", ThroughputText(v), state.samples); });
  add(remaining_s, [](double v) { return fmt::format("ETA {}", DurationText(v)); });
  add(state.lr, [](double v) { return fmt::format("lr {:.2g}", v); });
  add(state.grad_norm,
      [&](double v) { return "grad " + number(v, [](double n) { return fmt::format("{:.3g}", n); }); });
  add(state.loss_scale, [](double v) { return fmt::format("scale {:g}", v); });
  add(state.data_wait_ms, [](double v) { return fmt::format("data wait {:.1f} ms", v); });
  add(state.comm_wait_ms, [](double v) { return fmt::format("comm wait {:.1f} ms", v); });
  add(state.memory_bytes,
      [](double v) { return v < 1e9 ? fmt::format("{:.0f} MB", v / 1e6) : fmt::format("{:.1f} GB", v / 1e9); });
  return fields;
}

std::string Bar(double share, int cells, bool ascii) {
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * cells);
  std::string bar;
  for (int cell = 0; cell < cells; ++cell) {
    if (ascii) {
      bar += cell < full ? '=' : cell == full ? '>' : '-';
    } else {
      bar += cell < full ? "━" : cell == full ? "╸" : "─";
    }
  }
  return bar;
}

}  // namespace

std::string DurationText(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  if (!options_.clock) options_.clock = SteadySeconds;
  if (!options_.terminal_columns) {
    options_.terminal_columns = [descriptor = options_.descriptor] { return ColumnsOf(descriptor); };
    options_.ascii = options_.ascii || !LocaleIsUtf8();
  }
}

Progress::~Progress() { Finish(); }

void Progress::Update(const ProgressState& state) {
  const double now = options_.clock();
  const bool first = !std::exchange(begun_, true);
  if (first) {
    begin_time_ = now;
    begin_step_ = state.step;
  }
  last_ = state;
  const int columns = options_.terminal_columns();
  const double interval = columns > 0 ? kRedrawInterval : options_.line_interval_s;
  if (!first && state.step < state.steps && now - drawn_time_ < interval) return;
  drawn_time_ = now;
  Draw(state, columns);
}

void Progress::Draw(const ProgressState& state, int columns) {
  std::optional<double> remaining_s = state.remaining_s;
  if (!remaining_s && state.step > begin_step_) {
    remaining_s = (options_.clock() - begin_time_) / static_cast<double>(state.step - begin_step_) *
                  static_cast<double>(std::max<int64_t>(state.steps - state.step, 0));
  }
  const std::vector<std::string> fields = Fields(state, remaining_s);
  std::string line = EpochText(state);
  if (columns <= 0) {
    for (const std::string& field : fields) line += (line.empty() ? "" : "  ") + field;
    Write(line + "\n");
    return;
  }
  // One column stays free: a cursor in the last one wraps on some terminals. Every field is ASCII, one column a byte.
  int room = columns - 1 - static_cast<int>(line.size());
  const int bar = std::clamp(columns / 4, kShortestBar, kLongestBar);  // does not jump when a number changes its width
  const int bar_and_space = bar + (line.empty() ? 0 : 1);
  const bool with_bar = room >= bar_and_space + 2 + static_cast<int>(fields[0].size());
  if (with_bar) room -= bar_and_space;
  std::string text;
  for (const std::string& field : fields) {
    const std::string piece = (line.empty() && text.empty() && !with_bar ? "" : "  ") + field;
    if (static_cast<int>(piece.size()) > room) break;
    room -= static_cast<int>(piece.size());
    text += piece;
  }
  if (with_bar) {
    const double share = state.steps > 0 ? static_cast<double>(state.step) / static_cast<double>(state.steps) : 0;
    if (!line.empty()) line += ' ';
    line += Bar(share, bar, options_.ascii);
  }
  line = (line + text).substr(0, with_bar ? std::string::npos : static_cast<size_t>(std::max(columns - 1, 0)));
  Write(fmt::format("\r{}\x1b[K", line));
  bar_on_line_ = true;
}

void Progress::Line(const std::string& text) {
  const int columns = options_.terminal_columns();
  Write(fmt::format("{}{}\n", bar_on_line_ ? "\r\x1b[K" : "", text));
  if (bar_on_line_) Draw(last_, columns);
}

void Progress::Finish() {
  if (bar_on_line_) Write("\n");
  bar_on_line_ = false;
  begun_ = false;
}

void Progress::Write(const std::string& text) {
  // What cannot be shown (a closed pipe) is no reason to stop a run.
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(options_.descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    done += static_cast<size_t>(written);
  }
}

}  // namespace switchyard
