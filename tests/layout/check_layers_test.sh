#!/usr/bin/env bash
# tools/check_layers passes on a small tree in order, and fails on each include planted against it.
#   check_layers_test.sh path/to/check_layers
set -euo pipefail
check=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

fresh_tree() {  # every layer including the one below it
  rm -rf "$tree"
  local below=core/abi folder
  for folder in core/abi core/base core/graph core/runtime/plugins core/runtime/device core/runtime/collectives core/plan core/nn core/parallel core/train models tools tests; do
    mkdir -p "$tree/$folder"
    printf '#pragma once\n#include <vector>\n#include "fmt/format.h"\n#include "%s/a.h"\n' $below > "$tree/$folder/a.h"
    below=$folder
  done
  mkdir -p "$tree"/{backends/{cpu,null,reference},collectives/shm}
  printf '#include "core/abi/a.h"\n#include "backends/cpu/own.h"\n' > "$tree/backends/cpu/plugin.cc"
  printf '#include "backends/reference/kernels.h"\n' > "$tree/backends/null/plugin.cc"
  printf '#include "backends/cpu/plugin.h"\n#include "core/plan/a.h"\n' > "$tree/tests/b.cc"
}

refuses() {  # file, include line
  fresh_tree
  mkdir -p "$(dirname "$tree/$1")"
  printf '%s\n' "$2" >> "$tree/$1"
  if output=$("$check" "$tree"); then echo "not refused: $1 with $2"; failed=1
  elif [[ $output != *"$1:"* ]]; then echo "refused without naming $1: $output"; failed=1
  fi
}

fresh_tree
"$check" "$tree" || { echo "a tree in order was refused"; failed=1; }
refuses core/graph/a.h '#include "core/plan/a.h"'
refuses core/graph/ops/deep.cc '  #  include <core/runtime/device/a.h>'
refuses core/abi/a.h '#include "core/base/a.h"'
refuses core/nn/a.h '#include "core/optim/a.h"'
refuses core/settings/a.h '#include "core/train/a.h"'
refuses core/graph/a.h '#include "core/settings/a.h"'
refuses core/train/a.h '#include "models/a.h"'
refuses core/runtime/device/a.h '#include "backends/cpu/plugin.h"'
refuses core/runtime/device/a.h '#include "core/runtime/processes/a.h"'
refuses core/runtime/plugins/a.h '#include "core/runtime/device/a.h"'
refuses core/runtime/processes/a.h '#include "core/runtime/plugins/a.h"'
refuses core/runtime/a.h '#include "core/abi/a.h"'
refuses core/base/a.h '#include "../plan/a.h"'
refuses core/base/a.h '#include "core/utils/a.h"'
refuses models/a.h '#include "tests/a.h"'
refuses backends/cpu/plugin.cc '#include "core/base/a.h"'
refuses backends/cpu/plugin.cc '#include "backends/reference/kernels.h"'
refuses collectives/shm/plugin.cc '#include "core/runtime/device/a.h"'
refuses core/train/a.h '  setenv("A", "b", 1);'
refuses collectives/shm/plugin.cc '  action.sa_handler = Remember;'
refuses tools/a.h 'signal(SIGTERM, [](int) { stop = true; });'
fresh_tree
printf 'setenv("A", "b", 1);\nsignal(SIGTERM, Count);\n' >> "$tree/tests/b.cc"
printf 'signal(SIGXFSZ, SIG_IGN);\nuint64_t signal, name = strsignal(3);\n' >> "$tree/tools/a.h"
"$check" "$tree" || { echo "what is harmless was refused"; failed=1; }
exit $failed
