#!/usr/bin/env bash
# Runs a small benchmark of every engine on every fabric, of dex also with two compute servers and
# offloading, and looks at its JSON: it is there, it has counted round trips, and no operation failed.
# Says nothing about speed.
#
#   scripts/bench-smoke.sh [FARLEAF]     the binary; target/debug/farleaf if not given
#
# FARLEAF_ENGINES, FARLEAF_FABRICS: which ones. As many run at a time as there are processors; their lines stand in
# the order of the engines.
set -euo pipefail
cd "$(dirname "$0")/.."

farleaf=${1:-${CARGO_TARGET_DIR:-target}/debug/farleaf}
read -ra engines <<<"${FARLEAF_ENGINES:-$("$farleaf" engines | cut -f 1 | tr '\n' ' ')}"
read -ra fabrics <<<"${FARLEAF_FABRICS:-mapped sim tcp}"

work=$(mktemp -d)
# What is still at work ends with this script.
trap 'for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait; rm -rf "$work"' EXIT
at_a_time=$(nproc 2>/dev/null || echo 2)
pids=() logs=()

# check_report REPORT: prints round trips per operation as the report gives them.
check_report() {
    local report=$1
    if command -v python3 >/dev/null 2>&1; then
        python3 - "$report" <<'PY'
import json
import sys


def values(node, key):
    """All values of `key`, however deep, in the report's order."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from values(value, key)


with open(sys.argv[1], encoding="utf-8") as file:
    report = json.load(file)
trips = [n for n in values(report, "round_trips") if isinstance(n, (int, float))]
if not any(n > 0 for n in trips):
    sys.exit("no round trips were counted")
errors = sum(n for n in values(report, "errors") if isinstance(n, int))
if errors:
    sys.exit(f"{errors} operations failed")
print(f"{trips[0]:.3g} round trips per operation")
PY
        return
    fi
    # Without a parser: the two fields as they are written.
    grep -Eq '"round_trips": *[0-9.]*[1-9]' "$report" || { echo "no round trips" >&2; return 1; }
    ! grep -Eq '"errors": *[1-9]' "$report" || { echo "operations failed" >&2; return 1; }
    grep -Eo '"round_trips": *[0-9.]+' "$report" | head -n 1
}

# row REPORT NAME ENGINE FABRIC OPTIONS...: runs one, and prints its line.
row() {
    local report=$1 name=$2 engine=$3 fabric=$4
    shift 4
    local size=(--keys 5K --ops 10K)
    # It copies all of its keys for each operation.
    [[ $engine != example* ]] || size=(--keys 200 --ops 500)
    local command=("$farleaf" bench --engine "$engine" --fabric "$fabric" --workload a
        "${size[@]}" --json "$@")
    printf '%-12s %-8s ' "$name" "$fabric"
    if ! "${command[@]}" >"$report"; then
        echo "failed: ${command[*]}" >&2
        exit 1
    fi
    if ! check_report "$report"; then
        echo "the report of: ${command[*]}" >&2
        head -c 4000 "$report" >&2
        exit 1
    fi
}

# finish: waits for the oldest that is at work, and prints what it has said.
finish() {
    local status=0
    wait "${pids[0]}" || status=$?
    cat "${logs[0]}"
    pids=("${pids[@]:1}") logs=("${logs[@]:1}")
    return "$status"
}

# run NAME ENGINE FABRIC OPTIONS...
run() {
    [ "${#pids[@]}" -lt "$at_a_time" ] || finish
    local report
    report=$(mktemp -p "$work")
    row "$report" "$@" >"$report.log" 2>&1 &
    pids+=($!) logs+=("$report.log")
}

for engine in "${engines[@]}"; do
    for fabric in "${fabrics[@]}"; do
        run "$engine" "$engine" "$fabric"
        if [[ $engine == dex ]]; then
            for routing in owner any; do
                run "dex, 2 $routing" dex "$fabric" --compute-servers 2 --routing "$routing" \
                    --partitions 3 --cache 20% --set offload=ratio:0.5 --verify
            done
        fi
    done
done
while [ "${#pids[@]}" -gt 0 ]; do finish; done
