#!/usr/bin/env bash
# Prints, by commas, the engines that the tests go through in full (FARLEAF_FULL): those that the work since BASE touches
# and, if it touches what all stand on, those that stand for all.
#
#   scripts/changed.sh [BASE]     the commit to compare with; where this branch left origin/main if not given
#
# Prints at most three, those with most changes first, and on its standard error those that it leaves out. They go short, as all others do.
set -euo pipefail
cd "$(dirname "$0")/.."

# An owner's tree, a radix tree, and the one with most kinds of nodes.
kit=dex,smart,dart
most=3

base=${1:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
# The last landing itself has nothing in front of it: its parent is.
[ -z "$base" ] || [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse --verify --quiet 'HEAD^' || true)
if [ -z "$base" ] || ! files=$(git diff --name-only "$base" 2>/dev/null); then
    echo "changed.sh: there is no commit to compare with: $kit" >&2
    echo "$kit"
    exit
fi

engines=()
while IFS= read -r file; do
    case $file in
        # Tests of one engine: dart.rs, smart_damage.rs, dex/moves.rs.
        crates/engines/src/*/* | crates/engines/tests/engines/*)
            rest=${file#crates/engines/src/}
            rest=${rest#crates/engines/tests/engines/}
            name=${rest%%/*}
            name=${name%.rs}
            while [ ! -d "crates/engines/src/$name" ] && [[ $name == *_* ]]; do name=${name%_*}; done
            if [ -d "crates/engines/src/$name" ]; then engines+=("${name//_/-}"); else engines+=(kit); fi
            ;;
        crates/engines/* | crates/index/* | crates/pool/* | crates/fabric/* | crates/harness/* | crates/check/*)
            engines+=(kit)
            ;;
    esac
done <<<"$files"

# Those of which most files have changed come first.
mapfile -t engines < <(printf '%s\n' "${engines[@]}" | sed '/^$/d' | sort | uniq -c | sort -rn | awk '{ print $2 }')
if [[ " ${engines[*]} " == *" kit "* ]]; then
    mapfile -t engines < <(printf '%s\n' "${engines[@]}" ${kit//,/ } | awk '$0 != "kit" && !seen[$0]++')
fi
if [ ${#engines[@]} -gt $most ]; then echo "changed.sh: left out: ${engines[*]:$most}" >&2; fi
(IFS=,; echo "${engines[*]:0:$most}")
