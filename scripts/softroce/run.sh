#!/usr/bin/env bash
# Runs a program in a virtual machine that has an RDMA device made of software (Soft-RoCE, rdma_rxe),
# so that the fabric `verbs` can be tested where there is no card:
#
#     run.sh [OPTION]... -- PROGRAM [ARGUMENT]...
#     run.sh --prepare      gets the kernel
#     run.sh --missing      lists Debian's packages that are missing here
#
#     --with FILE        takes FILE along, with its libraries; repeat it
#     --env NAME=VALUE   sets it for PROGRAM; repeat it
#     --time SECONDS     ends the machine then (600)
#     --count            one processor whose clock counts its instructions: slower, but figures do not
#                        depend on what else runs here
#     --keep             keeps the folder with the console's output
#
# The machine is a Debian kernel and one archive in memory: busybox, the modules that it takes, PROGRAM,
# every FILE, and the libraries that these need. It sees nothing else of this machine, and what it writes
# is gone at the end. Its device is rxe0 with the address 10.77.0.1.
#
# Exit status: PROGRAM's; 124 if the time is over; 125 if the machine could not be had, and why.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${FARLEAF_SOFTROCE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/farleaf/softroce}

fail() {
    echo "softroce: $*" >&2
    exit 125
}

# --- arguments -------------------------------------------------------------------------------------------

with=() environment=() seconds=600 keep=false prepare_only=false list_only=false counts=false
while [ $# -gt 0 ]; do
    case $1 in
        --with) with+=("$2") && shift 2 ;;
        --env) environment+=("$2") && shift 2 ;;
        --time) seconds=$2 && shift 2 ;;
        --count) counts=true && shift ;;
        --keep) keep=true && shift ;;
        --prepare) prepare_only=true && shift ;;
        --missing) list_only=true && shift ;;
        --) shift && break ;;
        *) fail "what is '$1'? See the head of $0" ;;
    esac
