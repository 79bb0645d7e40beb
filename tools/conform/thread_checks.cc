#include <cmath>
#include <memory>
#include <mutex>
#include <thread>

#include "core/base/random.h"
#include "tools/conform/device_checks.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/op_data.h"
#include "tools/conform/op_run.h"

namespace switchyard::conform {
namespace {

// A problem that the device takes, and what it computes when nothing else happens.
struct Exercise {
  Problem problem;
  std::vector<std::vector<double>> expected;
};

StatusOr<std::vector<Exercise>> Exercises(Device& device, uint64_t seed) {
  std::vector<Exercise> exercises;
  for (const char* op : {"pointwise", "matmul", "layer_norm", "softmax", "reduce", "transpose"}) {
    Exercise exercise{MakeProblem(FirstCase(op), SY_F32, seed), {}};
    auto found = RunOp(device, exercise.problem);
    if (found.status().code() == absl::StatusCode::kUnimplemented) continue;
    SY_RETURN_IF_ERROR(Annotate(found.status(), op));
    exercise.expected = *std::move(found);
    exercises.push_back(std::move(exercise));
  }
  return exercises;
}

// Alone and among others a kernel may add up in another order, but not by much.
Status ExpectSame(const std::vector<double>& found, const std::vector<double>& expected, const std::string& op) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::fabs(found[i] - expected[i]) <= 1e-3 * (1 + std::fabs(expected[i]))) continue;
    return Internal("{}: element {} is {}, alone it is {}", op, i, found[i], expected[i]);
  }
  return OkStatus();
}

// A kernel that is made and released while no other thread of the check does so: only that is promised.
class Prepared {
 public:
  static StatusOr<std::unique_ptr<Prepared>> Make(Device& device, const Problem& problem, std::mutex& mutex) {
    const std::lock_guard lock(mutex);
    SY_ASSIGN_OR_RETURN(Kernel kernel, PrepareOp(device, problem));
    return std::unique_ptr<Prepared>(new Prepared(mutex, std::move(kernel)));
  }
  ~Prepared() {
    const std::lock_guard lock(mutex_);
    kernel_.reset();
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  const Kernel& kernel() const { return kernel_; }

 private:
  Prepared(std::mutex& mutex, Kernel kernel) : mutex_(mutex), kernel_(std::move(kernel)) {}

  std::mutex& mutex_;
  Kernel kernel_;
};

// Prepares, binds, launches and lets go of everything, again and again.
Status Work(Device& device, const std::vector<Exercise>& exercises, std::mutex& preparing, int thread) {
  constexpr int kRounds = 12;
  SY_ASSIGN_OR_RETURN(Event event, device.NewEvent());
  for (int round = 0; round < kRounds; ++round) {
    const Exercise& exercise = exercises[static_cast<size_t>(thread + round) % exercises.size()];
    SY_ASSIGN_OR_RETURN(const auto prepared, Prepared::Make(device, exercise.problem, preparing));
    SY_ASSIGN_OR_RETURN(const auto first, BoundOp::Make(device, exercise.problem, prepared->kernel(), {}));
    SY_ASSIGN_OR_RETURN(const auto second,
                        BoundOp::Make(device, exercise.problem, prepared->kernel(), {.first_lead = 2}));
    for (BoundOp* bound : {first.get(), second.get()}) {
      SY_RETURN_IF_ERROR(bound->Fill());
      for (int launch = 0; launch < 4; ++launch) SY_RETURN_IF_ERROR(bound->Launch());
      SY_RETURN_IF_ERROR(event.Record(bound->stream()));
      bool done = false;
      while (!done) {
        SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(1000 + static_cast<uint64_t>(round)));
        SY_ASSIGN_OR_RETURN(done, event.Done());
      }
      SY_ASSIGN_OR_RETURN(const auto found, bound->Collect());
      for (size_t o = 0; o < found.size(); ++o) {
        SY_RETURN_IF_ERROR(ExpectSame(found[o], exercise.expected[o], exercise.problem.op));
      }
    }
  }
  return OkStatus();
}

}  // namespace

void CheckThreadsAtWork(Recorder& recorder, Device& device, uint64_t seed) {
  recorder.Run("threads/kernels", [&]() -> Status {
    if (!device.has_kernels()) return Unimplemented("it has no kernels");
    constexpr int kThreads = 4;
    SY_ASSIGN_OR_RETURN(const std::vector<Exercise> exercises, Exercises(device, seed));
    if (exercises.empty()) return Unimplemented("it has no kernel to try");
    std::mutex preparing;
    std::vector<Status> results(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] { results[t] = Caught([&] { return Work(device, exercises, preparing, t); }); });
    }
    for (std::thread& thread : threads) thread.join();
    for (int t = 0; t < kThreads; ++t) {
      SY_RETURN_IF_ERROR(Annotate(results[t], fmt::format("thread {} of {}", t, kThreads)));
    }
    return OkStatus();
  });
}

}  // namespace switchyard::conform
