#include "core/train/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

class ProgressTest : public Scratch {
 protected:
  ProgressTest() : descriptor_(open(In("out").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600)) {}
  ~ProgressTest() override { close(descriptor_); }

  ProgressOptions Options(int columns) {
    columns_ = columns;
    ProgressOptions options;
    options.descriptor = descriptor_;
    options.clock = [this] { return now_; };
    options.terminal_columns = [this] { return columns_; };
    options.ascii = true;
    return options;
  }
  std::string Output() { return ReadText(In("out")); }
  int64_t Count(const std::string& output, char c) { return std::count(output.begin(), output.end(), c); }

  static ProgressState At(int64_t step) {
    ProgressState state{.epoch = 3, .epochs = 10, .step = step, .steps = 200};
    state.images_per_s = 412.4;
    state.loss = 1.2345;
    state.lr = 3e-4;
    return state;
  }

  double now_ = 100;
  int columns_ = 0;

 private:
  int descriptor_;
};

TEST_F(ProgressTest, SaysNanWithoutASignAndWhatSamplesAre) {
  Progress progress(Options(0));
  ProgressState state = At(126);
  state.loss = state.grad_norm = -std::numeric_limits<double>::quiet_NaN();
  state.samples = "volumes";
  progress.Update(state);
  progress.Finish();
  EXPECT_THAT(Output(), HasSubstr("loss nan  412 volumes/s"));
  EXPECT_THAT(Output(), HasSubstr("grad nan"));
}

TEST_F(ProgressTest, DrawsOneLineOnATerminal) {
  Progress progress(Options(120));
  progress.Update(At(0));
  now_ += 63;
  progress.Update(At(126));
  progress.Finish();
  const std::string output = Output();
  EXPECT_EQ(Count(output, '\n'), 1);
  EXPECT_EQ(Count(output, '\r'), 2);
  EXPECT_EQ(output.substr(output.rfind('\r')),
            "\repoch 3/10 ==================>-----------  126/200  loss 1.234  412 images/s  ETA 0:37  lr 0.0003"
            "\x1b[K\n");
}

TEST_F(ProgressTest, NeverPassesTheWidthOfTheTerminal) {
  for (int columns = 1; columns < 200; ++columns) {
    Progress progress(Options(columns));
    ProgressState state = At(199);
    state.comm_wait_ms = 65.5;
    state.grad_norm = 12.5;
    state.memory_bytes = 3.2e9;
    progress.Update(state);
    const std::string output = Output();
    const size_t begin = output.rfind('\r') + 1;
    ASSERT_LT(static_cast<int>(output.find('\x1b', begin) - begin), std::max(columns, 2)) << output.substr(begin);
  }
}

TEST_F(ProgressTest, IsDrawnTenTimesASecondAtMost) {
  Progress progress(Options(80));
  for (int step = 0; step < 199; ++step) {
    progress.Update(At(step));
    now_ += 0.01;
  }
  EXPECT_LE(Count(Output(), '\r'), 21);
  EXPECT_GE(Count(Output(), '\r'), 15);
  progress.Update(At(200));
  EXPECT_THAT(Output(), HasSubstr("200/200")) << "the end is always shown";
}

TEST_F(ProgressTest, WritesPlainLinesElsewhere) {
  Progress progress(Options(0));
  for (int step = 0; step <= 200; ++step) {
    progress.Update(At(step));
    now_ += 0.25;
  }
  const std::string output = Output();
  EXPECT_EQ(Count(output, '\r'), 0);
  EXPECT_EQ(Count(output, '\x1b'), 0);
  EXPECT_EQ(Count(output, '\n'), 6);  // at 0, 10, 20, 30, 40 s and at the end
  EXPECT_THAT(output, HasSubstr("epoch 3/10  40/200  loss 1.234  412 images/s  ETA 0:40  lr 0.0003\n"));
}

TEST_F(ProgressTest, ShowsALossThatIsNoNumber) {
  Progress progress(Options(0));
  ProgressState state = At(7);
  state.loss = std::numeric_limits<double>::quiet_NaN();
  progress.Update(state);
  EXPECT_THAT(Output(), HasSubstr("7/200  loss nan  412 images/s"));
}

TEST_F(ProgressTest, WritesEveryPlainLineWithoutAnInterval) {
  ProgressOptions options = Options(0);
  options.line_interval_s = 0;
  Progress progress(options);
  for (int step = 0; step <= 200; ++step) {
    progress.Update(At(step));
    now_ += 1e-6;
  }
  EXPECT_EQ(Count(Output(), '\n'), 201);
}

TEST_F(ProgressTest, LinesOfOthersStandAboveTheBar) {
  Progress progress(Options(100));
  progress.Update(At(10));
  progress.Line("top1 88.1 %");
  progress.Finish();
  progress.Line("after");
  const std::string output = Output();
  EXPECT_THAT(output, HasSubstr("\r\x1b[Ktop1 88.1 %\n\repoch"));
  EXPECT_THAT(output, ::testing::EndsWith("\x1b[K\nafter\n"));
}

TEST_F(ProgressTest, SaysDurationsShortly) {
  EXPECT_EQ(DurationText(0.4), "0:00");
  EXPECT_EQ(DurationText(42), "0:42");
  EXPECT_EQ(DurationText(727), "12:07");
  EXPECT_EQ(DurationText(3 * 3600 + 309), "3:05:09");
  EXPECT_EQ(DurationText(2 * 86400 + 3 * 3600 + 300), "2d 03:05");
  EXPECT_EQ(DurationText(-1), "?");
  EXPECT_EQ(DurationText(1e300), "?");
}

TEST_F(ProgressTest, AClosedPipeIsNoReasonToStop) {
  ProgressOptions options = Options(80);
  options.descriptor = -1;
  Progress progress(options);
  progress.Update(At(1));
  progress.Line("unseen");
}

}  // namespace
}  // namespace switchyard
