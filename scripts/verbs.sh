#!/usr/bin/env bash
# The tests of the fabric verbs in a virtual machine with Soft-RoCE, or, with `rate`, what it measures, by a
# clock that counts instructions.
# What has to be built is built here, and runs there. Needs what scripts/softroce/run.sh names.
set -euo pipefail
cd "$(dirname "$0")/.."
rig=scripts/softroce/run.sh
"$rig" --prepare

# built KIND PACKAGE CARGO-ARGS...: builds one executable and prints where it is.
built() {
    local kind=$1 package=$2
    shift 2
    "${CARGO:-cargo}" "$@" --locked --all-features -p "$package" --message-format=json-render-diagnostics |
        grep "\"kind\":\[\"$kind\"\]" | grep -o '"executable":"[^"]*"' | cut -d'"' -f4 | tail -n 1
}

if [ "${1:-}" = rate ]; then
    program=$(built example farleaf-fabric build --profile bench --example verbs_rate)
    beside=()
    for tool in ib_read_bw ib_atomic_bw; do
        if tool=$(command -v "$tool"); then beside+=(--with "$tool"); fi
    done
    [ ${#beside[@]} -gt 0 ] || echo "no perftest here to measure beside (Debian: perftest)" >&2
    # Longer turns would give the same: each instruction takes a nanosecond.
    [ $# -gt 1 ] || set -- rate 0.05 2
    exec "$rig" --count "${beside[@]}" -- "$program" "${@:2}"
fi
program=$(built test farleaf-fabric test --no-run --test no_alloc)
"$rig" -- "$program" verbs
program=$(built test farleaf-index test --no-run --test model)
"$rig" -- "$program" verbs
# Here it is an error if there is no device.
program=$(built test farleaf-fabric test --no-run --test verbs)
exec "$rig" --env FARLEAF_VERBS=required --env "FARLEAF_CASE=${FARLEAF_CASE:-}" --time 900 -- \
    "$program" --test-threads=1 --nocapture "$@"
