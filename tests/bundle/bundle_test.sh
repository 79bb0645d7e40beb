#!/usr/bin/env bash
# Makes a bundle, unpacks it somewhere else, and trains with it: in a clean environment, and in a root file system that
# holds nothing but the bundle and the C library of this machine, as on another distribution.
#   bundle_test.sh path/to/tools/bundle path/to/build full|gpu
set -euo pipefail
bundle=$1
build=$2
variant=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bundle_test: $*" >&2; exit 1; }

command -v dpkg-query > /dev/null || { echo "bundle_test: skipped, this is no Debian, where tools/bundle finds licences"; exit 77; }
"$bundle" --build="$build" --variant="$variant" --output="$work/bundle.tar.gz" | tee "$work/log"
grep -q 'needs glibc 2\.[0-9]* or later' "$work/log" || fail "the required glibc was not printed"
bytes=$(stat -c %s "$work/bundle.tar.gz")
[ "$bytes" -le $((28 * 1024 * 1024)) ] || fail "$bytes bytes are more than 28 MiB"

# A root with the bundle and a C library.
root=$work/root
mkdir -p "$root"/{proc,dev,tmp,opt}
tar -C "$root/opt" -xzf "$work/bundle.tar.gz"
mv "$root"/opt/* "$root/opt/elsewhere"
home=$root/opt/elsewhere
cat "$home/BUNDLE.txt"
loader=$(readelf -l "$home/bin/switchyard" | sed -n 's/.*interpreter: \(.*\)]/\1/p')
mkdir -p "$root$(dirname "$loader")"
cp -L "$loader" "$root$loader"
libc_folder=$(dirname "$(ldd "$home/bin/switchyard" | awk '$1 == "libc.so.6" {print $3}')")
mkdir -p "$root$libc_folder"
for library in libc.so.6 libm.so.6 libmvec.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2; do
  if [ -e "$libc_folder/$library" ]; then cp -L "$libc_folder/$library" "$root$libc_folder/"; fi
done

# Every library has its licence, and nothing but the bundle and the C library is used.
[ -n "$(ls "$home/share/doc/switchyard/licenses")" ] || fail "no licences"
for file in "$home"/bin/*; do
  strangers=$(env -i "$loader" --list "$file" | awk '$2 == "=>" {print $3} $2 != "=>" {print $1}' |
    grep -v -e "^$home/" -e '^linux-vdso' -e '/ld-linux[^/]*$' -e '/lib\(c\|m\|mvec\|pthread\|dl\|rt\|resolv\)\.so\.[0-9]$' || true)
  [ -z "$strangers" ] || fail "$file uses libraries outside of the bundle: $strangers"
done

# train WHERE-THE-BUNDLE-IS OUTPUT-FOLDER COMMAND-BEFORE...: the small run, alone and on two ranks.
device=reference
if [ -e "$home/lib/switchyard/plugins/switchyard_backend_cpu.so" ]; then device=cpu; fi
train() {
  local program=$1/bin/switchyard settings
  settings=(train --model=mlp --dataset=shapes --width=16 --train_size=64 --validation_size=20 --batch_size=4 --steps=4
    "--device=$device" --threads=1 "--output=$2/run")
  shift 2
  for launch in "" "launch --nproc_per_node=2"; do
    # shellcheck disable=SC2086
    "$@" "$program" $launch "${settings[@]}" > "$work/output" 2>&1 || { cat "$work/output"; fail "training failed ($launch)"; }
    grep -q 'trained 4 updates' "$work/output" || { cat "$work/output"; fail "it did not train ($launch)"; }
  done
}
echo "--- in a clean environment"
train "$home" "$work" env -i HOME="$work" PATH=/usr/bin:/bin

echo "--- where nothing else is"
inside() {  # the command in the root; /proc and /dev are the machine's
  unshare -r -m bash -c 'mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 && shift &&
    exec chroot "$root" "$@"' inside "$root" "$@"
}
if ! inside /opt/elsewhere/bin/switchyard version > "$work/output" 2>&1; then
  if unshare -r -m true 2> /dev/null; then cat "$work/output"; fail "the program does not start where nothing else is"; fi
  echo "bundle_test: the second part is left out, name spaces cannot be made here"
  exit 0
fi
train /opt/elsewhere /tmp inside
inside /opt/elsewhere/bin/switchyard doctor > "$work/doctor"
cat "$work/doctor"
for name in reference shm tcp; do
  grep -q "^$name .*taken" "$work/doctor" || fail "$name is not usable there"
done
if [ "$variant" = full ] && [ -e "$home/lib/switchyard/plugins/switchyard_collective_mpi.so" ]; then
  # Open MPI is not there: the plugin is refused with that reason, and harms nothing.
  grep '^mpi .*refused' "$work/doctor" | grep -q 'libmpi' || fail "mpi is not refused for want of libmpi"
fi
if [ "$variant" = gpu ] && ls "$home"/lib/switchyard/plugins/*_mpi.so "$home"/lib/switchyard/*mpi* 2> /dev/null; then
  fail "the gpu variant must not need Open MPI"
fi
