#!/usr/bin/env bash
# Kill churn: operations go on while a compute server or a client is killed each second. Short `put` and `get` commands
# run on one large table, and this script checks how long they take and how the dead are recovered.
#
#   scripts/kill-churn.sh [FARLEAF [ENGINE...]]     the binary; target/debug/farleaf if not given; dex p-smart smart dart
#
# FARLEAF_CHURN_SECONDS=N     time of each engine; 600 if not given
# FARLEAF_CHURN_WORKERS=N     loops of commands; 6 if not given
# FARLEAF_CHURN_COMPUTE=N     compute servers; 5 if not given
# FARLEAF_CHURN_KEYS=N        keys of the table; 150000 if not given
# FARLEAF_CHURN_LEASE_MS=N    the lease; 2000 if not given
#
# Prints one line for each engine. Fails if
# - a recovery was in vain, or two were under way at once (by the counters of the compute servers);
# - more members were recovered than were killed: then one was left as dead that was not killed;
# - a command took longer than the lease and 1 s, counted from its start or from the last death that it met;
# - a command failed, but with an unknown outcome and a death within a lease before its end;
# - a compute server ended by itself;
# - `farleaf verify` finds a fault, or an acknowledged value is gone.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/local-cluster.sh
shift || true
engines=("$@")
[ ${#engines[@]} -gt 0 ] || engines=(dex p-smart smart dart)
seconds=${FARLEAF_CHURN_SECONDS:-600}
workers=${FARLEAF_CHURN_WORKERS:-6}
computes=${FARLEAF_CHURN_COMPUTE:-5}
keys=${FARLEAF_CHURN_KEYS:-150000}
lease=${FARLEAF_CHURN_LEASE_MS:-2000}
# Time for the last dead to be recovered.
patience=${FARLEAF_CHURN_PATIENCE:-60}
most=$((lease + 1000))
servers=()
endpoints=()
started=0

now_ms() { date +%s%3N; }

# Only what this run has started.
end_more() {
    local server
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    for server in "${servers[@]}"; do wait "$server" 2>/dev/null || true; done
    servers=()
}

# Starts the compute server of place $1, and waits until it serves.
start_compute() {
    local out="$work/compute-$started"
    "$farleaf" compute "$pool" --json --metrics 127.0.0.1:0 >"$out" 2>"$out-err" &
    servers[$1]=$!
    endpoints[$1]=$out
    started=$((started + 1))
}

# Counters of the compute server of place $1: begun, done, in vain, members, and 1 if it does not say.
counters() {
    local at
    at=$(grep -o '"metrics":"[^"]*"' "${endpoints[$1]}" 2>/dev/null | cut -d '"' -f 4) || return 0
    { curl --silent --max-time 1 "http://$at/metrics" 2>/dev/null || true; } | awk '
        /^farleaf_recoveries_total.*"begun"/ { begun = $2 }
        /^farleaf_recoveries_total.*"done"/ { done = $2 }
        /^farleaf_recoveries_total.*"in-vain"/ { vain = $2 }
        /^farleaf_recovered_members_total/ { members = $2 }
        END { print begun + 0, done + 0, vain + 0, members + 0, NR == 0 }'
}

# Recoveries that are under way now.
under_way() {
    local place
    for ((place = 0; place < computes; place++)); do counters $place; done |
        awk '{ now += $1 - $2 - $3 } END { print now + 0 }'
}

# Whether no server recovers, as far as all of them say.
is_over() {
    local place
    for ((place = 0; place < computes; place++)); do counters $place; done |
        awk '{ now += $1 - $2 - $3 + $5 } END { exit now != 0 }'
}

# Reports that the compute server of place $1 has ended by itself.
tell_ended() {
    local code=0
    wait "${servers[$1]}" 2>/dev/null || code=$?
    echo "compute server $(basename "${endpoints[$1]}") ended by itself with code $code: $(tail -n 3 "${endpoints[$1]}-err")" \
        | tee -a "$work/ended" >&2
}

# Worker $1 puts and gets keys of its own, one command for each, and notes the time of each.
work_through() {
    local worker=$1 mine="$work/worker-$1" round=0 child code from key value
    mkdir -p "$mine"
    RANDOM=$((worker + 1))
    while [ "$(now_ms)" -lt "$end" ]; do
        key=$(printf 'key-%08d' $(((RANDOM * 32768 + RANDOM) % (keys / workers) * workers + worker)))
        round=$((round + 1))
        value="value $round of $worker"
        code=0
        from=$(now_ms)
        if [ $((round % 2)) -eq 0 ]; then
            "$farleaf" get "$pool" t "$key" >"$mine/out" 2>"$mine/err" &
        else
            "$farleaf" put "$pool" t "$key" "$value" >"$mine/out" 2>"$mine/err" &
        fi
        child=$!
        if [ -e "$mine/kill" ]; then
            rm "$mine/kill"
            sleep "0.0$((RANDOM % 9 + 1))"
            kill -9 "$child" 2>/dev/null && now_ms >>"$work/kills"
        fi
        { wait "$child"; } 2>/dev/null || code=$?
        printf '%s\t%s\t%s\t%s\n' "$from" "$(now_ms)" "$code" "$(tr '\n\t' '  ' <"$mine/err")" >>"$mine/commands"
        if [ $((round % 2)) -eq 1 ] && [ "$code" -eq 0 ]; then
            printf '%s\t%s\n' "$key" "$value" >>"$mine/acknowledged"
        elif [ $((round % 2)) -eq 1 ]; then
            printf '%s\t?\n' "$key" >>"$mine/acknowledged"
        fi
    done
}

# Kills a compute server or a client each second, and looks how many recover.
kill_through() {
    local place round=0 now again
    while [ "$(now_ms)" -lt "$end" ]; do
        sleep 1
        round=$((round + 1))
        for again in 1 2 3 4 5; do
            # The numbers of different servers are of different moments: what stays is true.
            now=$(under_way)
            [ "$now" -gt 1 ] || break
        done
        if [ "$again" -eq 5 ] && [ "$now" -gt 1 ]; then echo "$now" >>"$work/at-once"; fi
        if [ $((round % 2)) -eq 0 ]; then
            touch "$work/worker-$((RANDOM % workers))/kill" 2>/dev/null || true
            continue
        fi
        place=$((RANDOM % computes))
        counters $place >>"$work/counters"
        if kill -9 "${servers[$place]}" 2>/dev/null; then
            now_ms >>"$work/kills"
            wait "${servers[$place]}" 2>/dev/null || true
        else
            tell_ended $place
        fi
        start_compute $place
    done
}

status=0
for engine in "${engines[@]}"; do
    rm -rf "${work:?}"/*
    : >"$work/kills"
    : >"$work/counters"
    : >"$work/at-once"
    : >"$work/ended"
    cluster_up t "$engine" --memory-servers 2 --compute 0 --pool-bytes 1GiB
    awk -v keys="$keys" 'BEGIN { for (at = 0; at < keys; at++) printf "key-%08d\tloaded\n", at }' >"$work/records"
    "$farleaf" load --quiet "$pool" t "$work/records" --format tsv
    for ((place = 0; place < computes; place++)); do start_compute $place; done
    for ((place = 0; place < computes; place++)); do
        until [ -s "${endpoints[$place]}" ]; do
            kill -0 "${servers[$place]}" || { cat "${endpoints[$place]}-err" >&2; exit 1; }
            sleep 0.05
        done
    done
    end=$(($(now_ms) + seconds * 1000))
    running=()
    for ((worker = 0; worker < workers; worker++)); do
        work_through "$worker" &
        running+=($!)
    done
    kill_through
    wait "${running[@]}"
    # Until all are recovered: a walk is over once nobody begins another.
    until_then=$((SECONDS + patience))
    sleep "$((lease / 1000 + 1))"
    until is_over || [ $SECONDS -ge $until_then ]; do sleep 0.2; done
    for ((place = 0; place < computes; place++)); do
        kill -0 "${servers[$place]}" 2>/dev/null || tell_ended $place
    done
    for ((place = 0; place < computes; place++)); do counters $place >>"$work/counters"; done
    read -r finished vain members < <(awk '{ done += $2; vain += $3; members += $4 } END { print done + 0, vain + 0, members + 0 }' "$work/counters")
    killed=$(wc -l <"$work/kills")
    at_once=$(wc -l <"$work/at-once")
    cat "$work"/worker-*/commands >"$work/commands"
    # For each command: the last death before its end, or its start if that is later.
    awk -F '\t' -v most="$most" -v lease="$lease" '
        FNR == NR { kills[++count] = $1; next }
        {
            met = $1; is_met = 0
            for (at = count; at > 0; at--) {
                if (kills[at] > $2) continue
                if (kills[at] > met) met = kills[at]
                is_met = kills[at] >= $1 - lease
                break
            }
            all++
            if ($2 - $1 > slowest) slowest = $2 - $1
            if ($2 - met > longest) longest = $2 - met
            if ($2 - met > most) { late++; print "late: " $0 >"/dev/stderr" }
            if ($3 == 6 && is_met) unknown++
            else if ($3 != 0 && $3 != 137) { failed++; print "failed: " $0 >"/dev/stderr" }
        }
        END { print all + 0, slowest + 0, longest + 0, late + 0, failed + 0, unknown + 0 }
    ' <(sort -n "$work/kills") "$work/commands" >"$work/judged" 2>"$work/wrong"
    read -r all slowest longest late failed unknown <"$work/judged"
    # The last acknowledged value of each key, unless a later change has an unknown outcome.
    cat "$work"/worker-*/acknowledged | awk -F '\t' '{ last[$1] = $2 } END { for (key in last) if (last[key] != "?") print key "\t" last[key] }' | sort >"$work/expected"
    scanned=0
    "$farleaf" scan "$pool" t >"$work/scanned" 2>"$work/scan-err" || scanned=$?
    if [ "$scanned" -ne 0 ]; then
        echo "the scan at the end failed with code $scanned: $(cat "$work/scan-err")" >&2
        status=1
    fi
    sort "$work/scanned" >"$work/found"
    ended=$(wc -l <"$work/ended")
    lost=$(comm -23 "$work/expected" "$work/found" | wc -l)
    echo "$engine: $all commands in $seconds s, $killed killed; slowest $slowest ms, $longest ms beyond the last death (at most $most), $late late, $failed failed, $unknown unknown; recoveries $finished done, $vain in vain, $at_once times two at once, $members members recovered; $ended servers ended by themselves; $lost values lost"
    if [ "$late" -gt 0 ] || [ "$failed" -gt 0 ] || [ "$vain" -gt 0 ] || [ "$at_once" -gt 0 ] || [ "$lost" -gt 0 ] || [ "$ended" -gt 0 ] || [ "$members" -gt "$killed" ]; then
        status=1
        head -n 12 "$work/wrong" >&2
    fi
    "$farleaf" verify "$pool" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; status=1; }
    cluster_down
done
exit "$status"
