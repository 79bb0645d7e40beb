#!/usr/bin/env bash
# Writes the ABI headers as a later version of the edition may have them: one more field or function at the end of every struct that has a
# header or is the attributes of an op, one more dtype, one more reduction.
#   later_headers.sh core/abi path/of/copies
set -euo pipefail
mkdir -p "$2"
for header in "$1"/*.h; do
  awk '
    /^typedef struct [a-z0-9_]+ \{/ { name = $3; grows = name ~ /_attributes$/ }
    /^  sy_header header;/ { grows = name != "sy_extension" }
    $1 == "}" && index($2, name ";") == 1 && grows {
      print name ~ /_v[0-9]+$/ ? "  void (*later)(void);" : "  uint64_t later;"
      grows = 0
    }
    /^#define SY_ABI_MINOR / { $3 += 1 }
    {
      sub(/SY_DTYPE_COUNT = 7/, "SY_LATER_DTYPE = 7, SY_DTYPE_COUNT = 8")
      sub(/32, 16, 16, 64, 32, 64, 8}/, "32, 16, 16, 64, 32, 64, 8, 4}")
      sub(/"i64", "u8"}/, "\"i64\", \"u8\", \"i4\"}")
      sub(/SY_REDUCTION_COUNT = 4/, "SY_LATER_REDUCTION = 4, SY_REDUCTION_COUNT = 5")
      print
    }' "$header" > "$2/${header##*/}"
done
for change in 'SY_LATER_DTYPE = 7' ', 8, 4}' '"i4"}' 'SY_LATER_REDUCTION = 4' 'void (\*later)(void);' 'uint64_t later;'; do
  grep -rq -- "$change" "$2" || { echo "later_headers.sh: the headers look otherwise now: found no place for $change" >&2; exit 1; }
done
