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
    # The name with the fewest letters to change, if that is not most of them.
    nearest=$(tr ' ' '\n' <<<"$known" | awk -v a="${engine,,}" '
        function least(x, y, z) { return x < y ? (x < z ? x : z) : (y < z ? y : z) }
        NF {
            n = length(a); m = length($0)
            for (j = 0; j <= m; j++) row[j] = j
            for (i = 1; i <= n; i++) {
                diagonal = row[0]; row[0] = i
                for (j = 1; j <= m; j++) {
                    above = row[j]
                    row[j] = least(above + 1, row[j - 1] + 1, diagonal + (substr(a, i, 1) != substr($0, j, 1)))
                    diagonal = above
                }
            }
            if (row[m] <= n / 2 && (best == "" || row[m] < cost)) { best = $0; cost = row[m] }
        }
        END { print best }')
    if [ -n "$nearest" ]; then hint=": did you mean make engine E=$nearest?"; else hint=": make engine E=NAME."; fi
    echo "engine.sh: no engine is named \"$engine\"$hint Engines: $known" >&2
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
