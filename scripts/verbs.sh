#!/usr/bin/env bash
# The tests of the fabric verbs in a virtual machine with Soft-RoCE, or, with `rate`, what it measures, by a
# clock that counts instructions and by that of the machine (with `rate` and arguments for `verbs_rate`, by the
# first alone), or, with `peers`, the papers' programs beside ours (`farleaf repro peers`).
# Other arguments go to the fabric's own tests, which are then all that runs: `scripts/verbs.sh fence`.
# What has to be built is built here, and runs there. Needs what scripts/softroce/run.sh names.
set -euo pipefail
cd "$(dirname "$0")/.."
rig=scripts/softroce/run.sh
"$rig" --prepare

# build ARGS...: has cargo build; built SOURCE: where it has put the executable of that source.
build() {
    lines=$("${CARGO:-cargo}" "$@" --locked --all-features --message-format=json-render-diagnostics)
}
built() {
    grep "\"src_path\":\"[^\"]*/$1\"" <<<"$lines" |
        grep -o '"executable":"[^"]*"' | cut -d'"' -f4 | tail -n 1
}

if [ "${1:-}" = rate ]; then
    build build --profile bench -p farleaf-fabric --example verbs_rate
    beside=()
    for tool in ib_read_bw ib_write_bw ib_atomic_bw; do
        if tool=$(command -v "$tool"); then beside+=(--with "$tool"); fi
    done
    [ ${#beside[@]} -gt 0 ] || echo "no perftest here to measure beside (Debian: perftest)" >&2
    example=$(built fabric/examples/verbs_rate.rs)
    counted=(--count "${beside[@]}" -- "$example")
    [ $# -eq 1 ] || exec "$rig" "${counted[@]}" "${@:2}"
    echo "By a clock that counts instructions, on one processor:"
    # Longer turns would give the same: each instruction takes a nanosecond.
    "$rig" "${counted[@]}" 0.05 2
    echo "By the clock, which depends on what else runs here:"
    exec "$rig" "${beside[@]}" -- "$example" 0.4 12 16
fi

if [ "${1:-}" = peers ]; then
    "${CARGO:-cargo}" build --release --locked -p farleaf-cli
    exec "$rig" --time 3000 -- "${CARGO_TARGET_DIR:-target}/release/farleaf" repro "$@"
fi

# Here it is an error if there is no device.
there() {
    "$rig" --env FARLEAF_VERBS=required --env "FARLEAF_CASE=${FARLEAF_CASE:-}" --time 900 "$@"
}
alone=(--test-threads=1 --nocapture)
if [ $# -gt 0 ]; then
    build test --no-run --workspace --test real_time
    there -- "$(built fabric/tests/real_time/main.rs)" "${alone[@]}" \
        --skip any:: --skip conformance:: --skip tcp:: --skip tls:: "$@"
    exit
fi
# Of the whole workspace, as `make test` builds it, so that no crate is built twice for its features.
build test --no-run --workspace --test real_time --test no_alloc --test engines --test cli
fabric=$(built fabric/tests/real_time/main.rs) no_alloc=$(built fabric/tests/no_alloc.rs)
engines=$(built engines/tests/engines/main.rs) store=$(built store/tests/real_time/main.rs)
command=$(built cli/src/main.rs) cli=$(built cli/tests/cli/main.rs)
with=()
for program in "$fabric" "$no_alloc" "$engines" "$store" "$command" "$cli"; do with+=(--with "$program"); done
# One machine for all: each takes 8 s to come up. The engines, the store and the command by one thread at a time:
# Soft-RoCE tears words.
there --time 3000 "${with[@]}" -- busybox sh -exc "
    '$fabric' ${alone[*]} verbs::
    '$no_alloc' verbs
    '$engines' verbs
    '$store' ${alone[*]} verbs::
    '$cli' ${alone[*]} verbs::"
