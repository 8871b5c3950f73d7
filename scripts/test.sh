#!/usr/bin/env bash
# Builds all test programs, runs them one after the other, and prints the seconds of each.
#
#   scripts/test.sh CARGO_OPTIONS...     which packages and features
#
# The programs `real_time` and `cli` mostly wait, and run 8 tests at a time. The others compute, and
# run one test on each processor. Fails if a test fails, and names the failed tests at the end.
# Examples are left to clippy.
set -uo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
log=$(mktemp)
messages=$(mktemp)
trap 'rm -f "$log" "$messages"' EXIT
failed=() times=()

# run NAME COMMAND...
run() {
    local name=$1 start=${EPOCHREALTIME/[.,]/} status tests
    shift
    printf '\n=== %s\n' "$name"
    "$@" </dev/null 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    local tenths=$(((${EPOCHREALTIME/[.,]/} - start) / 100000))
    times+=("$(printf '%6d.%d  %s' $((tenths / 10)) $((tenths % 10)) "$name")")
    [ "$status" -eq 0 ] && return
    mapfile -t tests < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log")
    # A program that aborts names no test.
    [ ${#tests[@]} -gt 0 ] || tests=("exit status $status")
    failed+=("${tests[@]/#/$name: }")
}

# build ARGUMENTS...: leaves the folder, kind, name and executable of each program in `messages`.
build() {
    "$cargo" test "$@" --lib --bins --tests --no-run --message-format=json-render-diagnostics |
        sed -n '/^{"reason":"compiler-artifact".*"profile":{[^}]*"test":true}/{
            s/.*"manifest_path":"\([^"]*\)\/Cargo.toml","target":{"kind":\["\([a-z]*\)".*"name":"\([^"]*\)","src_path".*"executable":"\([^"]*\)".*/\1|\2|\3|\4/p
        }' | sort >"$messages"
}

run "build" build "$@"
if [ ${#failed[@]} -eq 0 ]; then
    while IFS="|" read -r folder kind name executable; do
        case $name in
            real_time | cli) threads=(--test-threads=8) ;;
            *) threads=() ;;
        esac
        # In the folder that cargo would run it in.
        run "${folder##*/}: $kind $name" env -C "$folder" "$executable" "${threads[@]}"
    done <"$messages"
    run "documentation" "$cargo" test "$@" --doc --no-fail-fast
fi

printf '\n=== seconds\n'
printf '%s\n' "${times[@]}" | sort -rn
[ ${#failed[@]} -eq 0 ] && exit
printf '\n=== failed\n'
printf '%s\n' "${failed[@]}"
exit 1
