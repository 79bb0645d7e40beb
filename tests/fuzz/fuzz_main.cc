// One fuzzer for as long as one likes; tools/soak starts it.
//   switchyard_fuzz NAME SECONDS [SEED]    built with g++: our own driver. The input being run is kept in
//   fuzz-NAME.input switchyard_fuzz NAME FILE              that one input again SWITCHYARD_FUZZ=NAME switchyard_fuzz …
//   built with clang: libFuzzer, with its own arguments
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/fuzz.h"

namespace {

const switchyard::FuzzTarget* FindTarget(const char* name) {
  for (const switchyard::FuzzTarget& target : switchyard::FuzzTargets()) {
    if (name != nullptr && std::strcmp(target.name, name) == 0) return &target;
  }
  std::fprintf(stderr, "expected the name of a fuzzer:");
  for (const switchyard::FuzzTarget& target : switchyard::FuzzTargets()) std::fprintf(stderr, " %s", target.name);
  std::fprintf(stderr, "\n");
  std::exit(2);
}

}  // namespace

#ifdef SWITCHYARD_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const switchyard::FuzzTarget* const target = FindTarget(std::getenv("SWITCHYARD_FUZZ"));
  return target->run(data, size);
}

// The mutations are libFuzzer's, which sees what they reach; the seeds are ours.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const switchyard::FuzzTarget* const target = FindTarget(std::getenv("SWITCHYARD_FUZZ"));
  if (const char* folder = std::getenv("SWITCHYARD_FUZZ_SEEDS")) {
    int number = 0;
    for (const switchyard::FuzzInput& seed : target->seeds()) {
      std::ofstream(std::string(folder) + "/seed-" + std::to_string(number++), std::ios::binary)
          .write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    }
  }
  return 0;
}

#else

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

namespace {

switchyard::FuzzInput current;
std::string kept;

// Only calls that a signal handler may make.
void KeepInput(int signal) {
  const int file = open(kept.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file >= 0 && write(file, current.data(), current.size()) >= 0) {
    constexpr char kText[] = "the input that did it is kept in the working folder\n";
    [[maybe_unused]] const ssize_t said = write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

int main(int argc, char** argv) {
  const switchyard::FuzzTarget* const target = FindTarget(argc > 1 ? argv[1] : nullptr);
  const std::string what = argc > 2 ? argv[2] : "1";
  if (std::filesystem::exists(what)) {
    std::ifstream file(what, std::ios::binary);
    const switchyard::FuzzInput input{std::istreambuf_iterator<char>(file), {}};
    return target->run(input.data(), input.size());
  }
  kept = std::string("fuzz-") + target->name + ".input";
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, KeepInput);
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  const int64_t count = switchyard::RunFuzzer(*target, seed, std::atof(what.c_str()), INT64_MAX, &current);
  std::printf("%s: %lld inputs from seed %llu, none broke it\n", target->name, static_cast<long long>(count),
              static_cast<unsigned long long>(seed));
}

#endif
