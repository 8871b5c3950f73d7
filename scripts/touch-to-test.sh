#!/usr/bin/env bash
# Measures the developer's loop: touches a file of an engine, builds the engines' test program, and runs the engine's own
# tests. Does so three times, and prints the seconds of each and their median.
#
#   scripts/touch-to-test.sh ENGINE        as in dart; on an idle machine, after a build
#
# The last build also writes cargo's page of timings, whose place is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
engine=${1:-}
own=${engine//-/_}
file=crates/engines/src/$own/ops.rs
[ -f "$file" ] || file=crates/engines/src/$own/mod.rs
if [ -z "$own" ] || [ ! -f "$file" ]; then
    echo "touch-to-test.sh: no engine is named \"$engine\"" >&2
    exit 2
fi
select=(--workspace --all-features --locked --test engines)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# What others have changed is built before the first measurement.
"$cargo" test "${select[@]}" --no-run 2>"$log" || { cat "$log" >&2; exit 1; }
times=()
for run in 1 2 3; do
    timings=()
    [ "$run" -lt 3 ] || timings=(--timings)
    touch "$file"
    start=$(now)
    "$cargo" test "${select[@]}" "${timings[@]}" --no-run 2>"$log" || { cat "$log" >&2; exit 1; }
    built=$(now)
    "$cargo" test "${select[@]}" -- "$own::" >>"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    ended=$(now)
    times+=($((ended - start)))
    printf 'run %d: built in %d.%01d s, tested in %d.%01d s\n' "$run" \
        $(((built - start) / 1000)) $(((built - start) % 1000 / 100)) \
        $(((ended - built) / 1000)) $(((ended - built) % 1000 / 100))
done
median=$(printf '%s\n' "${times[@]}" | sort -n | sed -n 2p)
printf 'touch to test of %s: %d.%01d s (median of 3, %d processors)\n' "$engine" \
    $((median / 1000)) $((median % 1000 / 100)) "$(nproc)"
sed -n 's/.*Timing report saved to //p' "$log" | tail -n 1
