#!/usr/bin/env bash
# Freezes the ABI as it is now, when a version of it is released: the C headers, the template (minimal.c), and what the patches of the
# guide make of it (streams.c), in tests/porting/frozen/VERSION.
#   freeze.sh v2
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
frozen=$tree/tests/porting/frozen/${1:?which version}
mkdir -p "$frozen/core/abi"
for header in base collective device interpose kernel ops plugin; do cp "$tree/core/abi/$header.h" "$frozen/core/abi/"; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
template=$tree/tools/backend_template/backend.c
sed 's/@NAME@/frozen_minimal/g' "$template" > "$frozen/minimal.c"
sed 's/@NAME@/abacus/g' "$template" > "$work/backend.c"
# The guide has each patch twice, of backend.c and of backend.cc.
awk '$0 == "```" { if (on && patch !~ /backend\.cc/) printf "%s", patch; on = 0 }
     on { patch = patch $0 "\n" }
     $0 == "```diff" { on = 1; patch = "" }' "$tree/backends/PORTING.md" | patch -s -d "$work" -p0
sed 's/abacus/frozen_streams/g' "$work/backend.c" > "$frozen/streams.c"
