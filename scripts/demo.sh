#!/usr/bin/env bash
# Farleaf's main job on real input: loads the paths of this machine's files into a pool in shared
# memory, reads, scans, changes and removes some, and checks the pool. Does the same over TCP with the
# engine dex and its cache, on memory and compute servers of this machine. Ends with a table of the
# remote operations of each engine on each fabric. Prints every command before it runs, and leaves
# nothing behind.
#
#   scripts/demo.sh [FARLEAF [PART]]     the binary, target/demo/farleaf if not given; job, costs (that table,
#                                        which takes the command's feature lab) or all
#
# FARLEAF_DEMO_PATHS     most paths to load (400000)
# FARLEAF_DEMO_TCP_PATHS most of them to load over TCP (50000)
# FARLEAF_DEMO_KEYS      keys of the table at the end (100K)
# FARLEAF_DEMO_OPS       operations of each of its rows (100K)
# FARLEAF_ENGINES, FARLEAF_FABRICS     its rows (all engines; "mapped sim tcp")
set -euo pipefail

farleaf=${1:-$(dirname "$0")/../target/demo/farleaf}
part=${2:-all}
paths_max=${FARLEAF_DEMO_PATHS:-400000}
tcp_paths_max=${FARLEAF_DEMO_TCP_PATHS:-50000}
bench_keys=${FARLEAF_DEMO_KEYS:-100K}
bench_ops=${FARLEAF_DEMO_OPS:-100K}
engines=${FARLEAF_ENGINES:-all}
read -ra fabrics <<<"${FARLEAF_FABRICS:-mapped sim tcp}"

fail() { printf '\ndemo: %s\n' "$*" >&2; exit 1; }

case $part in
job | costs | all) ;;
*) fail "$part: it is job, costs or all" ;;
esac
[ -x "$farleaf" ] || fail "there is no program $farleaf; build it with: make run"

# Shared memory if it has room: containers often have only 64 MiB of it.
pool_mib=1024
shm_free_kib=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
if [ -w /dev/shm ] && [ "${shm_free_kib:-0}" -gt $(((pool_mib + 128) * 1024)) ]; then
    home=/dev/shm
else
    home=${TMPDIR:-/tmp}
    printf 'Note: /dev/shm has no room for %d MiB, so the pool lies in %s.\n' "$pool_mib" "$home"
fi
work=$home/farleaf-demo-$$
pool=shm:$work/pool

mkdir -m 700 "$work"
cluster=
# The cluster ends, and is waited for.
down() {
    [ -z "$cluster" ] || { kill "$cluster" && wait "$cluster"; } || true
    cluster=
}
# On exit, Ctrl-C and kill alike; bash runs the trap once the command in front has ended.
trap 'down; rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

heading() { printf '\n--- %s\n' "$*"; }

# Prints a command as a shell would take it. The binary goes by its name.
show() {
    printf '$ farleaf'
    local word
    for word in "$@"; do
        if [[ $word =~ ^[A-Za-z0-9_./:=,+@%-]+$ ]]; then
            printf ' %s' "$word"
        else
            printf ' %s' "${word@Q}"
        fi
    done
    printf '\n'
}

run() {
    show "$@"
    "$farleaf" "$@"
}

# expect VALUE ARGS...: runs a get that must print VALUE.
expect() {
    local want=$1 got
    shift
    show "$@"
    got=$("$farleaf" "$@")
    printf '%s\n' "$got"
    [ "$got" = "$want" ] || fail "that should have been $want"
}

# A get of a key that must not be there: prints nothing on standard output, and fails.
expect_absent() {
    local got status=0
    show "$@"
    got=$("$farleaf" "$@") || status=$?
    if [ "$status" -eq 0 ] || [ -n "$got" ]; then fail "that key should be gone"; fi
    printf '(exit status %d)\n' "$status"
}

