#!/usr/bin/env bash
# What the compiler and clippy do not look for: unfinished code, tests that never run, characters
# beyond ASCII, lint lists that have drifted apart, references to rules and pages that do not exist.
# Prints each place; exit 1 if there is any.
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

# Rules. A source or a page may cite `INV-LATCH-1` only if a module page, a doc comment or a page of docs/
# defines it: the rule's name is the first word of that line, bullet or table row.
rules='(INV(-[A-Z0-9]+)+|R-[A-Z]{2,}|(CHECK|SIM|TCP|VERBS)-[0-9]+)\b(?!(-[A-Z0-9]+)*-\*)'
defined=$(git ls-files -z '*.rs' 'docs/*.md' |
    LC_ALL=C xargs -0 -r grep -hoP '^\s*(//[/!]?)?\s*([-*|]\s+)?[`*]*\K'"$rules" | sort -u)
undefined=$(git ls-files -z '*.rs' '*.md' ':!CHANGELOG.md' |
    LC_ALL=C xargs -0 -r grep -HnoP '\b'"$rules" |
    awk -F: 'NR == FNR { known[$0]; next } !($3 in known)' <(printf '%s\n' "$defined") -)
if [ -n "$undefined" ]; then
    printf 'a rule that is defined nowhere (a module page or a page of docs/ must begin a line with it):\n%s\n' \
        "$undefined" >&2
    bad=1
fi

# Pages that comments cite. crates/check/tests/check/docs.rs checks what pages cite.
while IFS=: read -r file line page; do
    if [ ! -f "$page" ]; then
        printf 'a page that does not exist:\n%s:%s:%s\n' "$file" "$line" "$page" >&2
        bad=1
    fi
done < <(git ls-files -z '*.rs' | LC_ALL=C xargs -0 -r grep -HnoP '//.*\K\bdocs/[a-z0-9_/-]+\.md')

exit "$bad"
