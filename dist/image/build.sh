#!/usr/bin/env bash
# Builds the container image, without a daemon: a root file system by mmdebstrap, the image by buildah.
#
#   dist/image/build.sh [--binary FILE] [--out FOLDER] [--prepare]
#
#   --binary FILE   the program; without it, cargo builds the release binary
#   --out FOLDER    where all goes (target/image)
#   --prepare       only the folder that docker builds from: docker build -t farleaf target/image/context
#
# Writes into FOLDER:
#   farleaf.oci.tar      the image, for podman, skopeo and registries
#   farleaf.docker.tar   the same for docker: docker load -i farleaf.docker.tar
#   farleaf.debug        the program's debug information, which the image is without. For backtraces with lines, mount
#                        it beside the program: -v $PWD/farleaf.debug:/usr/bin/farleaf.debug:ro -e RUST_BACKTRACE=1
#   digest               the image's digest: the same again from the same commit, program and packages
#
# FARLEAF_MIRROR: Debian's mirror (http://deb.debian.org/debian).
# SOURCE_DATE_EPOCH: time of all files of the image (that of the last commit).
set -euo pipefail
cd "$(dirname "$0")/../.."

# Bytes of an image's files.
bytes_max=$((60 * 1000 * 1000))
# A program by --binary may be one that is not optimised, as that of the tests: it counts as at most so much.
program_bytes_max=$((32 * 1000 * 1000))
suite=bookworm

die() { echo "image: $*" >&2; exit 1; }

binary='' out=${CARGO_TARGET_DIR:-target}/image prepare=false
while [ $# -gt 0 ]; do
    case $1 in
    --binary) binary=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --prepare) prepare=true; shift ;;
    *) die "$1: it is --binary FILE, --out FOLDER or --prepare" ;;
    esac
done
tools="mmdebstrap objcopy"
$prepare || tools+=" buildah"
for tool in $tools; do
    command -v "$tool" >/dev/null ||
        die "$tool is missing: apt-get install mmdebstrap buildah binutils (Debian, Ubuntu)"
done
is_given=true
if [ -z "$binary" ]; then
    is_given=false
    cargo build --release --locked -p farleaf-cli
    binary=${CARGO_TARGET_DIR:-target}/release/farleaf
fi
[ -x "$binary" ] || die "there is no program $binary"
binary=$(realpath "$binary")
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
version=$("$binary" --version | cut -d ' ' -f 2)

mkdir -p "$out"
out=$(realpath "$out")
context=$out/context
rm -rf "$context"
mkdir -p "$context/data"
cp dist/image/Containerfile "$context/"

# The program names its debug information by a link, which backtraces follow.
objcopy --only-keep-debug --compress-debug-sections "$binary" "$out/farleaf.debug"
(cd "$out" && objcopy --strip-all --add-gnu-debuglink=farleaf.debug "$binary" "$context/farleaf")

# Libraries, and nothing that runs: no shell, no program that runs as another user. Licences stay.
left_out=()
for path in '/bin/*' '/sbin/*' '/usr/bin/*' '/usr/sbin/*' '/lib/*/security/*' '/usr/lib/*/gconv/*' '/usr/share/*'; do
    left_out+=("--dpkgopt=path-exclude=$path")
done
mmdebstrap --quiet --variant=extract --include=libc6,libgcc-s1,libibverbs1,ibverbs-providers "${left_out[@]}" \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' "$suite" "$context/root.tar" \
    "${FARLEAF_MIRROR:-http://deb.debian.org/debian}"
if $prepare; then
    printf 'context  %s\n' "$context"
    exit 0
fi

# Storage of its own, which goes again: the user's images stay as they are.
storage=$(mktemp -d)
buildah() { command buildah --storage-driver vfs --root "$storage/root" --runroot "$storage/run" "$@"; }
trap 'buildah rm --all >/dev/null 2>&1 || true; buildah rmi --all --force >/dev/null 2>&1 || true; rm -rf "$storage"' EXIT
buildah bud --quiet --isolation chroot --timestamp "$SOURCE_DATE_EPOCH" --build-arg "VERSION=$version" \
    --build-arg "REVISION=$revision" --file "$context/Containerfile" --tag farleaf "$context" >/dev/null
rm -f "$out"/farleaf.*.tar
buildah push --quiet --digestfile "$out/digest" farleaf "oci-archive:$out/farleaf.oci.tar:farleaf:latest"
buildah push --quiet farleaf "docker-archive:$out/farleaf.docker.tar:farleaf:latest"

program=$(stat -c %s "$context/farleaf")
counted=$program
if $is_given && [ "$program" -gt "$program_bytes_max" ]; then counted=$program_bytes_max; fi
bytes=$(($(stat -c %s "$context/root.tar") + program))
printf 'image    %s\ndigest   %s\nbytes    %d, of which the program is %d\n' \
    "$out/farleaf.oci.tar" "$(cat "$out/digest")" "$bytes" "$program"
[ $((bytes - program + counted)) -le "$bytes_max" ] ||
    die "the image is larger than $bytes_max bytes"
