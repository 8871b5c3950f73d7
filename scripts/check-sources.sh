#!/usr/bin/env bash
# What the compiler and clippy do not look for: unfinished code, tests that never run, characters
# beyond ASCII, lint lists that have drifted apart. Prints each place; exit 1 if there is any.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0

# refuse WHAT GREP-ARGS...: the pattern must not occur in any tracked Rust file.
refuse() {
    local what=$1 hits
    shift
    if hits=$(git ls-files -z '*.rs' | LC_ALL=C xargs -0 -r grep -Hn "$@"); then
        printf '%s:\n%s\n' "$what" "$hits" >&2
        bad=1
    fi
}

refuse "unfinished code" -E '\b(todo|unimplemented)!'
# Miri alone may leave tests out: it cannot run what maps files.
refuse "a test that never runs" -P '#!?\[(cfg_attr\((?!miri,).*)?\bignore\b'
refuse "characters beyond ASCII" -P '[^\x00-\x7F]'

# All after the comment that says what the file is for.
lint_lists() { sed '1,/^$/d' "crates/$1/clippy.toml"; }
for crate in index pool; do
    if ! diff <(lint_lists fabric) <(lint_lists "$crate") >&2; then
        echo "crates/$crate/clippy.toml and crates/fabric/clippy.toml differ" >&2
        bad=1
    fi
done

exit "$bad"