# job POOL FILE OPTIONS...: the whole job on one pool; OPTIONS are for its first command.
job() {
    local pool=$1 file=$2
    shift 2

    heading "Load them into the table 'files'"
    run load "$pool" files "$file" --format tsv "$@"

    heading "Look one up, from another process than the one that loaded it"
    expect "$size" get "$pool" files "$key"

    heading "The first files below $prefix in order"
    run scan "$pool" files --prefix "$prefix" --limit 10

    heading "Change a value"
    expect "$size" get "$pool" files "$key"
    run put "$pool" files "$key" "changed by the demo"
    expect "changed by the demo" get "$pool" files "$key"

    heading "Remove a key"
    run del "$pool" files "$key"
    expect_absent get "$pool" files "$key"

    heading "What the pool holds"
    run stats "$pool"

    heading "Walk the whole structure and check its invariants"
    run verify "$pool"
}

file_names() {
    heading "The input: up to $paths_max files of this machine, path and size"
    # Unreadable folders are skipped; so are names that hold a tab or a line end, or are longer than a
    # key may be. find ends early, by SIGPIPE, when head has enough.
    { LC_ALL=C find / -xdev -path "$work" -prune -o -type f ! -name $'*[\t\n]*' -printf '%p\t%s\n' \
        2>/dev/null || true; } |
        LC_ALL=C awk -F '\t' 'NF == 2 && length($1) <= 1024' | head -n "$paths_max" >"$work/files.tsv" ||
        true
    count=$(wc -l <"$work/files.tsv")
    [ "$count" -gt 0 ] || fail "found no readable file"
    printf '%d files; the first ones:\n' "$count"
    head -n 3 "$work/files.tsv"

    # A file that surely is among them, and a folder with many of them.
    IFS=$'\t' read -r key size < <(awk -F '\t' '$1 == "/etc/passwd"' "$work/files.tsv") ||
        IFS=$'\t' read -r key size <"$work/files.tsv"
    prefix=/usr/share/
    grep -q "^$prefix" "$work/files.tsv" || prefix=${key%/*}/

    heading "In shared memory"
    job "$pool" "$work/files.tsv" --create --pool-bytes "${pool_mib}MiB"

    heading "The same over TCP with the engine dex: two memory servers and a compute server that caches"
    # Those that the job asks for, and the first ones in order.
    { printf '%s\t%s\n' "$key" "$size"; grep "^$prefix" "$work/files.tsv" || true; cat "$work/files.tsv"; } |
        awk -F '\t' '!seen[$1]++' | head -n "$tcp_paths_max" >"$work/some.tsv" || true
    printf '$ farleaf up --memory-servers 2 --compute 1 --pool-bytes 1GiB &\n'
    "$farleaf" up --memory-servers 2 --compute 1 --pool-bytes 1GiB >"$work/up" &
    cluster=$!
    for _ in $(seq 600); do
        [ ! -s "$work/up" ] && kill -0 "$cluster" 2>/dev/null || break
        sleep 0.1
    done
    IFS=$'\t' read -r _ tcp_pool <"$work/up" || fail "the cluster did not start"
    job "$tcp_pool" "$work/some.tsv" --engine dex
    down
}

costs() {
    heading "Remote operations of a get and an update: half gets, half updates, every engine and fabric"
    echo "dex caches a tenth of the table. tcp goes to two memory servers over loopback; sim is a simulated cluster."
    for fabric in "${fabrics[@]}"; do
        show bench --engine "$engines" --fabric "$fabric" --workload a --cache 10% \
            --keys "$bench_keys" --ops "$bench_ops" --costs
        "$farleaf" bench --engine "$engines" --fabric "$fabric" --workload a --cache 10% \
            --keys "$bench_keys" --ops "$bench_ops" --costs >>"$work/costs"
    done
    { printf 'engine\tfabric\toperation\tREAD\tWRITE\tCAS/FAA\tRPC\tcalls\tround trips\tbytes\n'; cat "$work/costs"; } |
        awk -F '\t' '{ printf "%-8s %-8s %-10s %8s %8s %8s %8s %8s %12s %8s\n", $1, $2, $3, $4, $5, $6, $7, $8, $9, $10 }'
}

if [ "$part" != costs ]; then file_names; fi
if [ "$part" != job ]; then costs; fi
heading "Done; the pool is removed"
