#!/usr/bin/env bash
# The conformance kit runs from an installed tree alone: the build is installed into an empty folder, which is moved, and the kit tests a
# plugin by name, one by path that lies elsewhere, and a collective, in a folder of its own and without a setting of whoever runs the tests.
#   installed_conform_test.sh path/to/cmake path/to/build
set -euo pipefail
cmake=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/installed" > "$work/install.log"
mv "$work/installed" "$work/moved"
mkdir "$work/elsewhere" "$work/cache"
cp "$work"/moved/lib/switchyard/plugins/switchyard_backend_null.so "$work/elsewhere/ported.so"
cd "$work/elsewhere"
conform() { env -i PATH="$PATH" XDG_CACHE_HOME="$work/cache" "$work/moved/bin/switchyard" conform "$@"; }

conform reference --only='struct,op/matmul/*,train/*' --json="$work/report.json"
grep -q '"passed": true' "$work/report.json"
grep -q "\"path\": \"$work/moved/lib/switchyard/plugins/switchyard_backend_reference.so\"" "$work/report.json"
conform ./ported.so --only='device,async,capture,profiler,op/matmul/*' | tee "$work/null.txt"
grep -q ' 0 FAIL,' "$work/null.txt"
conform shm --ranks=2 --only='all_reduce/f32,split,death' | tee "$work/shm.txt"
grep -q ' 0 FAIL,' "$work/shm.txt"
if conform no_such_plugin > "$work/none.txt"; then
  echo "conform of a plugin that is not there succeeded"
  exit 1
fi
grep -q 'no collective "no_such_plugin"\|no backend "no_such_plugin"' "$work/none.txt"
