#!/usr/bin/env bash
# Runs Redis's clients against redis-server first and a gateway second: the same assertions must hold on both.
# scripts/setup.sh --clients installs the clients; one that is missing is left out, by its name.
#
#   scripts/clients.sh [FARLEAF]     the binary; target/debug/farleaf if not given
set -euo pipefail
cd "$(dirname "$0")/.."

farleaf=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/farleaf}")
[ -x "$farleaf" ] || { echo "clients: there is no program $farleaf: cargo build -p farleaf-cli" >&2; exit 1; }
folder=$(realpath "${FARLEAF_CLIENTS:-target/clients}" 2>/dev/null || echo /nonexistent)
here=$PWD/scripts/clients

work=$(mktemp -d)
trap 'for job in $(jobs -p); do kill "$job" 2>/dev/null || true; done; wait; rm -rf "$work"' EXIT

command -v redis-server >/dev/null || { echo "clients: left out: redis-server is missing" >&2; exit 0; }
is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
port=7379
while is_taken "$port"; do port=$((port + 1)); done
redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no >"$work/redis-server" 2>&1 &
until is_taken "$port"; do sleep 0.05; done

# serve NAME OPTION...: starts a gateway; its port is in $gateway then.
serve() {
    local told=$work/$1
    shift
    : >"$told"
    FARLEAF_CONFIG='' "$farleaf" redis mem: --create --allow-flush --address 127.0.0.1:0 --json "$@" >"$told" &
    until grep -q address "$told"; do sleep 0.05; done
    gateway=$(sed -E 's/.*"address":"[0-9.]+:([0-9]+)".*/\1/' "$told")
}
serve raw --content raw
raw=$gateway
serve gateway

failed=0
# run NAME COMMAND...: the command with each server's port behind it.
run() {
    local name=$1 server
    shift
    for server in "redis-server:$port" "gateway:$gateway"; do
        if ! "$@" "${server#*:}" >"$work/out" 2>&1; then
            echo "clients: $name fails on ${server%:*}:" >&2
            tail -n 20 "$work/out" >&2
            failed=1
            return
        fi
    done
    echo "$name passes on redis-server and on the gateway"
}
skip() { echo "clients: left out: $1 is not installed (scripts/setup.sh --clients)" >&2; }

for module in redis valkey; do
    if [ -x "$folder/venv/bin/python" ] && "$folder/venv/bin/python" -c "import $module" 2>/dev/null; then
        run "$module-py" "$folder/venv/bin/python" "$here/python.py" "$module"
    else
        skip "$module-py"
    fi
done
for client in ioredis node-redis; do
    if [ -d "$folder/node/node_modules/${client#node-}" ]; then
        run "$client" env -C "$folder/node" node "$here/node.mjs" "$client"
    else
        skip "$client"
    fi
done
if [ -x "$folder/go/clients" ]; then run "go-redis and rueidis" "$folder/go/clients"; else skip "go-redis and rueidis"; fi
if [ -x "$folder/ycsb/ycsb" ]; then
    for workload in a b c d f; do
        for kind in string hash; do
            run "go-ycsb, workload $workload, type $kind" "$folder/ycsb/ycsb" "$workload" "$kind"
        done
        gateway=$raw run "go-ycsb, workload $workload on raw values" "$folder/ycsb/ycsb" "$workload" string
    done
else
    skip "go-ycsb"
fi
if [ -e "$folder/java/Clients.class" ]; then
    run "jedis and lettuce" java -cp "$folder/java:$folder/java/lib/*" Clients
else
    skip "jedis and lettuce"
fi

# Redis's own programs.
cli() { redis-cli -p "$gateway" "$@"; }
# says NAME TEXT COMMAND...: the command prints the text. All of its output is taken first: a reader that ends early kills it.
says() {
    local name=$1 text=$2
    shift 2
    "$@" >"$work/out" 2>&1 </dev/null || true
    if grep -q -- "$text" "$work/out"; then
        echo "$name passes on the gateway"
    else
        echo "clients: $name does not print \"$text\":" >&2
        tail -n 20 "$work/out" >&2
        failed=1
    fi
}
for number in $(seq 500); do printf 'SET bulk:%s %s\r\n' "$number" "$number"; done >"$work/commands"
says "redis-cli" OK cli flushdb
says "redis-cli --pipe" 'errors: 0, replies: 500' sh -c "redis-cli -p $gateway --pipe <$work/commands"
says "redis-cli --scan" '^500$' sh -c "redis-cli -p $gateway --scan --pattern 'bulk:*' | sort -u | wc -l"
says "redis-cli --bigkeys" 'Sampled 500 keys' cli --bigkeys
says "redis-cli --memkeys" 'Sampled 500 keys' cli --memkeys
# Keys, bytes, clients, blocked clients, requests and their growth, connections.
# The gateway tells the last count of each table's keys; clients have counted others.
cli dbsize >/dev/null
says "redis-cli --stat" '^[1-9][0-9]*  *[0-9.]*[KMG]  *1  *0  *[0-9]* (+1)  *[0-9]*' \
    timeout 3 stdbuf -oL redis-cli -p "$gateway" --stat
if command -v script >/dev/null; then
    # A terminal of known size: redis-cli asks for the commands, to complete them, and prints types before values. It
    # throws away what is typed before its prompt.
    says "redis-cli on a terminal" '(integer) 2' sh -c "for line in '' 'set terminal 1' 'incr terminal' quit; do
        printf '%s\\r' \"\$line\"; sleep 0.5; done | timeout -k 1 10 script -qec 'stty cols 80 rows 24; redis-cli -p $gateway' /dev/null"
else
    echo "clients: left out: a terminal (script of util-linux)" >&2
fi
says "redis-cli -3" '^77$' cli -3 get bulk:77
redis-benchmark -p "$gateway" -t get,set,incr,mset -P 16 -n 20000 -q >"$work/benchmark" 2>&1 || failed=1
if grep -iE 'error|warning' "$work/benchmark" >&2; then failed=1; else echo "redis-benchmark passes on the gateway"; fi
exit "$failed"
