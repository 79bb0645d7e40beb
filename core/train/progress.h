// One line that says how far a run has come. On a terminal it is drawn over and over (at most ten times a second):
//
//   epoch 3/10 ━━━━━━━━━━━━━━━━━━╸─────────── 126/200  412 images/s  loss 1.234  lr 3.0e-04  ETA 0:42
//
// elsewhere (a file, a pipe) a plain line is written every few seconds. What does not fit the terminal's width is left
// out from the right. Only the rank that owns the loss has one. Not thread-safe; times are of a steady clock.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace switchyard {

// What is shown; a value that is NaN is not shown.
struct ProgressState {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  int64_t epoch = 0;   // from 1; 0 shows none
  int64_t epochs = 0;  // 0 shows no total
  int64_t step = 0;    // done, within the epoch or the run, as the caller counts
  int64_t steps = 0;   // in all
  double images_per_s = kUnknown;
  double loss = kUnknown;
  double lr = kUnknown;
  double grad_norm = kUnknown;
  double loss_scale = kUnknown;
  double data_wait_ms = kUnknown;
  double comm_wait_ms = kUnknown;  // of an update, as data_wait_ms
  double memory_bytes = kUnknown;  // allocated on this rank's device
  double remaining_s = kUnknown;   // NaN: estimated from the steps of this bar
};

struct ProgressOptions {
  int descriptor = 2;           // written to; a terminal is recognised
  double line_interval_s = 10;  // between plain lines; 0: each update has one
  // For tests; the defaults ask the system.
  std::function<double()> clock;          // seconds
  std::function<int()> terminal_columns;  // 0: not a terminal
  bool ascii = false;                     // also where the locale is not UTF-8
};

class Progress {
 public:
  explicit Progress(ProgressOptions options = {});
  ~Progress();  // ends the line

  // Draws where it is time to, and always when step reaches steps.
  void Update(const ProgressState& state);

  // Writes a line of its own above the bar: "epoch 3: top1 88.1 %".
  void Line(const std::string& text);

  // Leaves the bar as it is and goes to the next line; the next Update begins a new bar and a new estimate.
  void Finish();

 private:
  void Draw(const ProgressState& state, int columns);
  void Write(const std::string& text);

  ProgressOptions options_;
  ProgressState last_;
  bool begun_ = false;        // since construction or Finish
  bool bar_on_line_ = false;  // the cursor is behind a bar
  double begin_time_ = 0;
  int64_t begin_step_ = 0;
  double drawn_time_ = 0;
};

// "0:42", "12:07", "3:05:09", "2d 03:05".
std::string DurationText(double seconds);
std::string ThroughputText(double per_s);  // 0.2, 8.4 and 314

}  // namespace switchyard
