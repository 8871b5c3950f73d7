#!/usr/bin/env bash
# Runs the commands of README.md's shell blocks as a reader would paste them, one block after the other in one
# shell. Fails at the first command that fails. Takes 6 s with fewer keys and operations, which is the default, and
# half a minute with README's own numbers.
#
#   scripts/readme.sh [FARLEAF]     the binary; target/debug/farleaf if not given
#
# FARLEAF_README_FULL=1: README's own numbers.
#
# Left out: what builds (make, cargo), and docker. Other ports and another folder stand in for README's where those are taken
# or too small.
set -euo pipefail
cd "$(dirname "$0")/.."

farleaf=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/farleaf}")
[ -x "$farleaf" ] || { echo "readme: there is no program $farleaf: cargo build -p farleaf-cli" >&2; exit 1; }

work=$(mktemp -d)
# What a block has started in the background ends with the shell that ran it.
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$farleaf" "$work/bin/farleaf"

# The blocks, without what builds.
awk '/^```sh$/ { inside = 1; next } /^```/ { inside = 0 } inside' README.md |
    grep -Ev '^(make|cargo|docker) ' >"$work/commands"
for word in load get put del scan stats verify up repartition memory compute redis engines bench repro check; do
    grep -q "farleaf $word " "$work/commands" || { echo "readme: README.md has no farleaf $word" >&2; exit 1; }
done

# Ports that are free. Not those from which the system takes ports for connections.
is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
port=7000
while is_taken "$port" || is_taken "$((port + 1))"; do port=$((port + 2)); done
edits=(-e "s/127\.0\.0\.1:7001/127.0.0.1:$((port + 1))/g" -e "s/:7000/:$port/g" -e "s/--port 7000/--port $port/")
# The gateway's port, and time until it listens.
redis_port=$((port + 2))
while is_taken "$redis_port"; do redis_port=$((redis_port + 1)); done
edits+=(-e "s/farleaf redis mem: --create/& --address 127.0.0.1:$redis_port/")
if command -v redis-cli >/dev/null; then
    edits+=(-e "s/^redis-cli ping/timeout 10 sh -c 'until redis-cli -p $redis_port ping 2>\/dev\/null; do sleep 0.1; done'/")
else
    echo "readme: left out: redis-cli is missing (scripts/setup.sh installs it)" >&2
    edits+=(-e '/^redis-cli /d')
fi
# A folder of its own, in shared memory if that has room.
folder=$work
free_kib=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
if [ -w /dev/shm ] && [ "${free_kib:-0}" -gt $((1200 * 1024)) ]; then folder=/dev/shm; fi
edits+=(-e "s|/dev/shm/demo|$folder/farleaf-readme-$$|g")
if [ -z "${FARLEAF_README_FULL:-}" ]; then
    edits+=(-e 's/--keys 200K/--keys 20K/' -e 's/--ops 100K/--ops 10K/' -e 's/--workload a --costs/& --keys 1K --ops 1K/'
        -e '/--fabric sim/s/--keys 20K/& --ops 50K/' -e 's/--seeds 200/--seeds 20/' -e 's/--scale 0.05/--scale 0.005/'
        -e 's|find /usr |find /usr/bin /usr/share/doc |' -e 's|/usr/share/ |/usr/share/doc/ |')
fi
sed -i "${edits[@]}" "$work/commands"

# Each command is printed before it runs, with the seconds so far.
cat >"$work/run" <<'END'
set -eu
PS4='+ ${SECONDS}s: '
trap 'status=$?; set +x; for job in $(jobs -p); do kill "$job" 2>/dev/null || true; done; wait; exit $status' EXIT
set -x
END
cat "$work/commands" >>"$work/run"
PATH="$work/bin:$PATH" FARLEAF_CONFIG= bash "$work/run" >"$work/out" 2>"$work/log" || {
    status=$?
    echo "readme: a command of README.md failed with $status; the last ones, and what they said:" >&2
    tail -n 20 "$work/out" "$work/log" >&2
    rm -rf "$folder/farleaf-readme-$$"
    exit 1
}
grep -c '^+ [0-9]*s: farleaf' "$work/log" | sed 's/$/ commands of README.md work/'
