#!/usr/bin/env bash
# Orderly use never fails: runs short `farleaf put`, `get`, `del` and `load` processes, 8 at a time, on one table of
# an engine with owners, and counts those that fail, those whose outcome is unknown, and answers that are wrong.
#
#   scripts/orderly.sh [FARLEAF [SETTING...]]     the binary; target/debug/farleaf if not given
#
# SETTING: none (no compute server), two (two of them), churn (two slots whose compute servers are started and ended
# by SIGTERM all the time). All three if none is given.
#
# FARLEAF_ORDERLY_PROCESSES=N   processes of each setting; 400 if not given
# FARLEAF_ORDERLY_ENGINE=NAME   the table's engine; dex if not given
#
# Prints one line for each setting and fails if anything went wrong. A process takes 20 to 50 ms.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/local-cluster.sh
shift || true
settings=("$@")
[ ${#settings[@]} -gt 0 ] || settings=(none two churn)
processes=${FARLEAF_ORDERLY_PROCESSES:-400}
engine=${FARLEAF_ORDERLY_ENGINE:-dex}
workers=8
churners=()
# Ends the compute servers that are started all the time.
end_more() {
    touch "$work/over"
    if [ ${#churners[@]} -gt 0 ]; then wait "${churners[@]}" || true; fi
    churners=()
}

# One process of worker $worker. Its exit code must be the first argument.
step() {
    local wanted=$1 code=0
    shift
    "$farleaf" "$@" >"$mine/out" 2>"$mine/err" || code=$?
    done_count=$((done_count + 1))
    [ "$code" -eq "$wanted" ] && return
    printf '%s\t%s\t%s\n' "$code" "$*" "$(tr '\n\t' '  ' <"$mine/err")" >>"$work/failed"
}

# Worker $1 has keys of its own, so that it knows each answer; the others' lie between them.
work_through() {
    local worker=$1 mine="$work/worker-$1" done_count=0 round key
    mkdir -p "$mine"
    for ((round = 0; done_count < processes / workers; round++)); do
        key=$(printf 'key-%03d-%d' $((round % 60)) "$worker")
        step 0 put "$pool" t "$key" "value-$round"
        step 0 get "$pool" t "$key"
        if [ "$(cat "$mine/out")" != "value-$round" ]; then
            printf 'wrong\tget %s\t%s, not value-%s\n' "$key" "$(cat "$mine/out")" "$round" >>"$work/failed"
        fi
        for ((record = 0; record < 20; record++)); do
            printf 'load-%03d-%d\t%d\n' $(((round * 20 + record) % 600)) "$worker" "$round"
        done >"$mine/records"
        step 0 load "$pool" t "$mine/records" --format tsv
        step 0 del "$pool" t "$key"
        step "$absent" get "$pool" t "$key"
    done
    echo "$done_count" >"$mine/count"
}

# A slot whose compute server is started and ended until the run is over.
churn() {
    local server code
    while [ ! -e "$work/over" ]; do
        code=0
        "$farleaf" compute "$pool" >"$work/compute-$1" 2>"$work/compute-$1-err" &
        server=$!
        until [ -s "$work/compute-$1" ] || ! kill -0 "$server" 2>/dev/null; do sleep 0.02; done
        sleep "0.$((RANDOM % 8 + 1))"
        kill "$server" 2>/dev/null || true
        wait "$server" || code=$?
        echo >>"$work/ended"
        [ "$code" -eq 0 ] || printf '%s\tcompute\t%s\n' "$code" "$(tr '\n\t' '  ' <"$work/compute-$1-err")" >>"$work/failed"
    done
}

status=0
for setting in "${settings[@]}"; do
    case $setting in
    two) compute=2 ;;
    none | churn) compute=0 ;;
    *) echo "orderly: no setting $setting; there are: none two churn" >&2; exit 2 ;;
    esac
    rm -rf "${work:?}"/*
    : >"$work/failed"
    cluster_up t "$engine" --compute "$compute" --pool-bytes 512MiB
    absent=0
    "$farleaf" get "$pool" t absent >/dev/null 2>&1 || absent=$?
    if [ "$setting" = churn ]; then
        for slot in 1 2; do
            churn "$slot" &
            churners+=($!)
        done
    fi
    begun=$SECONDS
    running=()
    for ((worker = 0; worker < workers; worker++)); do
        work_through "$worker" &
        running+=($!)
    done
    wait "${running[@]}"
    seconds=$((SECONDS - begun))
    touch "$work/over"
    if [ ${#churners[@]} -gt 0 ]; then wait "${churners[@]}"; fi
    churners=()
    count=$(cat "$work"/worker-*/count | awk "{ all += \$1 } END { print all }")
    ended=0
    [ ! -e "$work/ended" ] || ended=$(wc -l <"$work/ended")
    failed=$(wc -l <"$work/failed")
    unknown=$(grep -c '^6	' "$work/failed" || true)
    wrong=$(grep -c '^wrong	' "$work/failed" || true)
    # Nothing may be left half done. Compute servers that run hold changes: they end first.
    if [ "$setting" != two ]; then
        "$farleaf" verify "$pool" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; status=1; }
    fi
    echo "$setting: $count processes in $seconds s, $failed failed ($unknown with an unknown outcome, $wrong wrong answers); $ended compute servers ended"
    if [ "$failed" -gt 0 ]; then
        status=1
        sort "$work/failed" | head -n "${FARLEAF_ORDERLY_SHOWN:-8}" >&2
    fi
    cluster_down
done
exit "$status"
