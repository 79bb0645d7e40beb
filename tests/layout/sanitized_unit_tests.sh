#!/usr/bin/env bash
# The unit tests of the address- and undefined-behaviour-sanitized build, where that build was configured; else skipped (77).
#   sanitized_unit_tests.sh path/to/cmake path/to/build-asan
set -euo pipefail
cmake=$1
build=$2
if [ ! -e "$build/CTestTestfile.cmake" ]; then
  echo "skipped: no sanitized build in $build; make one with cmake --preset asan, or run tools/test"
  exit 77
fi
"$cmake" --build "$build" --target unit_tests -j"$(nproc)"
symbolizer=$(command -v addr2line || true)  # of the stacks that are printed
# Crashes keep their signal (tests of crashing plugins look for it), and freed memory is kept for a short while only (the
# conformance kit looks for leaks by the size of the process). The runtime of g++ 12 and 13 takes one in 256 blocks of thread-local
# variables of loaded libraries for one with a header of glibc 2.19, and then its search for leaks dies ("Tracer caught signal 11"):
# intercept_tls_get_addr=0 lets it find such blocks as the allocations that they are.
export ASAN_OPTIONS=${ASAN_OPTIONS:-intercept_tls_get_addr=0:allocator_may_return_null=1:detect_stack_use_after_return=1:handle_segv=0:handle_abort=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64:external_symbolizer_path=$symbolizer}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:external_symbolizer_path=$symbolizer}
# A run without a single test would say nothing: it fails. Of the tests that pass only their number is shown, so that the output of one
# that fails is not lost among them.
"$(dirname "$cmake")/ctest" --test-dir "$build" --label-regex '^unit$' --output-on-failure --no-tests=error -j"$(nproc)" |
  grep --invert-match --extended-regexp '^ *(Start +[0-9]+: |[0-9]+/[0-9]+ Test .* Passed )'
