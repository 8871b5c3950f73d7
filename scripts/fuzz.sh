#!/usr/bin/env bash
# Fuzzes one target with libFuzzer. New inputs go to fuzz/inputs/<target>, findings to
# fuzz/artifacts/<target>; neither is kept in the repository.
#
#   scripts/fuzz.sh TARGET [SECONDS]     60 seconds if not given
#
# Needs a nightly toolchain and a C++ compiler, but not the command cargo-fuzz: what that adds are
# these flags. Without sanitizers, because nothing but the fabric's `raw` is unsafe.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:?which target? One of: $(ls fuzz/corpus | tr '\n' ' ')}
seconds=${2:-60}
if [ ! -d "fuzz/corpus/$target" ]; then
    echo "no target is named $target; there are: $(ls fuzz/corpus | tr '\n' ' ')" >&2
    exit 2
fi
host=$(rustc -vV | sed -n 's/^host: //p')
out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz

RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
 -Cllvm-args=-sanitizer-coverage-trace-compares -Cforce-frame-pointers=yes ${RUSTFLAGS:-}" \
    cargo +nightly build --release --manifest-path fuzz/Cargo.toml --target "$host" \
    --target-dir "$out"

mkdir -p "fuzz/inputs/$target" "fuzz/artifacts/$target"
FARLEAF_FUZZ_TARGET=$target "$out/$host/release/target" "fuzz/inputs/$target" "fuzz/corpus/$target" \
    -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -timeout=25 \
    -rss_limit_mb=1500 -malloc_limit_mb=256 -max_len=4096 -print_final_stats=1
