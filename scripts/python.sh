#!/usr/bin/env bash
# Builds the Python wheel and runs its tests on it, in a fresh environment.
#
#   scripts/python.sh [setup|test|bench|wheel] [ARGUMENTS]
#
#   setup    fetches what the others take from PyPI: they need no network then
#   test     builds the wheel, installs it, runs python/tests; ARGUMENTS go to pytest
#   bench    builds the wheel, installs it, runs python/bench.py beside py-lmdb and the Rust library
#   wheel    builds the wheel alone; with FARLEAF_ZIG=1 for manylinux_2_28, by zig as the linker
#
# FARLEAF: the command whose memory servers the tests use; else the one of the tests' own build.
# FARLEAF_PYTHON: the interpreter (python3). Wheels go to $CARGO_TARGET_DIR/python/wheels.
# FARLEAF_WHEEL_PROFILE: the cargo profile of the wheel (release).
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-test}
shift || true
python=${FARLEAF_PYTHON:-python3}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
wheels=$target/python/wheels
environment=$target/python/environment

die() { echo "python: $*" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || die "the wheel is for Linux; this is $(uname -s)"
command -v "$python" >/dev/null || die "there is no $python: set FARLEAF_PYTHON to an interpreter of 3.10 or later"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "$python is older than 3.10"

# The tools that build are kept; the environment of the tests is made anew.
build=$target/python/build-tools
packages=$target/python/packages
requirements=$PWD/python/tests/requirements.txt
missing() { die "$1 cannot be had: PyPI cannot be reached, or python3-venv is missing"; }
[ -x "$build/bin/python" ] || "$python" -m venv "$build" || missing "an environment for maturin"
[ -x "$build/bin/maturin" ] || "$build/bin/pip" install -q 'maturin>=1.9,<2' || missing maturin
if ! cmp -s "$requirements" "$packages/requirements.txt"; then
    "$build/bin/pip" download -q --dest "$packages" --requirement "$requirements" || missing "the tests' packages"
    cp "$requirements" "$packages/"
fi
[ "$what" != setup ] || exit 0
flags=()
if [ -n "${FARLEAF_ZIG:-}" ]; then
    "$build/bin/pip" install -q ziglang
    flags=(--zig --compatibility manylinux_2_28)
fi
rm -rf "$wheels"
PATH=$build/bin:$PATH CARGO_TARGET_DIR=$target/python "$build/bin/maturin" build --locked \
    --profile "${FARLEAF_WHEEL_PROFILE:-release}" \
    --manifest-path python/Cargo.toml --interpreter "$python" --out "$wheels" "${flags[@]}"
wheel=$(ls "$wheels"/farleaf-*.whl)
printf 'wheel    %s    %d bytes\n' "$wheel" "$(stat -c %s "$wheel")"
[ "$what" != wheel ] || exit 0

rm -rf "$environment"
"$python" -m venv "$environment"
"$environment/bin/pip" install -q --no-index --find-links "$packages" --requirement "$requirements" "$wheel"
# Away from the sources: what is tested is what the wheel holds.
export FARLEAF_WHEEL=$wheel FARLEAF=${FARLEAF:-$target/debug/farleaf} PYTHONSAFEPATH=1
root=$PWD
cd "$environment"
case $what in
test)
    [ -x "$FARLEAF" ] || die "there is no program $FARLEAF: build it (make python does) or set FARLEAF"
    exec bin/python -m pytest -c "$root/python/pyproject.toml" --rootdir "$root/python" -p no:cacheprovider \
        "$root/python/tests" "$@"
    ;;
bench)
    (cd "$root/python" && CARGO_TARGET_DIR=$target/python PYO3_PYTHON=$build/bin/python3 \
        cargo build --release --locked --example get_many)
    exec bin/python "$root/python/bench.py" --rust "$target/python/release/examples/get_many" "$@"
    ;;
*) die "$what: it is setup, test, bench or wheel" ;;
esac
