#!/usr/bin/env bash
# Runs the tests of one engine: its own modules, the suites that all engines share with this engine alone, 200 seeds
# of the lab and its crash cases.
#
#   scripts/engine.sh ENGINE CARGO_OPTIONS...
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
suites=crates/engines/tests/engines
engine=${1:-}
[ $# -eq 0 ] || shift
own=${engine//-/_}
if [ -z "$own" ] || [ ! -d "crates/engines/src/$own" ]; then
    known=$(cd crates/engines/src && printf '%s ' */ | tr -d / | tr _ -)
    echo "engine.sh: no engine is named \"$engine\": make engine E=NAME, where NAME is one of: $known" >&2
    exit 2
fi

# is_of MODULE ENGINE: the module is of that engine (dart, or dart_damage).
is_of() { [ "$1" = "$2" ] || [[ $1 == "$2"_* ]]; }

filters=()
for path in "$suites"/*; do
    module=$(basename "$path" .rs)
    case $module in main | common) continue ;; esac
    others=0
    for folder in crates/engines/src/*/; do
        other=$(basename "$folder")
        if is_of "$module" "$other" && ! is_of "$module" "$own"; then others=1; fi
    done
    [ "$others" -eq 1 ] || filters+=("$module::")
done

export FARLEAF_ENGINE=$engine FARLEAF_FULL=$engine
printf '=== %s: %s\n' "$engine" "${filters[*]}"
"$cargo" test "$@" --test engines -- "${filters[@]}"
printf '=== %s: 200 seeds, and its crash cases\n' "$engine"
FARLEAF_CRASH="$engine/" "$cargo" test "$@" --test check -- \
    seeds::seeds_pass_every_check crash::a_death_at_any_operation