done
$prepare_only || $list_only || [ $# -gt 0 ] || fail "no program given; see the head of $0"

# --- what it takes ---------------------------------------------------------------------------------------

packages=()
needs() { command -v "$1" >/dev/null 2>&1 || packages+=("$2"); }
needs qemu-system-x86_64 qemu-system-x86
needs busybox busybox-static
needs cpio cpio
needs xz xz-utils
needs modprobe kmod
needs rdma iproute2
[ -n "$(find /usr/lib /usr/lib64 -name 'librxe-rdmav*.so' -print -quit 2>/dev/null)" ] ||
    packages+=(ibverbs-providers)
if $list_only; then
    echo "${packages[*]}"
    exit
fi
if [ ${#packages[@]} -gt 0 ]; then
    fail "missing here; on Debian: apt-get install --no-install-recommends ${packages[*]}"
fi
[ "$(uname -m)" = x86_64 ] || fail "made for x86_64, and this is $(uname -m)"

# --- the kernel ------------------------------------------------------------------------------------------

# The modules that the machine loads; modprobe knows what these need, but not that rxe asks for crc32.
modules=(crc32_generic dummy rdma_rxe ib_uverbs)

# Unpacks a Debian kernel into $cache/kernel, once.
prepare() {
    [ -e "$cache/kernel/ready" ] && return
    mkdir -p "$cache"
    local package deb
    if ! compgen -G "$cache/linux-image-*.deb" >/dev/null; then
        echo "softroce: downloading a kernel, about 70 MB" >&2
        newest() {
            apt-cache depends linux-image-amd64 2>/dev/null |
                sed -n 's/^ *Depends: *\(linux-image-[0-9].*\)$/\1/p' | head -n 1
        }
        package=$(newest)
        if [ -z "$package" ]; then
            apt-get update >&2 || fail "apt-get update failed: the kernel comes from Debian's archive"
            package=$(newest)
        fi
        [ -n "$package" ] || fail "apt knows no linux-image-amd64; put a linux-image-*.deb into $cache"
        (cd "$cache" && apt-get -q download "$package" >&2) ||
            fail "cannot download $package; put a linux-image-*.deb into $cache"
    fi
    deb=$(compgen -G "$cache/linux-image-*.deb" | tail -n 1)
    rm -rf "$cache/kernel"
    mkdir -p "$cache/kernel"
    dpkg-deb --fsys-tarfile "$deb" |
        tar -x -C "$cache/kernel" --wildcards './boot/vmlinuz-*' './lib/modules/*' ||
        fail "$deb cannot be unpacked; remove it, and it is downloaded anew"
    depmod -b "$cache/kernel" "$(kernel_version)" || fail "depmod failed"
    touch "$cache/kernel/ready"
}

kernel_version() { basename "$(compgen -G "$cache/kernel/lib/modules/*")"; }

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
prepare
flock -u 9
$prepare_only && exit 0

# --- the archive -----------------------------------------------------------------------------------------

run=$(mktemp -d "${TMPDIR:-/tmp}/farleaf-softroce.XXXXXX")
machine=
clean() {
    [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
    if $keep; then echo "softroce: kept $run" >&2; else rm -rf "$run"; fi
}
trap clean EXIT
root=$run/root
mkdir -p "$root"/{bin,dev,proc,sys,tmp,modules,etc/libibverbs.d}

# put FILE: copies it, and the libraries that it needs, to where they stand here.
put() {
    local file
    for file in "$1" $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true); do
        [ -e "$root$file" ] && continue
        mkdir -p "$root$(dirname "$file")"
        cp -L "$file" "$root$file"
    done
}

put "$(command -v busybox)"
[ -e "$root/bin/busybox" ] || ln -s "$(command -v busybox)" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
put "$(command -v rdma)"
for driver in $(find /usr/lib /usr/lib64 -name 'librxe-rdmav*.so' 2>/dev/null); do put "$driver"; done
put "$(find /usr/lib /usr/lib64 -name 'libibverbs.so.1' -print -quit)"
echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"
program=$(command -v "$1") || fail "no program $1"
program=$(readlink -f "$program")
shift
for file in "$program" "${with[@]}"; do
    file=$(readlink -f "$file")
    put "$file"
    # Without what only debuggers read, the archive is a tenth as large.
    strip "$root$file" 2>/dev/null || true
done

version=$(kernel_version)
modprobe -d "$cache/kernel" -S "$version" -a --show-depends "${modules[@]}" |
    sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$run/modules"
[ -s "$run/modules" ] || fail "kernel $version has no module ${modules[*]}"
while read -r file; do
    name=$(basename "$file")
    case $name in
        *.xz) xz -dc "$file" >"$root/modules/${name%.xz}" ;;
        *.zst) zstd -qdc "$file" >"$root/modules/${name%.zst}" ;;
        *) cp "$file" "$root/modules/" ;;
    esac
    name=${name%.xz}
    echo "${name%.zst}" >>"$root/modules/order"
done <"$run/modules"

cp "$here/init" "$root/init"
chmod 755 "$root/init"
{
    for pair in "${environment[@]}"; do printf 'export %q\n' "$pair"; done
    printf '%q ' "$program" "$@"
    printf '\n'
} >"$root/program"
(cd "$root" && find . | cpio --quiet -o -H newc) >"$run/archive"

# --- the machine -----------------------------------------------------------------------------------------

# A kernel as it is needs virtualisation by the processor; without it, code is translated.
acceleration=(-accel tcg,thread=multi -cpu max,-la57 -smp "$(nproc)")
if $counts; then
    acceleration=(-accel tcg,thread=single -icount shift=0,sleep=off -cpu max,-la57 -smp 1)
elif [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
    acceleration=(-accel kvm -cpu host -smp "$(nproc)")
fi
: >"$run/output"
# no_timer_check: where the machine gets little of the processor, the kernel takes its timer for broken and ends.
# tsc=reliable: else its clock is an emulated device, which takes ten times as long to read.
qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -machine q35 \
    "${acceleration[@]}" -m 2G \
    -kernel "$cache/kernel/boot/vmlinuz-$version" -initrd "$run/archive" \
    -append "console=ttyS0 loglevel=4 quiet no_timer_check tsc=reliable panic=-1 reboot=t mitigations=off 8250.nr_uarts=2" \
    -serial "file:$run/console" -serial "file:$run/output" </dev/null >"$run/machine" 2>&1 &
machine=$!
tail -n +1 -f --pid="$machine" "$run/output" 2>/dev/null | sed -u '/^softroce-/d; s/\r$//' &
reader=$!
# Not SECONDS, which follow the time of day, and that may be set meanwhile.
up() { cut -d. -f1 /proc/uptime; }
deadline=$(($(up) + seconds))
while kill -0 "$machine" 2>/dev/null; do
    if [ "$(up)" -ge "$deadline" ]; then
        echo "softroce: not done within $seconds s" >&2
        exit 124
    fi
    sleep 0.1
done
machine=
wait "$reader" || true
status=$(tr -d '\r' <"$run/output" | sed -n 's/^softroce-status //p' | tail -n 1)
if [ -z "$status" ]; then
    tr -d '\r' <"$run/output" | sed -n 's/^softroce-error/softroce: in the machine:/p' >&2
    { tail -n 15 "$run/console" | tr -d '\r'; cat "$run/machine"; } >&2 2>/dev/null || true
    fail "the machine ended without a result"
fi
exit "$status"
