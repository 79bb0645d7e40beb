#!/usr/bin/env bash
# The conformance kit's checks with several threads and instances (prepare, bind, launch, alloc, event queries, semaphores, collectives),
# under the thread sanitizer, where that build was configured; else skipped (77). A race ends the program that it is in, with 66.
#   threads_under_sanitizer.sh path/to/cmake path/to/build-tsan
set -euo pipefail
cmake=$1
build=$2
if [ ! -e "$build/CTestTestfile.cmake" ]; then
  echo "skipped: no such build in $build; make one with cmake --preset tsan, or run tools/test"
  exit 77
fi
"$cmake" --build "$build" --target conform_alone -j"$(nproc)"
symbolizer=$(command -v addr2line || true)  # of the stacks that are printed
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:external_symbolizer_path=$symbolizer}
for backend in null cpu reference; do
  "$build/bin/conform_alone" $backend --only=threads/,instance/,semaphore/
done
"$build/bin/conform_alone" shm --only=collective/threads,collective/instances
