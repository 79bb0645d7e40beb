// One line that says how far a run has come. On a terminal it is drawn over and over (at most ten times a second):
//
//   epoch 3/10 ━━━━━━━━━━━━━━━━━━╸─────────── 126/200  412 images/s  loss 1.234  lr 3.0e-04  ETA 0:42
//
// elsewhere (a file, a pipe) a plain line is written every few seconds. What does not fit the terminal's width is left
// out from the right. Only the rank that owns the loss has one. Not thread-safe; times are of a steady clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace switchyard {

// What is shown: all that is there, a loss that is not a number too.
struct ProgressState {
  int64_t epoch = 0;   // from 1; 0 shows none
  int64_t epochs = 0;  // 0 shows no total
  int64_t step = 0;    // done, within the epoch or the run, as the caller counts
  int64_t steps = 0;   // in all
  std::optional<double> images_per_s;
  std::string samples = "images";  // what people call them
  std::optional<double> loss;
  std::optional<double> lr;
  std::optional<double> grad_norm;
  std::optional<double> loss_scale;
  std::optional<double> data_wait_ms;
  std::optional<double> comm_wait_ms;  // of an update, as data_wait_ms
  std::optional<double> memory_bytes;  // allocated on this rank's device
  std::optional<double> remaining_s;   // none: estimated from the steps of this bar
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
