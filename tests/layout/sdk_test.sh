#!/usr/bin/env bash
# Installs the build into an empty folder, moves that folder, and builds and runs three projects outside the tree against it:
# a plugin that needs the ABI alone, a program that trains through the library a model with an op of its own, and a device
# plugin with a kernel for that op.
#   sdk_test.sh path/to/cmake path/to/build
set -euo pipefail
cmake=$1
build=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/installed" > "$work/install.log"
mv "$work/installed" "$work/sdk"
for project in plugin device program; do
  "$cmake" -S "$here/sdk/$project" -B "$work/$project" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/sdk"
  "$cmake" --build "$work/$project"
done

export SWITCHYARD_PLUGIN_PATH=$work/sdk/lib/switchyard/plugins:$work/device/plugins
cd "$work"
"$work/program/program" cpu  # the op by its decomposition
"$work/program/program" example | tee example.log
if ! grep -qE 'example plugin: [1-9][0-9]* launches of example_squareplus, [1-9][0-9]* of its gradient' example.log; then
  echo "the outside plugin's kernels for the outside op did not run"
  exit 1
fi

# Nothing installed may point back at the build tree or at an unpacked dependency.
for library in "$work"/sdk/lib/switchyard/plugins/*.so; do
  [ -e "$library" ] || continue
  if ldd "$library" | grep -F -e 'not found' -e "$build" -e "/.deps/"; then
    echo "$library does not find its libraries inside the installed tree"
    exit 1
  fi
done
if [ -x "$work/sdk/bin/switchyard" ]; then env -u SWITCHYARD_PLUGIN_PATH "$work/sdk/bin/switchyard" doctor; fi
