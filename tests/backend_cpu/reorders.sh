#!/usr/bin/env bash
# What a training step of a convolutional model brings into another layout, by oneDNN's own account: filters and their
# gradients, one for each convolution at most, and no activations, which are those that begin with the batch.
#   reorders.sh path/to/switchyard MODEL [SETTING...]
set -euo pipefail
said=$(ONEDNN_VERBOSE=1 "$1" bench --device=cpu --model="$2" --batch_size=5 --steps=1 --warmup_steps=1 --threads=1 "${@:3}")
convolutions=$(grep -c '^onednn_verbose.*,exec,cpu,convolution,' <<< "$said")
reorders=$(grep '^onednn_verbose.*,exec,cpu,reorder,' <<< "$said" || true)
shapes=$(sed -E 's/.*,([0-9x]+),[^,]*$/\1/' <<< "$reorders")
activations=$(grep '^5x' <<< "$shapes" || true)
count=$(grep -c . <<< "$shapes" || true)
echo "$2: $convolutions convolutions, $count reorders in two steps"
if [[ $activations || $count -gt $convolutions ]]; then
  printf 'expected reorders of filters alone, and no more of them than convolutions; found\n%s\n' "$(sort <<< "$shapes" | uniq -c)"
  exit 1
fi
