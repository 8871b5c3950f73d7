#!/usr/bin/env bash
# Runs the whole lab, one instrument after the other: lab.sh FARLEAF [PAGE]. FARLEAF is a binary with the
# feature canary. With a PAGE, writes the figures into it, between its two markers. Fails if an instrument
# finds something, or if a canary is not found.
set -euo pipefail
farleaf=$1 page=${2:-}
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# step TITLE ARGUMENT...
step() {
    local title=$1
    shift
    printf '### %s: `farleaf %s`\n\n```text\n' "$title" "$*" | tee -a "$out"
    "$farleaf" -q "$@" | tee -a "$out"
    printf '```\n\n' | tee -a "$out"
}

step "Seeds" check --seeds "${SEEDS:-10000}" --time 5m
# Nodes with a slot for each byte, below which others grow.
step "Seeds of wide trees" check --engine dart --keys 12000 --preload 600 --seeds 500 --time 1m
# A member that takes over from the dead fences at every member's memory.
step "Seeds with exposed memory" check --expose-kib 64 --seeds 500 --time 1m
step "Crash points" check crash
step "Processes" check processes --time "${PROCESSES_TIME:-20s}"
step "Processes of dex" check processes --engine dex --time "${PROCESSES_TIME:-20s}"
step "Processes over memory servers" \
    check processes --fabric tcp --engine dex --time "${PROCESSES_TIME:-20s}"
step "Canaries" check canaries --seeds 4K

if [ -n "$page" ]; then
    new=$(mktemp)
    awk -v figures="$out" '
        /<!-- figures: begin/ { print; print ""; while ((getline line < figures) > 0) print line; skip = 1 }
        /<!-- figures: end/ { skip = 0 }
        !skip { print }
    ' "$page" >"$new"
    cat "$new" >"$page"
    rm -f "$new"
fi
