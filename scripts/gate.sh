#!/usr/bin/env bash
# Shows that an engine is one folder and its two lines: the commit that brought an example engine with owners touched
# nothing else, and the folder has at most 450 lines of code.
#
#   scripts/gate.sh              checks the commit that added crates/engines/src/example_owned/
#   scripts/gate.sh COMMIT NAME  checks another, that added the folder NAME
set -euo pipefail
cd "$(dirname "$0")/.."

name=${2:-example_owned}
folder=crates/engines/src/$name
list=crates/engines/src/lib.rs
commit=${1:-$(git log --diff-filter=A --format=%H -- "$folder/mod.rs" | tail -1)}
if [ "$(git rev-parse --is-shallow-repository)" = true ]; then
    echo "scripts/gate.sh: this clone has no history to look at"
    exit 0
fi
[ -n "$commit" ] || { echo "scripts/gate.sh: no commit added $folder" >&2; exit 2; }

bad=0
others=$(git diff --name-only "$commit^" "$commit" | grep -vE "^($folder/.*|$list)\$" || true)
if [ -n "$others" ]; then
    printf 'files outside of the folder:\n%s\n' "$others" >&2
    bad=1
fi
read -r added removed _ < <(git diff --numstat "$commit^" "$commit" -- "$list")
if [ "$added $removed" != "2 0" ]; then
    echo "$list: $added lines added and $removed removed, where the module and the row are two" >&2
    bad=1
fi
lines=$(git ls-files -z "$folder/*.rs" | xargs -0 cat | grep -cvE '^\s*(//|$)')
if [ "$lines" -gt 450 ]; then
    echo "$folder: $lines lines of code, 450 at most" >&2
    bad=1
fi
[ "$bad" = 0 ] && echo "$name: its folder of $lines lines of code, and two lines"
exit "$bad"
