#!/usr/bin/env bash
# The guide backends/PORTING.md from beginning to end, in an empty folder, with nothing but the installed SDK: the scaffold in C and in C++ builds,
# is seen by doctor, trains and conforms; the source printed in the guide is the one that the scaffold writes; its patches apply, and reach
# the levels that it promises.
#   porting_test.sh path/to/cmake path/to/build
set -euo pipefail
cmake=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset SWITCHYARD_PLUGIN_PATH SWITCHYARD_INTERPOSE
fail() { echo "porting_test: $*" >&2; exit 1; }

"$cmake" --install "$build" --prefix "$work/installed" > "$work/install.log"
mv "$work/installed" "$work/sdk"
switchyard=$work/sdk/bin/switchyard
documents=$work/sdk/share/doc/switchyard
guide=$documents/backends/PORTING.md
mkdir "$work/empty"
cd "$work/empty"

build_plugin() {  # folder
  # The SDK alone: a package of the C++ library that it looked for would be found here and reported.
  CFLAGS=-Werror CXXFLAGS=-Werror "$cmake" -S "$1" -B "$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
                                           -DCMAKE_PREFIX_PATH="$work/sdk" > "$1.log"
  if grep -iE '^(absl|fmt|protobuf|nlohmann_json|png|jpeg|zlib|mpi|cuda(toolkit)?)_' "$1/build/CMakeCache.txt" > "$1.found"; then
    cat "$1.found"
    fail "$1: the SDK for plugins looked for more than its headers"
  fi
  "$cmake" --build "$1/build" >> "$1.log" || { cat "$1.log"; fail "$1 does not build"; }
}

expect() {  # words, output
  grep -qF -- "$1" <<< "$2" || { echo "$2"; fail "expected: $1"; }
}

for language in c c++; do
  name=abacus_${language//+/p}
  "$work/sdk/bin/switchyard_new_backend" "$name" --language=$language > "$name.next"
  expect "-DCMAKE_PREFIX_PATH=$work/sdk" "$(cat "$name.next")"
  lines=$(wc -l < "$(echo "$name"/backend.c*)")
  [ "$lines" -le 150 ] || fail "backend of $name has $lines lines; expected at most 150"
  build_plugin "$name"
  export SWITCHYARD_PLUGIN_PATH=$PWD/$name/build/plugins
  expect "taken, 1 device" "$("$switchyard" doctor | grep "^$name ")"
  trained=$("$switchyard" train --model=mlp --dataset=synthetic --classes=10 --width=32 --batch_size=8 --steps=5 --train_size=64 \
                          --validation_size=16 --device="$name" --output="$work/run" 2>&1) || { echo "$trained"; fail "$name does not train"; }
  expect "trained 5 updates" "$trained"
  conformed=$("$switchyard" conform "$name/build/plugins/switchyard_backend_$name.so") || { echo "$conformed"; fail "$name does not conform"; }
  expect " 0 FAIL" "$conformed"
  expect "level Distributed (Async as a synchronous device, without streams; 0 of " "$(tail -1 <<< "$conformed")"
done

# A folder that holds something, a name that is none.
if "$work/sdk/bin/switchyard_new_backend" abacus_c 2> refused; then fail "an existing folder was overwritten"; fi
expect "there already" "$(cat refused)"
if "$work/sdk/bin/switchyard_new_backend" Bad-Name 2> refused; then fail "a bad name was taken"; fi
expect "not a plain name" "$(cat refused)"

# What the guide links to and cites by its path is installed too.
cited=$({ grep -oE '\]\([^#)][^)]*\)' "$guide" | sed -E 's/^\]\((.*)\)$/backends\/\1/'; grep -oE '`(backends|core)/[a-z_./]+`' "$guide" | tr -d '`'; } | sort -u)
[ "$(wc -l <<< "$cited")" -ge 8 ] || fail "found only these citations in the guide: $cited"
for path in $cited; do
  [ -e "$documents/$path" ] || [ -e "$work/sdk/include/switchyard/$path" ] || fail "the guide cites $path, which is not installed"
done

# The guide: its source, then each of its patches.
"$work/sdk/bin/switchyard_new_backend" abacus > /dev/null
block() {  # language, which: the n-th fenced block of that language
  awk -v fence="\`\`\`$1" -v which="$2" '$0 == "```" { on = 0 } on { print } $0 == fence && ++count == which { on = 1 }' "$guide"
}
block c 1 | diff -u - abacus/backend.c || fail "the guide prints another source than the scaffold writes"
block json 1 | diff -u - abacus/manifest.json || fail "the guide prints another manifest than the scaffold writes"
for language in c c++; do
  rm -rf abacus
  "$work/sdk/bin/switchyard_new_backend" abacus --language=$language > /dev/null
  for step in 1 2; do
    patch=$((2 * step - 1)) # those of C and of C++ take turns
    if [ $language = c++ ]; then patch=$((2 * step)); fi
    block diff $patch > step.diff
    [ -s step.diff ] || fail "the guide has no patch $patch"
    (cd abacus && patch -p0 < ../step.diff)
    build_plugin abacus
    conformed=$("$switchyard" conform abacus/build/plugins/switchyard_backend_abacus.so) || { echo "$conformed"; fail "patch $patch does not conform"; }
    if [ $step = 1 ]; then expect "level Distributed (Async as a synchronous device, without streams; 1 of " "$(tail -1 <<< "$conformed")"
    else expect "level Distributed (1 of " "$(tail -1 <<< "$conformed")"
    fi
  done
done
echo "the guide holds what it promises"
