#!/usr/bin/env bash
# Shows that a change of form alone changes no run: 200 seeds of every engine, and all crash cases with their points.
#
#   scripts/same-runs.sh save FOLDER       writes FOLDER/traces and FOLDER/points
#   scripts/same-runs.sh compare FOLDER    makes them again and prints the lines that differ; exit 1 if any does
#   scripts/same-runs.sh times FOLDER      as compare, without the hashes: contents may differ, times and events not
#
# A line of traces: engine, seed, hash over every remote operation and its bytes, virtual nanoseconds, events.
# A line of points: case, remote operations, points, hash over the points' names.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -eq 2 ] || { sed -n '4,6s/^# *//p' "$0" >&2; exit 2; }
what=$1 folder=$2
check=("${CARGO:-cargo}" test --workspace --all-features --locked --test check --)

# make FOLDER
make_lists() {
    mkdir -p "$1"
    rm -f "$1"/{traces,points}
    FARLEAF_FULL=all FARLEAF_TRACES="$1/traces" "${check[@]}" seeds::seeds_pass_every_check
    FARLEAF_POINTS="$1/points" "${check[@]}" crash::a_death_at_any_operation
}

# Without the fields $1 of traces.
lists() { cut -d' ' -f"$1" "$2/traces"; cat "$2/points"; }

case $what in
save) make_lists "$folder" ;;
compare | times)
    new=$(mktemp -d)
    trap 'rm -rf "$new"' EXIT
    make_lists "$new"
    fields=1-5
    [ "$what" = compare ] || fields=1,2,4,5
    diff <(lists "$fields" "$folder") <(lists "$fields" "$new") || exit 1
    echo "$(wc -l <"$new/traces") runs and $(wc -l <"$new/points") crash cases are as before"
    ;;
*) echo "$what: write save, compare or times" >&2; exit 2 ;;
esac
