#!/usr/bin/env bash
# Churn leaves memory in proportion to the data: runs short `farleaf load` processes, several at a time, on one table,
# kills every third with kill -9, and compares the blocks that stay taken with those that the data fill.
#
#   scripts/churn.sh [FARLEAF [ENGINE...]]     the binary; target/debug/farleaf if not given; dex and btree
#
# FARLEAF_CHURN_SECONDS=N     time of each engine; 600 if not given
# FARLEAF_CHURN_WORKERS=N     loads at a time; 4 if not given
#
# Prints one line for each engine. Fails if a load fails that was not killed, if `farleaf verify` finds a fault, or if
# more blocks stay taken than twice those that objects fill and 2 for each memory server and the one member that looks. A
# load whose records went to an owner that was killed may end with an unknown outcome: at most one for each kill.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/local-cluster.sh
shift || true
engines=("$@")
[ ${#engines[@]} -gt 0 ] || engines=(dex btree)
seconds=${FARLEAF_CHURN_SECONDS:-600}
workers=${FARLEAF_CHURN_WORKERS:-4}
servers=2
# Time for the dead to be found: a lease, a recovery, and a second for blocks that became empty.
patience=${FARLEAF_CHURN_PATIENCE:-60}

# Worker $1 loads 300 records at a time, of some 6,000 keys of its own.
work_through() {
    local worker=$1 mine="$work/worker-$1" round=0 killed=0 child code
    mkdir -p "$mine"
    RANDOM=$worker
    while [ $SECONDS -lt "$end" ]; do
        awk -v from=$((round * 300 % 6000)) -v worker="$worker" -v round="$round" 'BEGIN {
            for (at = from; at < from + 300; at++)
                printf "load-%05d-%d\tvalue %d of round %d, of a hundred bytes and some more than that %040d\n", at * 7919 % 6000, worker, at, round, at
        }' >"$mine/records"
        code=0
        "$farleaf" load "$pool" t "$mine/records" --format tsv >"$mine/out" 2>"$mine/err" &
        child=$!
        if [ $((round % 3)) -eq 2 ]; then
            sleep "0.0$((RANDOM % 9 + 1))"
            kill -9 "$child" 2>/dev/null || true
            killed=$((killed + 1))
        fi
        wait "$child" 2>/dev/null || code=$?
        if [ "$code" -eq 6 ]; then
            echo >>"$work/unknown"
        elif [ "$code" -ne 0 ] && [ "$code" -ne 137 ]; then
            printf '%s\t%s\n' "$code" "$(tr '\n\t' '  ' <"$mine/err")" >>"$work/failed"
        fi
        round=$((round + 1))
    done
    echo "$round $killed" >"$mine/count"
}

# Blocks that are taken, and those that objects fill, each size by itself.
blocks() {
    "$farleaf" stats "$pool" --memory >"$work/stats" 2>"$work/stats-err"
    awk -F '\t' '
        $1 == "block_bytes" { of = $2 }
        $1 ~ /^objects of / { taken += $2; filled += int(($3 + of - 1) / of) }
        END { print taken, filled }' "$work/stats"
}

status=0
for engine in "${engines[@]}"; do
    rm -rf "${work:?}"/*
    : >"$work/failed"
    : >"$work/unknown"
    cluster_up t "$engine" --memory-servers "$servers" --pool-bytes 1GiB
    end=$((SECONDS + seconds))
    running=()
    for ((worker = 0; worker < workers; worker++)); do
        work_through "$worker" &
        running+=($!)
    done
    wait "${running[@]}"
    until_then=$((SECONDS + patience))
    while :; do
        read -r taken filled < <(blocks)
        most=$((2 * filled + 2 * (servers + 1)))
        if [ "$taken" -le "$most" ] || [ $SECONDS -ge "$until_then" ]; then break; fi
        sleep 1
    done
    read -r count killed < <(cat "$work"/worker-*/count | awk '{ all += $1; killed += $2 } END { print all, killed }')
    failed=$(wc -l <"$work/failed")
    unknown=$(wc -l <"$work/unknown")
    echo "$engine: $count loads in $seconds s, $killed killed, $failed failed; $unknown with an unknown outcome; $taken blocks taken, $filled filled, at most $most"
    if [ "$failed" -gt 0 ] || [ "$unknown" -gt "$killed" ]; then
        status=1
        sort "$work/failed" | head -n 8 >&2
    fi
    if [ "$taken" -gt "$most" ]; then
        status=1
        cat "$work/stats" >&2
    fi
    "$farleaf" verify "$pool" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; status=1; }
    cluster_down
done
exit "$status"
